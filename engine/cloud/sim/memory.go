package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
)

// Memory is a [Store] and [Classes] that lasts as long as the process, for simulations
// and tests. The zero value is empty and ready to use.
type Memory struct {
	mu        sync.Mutex
	version   int
	instances map[string]*v1alpha1.SimInstance
	classes   map[string]*v1alpha1.SimNodeClass
	files     map[v1alpha1.ConfigMapReference]File
}

var (
	_ Store   = (*Memory)(nil)
	_ Classes = (*Memory)(nil)
)

// SetNodeClass adds a copy of class, or replaces the one of that name.
func (m *Memory) SetNodeClass(class *v1alpha1.SimNodeClass) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.classes == nil {
		m.classes = map[string]*v1alpha1.SimNodeClass{}
	}
	class = class.DeepCopy()
	class.ResourceVersion = m.next()
	m.classes[class.Name] = class
}

// DeleteNodeClass removes the class of a name.
func (m *Memory) DeleteNodeClass(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.classes, name)
}

// SetFile adds a catalogue file, or replaces it.
func (m *Memory) SetFile(ref v1alpha1.ConfigMapReference, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files == nil {
		m.files = map[v1alpha1.ConfigMapReference]File{}
	}
	m.files[ref] = File{Key: ref.Key, Version: m.next(), Data: slices.Clone(data)}
}

func (m *Memory) next() string {
	m.version++
	return strconv.Itoa(m.version)
}

// NodeClass implements [Classes].
func (m *Memory) NodeClass(_ context.Context, name string) (*v1alpha1.SimNodeClass, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	class, ok := m.classes[name]
	if !ok {
		return nil, ErrNotFound
	}
	return class, nil
}

// File implements [Classes].
func (m *Memory) File(_ context.Context, ref v1alpha1.ConfigMapReference) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[ref]
	if !ok {
		return File{}, fmt.Errorf("ConfigMap %s/%s: %w", ref.Namespace, ref.Name, ErrNotFound)
	}
	return f, nil
}

// Create implements [Store].
func (m *Memory) Create(_ context.Context, in *v1alpha1.SimInstance) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.instances[in.Name]; ok {
		return ErrExists
	}
	if m.instances == nil {
		m.instances = map[string]*v1alpha1.SimInstance{}
	}
	m.instances[in.Name] = in.DeepCopy()
	return nil
}

// Get implements [Store].
func (m *Memory) Get(_ context.Context, name string) (*v1alpha1.SimInstance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, ok := m.instances[name]
	if !ok {
		return nil, ErrNotFound
	}
	return in, nil
}

// List implements [Store]; machines are in order of their names.
func (m *Memory) List(context.Context) ([]*v1alpha1.SimInstance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.instances), func(a, b *v1alpha1.SimInstance) int { return cmp.Compare(a.Name, b.Name) }), nil
}

// Update implements [Store].
func (m *Memory) Update(_ context.Context, name string, change func(*v1alpha1.SimInstance) bool) (*v1alpha1.SimInstance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, ok := m.instances[name]
	if !ok {
		return nil, ErrNotFound
	}
	if changed := in.DeepCopy(); change(changed) {
		in = changed
		m.instances[name] = in
	}
	return in, nil
}

// Delete implements [Store].
func (m *Memory) Delete(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.instances, name)
	return nil
}
