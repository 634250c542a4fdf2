package candidate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// guard is a PodDisruptionBudget.
type guard struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
}

// guards are found by a pair of label and value that the pods they select must have, so that
// looking takes as long as a pod has labels, not as there are guards.
type guards struct {
	byPair map[pair][]*guard
	// open select by expressions alone, or everything.
	open map[string][]*guard
}

type pair struct{ namespace, key, value string }

func newGuards(list []*policyv1.PodDisruptionBudget) *guards {
	g := &guards{byPair: map[pair][]*guard{}, open: map[string][]*guard{}}
	for _, b := range list {
		if b.Spec.Selector == nil {
			continue
		}
		// The API server has checked the labels; checking them again takes long.
		s := labels.SelectorFromValidatedSet(b.Spec.Selector.MatchLabels)
		if len(b.Spec.Selector.MatchExpressions) > 0 {
			var err error
			if s, err = metav1.LabelSelectorAsSelector(b.Spec.Selector); err != nil {
				continue // what cannot be read selects nothing, as in the API server
			}
		}
		one := &guard{b, s}
		if match := b.Spec.Selector.MatchLabels; len(match) > 0 {
			key := slices.Min(slices.Collect(maps.Keys(match)))
			at := pair{b.Namespace, key, match[key]}
			g.byPair[at] = append(g.byPair[at], one)
		} else {
			g.open[b.Namespace] = append(g.open[b.Namespace], one)
		}
	}
	return g
}

// of appends the guards of a pod to buf, by name.
func (g *guards) of(p *corev1.Pod, buf []*guard) []*guard {
	if len(g.byPair) > 0 {
		for key, value := range p.Labels {
			for _, b := range g.byPair[pair{p.Namespace, key, value}] {
				if b.selector.Matches(labels.Set(p.Labels)) {
					buf = append(buf, b)
				}
			}
		}
	}
	for _, b := range g.open[p.Namespace] {
		if b.selector.Matches(labels.Set(p.Labels)) {
			buf = append(buf, b)
		}
	}
	if len(buf) > 1 {
		slices.SortFunc(buf, func(x, y *guard) int { return strings.Compare(x.Name, y.Name) })
	}
	return buf
}

// free reports whether a pod may be evicted whatever the guard allows: the API server lets
// pods go that do not run yet, and unready ones if the guard says so or loses nothing by it.
func (g *guard) free(p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodPending {
		return true
	}
	if !unready(p) {
		return false
	}
	if policy := g.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return g.Status.DesiredHealthy > 0 && g.Status.CurrentHealthy >= g.Status.DesiredHealthy
}

// never reports whether the guard lets no pod go whatever becomes of them.
func (g *guard) never() bool {
	most, least := g.Spec.MaxUnavailable, g.Spec.MinAvailable
	return most != nil && (most.String() == "0" || most.String() == "0%") || least != nil && least.String() == "100%"
}

// tally is what a guard means for the pods of one node.
type tally struct {
	*guard
	// pods are those that count against it, in order.
	pods []snapshot.PodKey
}

func (t *tally) blocked() bool { return t.Status.DisruptionsAllowed <= 0 }

// rounds is in how many turns the pods can go at the least.
func (t *tally) rounds() int {
	allowed := int(t.Status.DisruptionsAllowed)
	return (len(t.pods) + allowed - 1) / allowed
}

func (t *tally) reason() Reason {
	return Reason{Code: PodBudget, Object: "poddisruptionbudget " + t.Namespace + "/" + t.Name, Message: t.message()}
}

func (t *tally) message() string {
	who := "pod " + t.pods[0].Name
	if len(t.pods) > 1 {
		who = fmt.Sprintf("pod %s and %d more", t.pods[0].Name, len(t.pods)-1)
	}
	if t.never() {
		return fmt.Sprintf("it never allows evicting %s", who)
	}
	return fmt.Sprintf("it does not allow evicting %s now: %d pods are healthy, %d have to be", who, t.Status.CurrentHealthy, t.Status.DesiredHealthy)
}
