package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// view shows what happens in a cluster.
type view struct {
	out io.Writer
	// live redraws a screen; otherwise each change is a line.
	live  bool
	cache cache.Cache
	begin time.Time
	// footer is the last part of the screen.
	footer []string

	mu     sync.Mutex
	failed map[types.NamespacedName]string // why pods have no node, from events
	said   map[string]string               // what lines were printed about, by object
	screen string
}

// row is a node, or a claim whose node is not there yet.
type row struct {
	name, kind, zone, buys, price, state, use, why string
	pods                                           int
}

// picture is one moment.
type picture struct {
	rows             []row
	running, pending int
	done             int
	cost             float64
	waiting          []blocked
}

// blocked are pods that have no node for one reason.
type blocked struct {
	pods int
	why  string
}

func (b blocked) String() string { return fmt.Sprintf("%d of %s", b.pods, b.why) }

func (v *view) settled(p *picture) bool {
	if p.pending > 0 || p.running+p.done == 0 {
		return false
	}
	return !slices.ContainsFunc(p.rows, func(r row) bool { return r.state != ready })
}

// ready is the state of a node that pods run on.
const ready = "Ready"

// run shows pictures until ctx ends; with once, until every pod has its place.
func (v *view) run(ctx context.Context, once bool) error {
	events, err := v.cache.GetInformer(ctx, &corev1.Event{})
	if err != nil {
		return err
	}
	if _, err := events.AddEventHandler(reasons{v}); err != nil {
		return err
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	quiet := 0
	for {
		p, err := v.look(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if v.live {
			v.draw(p)
		} else {
			v.tell(p)
		}
		if v.settled(p) {
			quiet++
		} else {
			quiet = 0
		}
		if once && quiet >= 4 {
			fmt.Fprintf(v.out, "%s  every pod has its place: %d running, %d completed, on %d nodes for $%.4f an hour\n", v.since(), p.running, p.done, len(p.rows), p.cost)
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (v *view) since() string { return fmt.Sprintf("%5.1fs", time.Since(v.begin).Seconds()) }

// look reads the cluster.
func (v *view) look(ctx context.Context) (*picture, error) {
	var (
		claims    karpv1.NodeClaimList
		nodes     corev1.NodeList
		pods      corev1.PodList
		instances v1alpha1.SimInstanceList
	)
	for _, list := range []client.ObjectList{&claims, &nodes, &pods, &instances} {
		if err := v.cache.List(ctx, list); err != nil {
			return nil, err
		}
	}
	p := &picture{}
	price := map[string]string{}
	for _, i := range instances.Items {
		price[i.Spec.Claim.Name] = i.Spec.Price
	}
	byName := map[string]*corev1.Node{}
	for i := range nodes.Items {
		byName[nodes.Items[i].Name] = &nodes.Items[i]
	}
	on := map[string][]*corev1.Pod{}
	var waiting []*corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
			p.done++
		case pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning:
			p.running++
			on[pod.Spec.NodeName] = append(on[pod.Spec.NodeName], pod)
		case pod.Spec.NodeName != "":
			p.pending++
			on[pod.Spec.NodeName] = append(on[pod.Spec.NodeName], pod)
		default:
			p.pending++
			waiting = append(waiting, pod)
		}
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		r := row{
			name: c.Name, kind: c.Labels[corev1.LabelInstanceTypeStable], zone: c.Labels[corev1.LabelTopologyZone],
			buys: c.Labels[karpv1.CapacityTypeLabelKey], why: c.Annotations[v1alpha1.BoughtForAnnotation], state: "Asked for",
		}
		if text := price[c.Name]; text != "" {
			var usd float64
			if _, err := fmt.Sscan(text, &usd); err == nil {
				p.cost += usd
				r.price = fmt.Sprintf("%.4f", usd)
			}
		}
		conditions := c.Conditions()
		switch {
		case c.DeletionTimestamp != nil:
			r.state = "Going"
		case conditions.IsTrue(karpv1.ConditionInitialized):
			r.state = ready
		case conditions.IsTrue(karpv1.ConditionRegistered):
			r.state = "Registered"
		case conditions.IsTrue(karpv1.ConditionLaunched):
			r.state = "Launched"
		}
		if n := byName[c.Status.NodeName]; n != nil {
			r.pods = len(on[n.Name])
			r.use = use(n, on[n.Name])
		}
		p.rows = append(p.rows, r)
	}
	slices.SortFunc(p.rows, func(a, b row) int { return cmp.Compare(a.name, b.name) })
	v.mu.Lock()
	defer v.mu.Unlock()
	groups := map[string]int{}
	for _, pod := range waiting {
		why := v.failed[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
		if why == "" {
			continue
		}
		groups[owner(pod)+": "+why]++
	}
	for _, text := range slices.Sorted(maps.Keys(groups)) {
		p.waiting = append(p.waiting, blocked{groups[text], text})
	}
	return p, nil
}

// owner names a pod's workload.
func owner(p *corev1.Pod) string {
	if app := p.Labels["app"]; app != "" {
		return p.Namespace + "/" + app
	}
	for _, o := range p.OwnerReferences {
		return p.Namespace + "/" + o.Name
	}
	return p.Namespace + "/" + p.Name
}

// use is the share of a node's CPU and memory that pods request.
func use(n *corev1.Node, pods []*corev1.Pod) string {
	share := func(name corev1.ResourceName) string {
		room := n.Status.Allocatable[name]
		if room.IsZero() {
			return "-"
		}
		var sum int64
		for _, p := range pods {
			for i := range p.Spec.Containers {
				q := p.Spec.Containers[i].Resources.Requests[name]
				sum += q.MilliValue()
			}
		}
		return fmt.Sprintf("%d %%", sum*100/room.MilliValue())
	}
	return share(corev1.ResourceCPU) + "\t" + share(corev1.ResourceMemory)
}

// draw redraws the screen if it changed.
func (v *view) draw(p *picture) {
	var b strings.Builder
	fmt.Fprintf(&b, "Dovetail, %s: %d nodes, $%.4f an hour; pods: %d running, %d pending, %d completed\n\n",
		time.Since(v.begin).Round(time.Second), len(p.rows), p.cost, p.running, p.pending, p.done)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tTYPE\tZONE\tCAPACITY\t$/HOUR\tSTATE\tPODS\tCPU\tMEMORY\tBOUGHT FOR")
	for _, r := range p.rows {
		use := r.use
		if use == "" {
			use = "-\t-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", r.name, dash(r.kind), dash(r.zone), dash(r.buys), dash(r.price), r.state, r.pods, use, dash(r.why))
	}
	_ = w.Flush()
	if len(p.waiting) > 0 {
		b.WriteString("\nWithout a node:\n")
		for _, s := range p.waiting {
			b.WriteString("  " + s.String() + "\n")
		}
	}
	b.WriteString("\n" + strings.Join(v.footer, "\n") + "\n")
	if text := b.String(); text != v.screen {
		v.screen = text
		fmt.Fprint(v.out, "\x1b[H\x1b[2J"+text)
	}
}

func dash(s string) string { return cmp.Or(s, "-") }

// tell prints a line for each thing that changed.
func (v *view) tell(p *picture) {
	v.mu.Lock()
	defer v.mu.Unlock()
	say := func(about, text string) {
		if v.said[about] != text {
			v.said[about] = text
			fmt.Fprintf(v.out, "%s  %s\n", v.since(), text)
		}
	}
	there := map[string]bool{}
	for _, r := range p.rows {
		there["node "+r.name] = true
		switch r.state {
		case "Asked for":
			say("node "+r.name, fmt.Sprintf("node %s: bought for %s", r.name, dash(r.why)))
		case ready:
			say("node "+r.name, fmt.Sprintf("node %s: %s in %s, %s, $%s an hour: ready; bought for %s", r.name, r.kind, r.zone, r.buys, r.price, dash(r.why)))
		case "Going":
			say("node "+r.name, fmt.Sprintf("node %s: going", r.name))
		}
	}
	for about := range v.said {
		if strings.HasPrefix(about, "node ") && !there[about] {
			say(about, about+": gone")
			delete(v.said, about)
		}
	}
	for _, s := range p.waiting {
		if about := "waiting " + s.why; v.said[about] == "" {
			say(about, "without a node: "+s.String())
		}
	}
	say("pods", fmt.Sprintf("pods: %d running, %d pending, %d completed; %d nodes for $%.4f an hour", p.running, p.pending, p.done, len(p.rows), p.cost))
}

// reasons remembers why pods have no node.
type reasons struct{ v *view }

func (r reasons) OnAdd(o any, _ bool) { r.note(o) }
func (r reasons) OnUpdate(_, o any)   { r.note(o) }
func (r reasons) OnDelete(any)        {}

func (r reasons) note(o any) {
	e, ok := o.(*corev1.Event)
	if !ok || e.InvolvedObject.Kind != "Pod" {
		return
	}
	key := types.NamespacedName{Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name}
	source := cmp.Or(e.ReportingController, e.Source.Component)
	r.v.mu.Lock()
	defer r.v.mu.Unlock()
	switch {
	case e.Reason == "Scheduled" || e.Reason == "Nominated":
		delete(r.v.failed, key)
	case source == controllerName && (e.Reason == "FailedScheduling" || strings.HasPrefix(e.Reason, "Policy")):
		r.v.failed[key] = e.Message
	}
}
