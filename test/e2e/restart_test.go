package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster"
)

// alone makes a scene without the controller that cases share: the test, which does not
// run beside others, starts its own.
func alone(t *testing.T) *scene {
	t.Helper()
	c := shared.Get(t)
	if world.main != nil {
		world.main.stop()
		world.main = nil
	}
	return newScene(t, c)
}

// tally compares claims, machines, nodes and pods of a case.
type tally struct{ leaked, duplicated, orphaned, unscheduled int }

func (s *scene) tally() (tally, error) {
	var out tally
	claims := s.claimsOf()
	machines := map[string]int{}
	for _, m := range s.machines() {
		machines[m.Spec.Claim.UID]++
	}
	nodes := map[string]bool{}
	for _, c := range claims {
		switch n := machines[string(c.UID)]; {
		case n == 0:
			out.orphaned++ // a claim without machine
		case n > 1:
			out.duplicated += n - 1
		}
		delete(machines, string(c.UID))
		nodes[c.Status.NodeName] = true
	}
	for _, n := range machines {
		out.leaked += n // machines without claim
	}
	var list corev1.NodeList
	if err := s.client.List(s.ctx, &list, client.MatchingLabels{"case": s.name}); err != nil {
		return out, err
	}
	for _, n := range list.Items {
		if !nodes[n.Name] {
			out.orphaned++ // a node without claim
		}
	}
	for _, p := range s.all() {
		if p.Status.Phase != corev1.PodRunning {
			out.unscheduled++
		}
	}
	return out, nil
}

// settled waits until everything fits together.
func (s *scene) settled() {
	s.Helper()
	s.eventually("claims, machines, nodes and pods fit together", func() error {
		got, err := s.tally()
		if err == nil && got != (tally{}) {
			err = fmt.Errorf("%+v", got)
		}
		return err
	})
}

func TestKilledWhileLaunching(t *testing.T) {
	s := alone(t)
	s.class(func(c *v1alpha1.SimNodeClassSpec) { c.LaunchLatency.Base.Duration = 2 * time.Second })
	s.pool()
	first := start(t, s.cluster, quick...)
	s.deployment(6, cpu("3"))
	s.eventually("claims are there", func() error {
		if len(s.claimsOf()) == 0 {
			return fmt.Errorf("none yet")
		}
		return nil
	})
	before := len(s.claimsOf())
	first.kill()
	start(t, s.cluster, quick...)
	s.run(6)
	s.settled()
	if after := len(s.claimsOf()); after > before && before > 1 {
		t.Logf("claims: %d before the kill, %d after it", before, after)
	}
}

func TestTwoReplicas(t *testing.T) {
	s := alone(t)
	s.class()
	s.pool()
	var flags []string
	for _, f := range quick {
		if f != "--disable-leader-election" {
			flags = append(flags, f)
		}
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter-leader-election"}}
	holder := func() (string, error) {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(lease), lease); err != nil {
			return "", err
		}
		if lease.Spec.HolderIdentity == nil {
			return "", nil
		}
		return *lease.Spec.HolderIdentity, nil
	}
	first := start(t, s.cluster, flags...)
	var leader string
	s.eventually("the first leads", func() (err error) {
		if leader, err = holder(); err == nil && leader == "" {
			err = fmt.Errorf("nobody leads")
		}
		return err
	})
	start(t, s.cluster, flags...)
	s.pod("a")
	s.run(1)
	s.settled()
	if now, err := holder(); err != nil || now != leader {
		t.Errorf("the lease went from %q to %q (%v) while its holder lives", leader, now, err)
	}
	begin := time.Now()
	first.kill()
	s.pod("b", cpu("7"))
	s.run(2)
	t.Logf("a pod had a node %.1f s after the leader was killed; a lease lasts %d s", time.Since(begin).Seconds(), *lease.Spec.LeaseDurationSeconds)
	if *lease.Spec.LeaseDurationSeconds > 15 {
		t.Errorf("a lease lasts %d s, so that taking over takes more than 20 s", *lease.Spec.LeaseDurationSeconds)
	}
	if now, err := holder(); err != nil || now == leader {
		t.Errorf("the lease is still with %q (%v)", now, err)
	}
	s.settled()
	if n := len(s.claimsOf()); n > 2 {
		t.Errorf("%d claims for two pods", n)
	}
}

