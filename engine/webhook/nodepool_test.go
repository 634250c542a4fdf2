package webhook_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/webhook"
)

const update = admissionv1.Update

func labelled(p *karpv1.NodePool) { p.Spec.Template.Labels = map[string]string{"a": "b"} }

func unreadable(p *karpv1.NodePool) {
	p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, karpv1.Requirement{Key: "karpenter.sh/nothing", Operator: corev1.NodeSelectorOpExists})
}

func only(key string, values ...string) func(*karpv1.NodePool) {
	return func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, in(key, values...))
	}
}

func budgets(list ...karpv1.Budget) func(*karpv1.NodePool) {
	return func(p *karpv1.NodePool) { p.Spec.Disruption.Budgets = list }
}

var (
	denyAll = rule{name: "no", text: `deny contains {"code": "never", "msg": "nobody may"}`}
	never   = "policy no: never: nobody may"
	// told has every field of the impact in its text.
	told = rule{name: "told", text: `warn contains {"code": "impact", "msg": sprintf("%d nodes, %d drifted, %d orphaned, cost %d, pods %d", [i.nodes, i.nodesDrifted, i.nodesOrphaned, i.hourlyCostDelta, i.podsUnschedulable])} if i := input.impact`}
)

func TestNodePool(t *testing.T) {
	cron := func(schedule string) karpv1.Budget {
		return karpv1.Budget{Nodes: "1", Schedule: &schedule, Duration: &metav1.Duration{Duration: time.Hour}}
	}
	tests := map[string]struct {
		world   []func(*world)
		rules   []rule
		request request
		// deny are parts of the message of a refusal; none means that the request passes.
		deny []string
		code int32
		// warn are parts of the warnings, in order: no other is allowed.
		warn []string
	}{
		"a new NodePool":           {request: request{object: pool()}},
		"a requirement nobody has": {request: request{object: pool(unreadable)}, deny: []string{`NodePool "web": spec.template.spec.requirements[1].key`}, code: 422},
		"a schedule that cannot be read": {
			request: request{object: pool(budgets(karpv1.Budget{Nodes: "1"}, cron("0 9 * * sat-sun")))},
			deny:    []string{"spec.disruption.budgets[1].schedule"}, code: 422,
		},
		"a schedule that could not be read before": {
			request: request{operation: update, old: pool(budgets(cron("@nonsense"))), object: pool(budgets(cron("@nonsense")), labelled)},
			warn:    []string{"spec.disruption.budgets[0].schedule", "3 of 3 nodes drift"},
		},
		"a budget that never opens": {
			request: request{object: pool(budgets(karpv1.Budget{Nodes: "0"}))},
			warn:    []string{"spec.disruption.budgets[0].nodes: at no time may a node be disrupted"},
		},
		"an invalid NodePool gets a label": {
			request: request{operation: update, old: pool(unreadable), object: pool(unreadable, func(p *karpv1.NodePool) { p.Labels["x"] = "y" })},
			warn:    []string{"the NodePool is invalid and buys nothing"},
		},
		"denied": {rules: []rule{denyAll}, request: request{object: pool()}, deny: []string{`NodePool "web": ` + never}, code: 403},
		"denied by two": {
			rules:   []rule{denyAll, {name: "other", text: `deny contains {"code": "", "msg": "not now"}`}},
			request: request{object: pool()}, deny: []string{never, "policy other: not now"}, code: 403,
		},
		"denied by a shadow": {rules: []rule{{name: "no", text: denyAll.text, mode: v1alpha1.ModeShadow}}, request: request{object: pool()}},
		"warned": {
			rules:   []rule{{name: "hint", text: `warn contains {"code": "limits", "msg": "there are no limits"} if not input.object.spec.limits`}},
			request: request{object: pool()}, warn: []string{"policy hint: limits: there are no limits"},
		},
		"a policy that fails": {
			rules:   []rule{{name: "broken", text: `deny contains {"code": "x", "msg": "y"} if { some i in numbers.range(1, 1000000); i < 0 }`}},
			request: request{object: pool()}, warn: []string{"policy broken: PolicyError:"},
		},
		"a policy that fails and must not": {
			rules:   []rule{{name: "broken", text: `deny contains {"code": "x", "msg": "y"} if { some i in numbers.range(1, 1000000); i < 0 }`, failure: v1alpha1.FailureDeny}},
			request: request{object: pool()}, deny: []string{"policy broken: PolicyError:"}, code: 403,
		},
		"who asks": {
			rules:   []rule{{name: "who", text: `deny contains {"code": "who", "msg": input.user.name} if not "release" in input.user.groups`}},
			request: request{object: pool(), user: authenticationv1.UserInfo{Username: "kim", Groups: []string{"dev"}}},
			deny:    []string{"policy who: who: kim"}, code: 403,
		},
		"who may": {
			rules:   []rule{{name: "who", text: `deny contains {"code": "who", "msg": input.user.name} if not "release" in input.user.groups`}},
			request: request{object: pool(), user: authenticationv1.UserInfo{Username: "kim", Groups: []string{"release"}}},
		},
		"a dry run, and what was before": {
			rules: []rule{{name: "dry", text: `warn contains {"code": input.operation, "msg": sprintf("dry run %v, weight %d before", [input.dryRun, input.oldObject.spec.weight])}`}},
			request: request{operation: update, dryRun: true, object: pool(), old: pool(func(p *karpv1.NodePool) {
				p.Spec.Weight = new(int32(7))
			})},
			warn: []string{"policy dry: UPDATE: dry run true, weight 7 before"},
		},
		"what a new NodePool could buy": {
			rules:   []rule{{name: "rich", text: `warn contains {"code": "resolved", "msg": sprintf("%d types, %d to %d, %v, %v, siblings %v", [r.typesCount, r.priceMin, r.priceMax, r.zones, r.capacityTypes, [[s.name, s.overlap] | some s in input.siblings]])} if r := input.resolved`}},
			request: request{object: pool(only(corev1.LabelTopologyZone, "b"), func(p *karpv1.NodePool) { p.Name = "new" })},
			warn:    []string{`policy rich: resolved: 2 types, 100000 to 400000, ["b"], ["on-demand"], siblings [["web", true]]`},
		},
		"a label of the template drifts all": {
			rules: []rule{told}, request: request{operation: update, old: pool(), object: pool(labelled)},
			warn: []string{"by this change 3 of 3 nodes drift and are replaced", "policy told: impact: 3 nodes, 3 drifted, 0 orphaned, cost 0, pods 0"},
		},
		"drift that a policy does not like": {
			rules:   []rule{{name: "calm", text: `deny contains {"code": "drift", "msg": sprintf("%d nodes", [input.impact.nodesDrifted])} if input.impact.nodesDrifted > 2`}},
			request: request{operation: update, old: pool(), object: pool(labelled)},
			deny:    []string{"policy calm: drift: 3 nodes"}, code: 403, warn: []string{"3 of 3 nodes drift"},
		},
		"nodes of another zone drift": {
			rules: []rule{told}, request: request{operation: update, old: pool(), object: pool(only(corev1.LabelTopologyZone, "b"))},
			warn: []string{"3 of 3 nodes drift and are replaced, 3 of 3 nodes are of a kind that the NodePool does not buy any more", "3 nodes, 3 drifted, 3 orphaned, cost 0, pods 0"},
		},
		"spot is cheaper": {
			rules: []rule{told}, request: request{operation: update, old: pool(), object: pool(func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.Requirements = []karpv1.Requirement{in(karpv1.CapacityTypeLabelKey, catalog.Spot)}
			})},
			warn: []string{"the cost changes by -0.600 $/h", "3 nodes, 3 drifted, 3 orphaned, cost -600000, pods 0"},
		},
		"machines too small for some pods": {
			rules: []rule{told}, request: request{operation: update, old: pool(), object: pool(only(corev1.LabelInstanceTypeStable, "small"))},
			warn: []string{"the cost changes by -0.900 $/h, 3 pods find no node any more", "3 nodes, 3 drifted, 3 orphaned, cost -900000, pods 3"},
		},
		"pods that wait find no node any more, and their machine is not bought": {
			world: []func(*world){func(w *world) { w.objects.Pods = append(w.objects.Pods, pod("waits", "3")) }},
			rules: []rule{told}, request: request{operation: update, old: pool(), object: pool(func(p *karpv1.NodePool) {
				p.Spec.Limits = corev1.ResourceList{corev1.ResourceCPU: pod("", "24").Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]}
			})},
			warn: []string{"by this change the cost changes by -0.400 $/h, 1 pods find no node any more", "3 nodes, 0 drifted, 0 orphaned, cost -400000, pods 1"},
		},
		"weight, limits and disruption drift nothing": {
			rules: []rule{told}, request: request{operation: update, old: pool(), object: pool(func(p *karpv1.NodePool) {
				p.Spec.Weight = new(int32(7))
				p.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
			})},
			warn: []string{"3 nodes, 0 drifted, 0 orphaned, cost 0, pods 0"},
		},
		"nodes that drift already are not counted": {
			world: []func(*world){func(w *world) {
				w.objects.NodeClaims[0].Annotations[karpv1.NodePoolHashAnnotationKey] = "earlier"
				w.objects.NodeClaims[1].Conditions().At(now).SetTrueBecause(karpv1.ConditionDrifted, "ImageDrifted", "")
			}},
			rules: []rule{told}, request: request{operation: update, old: pool(), object: pool(labelled)},
			warn: []string{"1 of 3 nodes drift", "3 nodes, 1 drifted, 0 orphaned, cost 0, pods 0"},
		},
		"what is on offer is not known": {
			world: []func(*world){func(w *world) {
				w.opts.Catalog = func(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) {
					return nil, errors.New("the cloud is away")
				}
			}},
			rules: []rule{{name: "missing", text: `warn contains {"code": "known", "msg": sprintf("%v", [sort([k | some k, _ in input.impact])])}`}},
			request: request{operation: update, old: pool(), object: pool(func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.NodeClassRef.Name = "other"
			})},
			warn: []string{"3 of 3 nodes drift", "policies were not told impact.nodesOrphaned, impact.hourlyCostDelta, impact.podsUnschedulable", `policy missing: known: ["nodes", "nodesDrifted"]`},
		},
		"the controller has not seen the cluster": {
			world: []func(*world){func(w *world) {
				w.opts.Moment = func(context.Context) (webhook.Moment, error) { return webhook.Moment{}, errors.New("not yet") }
			}},
			rules: []rule{denyAll}, request: request{object: pool()}, warn: []string{"policies were not asked"},
		},
		"a request of the controller's namespace": {
			rules:   []rule{denyAll},
			request: request{object: pool(), user: authenticationv1.UserInfo{Username: "system:serviceaccount:system:dovetail", Groups: []string{"system:serviceaccounts:system"}}},
			warn:    []string{"not refused, since it comes from the controller's namespace: " + never},
		},
		"the controller stamps a hash": {
			rules: []rule{denyAll}, request: request{operation: update, old: pool(), object: pool(func(p *karpv1.NodePool) {
				p.Annotations = map[string]string{karpv1.NodePoolHashAnnotationKey: "x", karpv1.NodePoolHashVersionAnnotationKey: "y"}
			})},
		},
		"only the status is another": {
			rules: []rule{denyAll}, request: request{operation: update, old: pool(), object: pool(func(p *karpv1.NodePool) {
				p.Status.Nodes, p.Generation, p.Finalizers = new(int64(3)), 9, []string{"karpenter.sh/termination"}
			})},
		},
		"a label": {
			rules: []rule{denyAll}, request: request{operation: update, old: pool(), object: pool(func(p *karpv1.NodePool) { p.Labels["team"] = "x" })},
			deny: []string{never}, code: 403,
		},
		"the last finalizer goes": {
			rules: []rule{denyAll}, request: request{operation: update, old: pool(), object: pool(labelled, func(p *karpv1.NodePool) {
				p.DeletionTimestamp = new(metav1.NewTime(now))
			})},
		},
		"a deletion":                 {rules: []rule{denyAll}, request: request{operation: admissionv1.Delete, old: pool()}},
		"another kind":               {rules: []rule{denyAll}, request: request{resource: "nodeclaims", object: pool()}},
		"another group":              {rules: []rule{denyAll}, request: request{group: "apps", object: pool()}},
		"what nobody can read":       {rules: []rule{denyAll}, request: request{object: `{"spec": 7}`}, warn: []string{"the NodePool was not checked: the object cannot be read"}},
		"a fault of the webhook":     {world: []func(*world){func(w *world) { w.opts.Facts = func() policy.Facts { panic("ours") } }}, rules: []rule{denyAll}, request: request{object: pool()}, warn: []string{"the NodePool was not checked: a fault of the webhook"}},
		"a NodePool without a class": {request: request{object: pool(func(p *karpv1.NodePool) { p.Name, p.Spec.Template.Spec.NodeClassRef = "new", nil })}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, tt.world...)
			w.rules(tt.rules...)
			got := w.ask(tt.request)
			if got.Allowed != (len(tt.deny) == 0) {
				t.Errorf("allowed: %t, %+v", got.Allowed, got.Result)
			}
			for _, part := range tt.deny {
				if got.Result == nil || !strings.Contains(got.Result.Message, part) {
					t.Errorf("refused with %+v, want %q", got.Result, part)
				}
			}
			if len(tt.deny) > 0 && got.Result.Code != tt.code {
				t.Errorf("code %d, want %d", got.Result.Code, tt.code)
			}
			if len(got.Warnings) != len(tt.warn) {
				t.Fatalf("warnings %q, want %q", got.Warnings, tt.warn)
			}
			for i, part := range tt.warn {
				if !strings.Contains(got.Warnings[i], part) {
					t.Errorf("warning %q, want %q", got.Warnings[i], part)
				}
			}
		})
	}
}

