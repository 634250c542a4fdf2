package problem

import (
	"math/rand/v2"
	"slices"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// Shuffle returns p with every list in an order drawn from seed. It means the same.
func Shuffle(p *Problem, seed uint64) *Problem {
	r := rand.New(rand.NewPCG(seed, 0x5))
	q := *p
	o := &q.Objects
	mix(r, &o.Pods)
	mix(r, &o.Nodes)
	mix(r, &o.NodePools)
	mix(r, &o.NodeClaims)
	mix(r, &o.DaemonSets)
	mix(r, &o.ReplicaSets)
	mix(r, &o.Services)
	mix(r, &o.Namespaces)
	mix(r, &o.PersistentVolumes)
	mix(r, &o.PersistentVolumeClaims)
	mix(r, &o.StorageClasses)
	mix(r, &o.CSINodes)
	mix(r, &q.Types)
	for i := range q.Types {
		mix(r, &q.Types[i].Offerings)
	}
	q.Options.Catalog, _ = catalog.New(q.Types)
	return &q
}

func mix[T any](r *rand.Rand, list *[]T) {
	*list = slices.Clone(*list)
	r.Shuffle(len(*list), func(i, j int) { (*list)[i], (*list)[j] = (*list)[j], (*list)[i] })
}
