package gate

import (
	"fmt"

	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// VerdictRestrict is the verdict of an [Objection] to the type or cost planned.
const VerdictRestrict = "restrict"

// Said is what a policy says.
type Said struct {
	Policy string `json:"policy"`
	Code   string `json:"code,omitempty"`
	Msg    string `json:"msg"`
}

func (s Said) String() string { return s.Policy + ": " + s.Msg }

func said(list []policy.Reason) []Said {
	out := make([]Said, 0, len(list))
	for _, r := range list {
		out = append(out, Said{r.Policy, r.Code, r.Msg})
	}
	return out
}

// PoolVerdict is what admit policies say of a NodePool. A denied one buys nothing; its nodes
// keep running.
type PoolVerdict struct {
	Pool     string
	Denied   bool
	Deny     []Said
	Warnings []Said
}

// Launch is what launch policies say of a plan. The zero value has no objection.
type Launch struct {
	// Rounds is the number of plans made.
	Rounds int
	// Refused are the planned nodes that were planned anew or given up, of all rounds, one
	// of equal ones. Objections are those whose pods get no node now: the ones in the way
	// of the plan that is reported.
	Refused, Objections []Objection
	// Warnings are about the plan that is reported.
	Warnings []Said
	// Restricted are the nodes of the plan that policies keep from some offerings, by name;
	// [Result.Allowed] applies them.
	Restricted map[string]policy.ClaimVerdict
}

// Objection is what stands against a planned node.
type Objection struct {
	// Claim is the name of the node in its plan, Pool its NodePool, Offer what was planned.
	Claim, Pool string
	Offer       schedule.Offer
	Pods        []snapshot.PodKey
	// Verdict is deny, defer or restrict.
	Verdict string
	Reasons []Said
	// Seconds after which to ask again; 0 unless the verdict is defer.
	Seconds int64
}

// reason is that of the pods that wait because of o.
func (o *Objection) reason() schedule.Reason {
	r := schedule.Reason{Code: schedule.PolicyDenied, Pool: o.Pool, InstanceType: o.Offer.InstanceType}
	if o.Verdict == policy.VerdictDefer {
		r.Code, r.Want = schedule.PolicyDeferred, fmt.Sprintf("%d s", o.Seconds)
	}
	if len(o.Reasons) > 0 {
		r.Key, r.Have = o.Reasons[0].Policy, o.Reasons[0].Msg
	}
	return r
}
