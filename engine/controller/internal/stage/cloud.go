package stage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// NodeClass is the kind of NodeClass of the cloud.
var NodeClass = schema.GroupVersionKind{Group: "stage.dovetail.sh", Version: "v1", Kind: "StageClass"}

// Cloud is a provider that does as it is told.
type Cloud struct {
	// OnLaunch, OnTerminate, OnGet and OnList answer with an error instead of acting.
	OnLaunch, OnTerminate func(c *karpv1.NodeClaim) error
	OnGet                 func(providerID string) error
	OnList                func() error
	// Lingers is how long a machine takes to end.
	Lingers time.Duration
	// Pending are registration hooks that are not done yet.
	Pending []string
	// Policies are those of node repair.
	Policies []cloud.RepairPolicy
	// Launches counts machines that were made, Asked the calls of Launch.
	Launches, Asked int

	now      func() time.Time
	mu       sync.Mutex
	machines map[string]*machine // by provider ID
}

type machine struct {
	cloud.Machine
	ends time.Time
}

func newCloud(now func() time.Time) *Cloud {
	return &Cloud{now: now, machines: map[string]*machine{}}
}

var (
	_ cloud.Provider  = (*Cloud)(nil)
	_ cloud.Registrar = (*Cloud)(nil)
	_ cloud.Repairer  = (*Cloud)(nil)
)

// Name implements [cloud.Provider].
func (c *Cloud) Name() string { return "stage" }

// NodeClasses implements [cloud.Provider].
func (c *Cloud) NodeClasses() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{NodeClass}
}

// Capacity is what every machine has.
func Capacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
}

// Add makes a machine, as if it had been launched.
func (c *Cloud) Add(m cloud.Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machines[m.ProviderID] = &machine{Machine: m}
}

// Lose ends a machine at once.
func (c *Cloud) Lose(providerID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.machines, providerID)
}

// Running are the machines that are not ending, by provider ID.
func (c *Cloud) Running() []cloud.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age()
	var out []cloud.Machine
	for _, m := range c.machines {
		if !m.Ending {
			out = append(out, m.Machine)
		}
	}
	slices.SortFunc(out, func(a, b cloud.Machine) int { return strings.Compare(a.ProviderID, b.ProviderID) })
	return out
}

// age drops the machines that have ended.
func (c *Cloud) age() {
	for id, m := range c.machines {
		if m.Ending && !c.now().Before(m.ends) {
			delete(c.machines, id)
		}
	}
}

// Launch implements [cloud.Provider].
func (c *Cloud) Launch(_ context.Context, claim *karpv1.NodeClaim) (*cloud.Machine, error) {
	c.mu.Lock()
	c.Asked++
	fail := c.OnLaunch
	c.mu.Unlock()
	if fail != nil {
		if err := fail(claim); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id := "stage:///" + string(claim.UID)
	if m, ok := c.machines[id]; ok {
		out := m.Machine
		return &out, nil
	}
	c.Launches++
	m := cloud.Machine{
		ProviderID: id, ImageID: "image-1", ClaimName: claim.Name, ClaimUID: string(claim.UID),
		Labels: map[string]string{
			corev1.LabelInstanceTypeStable: "large", corev1.LabelTopologyZone: "zone-a", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot,
		},
		Annotations: map[string]string{"stage.dovetail.sh/launched": "yes"},
		Capacity:    Capacity(), Allocatable: Capacity(), Created: c.now(),
	}
	c.machines[id] = &machine{Machine: m}
	return &m, nil
}

// Terminate implements [cloud.Provider].
func (c *Cloud) Terminate(_ context.Context, claim *karpv1.NodeClaim) error {
	if c.OnTerminate != nil {
		if err := c.OnTerminate(claim); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age()
	id := claim.Status.ProviderID
	if id == "" {
		id = "stage:///" + string(claim.UID)
	}
	m, ok := c.machines[id]
	if !ok {
		return &cloud.NotFoundError{Machine: id}
	}
	if !m.Ending {
		m.Ending, m.ends = true, c.now().Add(c.Lingers)
	}
	return nil
}

// Get implements [cloud.Provider].
func (c *Cloud) Get(_ context.Context, providerID string) (*cloud.Machine, error) {
	if c.OnGet != nil {
		if err := c.OnGet(providerID); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age()
	m, ok := c.machines[providerID]
	if !ok {
		return nil, &cloud.NotFoundError{Machine: providerID}
	}
	out := m.Machine
	return &out, nil
}

// List implements [cloud.Provider].
func (c *Cloud) List(context.Context) ([]*cloud.Machine, error) {
	if c.OnList != nil {
		if err := c.OnList(); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age()
	var out []*cloud.Machine
	for _, m := range c.machines {
		one := m.Machine
		out = append(out, &one)
	}
	return out, nil
}

// Catalog implements [cloud.Provider]: nothing can be planned on a stage.
func (c *Cloud) Catalog(_ context.Context, pool *karpv1.NodePool) (*catalog.Catalog, error) {
	return nil, &cloud.NodeClassNotReadyError{NodeClass: pool.Name, Err: fmt.Errorf("a stage sells nothing by catalogue")}
}

// Drift implements [cloud.Provider].
func (c *Cloud) Drift(context.Context, *karpv1.NodeClaim) (string, error) { return "", nil }

// Registered implements [cloud.Registrar].
func (c *Cloud) Registered(context.Context, *karpv1.NodeClaim, *corev1.Node) ([]string, time.Duration, error) {
	return c.Pending, 3 * time.Second, nil
}

// RepairPolicies implements [cloud.Repairer].
func (c *Cloud) RepairPolicies() []cloud.RepairPolicy { return c.Policies }
