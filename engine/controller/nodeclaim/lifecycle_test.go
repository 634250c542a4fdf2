package nodeclaim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

func controllers(s *stage.Stage, change ...func(o *Options)) *Controllers {
	o := Options{Client: s.Client, Provider: s.Cloud, Events: s.Events, Now: s.Now}
	for _, f := range change {
		f(&o)
	}
	return New(o)
}

// reconcileClaim reconciles a claim n times.
func reconcileClaim(t *testing.T, c *Controllers, name string, n int) (after time.Duration) {
	t.Helper()
	for range n {
		r, err := c.lifecycle.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		if err != nil {
			t.Fatalf("Reconcile(%s): %v", name, err)
		}
		after = r.RequeueAfter
	}
	return after
}

// state is "type=status reason" of the conditions that matter.
func state(c *karpv1.NodeClaim, kinds ...string) string {
	var out []string
	for _, k := range kinds {
		cond := c.Conditions().Get(k)
		if cond == nil {
			out = append(out, k+"=absent")
			continue
		}
		out = append(out, k+"="+string(cond.Status)+" "+cond.Reason)
	}
	return strings.Join(out, ", ")
}

func TestLifecycle(t *testing.T) {
	taint := corev1.Taint{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule}
	startup := corev1.Taint{Key: "agent", Effect: corev1.TaintEffectNoExecute}
	s := stage.New(t, stage.Claim("a", func(c *karpv1.NodeClaim) {
		c.Spec.Taints, c.Spec.StartupTaints = []corev1.Taint{taint}, []corev1.Taint{startup}
		c.Spec.Requirements = []karpv1.Requirement{{Key: "example.com/rack", Operator: corev1.NodeSelectorOpIn, Values: []string{"7"}}}
		c.Annotations[cloud.PreferredAnnotation] = "large/zone-a/spot"
	}))
	var asked []string
	outcomes := 0
	c := controllers(s, func(o *Options) {
		o.BeforeReady = func(_ context.Context, claim *karpv1.NodeClaim, n *corev1.Node) (time.Duration, error) {
			asked = append(asked, claim.Name+" on "+n.Name)
			if stored := s.NodeNamed("a"); len(stored.Finalizers) > 0 {
				t.Error("the node was opened before the hook was asked")
			}
			return 0, nil
		}
		o.Outcome = func(_ context.Context, _ *karpv1.NodeClaim, ok bool) {
			if ok {
				outcomes++
			}
		}
	})

	reconcileClaim(t, c, "a", 3)
	claim := s.Claim("a")
	if got, want := state(claim, "Launched", "Registered", "Initialized", "Ready"), "Launched=True Launched, Registered=Unknown NodeNotFound, Initialized=Unknown AwaitingReconciliation, Ready=Unknown ReconcilingDependents"; got != want {
		t.Errorf("after launch: %s, want %s", got, want)
	}
	if diff := cmp.Diff(map[string]string{
		karpv1.NodePoolLabelKey: "default", "stage.dovetail.sh/stageclass": "default", "example.com/rack": "7",
		corev1.LabelInstanceTypeStable: "large", corev1.LabelTopologyZone: "zone-a", karpv1.CapacityTypeLabelKey: "spot",
	}, claim.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if claim.Annotations["stage.dovetail.sh/launched"] != "yes" || claim.Status.ImageID != "image-1" || claim.Status.ProviderID == "" {
		t.Errorf("details of the machine are missing: %+v", claim)
	}

	s.Boot()
	s.Node("a", func(n *corev1.Node) {
		n.Status.Conditions[0].Status = corev1.ConditionFalse
		n.Labels["example.com/rack"] = "0"
	})
	reconcileClaim(t, c, "a", 3)
	claim, node := s.Claim("a"), s.NodeNamed("a")
	if got, want := state(claim, "Registered", "Initialized"), "Registered=True Registered, Initialized=Unknown NodeNotReady"; got != want {
		t.Errorf("after registration: %s, want %s", got, want)
	}
	if diff := cmp.Diff([]corev1.Taint{taint, startup}, node.Spec.Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	if node.Labels["example.com/rack"] != "7" || node.Labels[karpv1.NodeRegisteredLabelKey] != "true" || node.Annotations["team"] != "a" ||
		node.Annotations[cloud.PreferredAnnotation] != "" || node.Finalizers[0] != karpv1.TerminationFinalizer || node.OwnerReferences[0].UID != claim.UID {
		t.Errorf("the node does not have what the claim says: %+v", node.ObjectMeta)
	}
	if claim.Status.NodeName != "a" || outcomes != 1 || len(asked) != 1 {
		t.Errorf("node name %q, %d outcomes, hooks %v", claim.Status.NodeName, outcomes, asked)
	}

	s.Node("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
	reconcileClaim(t, c, "a", 1)
	if got, want := state(s.Claim("a"), "Initialized"), "Initialized=Unknown StartupTaintsExist"; got != want {
		t.Errorf("with a startup taint: %s", got)
	}
	s.Node("a", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{taint, {Key: "readiness.k8s.io/net", Effect: corev1.TaintEffectNoSchedule}}
		n.Status.Allocatable = corev1.ResourceList{}
	})
	reconcileClaim(t, c, "a", 1)
	if got, want := state(s.Claim("a"), "Initialized"), "Initialized=Unknown KnownEphemeralTaintsExist"; got != want {
		t.Errorf("with a passing taint: %s", got)
	}
	s.Node("a", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} })
	reconcileClaim(t, c, "a", 1)
	if got, want := state(s.Claim("a"), "Initialized"), "Initialized=Unknown ResourceNotRegistered"; got != want {
		t.Errorf("without cpu: %s", got)
	}
	s.Node("a", func(n *corev1.Node) { n.Status.Allocatable = stage.Capacity() })
	reconcileClaim(t, c, "a", 2)
	if got, want := state(s.Claim("a"), "Initialized", "Ready"), "Initialized=True Initialized, Ready=True Ready"; got != want {
		t.Errorf("at the end: %s, want %s", got, want)
	}
	if s.NodeNamed("a").Labels[karpv1.NodeInitializedLabelKey] != "true" {
		t.Error("the node is not labelled as initialized")
	}
	if s.Cloud.Launches != 1 || s.Cloud.Asked != 1 {
		t.Errorf("%d machines launched by %d calls", s.Cloud.Launches, s.Cloud.Asked)
	}
	if told := s.Told(); len(told) != 0 {
		t.Errorf("events of a claim without trouble: %v", told)
	}
}

