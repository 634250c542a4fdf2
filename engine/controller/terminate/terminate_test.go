package terminate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
)

func controllers(s *stage.Stage) *Controllers {
	return New(Options{Client: s.Client, Provider: s.Cloud, Events: s.Events, Now: s.Now})
}

// runners are the controllers, to be run by a stage.
func runners(c *Controllers) []stage.Runner {
	return []stage.Runner{
		{For: &karpv1.NodeClaimList{}, Reconciler: c.claims},
		{For: &corev1.NodeList{}, Reconciler: c.nodes, Step: c.queue.step},
	}
}

// pair is a claim with its machine and Node, all called name.
func pair(s *stage.Stage, name string, change ...func(c *karpv1.NodeClaim)) *karpv1.NodeClaim {
	claim := stage.Claim(name, append([]func(*karpv1.NodeClaim){stage.Launched(s.Now())}, change...)...)
	s.Create(claim)
	s.Create(stage.Node(name, stage.Of(claim)))
	s.Cloud.Add(cloud.Machine{ProviderID: claim.Status.ProviderID, ClaimName: name, ClaimUID: string(claim.UID), Created: s.Now()})
	return claim
}

// gone reports how far a pair is gone.
func gone(s *stage.Stage, name string) string {
	var left []string
	if s.Claim(name) != nil {
		left = append(left, "claim")
	}
	if s.NodeNamed(name) != nil {
		left = append(left, "node")
	}
	for _, m := range s.Cloud.Running() {
		if m.ClaimName == name {
			left = append(left, "machine")
		}
	}
	return strings.Join(left, " ")
}

func run(t *testing.T, s *stage.Stage, c *Controllers, rounds int) {
	t.Helper()
	if errs := s.Runs(rounds, nil, runners(c)...); len(errs) > 0 {
		t.Fatal(errs[0])
	}
}

func protect(value string) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: value}
	}
}

