package nodeclaim

import (
	"errors"
	"fmt"
	"testing"
	"time"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
)

// TestLifecycle_clock sets the wall clock while claims are on their way.
func TestLifecycle_clock(t *testing.T) {
	type world struct {
		*stage.Stage
		c *Controllers
	}
	look := func(t *testing.T, w *world) { reconcileClaim(t, w.c, "a", 1) }
	pass := func(d time.Duration) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.Pass(d)
			look(t, w)
		}
	}
	jump := func(d time.Duration) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.Jump(d)
			look(t, w)
		}
	}
	start := func(w *world) { w.c = controllers(w.Stage, func(o *Options) { o.Elapsed = w.Elapsed }) }
	restart := func(t *testing.T, w *world) {
		start(w)
		look(t, w)
	}
	boot := func(t *testing.T, w *world) {
		w.Boot()
		look(t, w)
	}
	twin := func(t *testing.T, w *world) {
		w.Boot()
		n := stage.Node("twin")
		n.Spec.ProviderID = w.Claim("a").Status.ProviderID
		w.Create(n)
		look(t, w)
	}
	tests := map[string]struct {
		launches bool
		do       []func(*testing.T, *world)
		// want is "waits", "registered", or the event of a claim that was given up.
		want string
	}{
		"forward, and the launch still has five minutes": {
			do: []func(*testing.T, *world){pass(10 * time.Second), jump(time.Hour), pass(4*time.Minute + 49*time.Second)}, want: "waits",
		},
		"forward, and the launch has no more than five minutes": {
			do: []func(*testing.T, *world){pass(10 * time.Second), jump(time.Hour), pass(4*time.Minute + 50*time.Second)}, want: "LaunchTimeout",
		},
		"forward, and the registration still has fifteen minutes": {
			launches: true, do: []func(*testing.T, *world){pass(10 * time.Second), jump(time.Hour), pass(14*time.Minute + 49*time.Second)}, want: "waits",
		},
		"forward, and the registration has no more than fifteen minutes": {
			launches: true, do: []func(*testing.T, *world){pass(10 * time.Second), jump(time.Hour), pass(14*time.Minute + 50*time.Second)}, want: "RegistrationTimeout",
		},
		"forward, and the node comes": {
			launches: true, do: []func(*testing.T, *world){jump(time.Hour), pass(time.Minute), boot}, want: "registered",
		},
		"forward and back": {
			launches: true, do: []func(*testing.T, *world){jump(time.Hour), jump(-time.Hour), pass(14*time.Minute + 59*time.Second)}, want: "waits",
		},
		"back, and the launch has no more than five minutes": {
			do: []func(*testing.T, *world){jump(-time.Hour), pass(5 * time.Minute)}, want: "LaunchTimeout",
		},
		"back, and the registration has no more than fifteen minutes": {
			launches: true, do: []func(*testing.T, *world){jump(-time.Hour), pass(15 * time.Minute)}, want: "RegistrationTimeout",
		},
		"forward before a condition changes": {
			launches: true, do: []func(*testing.T, *world){jump(time.Hour), pass(10 * time.Minute), twin, pass(14*time.Minute + 59*time.Second)}, want: "waits",
		},
		"back after a condition changed": {
			launches: true, do: []func(*testing.T, *world){pass(10 * time.Minute), twin, jump(-time.Hour), pass(15 * time.Minute)}, want: "RegistrationTimeout",
		},
		"not at all, and what passed before a restart counts": {
			launches: true, do: []func(*testing.T, *world){pass(10 * time.Minute), restart, pass(5 * time.Minute)}, want: "RegistrationTimeout",
		},
		"not at all, and an old claim is given up a minute after a restart": {
			launches: true, do: []func(*testing.T, *world){func(_ *testing.T, w *world) { w.Pass(time.Hour) }, restart, pass(time.Minute)}, want: "RegistrationTimeout",
		},
		"not at all, and a claim that became old while nobody looked registers if its node is there": {
			launches: true, do: []func(*testing.T, *world){func(_ *testing.T, w *world) { w.Pass(time.Hour); w.Boot() }, restart}, want: "registered",
		},
		"forward during a restart, and the node comes": {
			launches: true, do: []func(*testing.T, *world){func(_ *testing.T, w *world) { w.Jump(time.Hour) }, restart, pass(59 * time.Second), boot}, want: "registered",
		},
		"back during a restart, and the registration has fifteen minutes from there": {
			launches: true, do: []func(*testing.T, *world){func(_ *testing.T, w *world) { w.Jump(-time.Hour) }, restart, pass(15 * time.Minute)}, want: "RegistrationTimeout",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := &world{Stage: stage.New(t, stage.Claim("a"))}
			w.Cloud.OnLaunch = func(*karpv1.NodeClaim) error {
				if tt.launches {
					return nil
				}
				return errors.New("not today")
			}
			start(w)
			look(t, w)
			for i, do := range tt.do {
				if !w.Claim("a").DeletionTimestamp.IsZero() {
					t.Fatalf("given up before step %d: %v", i, w.Told())
				}
				do(t, w)
			}
			got, c := "waits", w.Claim("a")
			switch {
			case !c.DeletionTimestamp.IsZero() && w.WasTold("NodeClaim a Warning "+tt.want):
				got = tt.want
			case !c.DeletionTimestamp.IsZero():
				got = fmt.Sprint("given up: ", w.Told())
			case c.Conditions().IsTrue(karpv1.ConditionRegistered):
				got = "registered"
			}
			if got != tt.want {
				t.Errorf("the claim is %q, want %q", got, tt.want)
			}
			if got == "registered" && len(w.c.lifecycle.ages.byName) != 0 {
				t.Errorf("remembers %v", w.c.lifecycle.ages.byName)
			}
		})
	}
}

