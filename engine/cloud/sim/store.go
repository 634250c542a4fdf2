package sim

import (
	"context"
	"errors"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
)

// Errors of [Store] and [Classes], to be found by errors.Is.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
)

// Store keeps the records of machines. It must be safe for concurrent use. What it returns
// is shared and must not be changed.
type Store interface {
	// Create adds a machine, or returns ErrExists if there is one of its name.
	Create(ctx context.Context, in *v1alpha1.SimInstance) error
	// Get returns the machine of a name, or ErrNotFound. It never misses one that Create
	// found to exist.
	Get(ctx context.Context, name string) (*v1alpha1.SimInstance, error)
	// List returns all machines, in any order; those that this process created are
	// among them.
	List(ctx context.Context) ([]*v1alpha1.SimInstance, error)
	// Update changes the status of a machine, or returns ErrNotFound. change gets a copy
	// of the latest record, perhaps several times, and returns false if it is fine as it
	// is. Update returns the record that is then in force.
	Update(ctx context.Context, name string, change func(*v1alpha1.SimInstance) bool) (*v1alpha1.SimInstance, error)
	// Delete forgets a machine; one that does not exist is no error.
	Delete(ctx context.Context, name string) error
}

// Classes finds SimNodeClasses, and the files that they refer to.
type Classes interface {
	// NodeClass returns the class of a name, or ErrNotFound. It is shared and must not be
	// changed. Equal resource versions mean equal classes.
	NodeClass(ctx context.Context, name string) (*v1alpha1.SimNodeClass, error)
	// File returns the content of a catalogue file, not uncompressed, with the key that it
	// was found under. Equal versions mean equal contents.
	File(ctx context.Context, ref v1alpha1.ConfigMapReference) (File, error)
}

// File is a catalogue file in a ConfigMap.
type File struct {
	Key, Version string
	Data         []byte
}