func TestLifecycle_launch(t *testing.T) {
	tests := map[string]struct {
		answer error
		// want is the state afterwards, or "" if the claim is gone.
		want   string
		events []string
	}{
		"no capacity gives up the claim and tells its pods": {
			answer: &cloud.InsufficientCapacityError{Offerings: []string{"large/zone-a/spot"}},
			events: []string{"NodeClaim a Warning InsufficientCapacityError", "Pod waits Warning InsufficientCapacityError"},
		},
		"a NodeClass that is not ready gives up the claim": {
			answer: fmt.Errorf("launch: %w", &cloud.NodeClassNotReadyError{NodeClass: "StageClass/default", Err: errors.New("no subnets")}),
			events: []string{"NodeClaim a Warning NodeClassNotReady"},
		},
		"a create error shows its reason": {
			answer: &cloud.CreateError{Reason: "QuotaExceeded", Message: "32 of 32 CPUs are used"},
			want:   "Launched=Unknown QuotaExceeded", events: []string{"NodeClaim a Warning LaunchFailed"},
		},
		"any other error is shown too": {
			answer: errors.New(strings.Repeat("long ", 1000)),
			want:   "Launched=Unknown LaunchFailed", events: []string{"NodeClaim a Warning LaunchFailed"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := stage.New(t, stage.Claim("a"), stage.Pod("waits", ""), stage.Pod("placed", "elsewhere"))
			s.Cloud.OnLaunch = func(*karpv1.NodeClaim) error { return tt.answer }
			c := controllers(s, func(o *Options) {
				o.Expected = func(claim string) []snapshot.PodKey {
					return []snapshot.PodKey{{Namespace: "default", Name: "waits"}, {Namespace: "default", Name: "placed"}, {Namespace: "default", Name: "gone"}}
				}
			})
			reconcileClaim(t, c, "a", 1)
			got := s.Claim("a")
			switch {
			case tt.want == "" && got.DeletionTimestamp.IsZero():
				t.Error("the claim is not given up")
			case tt.want != "" && (state(got, "Launched") != tt.want || !got.DeletionTimestamp.IsZero()):
				t.Errorf("the claim is %s, want %s", state(got, "Launched"), tt.want)
			}
			if cond := got.Conditions().Get("Launched"); cond != nil && len(cond.Message) > 1024 {
				t.Errorf("a message of %d bytes", len(cond.Message))
			}
			if diff := cmp.Diff(tt.events, s.Told()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLifecycle_backoff has a cloud whose error text differs each time: every write brings
// the claim back, and must not bring the next call forward.
func TestLifecycle_backoff(t *testing.T) {
	s := stage.New(t, stage.Claim("a"))
	calls := 0
	s.Cloud.OnLaunch = func(*karpv1.NodeClaim) error {
		calls++
		return fmt.Errorf("request %d refused", calls)
	}
	c := controllers(s)
	var at []time.Duration
	begin, seen := s.Now(), 0
	for s.Now().Sub(begin) < 4*time.Minute {
		reconcileClaim(t, c, "a", 3)
		if calls > seen {
			seen = calls
			at = append(at, s.Now().Sub(begin)/time.Second)
		}
		s.Pass(time.Second)
	}
	if diff := cmp.Diff([]time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183}, at); diff != "" {
		t.Errorf("seconds of the calls (-want +got):\n%s", diff)
	}
}

func TestLifecycle_timeouts(t *testing.T) {
	tests := map[string]struct {
		launches bool
		after    time.Duration
		want     string // event; "" if the claim stays
	}{
		"a launch has five minutes":                   {after: 4*time.Minute + 50*time.Second},
		"then the claim is given up":                  {after: 5 * time.Minute, want: "NodeClaim a Warning LaunchTimeout"},
		"a registration has fifteen minutes":          {launches: true, after: 14*time.Minute + 50*time.Second},
		"then the claim of a silent machine goes":     {launches: true, after: 15 * time.Minute, want: "NodeClaim a Warning RegistrationTimeout"},
		"a launch that worked late is no launch lost": {launches: true, after: 6 * time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := stage.New(t, stage.Claim("a"))
			s.Cloud.OnLaunch = func(*karpv1.NodeClaim) error {
				if tt.launches {
					return nil
				}
				return errors.New("not today")
			}
			failed := 0
			c := controllers(s, func(o *Options) {
				o.Outcome = func(_ context.Context, _ *karpv1.NodeClaim, ok bool) {
					if !ok {
						failed++
					}
				}
			})
			next := reconcileClaim(t, c, "a", 2)
			if next <= 0 || next > 15*time.Minute {
				t.Errorf("next look after %s", next)
			}
			s.Pass(tt.after)
			reconcileClaim(t, c, "a", 1)
			gone := !s.Claim("a").DeletionTimestamp.IsZero()
			if gone != (tt.want != "") || gone && (!s.WasTold(tt.want) || failed != 1) {
				t.Errorf("given up: %t, events %v, %d failures reported", gone, s.Told(), failed)
			}
		})
	}
}

func TestLifecycle_registration(t *testing.T) {
	startup := corev1.Taint{Key: "agent", Effect: corev1.TaintEffectNoExecute}
	launched := func(t *testing.T, change func(o *Options), claim ...func(*karpv1.NodeClaim)) (*stage.Stage, *Controllers) {
		s := stage.New(t, stage.Claim("a", claim...))
		c := controllers(s, change)
		reconcileClaim(t, c, "a", 1)
		s.Boot()
		return s, c
	}
	none := func(*Options) {}

	t.Run("two nodes of one machine are no node, until one goes", func(t *testing.T) {
		s, c := launched(t, none)
		twin := stage.Node("twin", func(n *corev1.Node) { n.Spec.ProviderID = s.Claim("a").Status.ProviderID })
		s.Create(twin)
		reconcileClaim(t, c, "a", 2)
		if got := state(s.Claim("a"), "Registered"); got != "Registered=False MultipleNodesFound" {
			t.Errorf("with two nodes: %s", got)
		}
		s.Delete(twin)
		reconcileClaim(t, c, "a", 2)
		if got := state(s.Claim("a"), "Registered"); got != "Registered=True Registered" {
			t.Errorf("with one node: %s", got)
		}
	})
	t.Run("a node without the taint is registered with a warning", func(t *testing.T) {
		s, c := launched(t, none)
		s.Node("a", func(n *corev1.Node) { n.Spec.Taints = nil })
		reconcileClaim(t, c, "a", 2)
		if got := state(s.Claim("a"), "Registered"); got != "Registered=True Registered" || !s.WasTold("NodeClaim a Warning UnregisteredTaintMissing") {
			t.Errorf("%s, events %v", got, s.Told())
		}
	})
	t.Run("a node that brings its own taints gets none", func(t *testing.T) {
		s, c := launched(t, none, func(c *karpv1.NodeClaim) { c.Spec.StartupTaints = []corev1.Taint{startup} })
		s.Node("a", func(n *corev1.Node) { n.Labels[karpv1.NodeDoNotSyncTaintsLabelKey] = "true" })
		reconcileClaim(t, c, "a", 2)
		if n := s.NodeNamed("a"); len(n.Spec.Taints) != 0 {
			t.Errorf("taints %v", n.Spec.Taints)
		}
	})
	t.Run("a pending hook keeps the node closed, but for what is synced", func(t *testing.T) {
		s, c := launched(t, none, func(c *karpv1.NodeClaim) { c.Spec.StartupTaints = []corev1.Taint{startup} })
		s.Cloud.Pending = []string{"ipam"}
		if after := reconcileClaim(t, c, "a", 1); after != 3*time.Second {
			t.Errorf("the hook is asked again after %s", after)
		}
		n := s.NodeNamed("a")
		if got := state(s.Claim("a"), "Registered"); got != "Registered=Unknown RegistrationHookPending" || !hasTaint(n, karpv1.UnregisteredTaint()) || !hasTaint(n, startup) || len(n.Finalizers) != 1 {
			t.Errorf("%s, node %+v", got, n)
		}
		s.Node("a", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{karpv1.UnregisteredTaint()} // the agent has started
		})
		s.Cloud.Pending = nil
		reconcileClaim(t, c, "a", 2)
		if n := s.NodeNamed("a"); len(n.Spec.Taints) != 0 {
			t.Errorf("a startup taint that was taken away came back: %v", n.Spec.Taints)
		}
		if got := state(s.Claim("a"), "Initialized"); got != "Initialized=True Initialized" {
			t.Errorf("at the end: %s", got)
		}
	})
	t.Run("a hook that fails keeps the node closed", func(t *testing.T) {
		fail := true
		s, c := launched(t, func(o *Options) {
			o.BeforeReady = func(context.Context, *karpv1.NodeClaim, *corev1.Node) (time.Duration, error) {
				if fail {
					return 0, errors.New("no answer")
				}
				return 0, nil
			}
		})
		if _, err := c.lifecycle.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}); err == nil {
			t.Error("the failure of the hook is hidden")
		}
		if !hasTaint(s.NodeNamed("a"), karpv1.UnregisteredTaint()) {
			t.Error("the node is open")
		}
		fail = false
		reconcileClaim(t, c, "a", 2)
		if got := state(s.Claim("a"), "Registered"); got != "Registered=True Registered" {
			t.Errorf("later: %s", got)
		}
	})
	t.Run("a node that is never finished is told of and kept", func(t *testing.T) {
		s, c := launched(t, none, func(c *karpv1.NodeClaim) { c.Spec.StartupTaints = []corev1.Taint{startup} })
		reconcileClaim(t, c, "a", 2)
		s.Pass(16 * time.Minute)
		if after := reconcileClaim(t, c, "a", 1); after != 15*time.Minute {
			t.Errorf("next look after %s", after)
		}
		if !s.WasTold("NodeClaim a Warning NotInitialized") || !s.Claim("a").DeletionTimestamp.IsZero() {
			t.Errorf("events %v", s.Told())
		}
	})
	t.Run("a node waits for its device drivers", func(t *testing.T) {
		s, c := launched(t, func(o *Options) { o.DeviceDrivers = true }, func(c *karpv1.NodeClaim) {
			c.Annotations[karpv1.RequestedDRADriversAnnotationKey] = "gpu.example.com,net.example.com"
		})
		slice := func(name, driver string, generation, count int64) {
			s.Create(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
				NodeName: new("a"), Driver: driver, Pool: resourcev1.ResourcePool{Name: "p", Generation: generation, ResourceSliceCount: count},
			}})
		}
		slice("gpu-1", "gpu.example.com", 1, 1)
		slice("net-1", "net.example.com", 1, 1)
		slice("net-2", "net.example.com", 2, 2)
		reconcileClaim(t, c, "a", 2)
		if cond := s.Claim("a").Conditions().Get("Initialized"); cond.Reason != "DRADriverPoolsNotPublished" || !strings.HasSuffix(cond.Message, ": net.example.com") {
			t.Errorf("with half a pool: %+v", cond)
		}
		slice("net-3", "net.example.com", 2, 2)
		reconcileClaim(t, c, "a", 1)
		if got := state(s.Claim("a"), "Initialized"); got != "Initialized=True Initialized" {
			t.Errorf("with all pools: %s", got)
		}
	})
}

