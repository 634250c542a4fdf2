// Package set keeps policies in force as their owners describe them.
//
// A [Loader] makes a policy of a NodePolicy and its files; it is given a [Compiler] for
// each runtime, so that it names none. A [Set] fetches, loads and swaps policies while
// their NodePolicies and sources change: what cannot be fetched or loaded never takes the
// place of what works. [FromFolder] reads policies of a folder, for a cluster that mounts
// them and for simulations without a cluster.
package set
