// Package gate plans under policies: it asks whether NodePools are acceptable, what
// offerings really cost and whether the nodes of a plan may be bought, and plans again
// without what is denied, so that the next best plan is found instead of none.
//
// # Rounds
//
// A plan whose nodes are denied is made again without the offerings that the policies
// object to. To learn which ones those are, they are asked about all that the NodePool
// sells, each offering as if it were planned for the denied node, since a policy that
// denies spot capacity denies a thousand offerings and not just the one that was planned.
// So a plan is found in a few rounds; after [MaxRounds] the best one counts, and the pods
// of nodes that are denied in it have to wait.
//
// What a policy says of many offerings at once may differ from what it says of each: it may
// add them up. So the nodes that it allows in the plan are among the question again, and if
// one of them is denied there, the answer is not used; offerings are then tried one by one
// in place of the denied node.
//
// When all else is denied, part of the nodes may be allowed: a budget may be enough for
// some. Then the more important pods get theirs.
package gate