func TestShadow(t *testing.T) {
	s := alone(t)
	s.class()
	pool := s.pool()
	pool.Status.Conditions = []metav1.Condition{{Type: karpv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.Now()}}
	if err := s.client.Status().Update(s.ctx, pool); err != nil {
		t.Fatal(err)
	}
	s.pods(1)
	seen := func() string {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			t.Fatal(err)
		}
		return pool.ResourceVersion
	}
	before := seen()
	ctl := start(t, s.cluster, "--shadow", "--batch-idle-duration", "100ms", "--batch-max-duration", "1s", "--health-probe-port", "0")
	s.eventually("it says what it would buy", func() error {
		text, err := os.ReadFile(ctl.log)
		if err == nil && !strings.Contains(string(text), "would buy nodes") {
			err = fmt.Errorf("not yet")
		}
		return err
	})
	s.stays("nothing is written", 2*time.Second, func() error {
		if c, m, e := len(s.claimsOf()), len(s.machines()), len(s.events()); c+m+e > 0 {
			return fmt.Errorf("%d claims, %d machines, %d events", c, m, e)
		}
		return nil
	})
	if after := seen(); after != before {
		t.Errorf("the NodePool was written: %s, then %s", before, after)
	}
}

// TestMigration takes over a node that Karpenter made, and gives it back as it was.
func TestMigration(t *testing.T) {
	s := alone(t)
	s.class()
	pool := s.pool()
	update(s, pool, func(p *karpv1.NodePool) {
		p.Annotations = map[string]string{karpv1.NodePoolHashAnnotationKey: "1234567890", karpv1.NodePoolHashVersionAnnotationKey: "v3"}
	})
	// A controller of ours makes the machine, and what Karpenter would have written is
	// put in its place.
	ctl := start(t, s.cluster, quick...)
	s.deployment(1)
	_, nodes := s.run(1)
	ctl.stop()
	claim := s.claimsOf()[0]
	update(s, &claim, func(c *karpv1.NodeClaim) {
		c.Annotations = map[string]string{karpv1.NodePoolHashAnnotationKey: "1234567890", karpv1.NodePoolHashVersionAnnotationKey: "v3"}
	})
	update(s, pool, func(p *karpv1.NodePool) {
		p.Annotations = map[string]string{karpv1.NodePoolHashAnnotationKey: "1234567890", karpv1.NodePoolHashVersionAnnotationKey: "v3"}
	})
	var node corev1.Node
	for _, n := range nodes {
		node = *n
	}
	uid := s.all()[0].UID

	ctl = start(t, s.cluster, quick...)
	s.eventually("the claim is stamped anew", func() error {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(&claim), &claim); err != nil {
			return err
		}
		if v := claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey]; v != karpv1.NodePoolHashVersion {
			return fmt.Errorf("version %q", v)
		}
		return nil
	})
	s.stays("nothing drifts, goes or moves", 4*time.Second, func() error {
		claims := s.claimsOf()
		if len(claims) != 1 || claims[0].UID != claim.UID || claims[0].DeletionTimestamp != nil || claims[0].Conditions().IsTrue(karpv1.ConditionDrifted) {
			return fmt.Errorf("claims are %+v", claims)
		}
		if p := s.all(); len(p) != 1 || p[0].UID != uid {
			return fmt.Errorf("the pod has moved")
		}
		return nil
	})
	ctl.stop()
	if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(&claim), &claim); err != nil {
		t.Fatal(err)
	}
	var after corev1.Node
	if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(&node), &after); err != nil {
		t.Fatal(err)
	}
	for what, ok := range map[string]bool{
		"the claim has its finalizer":    has(claim.Finalizers, karpv1.TerminationFinalizer),
		"the claim has its owner":        len(claim.OwnerReferences) == 1 && claim.OwnerReferences[0].UID == pool.UID,
		"the claim is ready":             claim.Conditions().IsTrue(karpv1.ConditionReady),
		"the node has its finalizer":     has(after.Finalizers, karpv1.TerminationFinalizer),
		"the node is registered":         after.Labels[karpv1.NodeRegisteredLabelKey] == "true",
		"the node is initialized":        after.Labels[karpv1.NodeInitializedLabelKey] == "true",
		"the node has its pool":          after.Labels[karpv1.NodePoolLabelKey] == pool.Name,
		"the node has its capacity type": after.Labels[karpv1.CapacityTypeLabelKey] != "",
		"the node takes pods":            len(after.Spec.Taints) == 0,
	} {
		if !ok {
			t.Errorf("handed back, it is not so: %s", what)
		}
	}
	// For the rest of the package, the case's objects need somebody to end them.
	world.main = start(forever{t}, s.cluster, quick...)
	s.delete(pool)
	s.gone()
	world.main.stop()
	world.main = nil
}

