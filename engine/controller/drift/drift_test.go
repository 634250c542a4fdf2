package drift

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// shop is the stage's cloud with a catalogue, and an opinion on machines.
type shop struct {
	*stage.Cloud
	sells   *catalog.Catalog
	failing error
	drift   func(c *karpv1.NodeClaim) (string, error)
}

func (s *shop) Catalog(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) {
	return s.sells, s.failing
}

func (s *shop) Drift(_ context.Context, c *karpv1.NodeClaim) (string, error) {
	if s.drift == nil {
		return "", nil
	}
	return s.drift(c)
}

func sells(t *testing.T, offerings ...catalog.Offering) *catalog.Catalog {
	t.Helper()
	c, errs := catalog.New([]catalog.InstanceType{{
		Name: "large", Capacity: resources.List{corev1.ResourceCPU: 4000}, Allocatable: resources.List{corev1.ResourceCPU: 4000}, Offerings: offerings,
	}})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return c
}

func spot(zone string) catalog.Offering {
	return catalog.Offering{Zone: zone, CapacityType: catalog.Spot, Price: 1}
}

// pool is NodePool default, stamped.
func pool(change ...func(p *karpv1.NodePool)) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: map[string]string{karpv1.NodePoolHashVersionAnnotationKey: karpv1.NodePoolHashVersion}}}
	p.Spec.Template.Labels = map[string]string{"team": "a"}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: stage.NodeClass.Group, Kind: stage.NodeClass.Kind, Name: "default"}
	p.Spec.Template.Spec.Requirements = []karpv1.Requirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"zone-a", "zone-b"}}}
	p.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(30 * time.Second)
	for _, f := range change {
		f(p)
	}
	return p
}

// claim is one of a pool, launched and initialized at the stage's start.
func claim(p *karpv1.NodePool, at time.Time, change ...func(c *karpv1.NodeClaim)) *karpv1.NodeClaim {
	c := p.NewClaim()
	c.Name, c.GenerateName = "a", ""
	c.Labels[corev1.LabelInstanceTypeStable], c.Labels[corev1.LabelTopologyZone], c.Labels[karpv1.CapacityTypeLabelKey] = "large", "zone-a", karpv1.CapacityTypeSpot
	stage.Launched(at)(c)
	for _, f := range change {
		f(c)
	}
	return c
}

// drifted is "reason: message" of the condition, or "".
func drifted(c *karpv1.NodeClaim) string {
	cond := c.Conditions().Get(karpv1.ConditionDrifted)
	if cond == nil {
		return ""
	}
	if cond.Status != metav1.ConditionTrue {
		return string(cond.Status)
	}
	return cond.Reason + ": " + cond.Message
}

func run(t *testing.T, r reconcile.Reconciler) (reconcile.Result, error) {
	t.Helper()
	return r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}})
}

func was(reason string) func(c *karpv1.NodeClaim) {
	return func(c *karpv1.NodeClaim) {
		c.Conditions().At(c.CreationTimestamp.Time).SetTrueBecause(karpv1.ConditionDrifted, reason, "before")
	}
}

