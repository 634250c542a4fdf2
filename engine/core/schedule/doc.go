// Package schedule plans: given a snapshot, where does every pending pod go, and which
// nodes must be bought for that.
//
// [Solve] works in stages. Each stage takes pods from the demand and never gives a pod
// a place that kube-scheduler would refuse:
//
//  1. compile turns names into numbers: resources into dimensions, labels into the
//     columns that satisfy them, pod selectors into groups with counts per domain.
//  2. existing nodes take what they can (existing.go).
//  3. Pods whose constraints look at zones, or at any label beside the hostname, are
//     given a domain (domains.go); what is left are rules inside one node.
//  4. Package pack buys nodes for the rest (buy.go), pools of higher weight first.
//  5. Pods that found nothing are tried one by one (single.go).
//  6. The plan is replayed in order against kube-scheduler's rules (replay.go): what
//     does not pass is taken out, so that a fault here costs a pod some time and
//     nothing else.
//  7. Nodes get their alternatives, pods without a place their reasons (finish.go,
//     reason.go).
package schedule
