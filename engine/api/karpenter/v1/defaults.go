package v1

import "time"

// What the API server fills in for absent fields.
const (
	DefaultExpireAfter      = 720 * time.Hour
	DefaultConsolidateAfter = 0 * time.Second
	DefaultBudgetNodes      = "10%"
)

// SetDefaults fills absent fields as the API server does, for objects that do not come
// from one.
func (p *NodePool) SetDefaults() {
	p.Spec.Template.Spec.ExpireAfter.setDefault("720h", DefaultExpireAfter)
	d := &p.Spec.Disruption
	d.ConsolidateAfter.setDefault("0s", DefaultConsolidateAfter)
	if d.ConsolidationPolicy == "" {
		d.ConsolidationPolicy = ConsolidationPolicyWhenEmptyOrUnderutilized
	}
	if d.Budgets == nil {
		d.Budgets = []Budget{{}}
	}
	for i := range d.Budgets {
		if d.Budgets[i].Nodes == "" {
			d.Budgets[i].Nodes = DefaultBudgetNodes
		}
	}
}

// SetDefaults fills absent fields as the API server does, for objects that do not come
// from one.
func (c *NodeClaim) SetDefaults() {
	c.Spec.ExpireAfter.setDefault("720h", DefaultExpireAfter)
}

func (d *NillableDuration) setDefault(text string, value time.Duration) {
	if d.IsZero() {
		*d = NillableDuration{Duration: &value, Text: text}
	}
}