func TestDrift(t *testing.T) {
	label := func(key, value string) func(p *karpv1.NodePool) {
		return func(p *karpv1.NodePool) {
			if p.Spec.Template.Labels == nil {
				p.Spec.Template.Labels = map[string]string{}
			}
			p.Spec.Template.Labels[key] = value
		}
	}
	requires := func(key string, op corev1.NodeSelectorOperator, values ...string) func(p *karpv1.NodePool) {
		return func(p *karpv1.NodePool) {
			p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, karpv1.Requirement{Key: key, Operator: op, Values: values})
		}
	}
	capacity := func(kind string) func(c *karpv1.NodeClaim) {
		return func(c *karpv1.NodeClaim) { c.Labels[karpv1.CapacityTypeLabelKey] = kind }
	}
	version := func(v string) func(o client.Object) {
		return func(o client.Object) { o.GetAnnotations()[karpv1.NodePoolHashVersionAnnotationKey] = v }
	}
	failed := errors.New("the cloud is on fire")
	tests := map[string]struct {
		// bought changes the pool that the claim is made from, pool the present one.
		bought, pool func(p *karpv1.NodePool)
		claim        func(c *karpv1.NodeClaim)
		age          time.Duration
		sells        *catalog.Catalog
		sellsNothing bool
		catalogErr   error
		drift        string
		driftErr     error
		want         string
		wantErr      error
	}{
		"a claim like its pool is not drifted":     {},
		"an earlier drift that is over is cleared": {claim: was(NodePoolDrifted)},

		"a template's label that changed":  {pool: label("team", "b"), want: `NodePoolDrifted: spec.template.metadata.labels[team]: "a" -> "b"`},
		"the template comes before others": {pool: func(p *karpv1.NodePool) { label("team", "b")(p); requires("example.com/x", "Exists")(p) }, drift: "ImageDrift", want: `NodePoolDrifted: spec.template.metadata.labels[team]: "a" -> "b"`},
		"settings that are not the template's": {pool: func(p *karpv1.NodePool) {
			p.Spec.Weight = new(int32(7))
			p.Spec.Limits = corev1.ResourceList{"cpu": stage.Capacity()["cpu"]}
			p.Spec.Disruption.ConsolidateAfter = karpv1.NillableDuration{}
		}},
		"a hash of another version is not compared":   {pool: label("team", "b"), claim: func(c *karpv1.NodeClaim) { version("v3")(c) }},
		"nor is a claim without hash":                 {pool: label("team", "b"), claim: func(c *karpv1.NodeClaim) { delete(c.Annotations, karpv1.NodePoolHashAnnotationKey) }},
		"nor a pool that is not stamped yet":          {pool: func(p *karpv1.NodePool) { label("team", "b")(p); version("v3")(p) }},
		"drift that Karpenter found stays meanwhile":  {pool: func(p *karpv1.NodePool) { version("v3")(p) }, claim: was(NodePoolDrifted), want: "NodePoolDrifted: before"},
		"what only the hash tells of is said as much": {claim: func(c *karpv1.NodeClaim) { c.Annotations[karpv1.NodePoolHashAnnotationKey] = "0" }, want: "NodePoolDrifted: spec.template: changed since the NodeClaim was made"},

		"a requirement that the machine does not meet":           {pool: func(p *karpv1.NodePool) { p.Spec.Template.Spec.Requirements[0].Values = []string{"zone-b"} }, want: `RequirementsDrifted: spec.template.spec.requirements: label "topology.kubernetes.io/zone": want In [zone-b], have In [zone-a]`},
		"a requirement on a label that is missing":               {pool: requires("example.com/rack", "In", "7"), want: `RequirementsDrifted: spec.template.spec.requirements: label "example.com/rack": want In [7], but it is not defined`},
		"a well-known label that is missing too":                 {pool: requires(corev1.LabelArchStable, "In", "amd64"), want: `RequirementsDrifted: spec.template.spec.requirements: label "kubernetes.io/arch": want In [amd64], but it is not defined`},
		"absence that a requirement accepts":                     {pool: requires("example.com/rack", "NotIn", "7")},
		"wider requirements":                                     {pool: func(p *karpv1.NodePool) { p.Spec.Template.Spec.Requirements = nil }},
		"a label that the claim left open":                       {bought: requires("example.com/tier", "In", "gold", "silver"), pool: requires("example.com/tier", "In", "gold", "silver")},
		"a label that the claim left open, and may not be now":   {bought: requires("example.com/tier", "In", "gold", "silver"), pool: requires("example.com/tier", "In", "bronze"), want: `RequirementsDrifted: spec.template.spec.requirements: label "example.com/tier": want In [bronze], have In [gold silver]`},
		"a pool whose requirements are broken is left to others": {pool: requires("a", "Gt", "x"), drift: "ImageDrift", want: "ImageDrift: the machine is not what StageClass default asks for now"},
		"and does not end what was found before":                 {pool: requires("a", "Gt", "x"), claim: was(RequirementsDrifted), want: "RequirementsDrifted: before"},

		"an instance type that is not sold":                   {age: time.Hour, claim: func(c *karpv1.NodeClaim) { c.Labels[corev1.LabelInstanceTypeStable] = "huge" }, want: `InstanceTypeNotFound: instance type "huge" is not sold any more`},
		"a young claim's type need not be listed":             {age: time.Hour - time.Second, claim: func(c *karpv1.NodeClaim) { c.Labels[corev1.LabelInstanceTypeStable] = "huge" }},
		"a type not sold in the zone":                         {age: time.Hour, sells: sells(t, spot("zone-b")), want: `InstanceTypeNotFound: instance type "large" is not sold any more as spot in zone zone-a`},
		"an offering out of capacity is one":                  {age: time.Hour, sells: sells(t, catalog.Offering{Zone: "zone-a", CapacityType: catalog.Spot, Price: 1, Unavailable: true})},
		"another capacity type is none":                       {age: time.Hour, claim: capacity("on-demand"), want: `InstanceTypeNotFound: instance type "large" is not sold any more as on-demand in zone zone-a`},
		"a reserved machine may come of on-demand":            {age: time.Hour, claim: capacity("reserved"), sells: sells(t, catalog.Offering{Zone: "zone-a", CapacityType: catalog.OnDemand, Price: 1})},
		"and of another reservation":                          {age: time.Hour, claim: func(c *karpv1.NodeClaim) { capacity("reserved")(c); c.Labels[catalog.ReservationIDLabel] = "r-1" }, sells: sells(t, catalog.Offering{Zone: "zone-a", CapacityType: catalog.Reserved, ReservationID: "r-2"})},
		"a further label of the offering":                     {age: time.Hour, claim: func(c *karpv1.NodeClaim) { c.Labels["stage.dovetail.sh/group"] = "g1" }, sells: sells(t, catalog.Offering{Zone: "zone-a", CapacityType: catalog.Spot, Price: 1, Requirements: requirements.NewSet(requirements.In("stage.dovetail.sh/group", "g2"))}), want: `InstanceTypeNotFound: instance type "large" is not sold any more as spot in zone zone-a`},
		"a cloud that sells nothing is no drift":              {age: time.Hour, sellsNothing: true},
		"a catalogue that fails keeps what was found":         {age: time.Hour, catalogErr: failed, claim: was(InstanceTypeNotFound), want: "InstanceTypeNotFound: before", wantErr: failed},
		"but not what others found":                           {age: time.Hour, catalogErr: failed, claim: was(RequirementsDrifted), wantErr: failed},
		"nor does it hide the machine's own drift":            {age: time.Hour, catalogErr: failed, drift: "ImageDrift", want: "ImageDrift: the machine is not what StageClass default asks for now", wantErr: failed},
		"a class that is not ready is waited for":             {age: time.Hour, catalogErr: &cloud.NodeClassNotReadyError{NodeClass: "default", Err: failed}, claim: was(InstanceTypeNotFound), want: "InstanceTypeNotFound: before"},
		"a machine that is not what its class asks for":       {drift: "ImageDrift", want: "ImageDrift: the machine is not what StageClass default asks for now"},
		"a machine that is gone is not drifted":               {driftErr: &cloud.NotFoundError{Machine: "a"}, claim: was("ImageDrift")},
		"a cloud that does not answer keeps its own":          {driftErr: failed, claim: was("ImageDrift"), want: "ImageDrift: before", wantErr: failed},
		"a cloud that does not answer does not keep the rest": {driftErr: failed, claim: was(InstanceTypeNotFound), wantErr: failed},
		"a claim that is not launched is not drifted": {pool: label("team", "b"), claim: func(c *karpv1.NodeClaim) {
			was(NodePoolDrifted)(c)
			c.Conditions().At(c.CreationTimestamp.Time).Clear(karpv1.ConditionLaunched)
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			or := func(f func(*karpv1.NodePool)) func(*karpv1.NodePool) {
				if f == nil {
					return func(*karpv1.NodePool) {}
				}
				return f
			}
			now := time.Now().Truncate(time.Second)
			made := claim(pool(or(tt.bought)), now)
			if tt.claim != nil {
				tt.claim(made)
			}
			s := stage.New(t, pool(or(tt.pool)), made)
			s.Pass(now.Sub(s.Now()) + tt.age)
			market := &shop{Cloud: s.Cloud, sells: tt.sells, failing: tt.catalogErr, drift: func(*karpv1.NodeClaim) (string, error) { return tt.drift, tt.driftErr }}
			if market.sells == nil && !tt.sellsNothing {
				market.sells = sells(t, spot("zone-a"), spot("zone-b"))
			}
			c := New(Options{Client: s.Client, Provider: market, Now: s.Now})
			r, err := run(t, c.Drift())
			if !errors.Is(err, tt.wantErr) || (err != nil) != (tt.wantErr != nil) {
				t.Errorf("Reconcile() error %v, want %v", err, tt.wantErr)
			}
			if err == nil && made.Conditions().IsTrue(karpv1.ConditionLaunched) && r.RequeueAfter != checkEvery {
				t.Errorf("checked again after %s, want %s", r.RequeueAfter, checkEvery)
			}
			if got := drifted(s.Claim("a")); got != tt.want {
				t.Errorf("Drifted is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDrift_again(t *testing.T) {
	p := pool()
	now := time.Now().Truncate(time.Second)
	s := stage.New(t, p, claim(p, now))
	writes := 0
	s.Before = func(stage.Write) error { writes++; return nil }
	market := &shop{Cloud: s.Cloud, sells: sells(t, spot("zone-a")), drift: func(*karpv1.NodeClaim) (string, error) { return "ImageDrift", nil }}
	c := New(Options{Client: s.Client, Provider: market, Now: s.Now})
	for range 3 {
		if _, err := run(t, c.Drift()); err != nil {
			t.Fatal(err)
		}
		s.Pass(checkEvery)
	}
	since := s.Claim("a").Conditions().Since(karpv1.ConditionDrifted)
	if writes != 1 || s.Now().Sub(since) < 3*checkEvery {
		t.Errorf("%d writes, drifted since %s", writes, since)
	}
	s.Before = func(w stage.Write) error {
		return apierrors.NewConflict(schema.GroupResource{}, "a", errors.New("changed"))
	}
	market.drift = nil
	r, err := run(t, c.Drift())
	if err != nil || r.RequeueAfter > time.Second || drifted(s.Claim("a")) == "" {
		t.Errorf("after a lost write: again after %s, error %v", r.RequeueAfter, err)
	}
}

func TestRest(t *testing.T) {
	never := func(p *karpv1.NodePool) {
		p.Spec.Disruption.ConsolidateAfter = karpv1.NillableDuration{Text: karpv1.Never}
	}
	quiet := func(c *karpv1.NodeClaim) {
		c.Conditions().At(c.CreationTimestamp.Time).SetTrue(karpv1.ConditionConsolidatable)
	}
	podAt := func(after time.Duration) func(c *karpv1.NodeClaim) {
		return func(c *karpv1.NodeClaim) {
			c.Status.LastPodEventTime = metav1.NewTime(c.CreationTimestamp.Add(after))
		}
	}
	tests := map[string]struct {
		pool  func(p *karpv1.NodePool)
		claim []func(c *karpv1.NodeClaim)
		// age is the time since the claim was initialized.
		age  time.Duration
		want bool
		// again is when the claim is looked at again; zero is when something changes.
		again time.Duration
	}{
		"the window begins with initialization": {age: 29 * time.Second, again: time.Second},
		"the window ends to the moment":         {age: 30 * time.Second, want: true},
		"a moment before it has not ended":      {age: 30*time.Second - time.Millisecond, again: time.Millisecond},
		"the window begins with a pod":          {claim: []func(*karpv1.NodeClaim){podAt(20 * time.Second)}, age: 45 * time.Second, again: 5 * time.Second},
		"the pod's window ends to the moment":   {claim: []func(*karpv1.NodeClaim){podAt(20 * time.Second)}, age: 50 * time.Second, want: true},
		"a pod from before initialization":      {claim: []func(*karpv1.NodeClaim){podAt(-20 * time.Second)}, age: 29 * time.Second, again: time.Second},
		"a pod that comes ends it":              {claim: []func(*karpv1.NodeClaim){podAt(50 * time.Second), quiet}, age: 50 * time.Second, again: 30 * time.Second},
		"it stays":                              {claim: []func(*karpv1.NodeClaim){quiet}, age: time.Hour, want: true},
		"no window":                             {pool: func(p *karpv1.NodePool) { p.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(0) }, want: true},
		"never":                                 {pool: never, age: time.Hour},
		"never from now on":                     {pool: never, claim: []func(*karpv1.NodeClaim){quiet}, age: time.Hour},
		"a static pool is not consolidated":     {pool: func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(1)) }, claim: []func(*karpv1.NodeClaim){quiet}, age: time.Hour},
		"a claim that is not initialized": {claim: []func(*karpv1.NodeClaim){quiet, func(c *karpv1.NodeClaim) {
			c.Conditions().At(c.CreationTimestamp.Time).SetUnknown(karpv1.ConditionInitialized, "Rebooting", "")
		}}, age: time.Hour},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := pool()
			if tt.pool != nil {
				tt.pool(p)
			}
			now := time.Now().Truncate(time.Second)
			s := stage.New(t, p, claim(p, now, tt.claim...))
			s.Pass(now.Sub(s.Now()) + tt.age)
			c := New(Options{Client: s.Client, Provider: s.Cloud, Now: s.Now})
			r, err := run(t, c.Rest())
			if err != nil {
				t.Fatal(err)
			}
			cond := s.Claim("a").Conditions().Get(karpv1.ConditionConsolidatable)
			if got := cond != nil && cond.Status == metav1.ConditionTrue; got != tt.want || cond != nil && !got {
				t.Errorf("Consolidatable is %+v, want %t", cond, tt.want)
			}
			if r.RequeueAfter != tt.again {
				t.Errorf("again after %s, want %s", r.RequeueAfter, tt.again)
			}
		})
	}
}

