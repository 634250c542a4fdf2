// Package state keeps what is known of a cluster and makes snapshots of it.
//
// A [Cluster] is told of objects by the watches of [Cluster.Watch], and by controllers of
// what they have written themselves, so that each sees its own writes. What it derives
// (which pods need a node, what nodes and NodePools hold) is kept up to date with every
// change; [Cluster.Snapshot] hands out everything at one moment.
//
// # What objects do not say
//
// Some of what decisions rest on is in no object: which pods a NodeClaim was bought for,
// which nodes are expected to take pods, which NodeClaims are about to be deleted. The
// state remembers it until the objects show it. After a restart, pods that were told their
// node through status.nominatedNodeName are still counted there.
//
// # Order of events
//
// Events may come late, twice, or after a deletion. An object never goes back to an older
// resourceVersion, and one that is deleted comes back under another UID only.
package state
