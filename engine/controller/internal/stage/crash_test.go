package stage_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
	"github.com/dovetail-sh/dovetail/engine/controller/nodeclaim"
	"github.com/dovetail-sh/dovetail/engine/controller/terminate"
)

// crash is what a process dies of.
type crash struct{}

// play is a story of four claims: one stays, one is deleted when its node runs, one while
// its machine starts, and one has its Node deleted. Controllers that die are started anew.
type play struct {
	*stage.Stage
	machines *nodeclaim.Controllers
	ends     *terminate.Controllers
	// steps are pieces of work done, and deaths how many of them ended early.
	steps, deaths int
}

func newPlay(t *testing.T, finalizers ...string) *play {
	startup := corev1.Taint{Key: "agent", Effect: corev1.TaintEffectNoExecute}
	p := &play{Stage: stage.New(t)}
	for _, name := range []string{"early", "late", "node", "stays"} {
		p.Create(stage.Claim(name, func(c *karpv1.NodeClaim) {
			c.Finalizers, c.Spec.StartupTaints = finalizers, []corev1.Taint{startup}
		}))
	}
	p.Cloud.Lingers = 3 * time.Second
	p.start()
	return p
}

func (p *play) start() {
	p.machines = nodeclaim.New(nodeclaim.Options{Client: p.Client, Reader: p.Truth, Provider: p.Cloud, Events: p.Events, Now: p.Now})
	p.ends = terminate.New(terminate.Options{Client: p.Client, Provider: p.Cloud, Events: p.Events, Now: p.Now})
}

// survive runs one piece of work, and starts the controllers anew if it dies.
func (p *play) survive(work func()) {
	defer func() {
		if r := recover(); r != nil {
			if r != (crash{}) {
				panic(r)
			}
			p.deaths++
			p.start()
		}
	}()
	if p.Lag {
		if p.steps++; p.steps%37 == 1 {
			p.Refresh()
		}
	}
	work()
}

func (p *play) reconcile(name string, r func() reconcile.Reconciler) {
	p.survive(func() {
		// Errors are tried again: everything is, each second.
		_, _ = r().Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	})
}

func (p *play) run(rounds int) {
	for round := range rounds {
		for _, name := range []string{"early", "late", "node", "stays"} {
			p.reconcile(name, func() reconcile.Reconciler { return p.machines.Lifecycle() })
			p.reconcile(name, func() reconcile.Reconciler { return p.ends.Claims() })
			p.reconcile(name, func() reconcile.Reconciler { return p.ends.Nodes() })
		}
		p.survive(func() { p.ends.Evict(context.Background()) })
		switch round {
		case 1:
			if c := p.Claim("early"); c != nil {
				p.Delete(c)
			}
		case 5:
			p.Boot()
			for _, name := range []string{"late", "node", "stays"} {
				if p.Pod("on-"+name) == nil && p.NodeNamed(name) != nil {
					p.Create(stage.Pod("on-"+name, name))
				}
			}
		case 15:
			for _, name := range []string{"late", "node", "stays"} { // the agents have started
				if p.NodeNamed(name) != nil {
					p.Node(name, func(n *corev1.Node) {
						n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "agent" })
					})
				}
			}
		case 20:
			if c := p.Claim("late"); c != nil {
				p.Delete(c)
			}
			if n := p.NodeNamed("node"); n != nil {
				p.Delete(n)
			}
		}
		p.Pass(time.Second)
	}
}

// ending is all that matters of how a play ends.
func (p *play) ending() []string {
	var out []string
	for _, name := range []string{"early", "late", "node", "stays"} {
		if c := p.Claim(name); c != nil {
			var conditions []string
			for _, cond := range c.Status.Conditions {
				conditions = append(conditions, cond.Type+"="+string(cond.Status)+"/"+cond.Reason)
			}
			slices.Sort(conditions)
			out = append(out, fmt.Sprint("claim ", name, pairs(c.Labels), pairs(c.Annotations), c.Finalizers, c.Status.ProviderID != "", c.Status.NodeName, conditions))
		}
		if n := p.NodeNamed(name); n != nil {
			out = append(out, fmt.Sprint("node ", name, pairs(n.Labels), pairs(n.Annotations), n.Finalizers, n.Spec.Taints, len(n.OwnerReferences)))
		}
		if p.Pod("on-"+name) != nil {
			out = append(out, "pod on-"+name)
		}
	}
	for _, m := range p.Cloud.Running() {
		out = append(out, "machine of "+m.ClaimName)
	}
	return append(out, fmt.Sprint(p.Cloud.Launches, " machines launched"))
}