func TestControllers_leaveAlone(t *testing.T) {
	p := pool(func(p *karpv1.NodePool) { p.Spec.Disruption.ConsolidateAfter = karpv1.DurationOf(0) })
	stale := func(c *karpv1.NodeClaim) { c.Annotations[karpv1.NodePoolHashAnnotationKey] = "0" }
	tests := map[string]struct {
		claim   func(c *karpv1.NodeClaim)
		without bool
	}{
		"a claim without pool":      {claim: func(c *karpv1.NodeClaim) { delete(c.Labels, karpv1.NodePoolLabelKey) }},
		"a claim of another cloud":  {claim: func(c *karpv1.NodeClaim) { c.Spec.NodeClassRef.Group = "example.com" }},
		"a claim that is going":     {claim: func(c *karpv1.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) }},
		"a claim whose pool is not": {without: true},
		"no claim":                  {claim: func(c *karpv1.NodeClaim) { c.Name = "b" }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			made := claim(p, time.Now(), stale)
			if tt.claim != nil {
				tt.claim(made)
			}
			objects := []client.Object{made}
			if !tt.without {
				objects = append(objects, p.DeepCopy())
			}
			s := stage.New(t, objects...)
			s.Before = func(w stage.Write) error { t.Errorf("%s of %s", w.Verb, w.Object.GetName()); return nil }
			c := New(Options{Client: s.Client, Provider: s.Cloud, Now: s.Now})
			for _, r := range []reconcile.Reconciler{c.Drift(), c.Rest()} {
				if r, err := run(t, r); err != nil || r.RequeueAfter != 0 {
					t.Errorf("Reconcile() = %v, %v", r, err)
				}
			}
		})
	}
}

