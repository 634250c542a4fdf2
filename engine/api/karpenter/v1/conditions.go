package v1

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons that conditions have without anybody giving one.
const (
	// ReasonAwaitingReconciliation is that of conditions which nothing has set yet.
	ReasonAwaitingReconciliation = "AwaitingReconciliation"
	// ReasonReconcilingDependents is that of a root some of whose dependents are Unknown.
	ReasonReconcilingDependents = "ReconcilingDependents"
	// ReasonUnhealthyDependents is that of a root some of whose dependents are False.
	ReasonUnhealthyDependents = "UnhealthyDependents"
)

// Conditions are those of one object, for reading; [Conditions.At] is for writing. They
// have a root, which sums up the dependents: it is True if all of them are and have seen
// the object's generation, False if one of them is False at that generation, and Unknown
// otherwise.
//
// +kubebuilder:object:generate=false
type Conditions struct {
	object     metav1.Object
	list       *[]metav1.Condition
	root       string
	dependents []string
}

// NewConditions are the conditions in list, which is part of object. Dependents may be
// none.
func NewConditions(object metav1.Object, list *[]metav1.Condition, root string, dependents ...string) Conditions {
	return Conditions{object: object, list: list, root: root, dependents: dependents}
}

// Conditions are the conditions of the NodeClaim. Ready sums up Launched, Registered and
// Initialized.
func (c *NodeClaim) Conditions() Conditions {
	return NewConditions(c, &c.Status.Conditions, ConditionReady, ConditionLaunched, ConditionRegistered, ConditionInitialized)
}

// Conditions are the conditions of the NodePool. Ready sums up ValidationSucceeded and
// NodeClassReady.
func (p *NodePool) Conditions() Conditions {
	return NewConditions(p, &p.Status.Conditions, ConditionReady, ConditionValidationSucceeded, ConditionNodeClassReady)
}

// Get returns a copy of a condition, or nil if there is none.
func (c Conditions) Get(kind string) *metav1.Condition {
	if i := c.find(kind); i >= 0 {
		found := (*c.list)[i]
		return &found
	}
	return nil
}

// IsTrue reports whether all of the conditions are True.
func (c Conditions) IsTrue(kinds ...string) bool { return c.all(metav1.ConditionTrue, kinds) }

// IsFalse reports whether all of the conditions are False.
func (c Conditions) IsFalse(kinds ...string) bool { return c.all(metav1.ConditionFalse, kinds) }

// Since is when a condition got its present status; the zero time if there is no such
// condition.
func (c Conditions) Since(kind string) time.Time {
	if i := c.find(kind); i >= 0 {
		return (*c.list)[i].LastTransitionTime.Time
	}
	return time.Time{}
}

func (c Conditions) all(status metav1.ConditionStatus, kinds []string) bool {
	for _, k := range kinds {
		if i := c.find(k); i < 0 || (*c.list)[i].Status != status {
			return false
		}
	}
	return true
}

func (c Conditions) find(kind string) int {
	return slices.IndexFunc(*c.list, func(o metav1.Condition) bool { return o.Type == kind })
}

// At returns the conditions for writing at the time now.
func (c Conditions) At(now time.Time) ConditionWriter {
	return ConditionWriter{c, metav1.NewTime(now).Rfc3339Copy()}
}

// ConditionWriter changes the conditions of an object. Every change refreshes the root,
// and adds what is missing of root and dependents as Unknown since the object's creation.
// The time of a condition changes with its status only.
//
// +kubebuilder:object:generate=false
type ConditionWriter struct {
	Conditions
	now metav1.Time
}

// Init adds what is missing of root and dependents. It reports whether anything changed.
func (w ConditionWriter) Init() bool {
	changed := false
	for _, kind := range append([]string{w.root}, w.dependents...) {
		if w.find(kind) < 0 {
			changed = true
			*w.list = append(*w.list, metav1.Condition{
				Type: kind, Status: metav1.ConditionUnknown, Reason: ReasonAwaitingReconciliation,
				Message: "object is awaiting reconciliation", LastTransitionTime: w.created(), ObservedGeneration: w.object.GetGeneration(),
			})
		}
	}
	return changed
}

// created is the object's creation, or now for an object that has not been created.
func (w ConditionWriter) created() metav1.Time {
	if t := w.object.GetCreationTimestamp(); !t.IsZero() {
		return t.Rfc3339Copy()
	}
	return w.now
}

// SetTrue makes a condition True; its reason is the type. It reports whether anything
// changed, and so do the other methods.
func (w ConditionWriter) SetTrue(kind string) bool {
	return w.set(kind, metav1.ConditionTrue, kind, "")
}

// SetTrueBecause makes a condition True with a reason and a message.
func (w ConditionWriter) SetTrueBecause(kind, reason, message string) bool {
	return w.set(kind, metav1.ConditionTrue, reason, message)
}

// SetFalse makes a condition False.
func (w ConditionWriter) SetFalse(kind, reason, message string) bool {
	return w.set(kind, metav1.ConditionFalse, reason, message)
}

// SetUnknown makes a condition Unknown.
func (w ConditionWriter) SetUnknown(kind, reason, message string) bool {
	return w.set(kind, metav1.ConditionUnknown, reason, message)
}

// Clear removes a condition. Root and dependents become Unknown instead.
func (w ConditionWriter) Clear(kind string) bool {
	if kind == w.root || slices.Contains(w.dependents, kind) {
		return w.SetUnknown(kind, ReasonAwaitingReconciliation, "object is awaiting reconciliation")
	}
	i := w.find(kind)
	if i < 0 {
		return false
	}
	*w.list = slices.Delete(*w.list, i, i+1)
	return true
}

func (w ConditionWriter) set(kind string, status metav1.ConditionStatus, reason, message string) bool {
	changed := w.Init()
	changed = w.put(kind, status, reason, message) || changed
	if kind != w.root {
		changed = w.refresh() || changed
	}
	return changed
}

// maxMessage is how long the API server lets a condition's message be.
const maxMessage = 32768

func (w ConditionWriter) put(kind string, status metav1.ConditionStatus, reason, message string) bool {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	want := metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		LastTransitionTime: w.now, ObservedGeneration: w.object.GetGeneration(),
	}
	i := w.find(kind)
	if i < 0 {
		*w.list = append(*w.list, want)
		return true
	}
	have := &(*w.list)[i]
	if have.Status == status {
		want.LastTransitionTime = have.LastTransitionTime
	}
	if *have == want {
		return false
	}
	*have = want
	return true
}

// refresh computes the root anew.
func (w ConditionWriter) refresh() bool {
	status, reason := metav1.ConditionTrue, w.root
	var at []string
	for _, kind := range w.dependents {
		d := &(*w.list)[w.find(kind)]
		seen := d.ObservedGeneration == w.object.GetGeneration()
		switch {
		case seen && d.Status == metav1.ConditionTrue:
			continue
		case seen && d.Status == metav1.ConditionFalse:
			status, reason = metav1.ConditionFalse, ReasonUnhealthyDependents
			at = append(at, kind+"="+string(d.Status))
		default:
			if status == metav1.ConditionTrue {
				status, reason = metav1.ConditionUnknown, ReasonReconcilingDependents
			}
			at = append(at, kind+"="+string(metav1.ConditionUnknown))
		}
	}
	return w.put(w.root, status, reason, strings.Join(at, ", "))
}
