package sim_test

import (
	"context"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/cloud/conformance"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
)

// clock is a clock that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestConformance(t *testing.T) {
	specs := map[string]v1alpha1.SimNodeClassSpec{
		"EC2":  {TerminateLatency: v1alpha1.SimLatency{Base: metav1.Duration{Duration: 40 * time.Second}}},
		"KWOK": {Catalog: v1alpha1.SimCatalog{Builtin: v1alpha1.BuiltinKWOK}},
	}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, conformance.Options{Claims: 150, New: func(t *testing.T) conformance.Cloud {
				clock, memory := newClock(), &sim.Memory{}
				class := &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default", CreationTimestamp: metav1.NewTime(clock.Now())}, Spec: spec}
				memory.SetNodeClass(class)
				open := func(*testing.T) cloud.Provider { return sim.New(memory, memory, sim.Options{Now: clock.Now}) }
				world := sim.New(memory, memory, sim.Options{Now: clock.Now})
				return conformance.Cloud{
					Open:      open,
					NodeClass: karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: sim.Kind, Name: "default"},
					Exhaust: func(_ *testing.T, offerings ...cloud.Offering) {
						for _, o := range offerings {
							class.Spec.Capacity = append(class.Spec.Capacity, v1alpha1.SimCapacity{SimSelector: v1alpha1.SimSelector{
								InstanceTypes: []string{o.InstanceType}, Zones: []string{o.Zone}, CapacityTypes: []string{o.CapacityType},
							}})
						}
						memory.SetNodeClass(class)
					},
					Advance: func(t *testing.T, d time.Duration) {
						clock.Add(d)
						if _, _, err := world.Step(context.WithoutCancel(t.Context())); err != nil {
							t.Fatal(err)
						}
					},
				}
			}})
		})
	}
}
