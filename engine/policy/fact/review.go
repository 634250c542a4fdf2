package fact

import (
	"encoding/json"
	"fmt"
	"time"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Review is the question whether NodePool np may be as it is at now; with old, whether it
// may become so from old. User and DryRun are left to the caller, and
// Impact is that of no change.
func Review(np, old *karpv1.NodePool, now time.Time) (policy.Review, error) {
	r := policy.Review{Operation: "CREATE", Impact: policy.NoImpact(), BudgetWeek: Week(np.Spec.Disruption, now)}
	var err error
	if r.Object, err = object(np); err != nil {
		return policy.Review{}, err
	}
	if old == nil {
		return r, nil
	}
	r.Operation = "UPDATE"
	r.OldObject, err = object(old)
	return r, err
}

// object is np as JSON.
func object(np *karpv1.NodePool) (map[string]any, error) {
	raw, err := json.Marshal(np)
	if err != nil {
		return nil, fmt.Errorf("NodePool %s: %w", np.Name, err)
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("NodePool %s: %w", np.Name, err)
	}
	return out, nil
}
