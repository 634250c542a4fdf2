package nodeclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

const (
	// orphanGrace is how long a machine must have been without claim before it is ended.
	orphanGrace = time.Minute
	// collectWidth is how many claims or machines are looked at at the same time.
	collectWidth = 20
)

// collector ends claims whose machine is gone, and machines whose claim is gone.
type collector struct {
	*fleet.Kit
	reader client.Reader
	// elapsed is Options.Elapsed.
	elapsed func() time.Duration
	// suspects are machines without claim by provider ID, with what had elapsed when they
	// were first seen. Only one collection runs at a time.
	suspects map[string]time.Duration
}

func (g *collector) collect(ctx context.Context) (time.Duration, error) {
	// Claims are read first: the machine of each was there before its claim told of it, so
	// the list of machines that is made afterwards has it.
	var claims karpv1.NodeClaimList
	if err := g.Client.List(ctx, &claims); err != nil {
		return 0, fmt.Errorf("list nodeclaims: %w", err)
	}
	machines, err := g.Provider.List(ctx)
	if err != nil {
		return 0, fmt.Errorf("list machines: %w", err)
	}
	alive := map[string]bool{}
	for _, m := range machines {
		if !m.Ending {
			alive[m.ProviderID] = true
		}
	}
	var lost []*karpv1.NodeClaim
	for i := range claims.Items {
		c := &claims.Items[i]
		if g.ManagesClaim(c) && c.DeletionTimestamp.IsZero() && c.Conditions().IsTrue(karpv1.ConditionRegistered) && !alive[c.Status.ProviderID] {
			lost = append(lost, c)
		}
	}
	err = inParallel(lost, func(c *karpv1.NodeClaim) error { return g.lost(ctx, c) })
	orphanErr := g.orphans(ctx, claims.Items, machines)
	next := time.Duration(0)
	if len(g.suspects) > 0 {
		next = orphanGrace
	}
	return next, errors.Join(err, orphanErr)
}

// lost gives up a claim if its machine is really gone: the cloud says so twice, and no
// Node says that it is well.
func (g *collector) lost(ctx context.Context, c *karpv1.NodeClaim) error {
	nodes, err := fleet.Nodes(ctx, g.Client, c.Status.ProviderID)
	if err != nil {
		return err
	}
	pods := 0
	for i := range nodes {
		if fleet.Ready(&nodes[i]) {
			return nil
		}
		on, err := fleet.Pods(ctx, g.Client, nodes[i].Name)
		if err != nil {
			return err
		}
		pods += fleet.Moving(on)
	}
	m, err := g.Provider.Get(ctx, c.Status.ProviderID)
	switch {
	case err != nil && !cloud.IsNotFound(err):
		return fmt.Errorf("get machine of nodeclaim %q: %w", c.Name, err)
	case err == nil && !m.Ending:
		return nil
	}
	_, err = g.GiveUp(ctx, c, observe.ReasonGarbageCollected, pods, &observe.Event{
		About: c, Warning: true, Reason: observe.GarbageCollected, Message: "The cloud no longer has machine " + c.Status.ProviderID,
	})
	return err
}

// owners tells which machines claims speak for.
type owners struct {
	ids   map[string]bool
	uids  map[types.UID]bool
	names map[string]bool
}

func ownersOf(claims []karpv1.NodeClaim) owners {
	o := owners{map[string]bool{}, map[types.UID]bool{}, map[string]bool{}}
	for i := range claims {
		o.ids[claims[i].Status.ProviderID], o.uids[claims[i].UID], o.names[claims[i].Name] = true, true, true
	}
	return o
}

func (o owners) own(m *cloud.Machine) bool {
	switch {
	case o.ids[m.ProviderID]:
		return true
	case m.ClaimUID != "":
		return o.uids[types.UID(m.ClaimUID)]
	}
	return m.ClaimName != "" && o.names[m.ClaimName]
}

// orphans ends the machines of this cluster that have been without claim for a while.
func (g *collector) orphans(ctx context.Context, claims []karpv1.NodeClaim, machines []*cloud.Machine) error {
	now, elapsed, known, seen := g.Now(), g.elapsed(), ownersOf(claims), map[string]bool{}
	var due []*cloud.Machine
	for _, m := range machines {
		if m.Ending || m.ProviderID == "" || known.own(m) {
			continue
		}
		seen[m.ProviderID] = true
		first, ok := g.suspects[m.ProviderID]
		if !ok {
			g.suspects[m.ProviderID] = elapsed
			continue
		}
		if elapsed-first >= orphanGrace && now.Sub(m.Created) >= orphanGrace {
			due = append(due, m)
		}
	}
	for id := range g.suspects {
		if !seen[id] {
			delete(g.suspects, id)
		}
	}
	if len(due) == 0 {
		return nil
	}
	// Ending the machine of a claim that the cache does not have yet would be worse than
	// any leak.
	var stored karpv1.NodeClaimList
	if err := g.reader.List(ctx, &stored); err != nil {
		return fmt.Errorf("list stored nodeclaims: %w", err)
	}
	known = ownersOf(stored.Items)
	return inParallel(due, func(m *cloud.Machine) error {
		if known.own(m) {
			return nil
		}
		return g.end(ctx, m)
	})
}

func (g *collector) end(ctx context.Context, m *cloud.Machine) error {
	c := &karpv1.NodeClaim{}
	c.Name, c.UID, c.Labels, c.Status.ProviderID = m.ClaimName, types.UID(m.ClaimUID), m.Labels, m.ProviderID
	if err := g.Provider.Terminate(ctx, c); err != nil && !cloud.IsNotFound(err) {
		return fmt.Errorf("terminate machine %s, whose nodeclaim %q is gone: %w", m.ProviderID, m.ClaimName, err)
	}
	ctrl.LoggerFrom(ctx).Info("terminated a machine whose NodeClaim is gone", "nodeclaim", m.ClaimName, "providerID", m.ProviderID)
	nodes, err := fleet.Nodes(ctx, g.Client, m.ProviderID)
	if err != nil {
		return err
	}
	for i := range nodes {
		n := &nodes[i]
		if !g.ManagesNode(n) || !n.DeletionTimestamp.IsZero() {
			continue
		}
		g.Events.Publish(observe.Event{About: n, Warning: true, Reason: observe.GarbageCollected, Message: "NodeClaim " + m.ClaimName + " is gone, so the machine is terminated"})
		if err := g.Client.Delete(ctx, n, client.Preconditions{UID: &n.UID}); err != nil && !fleet.Lost(err) {
			return fmt.Errorf("delete node %q: %w", n.Name, err)
		}
	}
	return nil
}

// inParallel does something for each of list, and collects the errors.
func inParallel[T any](list []T, do func(T) error) error {
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	slots := make(chan struct{}, collectWidth)
	for _, one := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := do(one); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