// TestLifecycle_others checks that claims of other providers are left alone.
func TestLifecycle_others(t *testing.T) {
	s := stage.New(t, stage.Claim("a", func(c *karpv1.NodeClaim) { c.Spec.NodeClassRef.Kind = "OtherClass" }))
	before := s.Claim("a")
	reconcileClaim(t, controllers(s), "a", 2)
	if diff := cmp.Diff(before, s.Claim("a")); diff != "" || s.Cloud.Asked != 0 {
		t.Errorf("a foreign claim was touched: %s", diff)
	}
}

// TestLifecycle_stale hands the controller a claim from before its own writes.
func TestLifecycle_stale(t *testing.T) {
	s := stage.New(t, stage.Claim("a"))
	old := s.Claim("a")
	c := controllers(s)
	reconcileClaim(t, c, "a", 1)
	if !c.lifecycle.Behind(old) {
		t.Error("a claim from before the last write passes for new")
	}
	if c.lifecycle.Behind(s.Claim("a")) {
		t.Error("the claim as it was written passes for old")
	}
}

// TestLifecycle_deletedMeanwhile deletes claims while their machine is launched.
func TestLifecycle_deletedMeanwhile(t *testing.T) {
	t.Run("a claim that is going is told its machine", func(t *testing.T) {
		s := stage.New(t, stage.Claim("a"))
		c := controllers(s)
		s.Cloud.OnLaunch = func(*karpv1.NodeClaim) error { s.Delete(s.Claim("a")); return nil }
		reconcileClaim(t, c, "a", 2)
		if got := s.Claim("a").Status.ProviderID; got == "" {
			t.Error("nobody will end the machine")
		}
	})
	t.Run("the machine of a claim that is gone is ended", func(t *testing.T) {
		s := stage.New(t, stage.Claim("a"))
		c := controllers(s)
		s.Cloud.OnLaunch = func(*karpv1.NodeClaim) error {
			claim := s.Claim("a")
			claim.Finalizers = nil
			if err := s.Truth.Update(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			s.Delete(claim)
			return nil
		}
		reconcileClaim(t, c, "a", 1)
		reconcileClaim(t, c, "a", 1)
		if left := s.Cloud.Running(); len(left) != 0 {
			t.Errorf("machines without claim: %v", left)
		}
	})
	t.Run("so it is if another claim has the name now", func(t *testing.T) {
		s := stage.New(t, stage.Claim("a"))
		c := controllers(s)
		first := true
		s.Cloud.OnLaunch = func(*karpv1.NodeClaim) error {
			if !first {
				return nil
			}
			first = false
			claim := s.Claim("a")
			claim.Finalizers = nil
			if err := s.Truth.Update(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			s.Delete(claim)
			s.Create(stage.Claim("a"))
			return nil
		}
		reconcileClaim(t, c, "a", 4)
		left := s.Cloud.Running()
		if len(left) != 1 || left[0].ProviderID != s.Claim("a").Status.ProviderID {
			t.Errorf("machines %v", left)
		}
	})
}

func TestConsistency(t *testing.T) {
	s := stage.New(t)
	claim := stage.Claim("a", stage.Launched(s.Now()))
	s.Create(claim)
	s.Create(stage.Node("a", stage.Of(claim), func(n *corev1.Node) {
		n.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("3500m")
	}))
	c := controllers(s)
	check := func() time.Duration {
		r, err := c.consistency.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		return r.RequeueAfter
	}
	if after := check(); after != 10*time.Minute {
		t.Errorf("next check after %s", after)
	}
	if got := state(s.Claim("a"), "ConsistentStateFound"); got != "ConsistentStateFound=False ConsistencyCheckFailed" || !s.WasTold("NodeClaim a Warning FailedConsistencyCheck") {
		t.Errorf("%s, events %v", got, s.Told())
	}
	s.Node("a", func(n *corev1.Node) { n.Status.Capacity = stage.Capacity() })
	s.Pass(time.Minute)
	if after := check(); after != 9*time.Minute {
		t.Errorf("a claim is checked again after %s", after)
	}
	s.Pass(9 * time.Minute)
	check()
	if got := state(s.Claim("a"), "ConsistentStateFound"); got != "ConsistentStateFound=True ConsistentStateFound" {
		t.Errorf("later: %s", got)
	}
}

func TestExpiration(t *testing.T) {
	tests := map[string]struct {
		expire karpv1.NillableDuration
		age    time.Duration
		gone   bool
		after  time.Duration
		pool   map[string]string // annotations
	}{
		"a claim lives as long as it may": {expire: karpv1.DurationOf(time.Hour), age: 59 * time.Minute, after: time.Minute},
		"and no longer":                   {expire: karpv1.DurationOf(time.Hour), age: time.Hour, gone: true},
		"or for ever":                     {expire: karpv1.NillableDuration{Text: karpv1.Never}, age: 1e6 * time.Hour},
		"one that expires gracefully is left to disruption": {
			expire: karpv1.DurationOf(time.Hour), age: time.Hour, after: 5 * time.Minute,
			pool: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful"},
		},
		"until its deadline": {
			expire: karpv1.DurationOf(time.Hour), age: 73*time.Hour - time.Minute, after: time.Minute,
			pool: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful", v1alpha1.ExpirationDeadlineAnnotation: "72h"},
		},
		"and no later": {
			expire: karpv1.DurationOf(time.Hour), age: 73 * time.Hour, gone: true,
			pool: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful", v1alpha1.ExpirationDeadlineAnnotation: "72h", v1alpha1.ExpirationWindowAnnotation: "0 2 29 2 */1h"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := stage.New(t, stage.Claim("a", func(c *karpv1.NodeClaim) {
				c.Spec.ExpireAfter = tt.expire
				c.Finalizers = []string{karpv1.TerminationFinalizer}
			}))
			s.Create(&karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: tt.pool}})
			s.Pass(tt.age)
			r, err := controllers(s).expiration.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}})
			if err != nil || r.RequeueAfter != tt.after {
				t.Errorf("Reconcile() = %v, %v, want %s", r, err, tt.after)
			}
			if gone := !s.Claim("a").DeletionTimestamp.IsZero(); gone != tt.gone || gone != s.WasTold("NodeClaim a Normal Expired") {
				t.Errorf("gone: %t, events %v", gone, s.Told())
			}
		})
	}
}

