// Package engine is the root of Dovetail's packages. It holds no code, only this map
// and the test of the import rules.
//
// # How a decision is made
//
//	watches or files -> Snapshot -> core -> Plan -> gates -> apply
//
// A snapshot.Snapshot is all that a decision depends on: nodes, pods, NodePools, the
// catalogue of instance types, and the time. schedule.Solve turns it into a
// schedule.Plan, which is data as well, and something else applies the Plan. So a
// live cluster, a folder of manifests and a test share every decision.
//
// # Packages
//
//	api       the Kubernetes kinds, and their CustomResourceDefinitions
//	core      the decisions: resources < requirements < catalog < snapshot < schedule
//	policy    hooks for rules of the user's own, in Rego and WebAssembly
//	cloud     where nodes come from: the port, a test that every provider passes, and sim
//	state     watches become Snapshots
//	controller  what acts: provision buys, nodeclaim makes Nodes of NodeClaims, terminate
//	          ends them, repair and static ask for more or fewer, drift says which may
//	          go, disrupt takes nodes away; nodepool and nodepolicy keep the status of
//	          what users write, metrics measures it all
//	webhook   what the API server asks before it stores a NodePool or NodePolicy
//	observe   metrics and events
//	simulate  plans without a cluster, and clusters in virtual time
//
// # Import rules
//
// Imports point inwards: command, then simulate and controllers, then policy and cloud,
// then core, then api. The core imports no client of anything and reads no clock: a Plan
// depends on its arguments only. Only the command names a concrete cloud or policy
// runtime.
// TestImports has the rules in full, and holds every package to them.
package engine
