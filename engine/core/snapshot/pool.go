package snapshot

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// addPools makes the pools. One that buys nothing now is kept, with the reason.
func (b *builder) addPools() {
	for _, np := range b.objs.NodePools {
		if b.pools[np.Name] != nil {
			b.problem("NodePool", np, "metadata.name", "appears twice: the second is left out")
			continue
		}
		p := b.pool(np)
		b.pools[np.Name] = p
		b.snap.Pools = append(b.snap.Pools, p)
	}
	slices.SortFunc(b.snap.Pools, func(x, y *Pool) int {
		return cmp.Or(-cmp.Compare(x.Weight, y.Weight), strings.Compare(x.Name, y.Name))
	})
	b.applyOverlays()
}

func (b *builder) pool(np *karpv1.NodePool) *Pool {
	t := &np.Spec.Template
	p := &Pool{
		Name: np.Name, Object: np, Requirements: requirements.Set{}, Usage: resources.List{},
		Taints: t.Spec.Taints, StartupTaints: t.Spec.StartupTaints, Catalog: b.opts.Catalog,
	}
	if np.Spec.Weight != nil {
		p.Weight = *np.Spec.Weight
	}
	if c, ok := b.opts.PoolCatalogs[np.Name]; ok {
		p.Catalog = c
	}
	if err := np.RuntimeValidate(); err != nil {
		b.problem("NodePool", np, "", "%v", err)
		p.Unusable = "it is invalid: " + err.Error()
	}
	for _, r := range t.Spec.Requirements {
		req, err := requirements.New(r.Key, r.Operator, r.Values...)
		if err != nil {
			continue // named by RuntimeValidate
		}
		if r.MinValues != nil {
			req = req.WithMinValues(*r.MinValues)
		}
		p.Requirements.Add(req)
	}
	p.Requirements.AddSet(requirements.FromLabels(t.Labels))
	p.Requirements.Add(
		requirements.In(karpv1.NodePoolLabelKey, np.Name),
		requirements.In(karpv1.NodeRegisteredLabelKey, "true"),
		requirements.In(karpv1.NodeInitializedLabelKey, "true"),
	)
	if ref := t.Spec.NodeClassRef; ref != nil && ref.Group != "" && ref.Kind != "" {
		p.Requirements.Add(requirements.In(ref.LabelKey(), ref.Name))
	}
	for _, key := range p.Requirements.Keys() {
		if r := p.Requirements[key]; r.IsImpossible() && p.Unusable == "" {
			p.Unusable = "its requirements and labels contradict each other on " + key
			b.problem("NodePool", np, "spec.template.spec.requirements["+key+"]", "contradicts the other requirements and labels of that key: no value is left")
		}
	}
	if np.Spec.Limits != nil {
		limits, err := resources.FromQuantities(np.Spec.Limits)
		if err != nil {
			b.problem("NodePool", np, "spec.limits", "%v", err)
		}
		p.Limits = limits
	}
	if p.Unusable == "" {
		p.Unusable = b.opts.Unusable[np.Name]
	}
	if p.Unusable != "" {
		return p
	}
	status, message, found := condition(np.Status.Conditions, karpv1.ConditionReady)
	switch {
	case np.DeletionTimestamp != nil:
		p.Unusable = "it is being deleted"
	case np.Spec.Replicas != nil:
		p.Unusable = "it is static (spec.replicas): it buys nothing for pending pods"
	case found && status == metav1.ConditionFalse:
		p.Unusable = "its condition Ready is False: " + message
	case found && status != metav1.ConditionTrue, !found && !b.opts.AssumeReady:
		p.Unusable = "its condition Ready is not True yet"
	case p.Catalog == nil || len(p.Catalog.Types()) == 0:
		p.Unusable = "no instance types are known for it"
	}
	return p
}

// Labels are the labels that every node of the pool carries, whatever is bought.
func (p *Pool) Labels() map[string]string {
	out := map[string]string{}
	for key, r := range p.Requirements {
		if v, ok := r.IsSingle(); ok {
			out[key] = v
		}
	}
	return out
}
