package state

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Moment is the cluster at one moment. Nothing in it may be changed.
type Moment struct {
	Snapshot *snapshot.Snapshot
	// Objects are what the snapshot was made from: pods that have ended, or need nothing
	// yet, are left out.
	Objects snapshot.Objects
	// Problems are what had to be left out of the snapshot, and catalogues that could not
	// be had.
	Problems []snapshot.Problem
	// Catalogs are what NodePools may buy, by name, before NodeOverlays.
	Catalogs map[string]*catalog.Catalog
	// Revision is equal for moments that differ in their time only, and differs between
	// processes.
	Revision string
}

// priced is the answer to the last question for a pool's catalogue.
type priced struct {
	catalog *catalog.Catalog
	// unusable is why nothing may be bought; the catalogue is then the last one known.
	unusable string
}

// made is what the last snapshot was made from, besides the catalogues.
type made struct {
	revision uint64
	catalogs uint64
	// until is when the time alone makes a difference; zero is never.
	until time.Time
}

// Snapshot returns the cluster as it is now. Without changes since the last call it is the
// same, but for the time.
//
// A NodePool whose catalogue cannot be had buys nothing, and the cause is among the
// problems; others are not affected. The error is ctx.Err().
func (c *Cluster) Snapshot(ctx context.Context) (*Moment, error) {
	c.making.Lock()
	defer c.making.Unlock()
	c.Expire()
	if c.price(ctx, c.Pools()) {
		c.made.catalogs++
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	now := c.opts.Now()

	c.mu.Lock()
	revision := c.revision
	text := c.revisionText(c.made.catalogs)
	if c.last != nil && c.last.Revision == text && (c.made.until.IsZero() || now.Before(c.made.until)) {
		c.mu.Unlock()
		if !c.last.Snapshot.Now.Equal(now) {
			m, s := *c.last, *c.last.Snapshot
			s.Now = now
			m.Snapshot = &s
			c.last = &m
		}
		return c.last, nil
	}
	m := &Moment{Objects: c.objects(), Revision: text, Catalogs: map[string]*catalog.Catalog{}}
	opts := snapshot.Options{
		Now: now, DefaultSpread: c.opts.DefaultSpread, Expected: c.expectations(), Leaving: maps.Clone(c.marked),
		PoolCatalogs: m.Catalogs, Unusable: map[string]string{}, Sorted: true,
	}
	c.mu.Unlock()

	for name, p := range c.catalogs {
		m.Catalogs[name] = p.catalog
		if p.unusable != "" {
			opts.Unusable[name] = p.unusable
			m.Problems = append(m.Problems, snapshot.Problem{Kind: "NodePool", Name: name, Field: "spec.template.spec.nodeClassRef", Message: p.unusable})
		}
	}
	s, problems := c.memo.Build(m.Objects, opts)
	m.Snapshot, m.Problems = s, append(m.Problems, problems...)
	slices.SortStableFunc(m.Problems, func(a, b snapshot.Problem) int { return strings.Compare(a.String(), b.String()) })
	c.made.revision, c.made.until = revision, c.memo.Until()
	c.last = m
	return m, nil
}

// objects are those of a snapshot.
func (c *Cluster) objects() snapshot.Objects {
	o := snapshot.Objects{
		Pods: c.live.list(), Nodes: c.nodeTable.list(), NodePools: c.poolTable.list(), NodeClaims: c.claimTable.list(),
		DaemonSets: c.daemonSets.list(), ReplicaSets: c.replicaSets.list(), StatefulSets: c.statefulSets.list(),
		ReplicationControllers: c.controllers.list(), Services: c.services.list(), Namespaces: c.namespaces.list(),
		LimitRanges: c.limitRanges.list(), PersistentVolumes: c.volumes.list(), PersistentVolumeClaims: c.volumeClaims.list(),
		StorageClasses: c.classes.list(), CSINodes: c.csiNodes.list(), PodDisruptionBudgets: c.budgets.list(),
	}
	if c.opts.NodeOverlays {
		o.NodeOverlays = c.overlays.list()
	}
	return o
}

// price asks for the catalogues of the NodePools, all at once. It reports whether anything
// is different.
func (c *Cluster) price(ctx context.Context, pools []*karpv1.NodePool) bool {
	next := make(map[string]priced, len(pools))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, np := range pools {
		wg.Go(func() {
			p := c.priceOne(ctx, np)
			mu.Lock()
			defer mu.Unlock()
			next[np.Name] = p
		})
	}
	wg.Wait()
	if maps.Equal(c.catalogs, next) {
		return false
	}
	c.catalogs = next
	return true
}

func (c *Cluster) priceOne(ctx context.Context, np *karpv1.NodePool) priced {
	before := c.catalogs[np.Name]
	p := c.opts.Provider
	if p == nil {
		return priced{unusable: "there is no cloud to buy from"}
	}
	ref := np.Spec.Template.Spec.NodeClassRef
	if ref == nil {
		return priced{unusable: "it names no NodeClass"}
	}
	if !Provides(p, ref) {
		return priced{unusable: fmt.Sprintf("NodeClasses of kind %s in group %s are not those of cloud %q", ref.Kind, ref.Group, p.Name())}
	}
	// A question that takes too long must not stop the others.
	type answer struct {
		catalog *catalog.Catalog
		err     error
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.CatalogTimeout)
	defer cancel()
	answers := make(chan answer, 1)
	go func() {
		found, err := p.Catalog(ctx, np)
		answers <- answer{found, err}
	}()
	var a answer
	select {
	case a = <-answers:
	case <-ctx.Done():
		a.err = fmt.Errorf("cloud %q did not answer: %w", p.Name(), context.Cause(ctx))
	}
	switch {
	case a.err != nil:
		return priced{catalog: before.catalog, unusable: "its instance types cannot be had: " + a.err.Error()}
	case a.catalog == nil || a.catalog.Len() == 0:
		return priced{unusable: "the cloud has no instance types for it"}
	}
	return priced{catalog: a.catalog}
}

// Provides reports whether NodeClasses of the kind that ref names are those of a provider.
func Provides(p cloud.Provider, ref *karpv1.NodeClassReference) bool {
	return slices.ContainsFunc(p.NodeClasses(), func(gvk schema.GroupVersionKind) bool { return gvk.Group == ref.Group && gvk.Kind == ref.Kind })
}