func TestAPIServerRestarts(t *testing.T) {
	s := alone(t)
	s.class()
	s.pool()
	start(t, s.cluster, quick...)
	s.pod("a")
	s.run(1)
	s.cluster.Kill(cluster.APIServer)
	if err := s.cluster.Restart(t.Context(), cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	s.pod("b", cpu("7"))
	s.run(2)
	if err := s.cluster.Pause(cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	if err := s.cluster.Resume(cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	s.pod("c", cpu("15"))
	s.run(3)
	s.settled()
}

// storm answers a share of the writes with errors: before they are done, or, what is
// worse, after it.
func storm(t *testing.T, c *cluster.Cluster, share float64) (kubeconfig string, faults *atomic.Int64) {
	t.Helper()
	config := c.RESTConfig()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	faults = &atomic.Int64{}
	codes := []int{http.StatusConflict, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		FlushInterval: -1,
		Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			write := r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events")
			if !write || rand.Float64() >= share {
				return transport.RoundTrip(r)
			}
			faults.Add(1)
			code := codes[rand.IntN(len(codes))]
			if code >= 500 && rand.IntN(2) == 0 {
				answer, err := transport.RoundTrip(r)
				if err != nil {
					return nil, err
				}
				_ = answer.Body.Close()
			}
			w := httptest.NewRecorder()
			w.Header().Set("Content-Type", "application/json")
			if code == http.StatusTooManyRequests {
				w.Header().Set("Retry-After", "1")
			}
			w.WriteHeader(code)
			reason := map[int]metav1.StatusReason{409: metav1.StatusReasonConflict, 429: metav1.StatusReasonTooManyRequests, 500: metav1.StatusReasonInternalError, 503: metav1.StatusReasonServiceUnavailable}[code]
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"a storm","reason":%q,"code":%d}`, reason, code)
			return w.Result(), nil
		}),
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(c.Dir(), "storm.kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, &rest.Config{Host: server.URL}); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, faults
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestStorm(t *testing.T) {
	s := alone(t)
	s.class()
	pool := s.pool()
	kubeconfig, faults := storm(t, s.cluster, 0.3)
	ctl := start(t, s.cluster, append([]string{"--kubeconfig", kubeconfig}, quick...)...)
	d := s.deployment(4, cpu("3"))
	s.run(4)
	update(s, d, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(6)) })
	s.run(6)
	s.settled()
	s.delete(d)
	s.delete(pool)
	s.gone()
	if faults.Load() < 10 {
		t.Errorf("only %d faults: this was no storm", faults.Load())
	}
	t.Logf("%d writes failed", faults.Load())
	ctl.stop()
}

// TestChaos kills the controller at random points under load. KILLS says how often.
func TestChaos(t *testing.T) {
	kills := 8
	if text := os.Getenv("KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			t.Fatalf("KILLS=%q: must be a number of at least 0", text)
		}
		kills = n
	}
	s := alone(t)
	s.class(func(c *v1alpha1.SimNodeClassSpec) {
		c.LaunchLatency = v1alpha1.SimLatency{Base: metav1.Duration{Duration: 100 * time.Millisecond}, Jitter: metav1.Duration{Duration: time.Second}}
		c.TerminateLatency = v1alpha1.SimLatency{Jitter: metav1.Duration{Duration: time.Second}}
	})
	s.pool()
	random := rand.New(rand.NewPCG(1, uint64(kills)))
	d := s.deployment(3, cpu("1500m"))
	for i := range kills {
		ctl := start(t, s.cluster, quick...)
		if i%3 == 0 {
			n := int32(1 + random.IntN(12))
			update(s, d, func(d *appsv1.Deployment) { d.Spec.Replicas = &n })
		}
		if claims := s.claimsOf(); i%2 == 1 && len(claims) > 0 {
			s.delete(&claims[random.IntN(len(claims))])
		}
		// A controller is ready to act after about a second.
		time.Sleep(time.Duration(200+random.IntN(3000)) * time.Millisecond)
		ctl.kill()
	}
	start(t, s.cluster, quick...)
	deadline := time.Now().Add(2 * patience)
	var got tally
	for time.Now().Before(deadline) {
		var err error
		if got, err = s.tally(); err == nil && got == (tally{}) {
			break
		}
		time.Sleep(500 * time.Millisecond)
	}
	fmt.Printf("kills=%d leaked=%d duplicated=%d orphaned=%d unscheduled=%d\n", kills, got.leaked, got.duplicated, got.orphaned, got.unscheduled)
	if got != (tally{}) {
		t.Errorf("not everything fits together: %+v", got)
	}
}