func TestControllers_claimsOf(t *testing.T) {
	p := pool()
	mine := claim(p, time.Now())
	foreign := claim(p, time.Now(), func(c *karpv1.NodeClaim) { c.Name = "b"; c.Spec.NodeClassRef.Group = "example.com" })
	unrefed := claim(p, time.Now(), func(c *karpv1.NodeClaim) { c.Name = "c"; c.Spec.NodeClassRef = nil })
	other := claim(p, time.Now(), func(c *karpv1.NodeClaim) {
		c.Name = "d"
		c.Labels[karpv1.NodePoolLabelKey] = "other"
		c.Spec.NodeClassRef.Name = "other"
	})
	s := stage.New(t, p, mine, foreign, unrefed, other)
	c := New(Options{Client: s.Client, Provider: s.Cloud, Now: s.Now})
	class := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	class.SetGroupVersionKind(stage.NodeClass)
	names := func(requests []reconcile.Request) string {
		var out []string
		for _, r := range requests {
			out = append(out, r.Name)
		}
		return strings.Join(out, " ")
	}
	if diff := cmp.Diff([]string{"a", "d"}, []string{names(c.claimsOfPool(t.Context(), p)), names(c.claimsOfClass(t.Context(), class))}); diff != "" {
		t.Errorf("claims of the pool and of the class (-want +got):\n%s", diff)
	}
}