func TestHydration(t *testing.T) {
	s := stage.New(t)
	claim := stage.Claim("a", stage.Launched(s.Now()), func(c *karpv1.NodeClaim) { delete(c.Labels, c.Spec.NodeClassRef.LabelKey()) })
	s.Create(claim)
	s.Create(stage.Node("a", stage.Of(claim)))
	s.Create(stage.Node("foreign"))
	c := controllers(s)
	for _, name := range []string{"a", "foreign"} {
		req := reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
		if _, err := c.hydration.claim(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if _, err := c.hydration.node(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	key := claim.Spec.NodeClassRef.LabelKey()
	if s.Claim("a").Labels[key] != "default" || s.NodeNamed("a").Labels[key] != "default" || s.NodeNamed("foreign").Labels[key] != "" {
		t.Errorf("claim %v, node %v, foreign %v", s.Claim("a").Labels, s.NodeNamed("a").Labels, s.NodeNamed("foreign").Labels)
	}
}

func TestCollect(t *testing.T) {
	setUp := func(t *testing.T) (*stage.Stage, *Controllers) {
		s := stage.New(t)
		for _, name := range []string{"well", "lost", "answers", "late"} {
			claim := stage.Claim(name, stage.Launched(s.Now()))
			s.Create(claim)
			s.Create(stage.Node(name, stage.Of(claim), func(n *corev1.Node) {
				if name != "answers" {
					n.Status.Conditions[0].Status = corev1.ConditionUnknown
				}
			}))
			if name != "lost" && name != "answers" {
				s.Cloud.Add(cloud.Machine{ProviderID: claim.Status.ProviderID, ClaimName: name, ClaimUID: string(claim.UID), Created: s.Now()})
			}
		}
		s.Create(stage.Pod("web", "lost"))
		return s, controllers(s)
	}
	collect := func(t *testing.T, c *Controllers) time.Duration {
		t.Helper()
		next, err := c.collector.collect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	t.Run("claims without machine go, if their node is not well either", func(t *testing.T) {
		s, c := setUp(t)
		collect(t, c)
		for name, gone := range map[string]bool{"well": false, "lost": true, "answers": false, "late": false} {
			if got := !s.Claim(name).DeletionTimestamp.IsZero(); got != gone {
				t.Errorf("%s is going: %t", name, got)
			}
		}
		if diff := cmp.Diff([]string{"NodeClaim lost Warning GarbageCollected"}, s.Told()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
	t.Run("a machine that only the list has lost keeps its claim", func(t *testing.T) {
		s, c := setUp(t)
		c.collector.Provider = forgetful{s.Cloud}
		collect(t, c)
		if !s.Claim("well").DeletionTimestamp.IsZero() {
			t.Error("the claim went")
		}
	})
	t.Run("nothing goes while the cloud does not answer", func(t *testing.T) {
		s, c := setUp(t)
		s.Cloud.OnList = func() error { return errors.New("throttled") }
		if _, err := c.collector.collect(t.Context()); err == nil {
			t.Error("the error is hidden")
		}
		if !s.Claim("lost").DeletionTimestamp.IsZero() {
			t.Error("a claim went")
		}
	})
	t.Run("machines without claim are ended after a while", func(t *testing.T) {
		s, c := setUp(t)
		s.Cloud.Add(cloud.Machine{ProviderID: "stage:///orphan", ClaimName: "orphan", ClaimUID: "old", Created: s.Now()})
		s.Cloud.Add(cloud.Machine{ProviderID: "stage:///namesake", ClaimName: "well", ClaimUID: "old", Created: s.Now()})
		s.Cloud.Add(cloud.Machine{ProviderID: "stage:///nameless", ClaimName: "late", Created: s.Now()})
		s.Create(stage.Node("orphan", func(n *corev1.Node) {
			n.Spec.ProviderID, n.Finalizers = "stage:///orphan", []string{karpv1.TerminationFinalizer}
			n.Labels["stage.dovetail.sh/stageclass"] = "default"
		}))
		if next := collect(t, c); next != time.Minute {
			t.Errorf("suspects are looked at again after %s", next)
		}
		s.Pass(30 * time.Second)
		collect(t, c)
		if n := len(s.Cloud.Running()); n != 5 {
			t.Errorf("%d machines run after half a minute", n)
		}
		s.Pass(30 * time.Second)
		collect(t, c)
		var left []string
		for _, m := range s.Cloud.Running() {
			left = append(left, m.ProviderID)
		}
		if diff := cmp.Diff([]string{"stage:///late", "stage:///nameless", "stage:///well"}, left); diff != "" {
			t.Errorf("machines (-want +got):\n%s", diff)
		}
		if s.NodeNamed("orphan").DeletionTimestamp.IsZero() {
			t.Error("the node of the orphan stays")
		}
		if next := collect(t, c); next != 0 {
			t.Errorf("without suspects the next look is after %s", next)
		}
	})
	t.Run("a claim that only the cache does not have keeps its machine", func(t *testing.T) {
		s, _ := setUp(t)
		behind := stage.New(t)
		c := controllers(s, func(o *Options) { o.Client, o.Reader = behind.Client, s.Truth })
		collect(t, c)
		s.Pass(2 * time.Minute)
		collect(t, c)
		if n := len(s.Cloud.Running()); n != 2 {
			t.Errorf("%d machines run", n)
		}
	})
}

// forgetful lists nothing.
type forgetful struct{ *stage.Cloud }

func (forgetful) List(context.Context) ([]*cloud.Machine, error) { return nil, nil }

func TestHappened(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	running := stage.Pod("p", "a", func(p *corev1.Pod) {
		p.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-30 * time.Minute))}}
	})
	change := func(f func(p *corev1.Pod)) *corev1.Pod {
		p := running.DeepCopy()
		f(p)
		return p
	}
	unbound := change(func(p *corev1.Pod) { p.Spec.NodeName = "" })
	ended := change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	going := change(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(now)) })
	daemon := change(func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" })
	tests := map[string]struct {
		before, after *corev1.Pod
		want          time.Time
	}{
		"a pod is bound":                   {before: unbound, after: running, want: now},
		"a pod ends":                       {before: running, after: ended, want: now},
		"a pod starts to terminate":        {before: running, after: going, want: now},
		"a pod vanishes":                   {before: running, want: now},
		"a pod that left before vanishes":  {before: going},
		"a pod that runs changes":          {before: running, after: running},
		"a pod is seen for the first time": {after: running, want: now.Add(-30 * time.Minute)},
		"a pod without node is seen":       {after: unbound},
		"a daemon comes":                   {after: daemon},
		"a daemon goes":                    {before: daemon},
		"a pod that has ended starts to terminate": {before: ended, after: change(func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
			p.DeletionTimestamp = new(metav1.NewTime(now))
		}), want: now},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, got := happened(tt.before, tt.after, now); !got.Equal(tt.want) {
				t.Errorf("happened() = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestPodEvents(t *testing.T) {
	s := stage.New(t)
	claim := stage.Claim("a", stage.Launched(s.Now()))
	s.Create(claim)
	s.Create(stage.Node("a", stage.Of(claim)))
	e := controllers(s).podEvents
	work := func() time.Duration {
		t.Helper()
		r, err := e.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		return r.RequeueAfter
	}
	event := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.newest["a"] = s.Now()
	}
	last := func() time.Time { return s.Claim("a").Status.LastPodEventTime.Time }

	first := s.Now()
	event()
	work()
	if !last().Equal(first) {
		t.Errorf("the first event is noted as %s, want %s", last(), first)
	}
	s.Pass(3 * time.Second)
	event()
	if after := work(); after != 7*time.Second || !last().Equal(first) {
		t.Errorf("an event soon afterwards is noted after %s", after)
	}
	second := s.Now()
	s.Pass(7 * time.Second)
	work()
	if !last().Equal(second) {
		t.Errorf("the second event is noted as %s, want %s", last(), second)
	}
	if len(e.newest) != 0 {
		t.Errorf("left over: %v", e.newest)
	}
	e.newest["none"] = s.Now()
	if _, err := e.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "none"}}); err != nil || len(e.newest) != 0 {
		t.Errorf("an event of a node that is gone: %v, left %v", err, e.newest)
	}
}