func pairs(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return "{" + strings.Join(out, " ") + "}"
}

const rounds = 45

// calm is the play without trouble, with its number of writes.
func calm(t *testing.T) (ending []string, asked, done int) {
	p := newPlay(t)
	p.Before = func(stage.Write) error { asked++; return nil }
	p.After = func(stage.Write) error { done++; return nil }
	p.run(rounds)
	ending = p.ending()
	want := []string{"machine of stays", "4 machines launched"}
	if got := ending[len(ending)-2:]; !slices.Equal(got, want) || len(ending) != 5 {
		t.Fatalf("the play without trouble ends with %q", ending)
	}
	return ending, asked, done
}

// TestCrash kills the controllers at every write, before and after it is done.
func TestCrash(t *testing.T) {
	want, asked, made := calm(t)
	if made < 30 {
		t.Fatalf("only %d writes to die at", made)
	}
	for k := range asked {
		for _, done := range []bool{false, true} {
			if done && k >= made {
				continue
			}
			p := newPlay(t)
			n := 0
			at := func(stage.Write) error {
				if n++; n == k+1 {
					panic(crash{})
				}
				return nil
			}
			if done {
				p.After = at
			} else {
				p.Before = at
			}
			p.run(rounds)
			if p.deaths != 1 {
				t.Fatalf("write %d, done %t: died %d times", k, done, p.deaths)
			}
			if diff := cmp.Diff(want, p.ending()); diff != "" {
				t.Errorf("killed at write %d, done %t (-want +got):\n%s", k, done, diff)
			}
		}
	}
}

// TestLag lets the controllers see their own writes late.
func TestLag(t *testing.T) {
	want, _, _ := calm(t)
	// Claims that have their finalizer are launched at once, and again unless it is noticed
	// that they are out of date.
	p := newPlay(t, karpv1.TerminationFinalizer)
	p.Lag = true
	p.run(3 * rounds)
	if diff := cmp.Diff(want, p.ending()); diff != "" {
		t.Errorf("with a slow cache (-want +got):\n%s", diff)
	}
	if p.Cloud.Asked != 4 {
		t.Errorf("%d calls for 4 machines", p.Cloud.Asked)
	}
}

// TestStorm answers most writes with errors for a while, some after having done them, and
// kills the controllers now and then.
func TestStorm(t *testing.T) {
	want, _, _ := calm(t)
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := newPlay(t)
		fault := func(w stage.Write) error {
			switch r.IntN(8) {
			case 0:
				return apierrors.NewConflict(schema.GroupResource{}, w.Object.GetName(), errors.New("changed"))
			case 1:
				return apierrors.NewTooManyRequests("slow down", 1)
			case 2:
				return apierrors.NewInternalError(errors.New("etcd"))
			case 3:
				return errors.New("connection reset")
			case 4:
				panic(crash{})
			}
			return nil
		}
		p.Before = fault
		p.After = func(w stage.Write) error {
			if r.IntN(3) == 0 {
				return fault(w)
			}
			return nil
		}
		p.run(50)
		p.Before, p.After = nil, nil
		p.settle(t)
		if diff := cmp.Diff(want[:len(want)-1], p.ending()[:len(want)-1]); diff != "" {
			t.Errorf("seed %d, %d deaths (-want +got):\n%s", seed, p.deaths, diff)
		}
		if p.Cloud.Launches != 4 && p.Cloud.Launches != 3 { // the early one may go before its launch
			t.Errorf("seed %d: %d machines launched", seed, p.Cloud.Launches)
		}
	}
}

// settle does what the world had no chance to do during a storm, and lets the controllers
// end their work.
func (p *play) settle(t *testing.T) {
	t.Helper()
	for range 3 {
		p.run(rounds)
		if _, err := p.machines.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
