package cloud

import (
	"errors"
	"fmt"
	"strings"
)

// InsufficientCapacityError says that nothing the claim allows can be bought now. The
// claim is given up and its pods are planned anew.
type InsufficientCapacityError struct {
	// Offerings are those that were tried, as "type/zone/capacity type".
	Offerings []string
	// Err is the provider's own error; may be nil.
	Err error
}

func (e *InsufficientCapacityError) Error() string {
	s := "insufficient capacity"
	if n := len(e.Offerings); n > 0 {
		shown := e.Offerings[:min(n, 5)]
		s += " for " + strings.Join(shown, ", ")
		if n > len(shown) {
			s += fmt.Sprintf(" and %d more", n-len(shown))
		}
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *InsufficientCapacityError) Unwrap() error { return e.Err }

// NodeClassNotReadyError says that the NodeClass is missing, being deleted or unusable.
type NodeClassNotReadyError struct {
	// NodeClass is "kind/name".
	NodeClass string
	Err       error
}

func (e *NodeClassNotReadyError) Error() string {
	return fmt.Sprintf("NodeClass %s is not ready: %v", e.NodeClass, e.Err)
}

func (e *NodeClassNotReadyError) Unwrap() error { return e.Err }

// CreateError is a failed launch with a reason for the claim's Launched condition. It is
// retried.
type CreateError struct {
	// Reason is a CamelCase word, Message a sentence.
	Reason, Message string
	Err             error
}

func (e *CreateError) Error() string { return e.Reason + ": " + e.Message }

func (e *CreateError) Unwrap() error { return e.Err }

// NotFoundError says that a machine does not exist, or no longer does.
type NotFoundError struct {
	// Machine is a provider ID, or a claim's name.
	Machine string
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("machine %s not found", e.Machine) }

// IsNotFound reports whether err says that a machine does not exist.
func IsNotFound(err error) bool { return is[*NotFoundError](err) }

// IsInsufficientCapacity reports whether err says that nothing can be bought now.
func IsInsufficientCapacity(err error) bool { return is[*InsufficientCapacityError](err) }

// IsNodeClassNotReady reports whether err is about the NodeClass.
func IsNodeClassNotReady(err error) bool { return is[*NodeClassNotReadyError](err) }

// Class is the label value of err in metrics; empty for nil and for errors without class.
func Class(err error) string {
	switch {
	case IsInsufficientCapacity(err):
		return "InsufficientCapacityError"
	case IsNodeClassNotReady(err):
		return "NodeClassNotReadyError"
	case IsNotFound(err):
		return "NodeClaimNotFoundError"
	case is[*CreateError](err):
		return "CreateError"
	}
	return ""
}

func is[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}