func TestMatters(t *testing.T) {
	tests := map[string]struct {
		change func(c *karpv1.NodeClaim)
		want   bool
	}{
		"a pod event":            {change: func(c *karpv1.NodeClaim) { c.Status.LastPodEventTime = metav1.Now() }},
		"an unrelated condition": {change: func(c *karpv1.NodeClaim) { c.Conditions().At(time.Now()).SetTrue(karpv1.ConditionConsolidatable) }},
		"a label":                {change: func(c *karpv1.NodeClaim) { c.Labels["a"] = "b" }, want: true},
		"the hash":               {change: func(c *karpv1.NodeClaim) { c.Annotations[karpv1.NodePoolHashAnnotationKey] = "1" }, want: true},
		"the launch":             {change: func(c *karpv1.NodeClaim) { c.Conditions().At(time.Now()).Clear(karpv1.ConditionLaunched) }, want: true},
		"somebody sets Drifted":  {change: func(c *karpv1.NodeClaim) { c.Conditions().At(time.Now()).SetTrue(karpv1.ConditionDrifted) }, want: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := claim(pool(), time.Now())
			after := before.DeepCopy()
			tt.change(after)
			if got := matters(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tt.want {
				t.Errorf("matters() = %t, want %t", got, tt.want)
			}
		})
	}
}