// TestLifecycle_clockBeforeFirstLook has claims whose creation is an hour ago although they
// are new: the wall clock was set, or that of the API server is behind.
func TestLifecycle_clockBeforeFirstLook(t *testing.T) {
	s := stage.New(t, stage.Claim("a"), stage.Claim("b"))
	s.Cloud.OnLaunch = func(*karpv1.NodeClaim) error { return errors.New("not today") }
	c := controllers(s, func(o *Options) { o.Elapsed = s.Elapsed })
	s.Jump(time.Hour)
	if next := reconcileClaim(t, c, "a", 1); next > time.Second {
		t.Errorf("the launch is tried again after %s", next)
	}
	s.Pass(5*time.Minute - time.Second)
	reconcileClaim(t, c, "a", 1)
	reconcileClaim(t, c, "b", 1)
	if !s.Claim("a").DeletionTimestamp.IsZero() {
		t.Fatal("given up before its time")
	}
	s.Pass(time.Second)
	reconcileClaim(t, c, "a", 1)
	reconcileClaim(t, c, "b", 1)
	if s.Claim("a").DeletionTimestamp.IsZero() || !s.Claim("b").DeletionTimestamp.IsZero() {
		t.Errorf("after five minutes of the first claim: %v", s.Told())
	}
	// What is gone is forgotten.
	s.Delete(s.Claim("b"))
	reconcileClaim(t, c, "a", 1)
	reconcileClaim(t, c, "b", 1)
	if len(c.lifecycle.ages.byName) != 0 {
		t.Errorf("remembers %v", c.lifecycle.ages.byName)
	}
}

// TestLifecycle_clockOfNamesake gives a claim the name of one that nobody saw going.
func TestLifecycle_clockOfNamesake(t *testing.T) {
	s := stage.New(t, stage.Claim("a"))
	c := controllers(s, func(o *Options) { o.Elapsed = s.Elapsed })
	reconcileClaim(t, c, "a", 1)
	s.Pass(14 * time.Minute)
	old := s.Claim("a")
	old.Finalizers = nil
	if err := s.Truth.Update(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	s.Delete(old)
	s.Create(stage.Claim("a", func(c *karpv1.NodeClaim) { c.CreationTimestamp = old.CreationTimestamp })) // by a clock that was set back
	reconcileClaim(t, c, "a", 1)
	s.Pass(2 * time.Minute)
	reconcileClaim(t, c, "a", 1)
	if !s.Claim("a").DeletionTimestamp.IsZero() {
		t.Errorf("given up for the age of its predecessor: %v", s.Told())
	}
}

func TestCollect_clock(t *testing.T) {
	s := stage.New(t)
	c := controllers(s, func(o *Options) { o.Elapsed = s.Elapsed })
	s.Cloud.Add(cloud.Machine{ProviderID: "stage:///new", ClaimName: "new", ClaimUID: "new", Created: s.Now()})
	collect := func() int {
		t.Helper()
		if _, err := c.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(s.Cloud.Running())
	}
	collect()
	s.Jump(time.Hour)
	if collect() != 1 {
		t.Error("a machine was ended that had been without claim for no time")
	}
	s.Pass(time.Minute)
	if collect() != 0 {
		t.Error("a machine without claim is left after a minute")
	}
}
