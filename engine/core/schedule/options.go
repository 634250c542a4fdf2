package schedule

import (
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule/internal/pack"
)

// PreferencePolicy says what preferred terms and ScheduleAnyway constraints mean.
type PreferencePolicy string

// Preference policies, as Karpenter's PREFERENCE_POLICY.
const (
	// Respect lets all preferred terms weigh in: they order existing nodes and narrow
	// the offerings of a node that must be bought, but never cause one more node.
	Respect PreferencePolicy = "Respect"
	// Ignore drops them.
	Ignore PreferencePolicy = "Ignore"
)

// MinValuesPolicy says what happens when a pool's minValues cannot be met.
type MinValuesPolicy string

// minValues policies, as Karpenter's MIN_VALUES_POLICY.
const (
	Strict     MinValuesPolicy = "Strict"
	BestEffort MinValuesPolicy = "BestEffort"
)

// Options tunes one call to [Solve]. The zero value is ready to use.
type Options struct {
	// Preferences defaults to Respect.
	Preferences PreferencePolicy
	// MinValues defaults to Strict.
	MinValues MinValuesPolicy
	// Costs replaces list prices, per pool; nil means list prices.
	Costs Costs
	// MaxAlternatives bounds NewNode.Alternatives by distinct instance types, as
	// Karpenter's MaxInstanceTypes. Defaults to 600; negative is invalid.
	MaxAlternatives int
	// ImproveSteps bounds the search for a cheaper set of nodes after the first
	// complete one. A count, not a duration, so that plans do not depend on CPU speed.
	// Defaults to DefaultImproveSteps; negative means none.
	ImproveSteps int
	// Memo remembers between calls how sets of pods were packed, which changes no plan. Nil
	// remembers nothing.
	Memo *Memo
}

// Memo is what calls for much the same pods remember. The zero value is ready to use, for one
// call at a time.
type Memo struct{ packed pack.Memo }

// Costs says what offerings really cost. Package policy fills it from scoring
// policies before Solve runs.
type Costs interface {
	// Cost returns the money per hour and the ranking bias of offering number
	// offering of instance type it in pool. A deny other than "" excludes the
	// offering with that reason.
	Cost(pool string, it *catalog.InstanceType, offering int) (cost, bias catalog.Price, deny string)
	// Cover returns the finite commitment that pays for the offering while units are
	// left, and the cost then; ok is false if there is none.
	Cover(pool string, it *catalog.InstanceType, offering int) (commitment string, cost catalog.Price, ok bool)
	// Units returns how many nodes more the commitment covers in this pass.
	Units(commitment string) int
}