// waits is a policy that answers when its deadline has come, as the runtimes make those do
// that would not end.
type waits struct{ policy.Evaluator }

func (waits) Reads() policy.Reads { return nil }

func (waits) Gate(ctx context.Context, _ policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	<-ctx.Done()
	return policy.GateAnswer{}, policy.Stats{}, &policy.Error{Class: policy.ClassDeadline, Msg: "no answer in time"}
}

// TestNodePool_slow has everything that a request waits for take longer than it may.
func TestNodePool_slow(t *testing.T) {
	tests := map[string]struct {
		change func(*world, <-chan struct{})
		// least is what a request waits in any case.
		least time.Duration
		// pool is that of the request.
		pool string
		warn string
	}{
		"a policy that hangs": {
			change: func(w *world, _ <-chan struct{}) {
				err := w.opts.Policies.Swap([]policy.Policy{{Name: "hangs", Hook: policy.Admit, Revision: "1", Evaluator: waits{}, Limits: policy.Limits{Deadline: 200 * time.Millisecond}}})
				if err != nil {
					w.Fatal(err)
				}
			},
			pool: "new", least: 200 * time.Millisecond, warn: "policy hangs: PolicyError",
		},
		"a state that does not come": {
			change: func(w *world, end <-chan struct{}) {
				w.opts.MomentTime = 50 * time.Millisecond
				w.opts.Moment = func(context.Context) (webhook.Moment, error) { <-end; return webhook.Moment{}, errors.New("too late") }
			},
			pool: "new", least: 50 * time.Millisecond, warn: "policies were not asked",
		},
		"a cloud that does not answer": {
			change: func(w *world, end <-chan struct{}) {
				w.opts.MomentTime = 500 * time.Millisecond
				w.sold = nil
				w.opts.Catalog = func(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) { <-end; return nil, nil }
			},
			pool: "web", least: 500 * time.Millisecond, warn: "policies were not told impact.nodesOrphaned",
		},
		"a plan that takes long": {
			change: func(w *world, _ <-chan struct{}) {
				w.opts.ImpactTime = time.Nanosecond
				w.objects.Pods = append(w.objects.Pods, pod("waits", "1"))
			},
			pool: "new", warn: "policies were not told impact.hourlyCostDelta, impact.podsUnschedulable",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			end := make(chan struct{})
			defer close(end)
			w := newWorld(t, 1, func(w *world) { tt.change(w, end) })
			begin := time.Now()
			got := w.ask(request{object: pool(func(p *karpv1.NodePool) { p.Name = tt.pool })})
			took := time.Since(begin)
			if !got.Allowed || !slices.ContainsFunc(got.Warnings, func(s string) bool { return strings.Contains(s, tt.warn) }) {
				t.Errorf("allowed %t with %q, want a pass with %q", got.Allowed, got.Warnings, tt.warn)
			}
			if took < tt.least || took > tt.least+5*time.Second {
				t.Errorf("took %s, want a little more than %s", took, tt.least)
			}
		})
	}
}

// TestNodePool_lastState has a state at hand while a newer one does not come.
func TestNodePool_lastState(t *testing.T) {
	slow := make(chan struct{})
	defer close(slow)
	first := true
	w := newWorld(t, 3, func(w *world) {
		get := w.opts.Moment
		w.opts.Moment = func(ctx context.Context) (webhook.Moment, error) {
			if first {
				first = false
				return get(ctx)
			}
			<-slow
			return webhook.Moment{}, errors.New("too late")
		}
	})
	w.rules(told)
	change := request{operation: update, old: pool(), object: pool(labelled)}
	before := w.ask(change)
	w.hook.SetMomentTime(20 * time.Millisecond)
	after := w.ask(change)
	if len(before.Warnings) != 2 || !slices.Equal(before.Warnings, after.Warnings) {
		t.Errorf("first %q, then %q: want the state known last", before.Warnings, after.Warnings)
	}
}
