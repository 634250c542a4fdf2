// Package scenario reads a cluster state with the outcome that must hold, and judges
// plans by it.
//
// # The file
//
// A scenario is a YAML file. Its first document is the scenario ([File]): what can be
// bought, pools, nodes and pods in short, and what to expect. Further documents are
// Kubernetes manifests that belong to it. What the file does not say is as usual: the
// catalogue of the file cat-1.yaml beside it, one NodePool "default" for on-demand
// nodes, pods of a ReplicaSet, nodes initialised and old.
//
//	about: Two small pods share one node.
//	pods:
//	- {name: web, count: 2, cpu: 900m, memory: 1Gi}
//	expect: {cost: 0.08, types: {c.2: 1}}
//
// # The invariants
//
// Beside its own expectations each scenario is held to three invariants: no pod stays
// pending that a node of the applied plan could take (I1); the plan does not depend on
// the order of objects (I5); and every placement keeps Kubernetes' hard constraints,
// by a slow and independent reading of them (I6).
package scenario