func critical(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" }
func daemon(p *corev1.Pod)   { p.OwnerReferences[0].Kind = "DaemonSet" }

// held keeps a pod when it is deleted, as a kubelet does while containers end.
func held(p *corev1.Pod) { p.Finalizers = []string{"test/kubelet"} }

// endPod is the kubelet that has seen a pod's containers end.
func endPod(t *testing.T, s *stage.Stage, name string) {
	t.Helper()
	p := s.Pod(name)
	p.Finalizers = nil
	if err := s.Truth.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func TestTerminate(t *testing.T) {
	for name, deleted := range map[string]func(s *stage.Stage) client.Object{
		"a deleted claim takes its node with it": func(s *stage.Stage) client.Object { return s.Claim("a") },
		"a deleted node takes its claim with it": func(s *stage.Stage) client.Object { return s.NodeNamed("a") },
	} {
		t.Run(name, func(t *testing.T) {
			s := stage.New(t, stage.Pod("web", "a"), stage.Pod("elsewhere", "b"))
			s.Cloud.Lingers = 12 * time.Second
			pair(s, "a")
			pair(s, "b")
			c := controllers(s)
			s.Delete(deleted(s))

			run(t, s, c, 3)
			n := s.NodeNamed("a")
			if n == nil || n.Labels[corev1.LabelNodeExcludeBalancers] != "karpenter" || len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != karpv1.DisruptedTaintKey {
				t.Errorf("the node is open: %+v", n)
			}
			if len(s.Cloud.Running()) != 2 {
				t.Error("the machine went before the shortest drain was over")
			}
			if cond := s.Claim("a").Conditions().Get("Drained"); cond == nil || cond.Status != "Unknown" {
				t.Errorf("Drained is %+v", cond)
			}
			run(t, s, c, 6)
			claim := s.Claim("a")
			if !claim.Conditions().IsTrue("Drained", "VolumesDetached", "InstanceTerminating") || s.NodeNamed("a") == nil {
				t.Errorf("conditions %+v", claim.Status.Conditions)
			}
			run(t, s, c, 20)
			if left := gone(s, "a"); left != "" {
				t.Errorf("left: %s", left)
			}
			if left := gone(s, "b"); left != "claim node machine" {
				t.Errorf("left of what was not deleted: %s", left)
			}
			if s.Pod("web") != nil || s.Pod("elsewhere") == nil {
				t.Error("not the pods of the node went")
			}
			if diff := cmp.Diff([]string{"Node a Warning FailedDraining", "Pod web Normal Evicted"}, s.Told()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTerminate_others(t *testing.T) {
	t.Run("nodes that no claim made are not touched", func(t *testing.T) {
		s := stage.New(t, stage.Node("foreign", func(n *corev1.Node) { n.Finalizers = []string{karpv1.TerminationFinalizer} }), stage.Pod("web", "foreign"))
		s.Delete(s.NodeNamed("foreign"))
		before := s.NodeNamed("foreign")
		run(t, s, controllers(s), 10)
		if diff := cmp.Diff(before, s.NodeNamed("foreign")); diff != "" || s.Pod("web") == nil {
			t.Errorf("a foreign node was touched: %s", diff)
		}
	})
	t.Run("claims of other providers are not touched", func(t *testing.T) {
		s := stage.New(t)
		pair(s, "a", func(c *karpv1.NodeClaim) {
			c.Spec.NodeClassRef.Kind = "OtherClass"
			c.Labels = nil
		})
		s.Delete(s.Claim("a"))
		run(t, s, controllers(s), 10)
		if left := gone(s, "a"); left != "claim node machine" {
			t.Errorf("left: %s", left)
		}
	})
	t.Run("a node without claim is drained and let go", func(t *testing.T) {
		s := stage.New(t, stage.Pod("web", "a"))
		claim := pair(s, "a")
		claim.Finalizers = nil
		if err := s.Truth.Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		s.Delete(claim)
		s.Delete(s.NodeNamed("a"))
		run(t, s, controllers(s), 5)
		if left := gone(s, "a"); left != "machine" || s.Pod("web") != nil {
			t.Errorf("left: %s", left)
		}
	})
	t.Run("a claim without node ends its machine", func(t *testing.T) {
		s := stage.New(t)
		pair(s, "a")
		n := s.NodeNamed("a")
		n.Finalizers = nil
		if err := s.Truth.Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		s.Delete(n)
		s.Delete(s.Claim("a"))
		run(t, s, controllers(s), 3)
		if left := gone(s, "a"); left != "" {
			t.Errorf("left: %s", left)
		}
	})
	t.Run("the node of a claim that never registered is not deleted", func(t *testing.T) {
		s := stage.New(t)
		pair(s, "a", func(c *karpv1.NodeClaim) { c.Status.Conditions = nil })
		s.Node("a", func(n *corev1.Node) { n.Finalizers, n.OwnerReferences = nil, nil })
		s.Delete(s.Claim("a"))
		run(t, s, controllers(s), 3)
		if left := gone(s, "a"); left != "node" {
			t.Errorf("left: %s", left)
		}
	})
	t.Run("a machine that its claim does not know of is found and ended", func(t *testing.T) {
		s := stage.New(t)
		claim := stage.Claim("a", func(c *karpv1.NodeClaim) { c.Finalizers = []string{karpv1.TerminationFinalizer} })
		s.Create(claim)
		if _, err := s.Cloud.Launch(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		s.Delete(claim)
		run(t, s, controllers(s), 3)
		if left := gone(s, "a"); left != "" {
			t.Errorf("left: %s", left)
		}
	})
	t.Run("a claim without machine just goes, if the cloud says so", func(t *testing.T) {
		s := stage.New(t, stage.Claim("a", func(c *karpv1.NodeClaim) { c.Finalizers = []string{karpv1.TerminationFinalizer} }))
		s.Delete(s.Claim("a"))
		s.Cloud.OnList = func() error { return errors.New("throttled") }
		c := controllers(s)
		if errs := s.Runs(2, nil, runners(c)...); len(errs) != 2 || s.Claim("a") == nil {
			t.Errorf("without an answer: errors %v, left %q", errs, gone(s, "a"))
		}
		s.Cloud.OnList = nil
		run(t, s, c, 1)
		if left := gone(s, "a"); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

func TestTerminate_dead(t *testing.T) {
	tests := map[string]struct {
		ready  corev1.ConditionStatus
		exists bool
		cloud  error
		want   string // what is left after a few seconds
	}{
		"a silent node whose machine is gone goes at once":         {ready: corev1.ConditionUnknown, want: ""},
		"one whose machine exists is drained":                      {ready: corev1.ConditionUnknown, exists: true, want: "claim node machine"},
		"one of which the cloud does not know is drained":          {ready: corev1.ConditionFalse, cloud: errors.New("throttled"), want: "claim node"},
		"a ready node is drained even if the machine is not found": {ready: corev1.ConditionTrue, want: "claim node"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := stage.New(t, stage.Pod("web", "a", protect("true")), stage.Pod("static", "a", func(p *corev1.Pod) {
				p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			}))
			claim := pair(s, "a")
			if !tt.exists {
				s.Cloud.Lose(claim.Status.ProviderID)
			}
			s.Cloud.OnGet = func(string) error { return tt.cloud }
			s.Node("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = tt.ready })
			s.Delete(claim)
			run(t, s, controllers(s), 8)
			if left := gone(s, "a"); left != tt.want {
				t.Errorf("left: %q, want %q", left, tt.want)
			}
			if stays := s.Pod("web") != nil; stays != (tt.want != "") {
				t.Errorf("the pod stays: %t", stays)
			}
		})
	}
}

func TestDrain_order(t *testing.T) {
	s := stage.New(t,
		stage.Pod("1-web", "a", held), stage.Pod("2-log", "a", held, daemon),
		stage.Pod("3-dns", "a", held, critical), stage.Pod("4-net", "a", held, daemon, critical),
		stage.Pod("done", "a", held, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		stage.Pod("tolerant", "a", held, func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: karpv1.DisruptedTaintKey, Operator: corev1.TolerationOpExists}}
		}),
	)
	pair(s, "a")
	c := controllers(s)
	s.Delete(s.NodeNamed("a"))
	names := []string{"1-web", "2-log", "3-dns", "4-net"}
	for i, name := range names {
		run(t, s, c, 3)
		for j, other := range names {
			p := s.Pod(other)
			if evicted := p == nil || !p.DeletionTimestamp.IsZero(); evicted != (j <= i) {
				t.Errorf("while %s goes, %s is evicted: %t", name, other, evicted)
			}
		}
		endPod(t, s, name)
	}
	run(t, s, c, 12)
	if left := gone(s, "a"); left != "" {
		t.Errorf("left: %s", left)
	}
	if !s.Pod("done").DeletionTimestamp.IsZero() || !s.Pod("tolerant").DeletionTimestamp.IsZero() {
		t.Error("a pod that nobody waits for was evicted")
	}
}

// TestDrain_stuck has a pod that does not end although its time was over long ago.
func TestDrain_stuck(t *testing.T) {
	s := stage.New(t, stage.Pod("stuck", "a", held))
	pair(s, "a")
	s.Delete(s.Pod("stuck"))
	s.Delete(s.NodeNamed("a"))
	c := controllers(s)
	run(t, s, c, 30)
	if left := gone(s, "a"); left != "claim node machine" {
		t.Errorf("a terminating pod was not waited for; left: %s", left)
	}
	s.Pass(time.Minute)
	run(t, s, c, 12)
	if left := gone(s, "a"); left != "" {
		t.Errorf("left: %s", left)
	}
}

func TestEvict(t *testing.T) {
	refused := func(code int32, text string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: map[int32]metav1.StatusReason{
			404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonConflict, 429: metav1.StatusReasonTooManyRequests, 500: metav1.StatusReasonInternalError,
		}[code], Message: text}}
	}
	tests := map[string]struct {
		answer error
		pod    func(p *corev1.Pod)
		after  time.Duration // when the answer becomes yes, or the pod lets go
		want   []string
		// stays is how long the pod stays at least, in seconds.
		stays int
	}{
		"a pod goes":          {want: []string{"Pod web Normal Evicted"}},
		"a budget forbids":    {answer: refused(429, "budget"), after: 20 * time.Second, stays: 19, want: []string{"Node a Warning FailedDraining", "Pod web Normal Evicted"}},
		"two budgets collide": {answer: refused(500, "This pod has more than one PodDisruptionBudget, which is not supported."), after: 20 * time.Second, stays: 19, want: []string{"Node a Warning FailedDraining", "Pod web Normal Evicted"}},
		"the server fails":    {answer: refused(500, "etcd"), after: 20 * time.Second, stays: 19, want: []string{"Pod web Normal Evicted"}},
		"the answer is lost":  {answer: errors.New("connection reset"), after: 20 * time.Second, stays: 19, want: []string{"Pod web Normal Evicted"}},
		"the pod has changed": {answer: refused(409, "uid"), after: 3 * time.Second, stays: 2, want: []string{"Pod web Normal Evicted"}},
		"a pod is protected":  {pod: protect("true"), after: time.Hour, stays: 60, want: []string{}},
		"a pod is protected for a time": {
			pod: func(p *corev1.Pod) { protect("30s")(p); p.Status.StartTime = new(metav1.Now()) }, stays: 29,
			want: []string{"Pod web Normal DoNotDisruptGracePeriodElapsed", "Pod web Normal DoNotDisruptUntil", "Pod web Normal Evicted"},
		},
		"protection that cannot be read": {pod: protect("sometimes"), want: []string{"Pod web Normal Evicted", "Pod web Warning InvalidDoNotDisruptAnnotation"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			web := stage.Pod("web", "a")
			if tt.pod != nil {
				tt.pod(web)
			}
			s := stage.New(t, web)
			pair(s, "a")
			begin := s.Now()
			asked := 0
			s.Evict = func(p *corev1.Pod) error {
				asked++
				if s.Now().Sub(begin) < tt.after {
					return tt.answer
				}
				return nil
			}
			s.Delete(s.NodeNamed("a"))
			c := controllers(s)
			went := 0
			if errs := s.Runs(62, func() {
				if s.Pod("web") != nil {
					went++
				}
			}, runners(c)...); len(errs) > 0 {
				t.Fatal(errs[0])
			}
			if went < tt.stays || (tt.after < time.Minute && s.Pod("web") != nil) {
				t.Errorf("the pod stayed %d s, want %d at least; %v left", went, tt.stays, s.Pod("web"))
			}
			var told []string
			for _, e := range s.Told() {
				// The number of pods that wait is no answer to an eviction.
				if e != "Node a Warning FailedDraining" || tt.answer != nil && strings.Contains(tt.answer.Error(), "udget") {
					told = append(told, e)
				}
			}
			if diff := cmp.Diff(tt.want, append([]string{}, told...)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if asked > 12 {
				t.Errorf("asked %d times: no back-off", asked)
			}
		})
	}
}

// TestEvict_reason gives the reason for which the claim was chosen.
func TestEvict_reason(t *testing.T) {
	s := stage.New(t, stage.Pod("web", "a"))
	pair(s, "a", func(c *karpv1.NodeClaim) {
		c.Conditions().At(s.Now()).SetTrueBecause(karpv1.ConditionDisruptionReason, "Underutilized", "")
	})
	s.Delete(s.Claim("a"))
	c := controllers(s)
	for _, r := range runners(c)[:1] {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.nodes.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	for _, e := range c.queue.entries {
		if e.reason != "Underutilized" {
			t.Errorf("reason %q", e.reason)
		}
	}
	if len(c.queue.entries) != 1 {
		t.Errorf("%d pods queued", len(c.queue.entries))
	}
	s.Delete(s.Pod("web"))
	n := s.NodeNamed("a")
	n.Finalizers = nil
	if err := s.Truth.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if _, err := c.nodes.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}); err != nil || len(c.queue.entries) != 0 {
		t.Errorf("the queue keeps %d pods of a node that is gone, %v", len(c.queue.entries), err)
	}
}

func TestTerminate_gracePeriod(t *testing.T) {
	s := stage.New(t,
		stage.Pod("guarded", "a", protect("true")),
		stage.Pod("slow", "a", critical, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(120)) }),
		stage.Pod("budget", "a"),
	)
	s.Evict = func(*corev1.Pod) error { return apierrors.NewTooManyRequests("budget", 1) }
	pair(s, "a", func(c *karpv1.NodeClaim) { c.Spec.TerminationGracePeriod = &metav1.Duration{Duration: 5 * time.Minute} })
	c := controllers(s)
	begin := s.Now()
	s.Delete(s.Claim("a"))
	went := map[string]time.Duration{}
	if errs := s.Runs(320, func() {
		for _, name := range []string{"guarded", "slow", "budget"} {
			if _, ok := went[name]; !ok && s.Pod(name) == nil {
				went[name] = s.Now().Sub(begin)
			}
		}
	}, runners(c)...); len(errs) > 0 {
		t.Fatal(errs[0])
	}
	for name, want := range map[string]time.Duration{"guarded": 270 * time.Second, "slow": 180 * time.Second, "budget": 270 * time.Second} {
		if d := went[name] - want; d < -3*time.Second || d > 5*time.Second {
			t.Errorf("%s went after %s, want about %s", name, went[name], want)
		}
	}
	if left := gone(s, "a"); left != "" {
		t.Errorf("left: %s", left)
	}
	want := []string{
		"Node a Warning FailedDraining", "Node a Warning TerminationGracePeriodExpiring", "NodeClaim a Warning TerminationGracePeriodExpiring",
		"Pod budget Normal Disrupted", "Pod guarded Normal Disrupted", "Pod slow Normal Disrupted",
	}
	if diff := cmp.Diff(want, s.Told()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestForced(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	terminating := func(at time.Duration) func(p *corev1.Pod) {
		return func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(now.Add(at))) }
	}
	tests := map[string]struct {
		end  time.Duration
		pod  func(p *corev1.Pod)
		want bool
	}{
		"there is time yet":                         {end: 31 * time.Second},
		"the pod needs all the time that is left":   {end: 29 * time.Second, want: true},
		"the end is past":                           {end: -time.Minute, want: true},
		"a pod that ends in time":                   {end: 10 * time.Second, pod: terminating(9 * time.Second)},
		"a pod that would end too late":             {end: 10 * time.Second, pod: terminating(20 * time.Second), want: true},
		"a pod that was given the last second":      {end: -time.Minute, pod: terminating(time.Second)},
		"a pod that has its own time after the end": {end: -time.Minute, pod: terminating(10 * time.Second), want: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := stage.Pod("p", "a")
			if tt.pod != nil {
				tt.pod(p)
			}
			if got := forced(p, now.Add(tt.end), now); got != tt.want {
				t.Errorf("forced() = %t", got)
			}
			if forced(p, time.Time{}, now) {
				t.Error("forced without an end")
			}
		})
	}
}

func TestVolumes(t *testing.T) {
	attachment := func(name string, volume *string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
			NodeName: "a", Attacher: "csi", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: volume},
		}}
	}
	setUp := func(t *testing.T, change ...func(c *karpv1.NodeClaim)) (*stage.Stage, *Controllers) {
		s := stage.New(t, attachment("data", new("pv-data")), attachment("inline", nil), attachment("kept", new("pv-kept")),
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent-cache"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-kept"}},
			stage.Pod("agent", "a", func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
				p.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}, {Name: "tmp"}}
			}))
		pair(s, "a", change...)
		s.Delete(s.Claim("a"))
		return s, controllers(s)
	}
	t.Run("the machine stays until volumes are detached", func(t *testing.T) {
		s, c := setUp(t)
		run(t, s, c, 30)
		claim := s.Claim("a")
		if cond := claim.Conditions().Get("VolumesDetached"); cond == nil || cond.Reason != "AwaitingVolumeDetachment" || len(s.Cloud.Running()) != 1 {
			t.Fatalf("VolumesDetached is %+v, machines %v", cond, s.Cloud.Running())
		}
		if !s.WasTold("Node a Normal AwaitingVolumeDetachment") {
			t.Errorf("events %v", s.Told())
		}
		s.Delete(attachment("data", nil))
		run(t, s, c, 8)
		if left := gone(s, "a"); left != "" {
			t.Errorf("left: %s", left)
		}
	})
	t.Run("but not beyond the end of the drain", func(t *testing.T) {
		s, c := setUp(t, func(c *karpv1.NodeClaim) { c.Spec.TerminationGracePeriod = &metav1.Duration{Duration: time.Minute} })
		s.Cloud.Lingers = time.Minute
		run(t, s, c, 70)
		if cond := s.Claim("a").Conditions().Get("VolumesDetached"); cond == nil || cond.Status != "False" || cond.Reason != "TerminationGracePeriodElapsed" {
			t.Errorf("VolumesDetached is %+v", cond)
		}
		run(t, s, c, 70)
		if left := gone(s, "a"); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

// TestCensus asks while a list is made: the answer must be of a later list.
func TestCensus(t *testing.T) {
	begun, proceed := make(chan int), make(chan bool)
	lists := 0
	k := &census{list: func(context.Context) ([]*cloud.Machine, error) {
		lists++
		n := lists
		begun <- n
		<-proceed
		return []*cloud.Machine{{ProviderID: fmt.Sprint(n), ClaimUID: "u"}}, nil
	}}
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	answers := make(chan string, 10)
	ask := func() {
		m, err := k.find(t.Context(), claim)
		if err != nil || m == nil {
			answers <- fmt.Sprint(m, err)
			return
		}
		answers <- m.ProviderID
	}
	go ask()
	<-begun
	for range 3 {
		go ask()
	}
	// They have asked when the next list is wanted.
	deadline := time.Now().Add(10 * time.Second)
	for {
		k.mu.Lock()
		wanted := k.next != nil
		k.mu.Unlock()
		if wanted || time.Now().After(deadline) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	proceed <- true
	if got := <-answers; got != "1" {
		t.Errorf("the first answer is of list %s", got)
	}
	go func() {
		for range begun {
			proceed <- true
		}
	}()
	for range 3 {
		if got := <-answers; got == "1" {
			t.Error("an answer is older than its question")
		}
	}
	close(begun)
}

// TestQueue_start evicts with workers and real time.
func TestQueue_start(t *testing.T) {
	var pods []client.Object
	for i := range 50 {
		pods = append(pods, stage.Pod(fmt.Sprintf("web-%d", i), "a"))
	}
	s := stage.New(t, pods...)
	pair(s, "a")
	s.Delete(s.NodeNamed("a"))
	c := New(Options{Client: s.Client, Provider: s.Cloud, Events: s.Events, Evictions: 8})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.queue.Start(ctx) }()
	if _, err := c.nodes.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var left corev1.PodList
		if err := s.Truth.List(ctx, &left); err != nil {
			t.Fatal(err)
		}
		if len(left.Items) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d pods are left", len(left.Items))
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
