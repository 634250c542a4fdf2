package wasm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
)

// Source describes a policy to load.
type Source struct {
	// Name of the policy, for errors.
	Name string
	// Hook the policy is for.
	Hook policy.Hook
	// Wasm is the module in binary form.
	Wasm []byte
	// Parameters are handed to dv_configure and are in the context of each question.
	Parameters map[string]any
	// Limits default to those of the hook.
	Limits policy.Limits
	// Fresh gives each evaluation an instance of its own.
	Fresh bool
	// Instances is the number of instances kept ready. Defaults to that of [Options].
	Instances int
	// Unmetered is for measuring what metering costs: a guest that spins is not stopped.
	Unmetered bool
}

// Policy is a module as the evaluator of one hook's typed inputs.
type Policy struct {
	*Module
	name    string
	hook    policy.Hook
	reads   policy.Reads
	columns []frame.Spec
	uses    []string // paths of the context; nil is all
	json    bool
	params  map[string]any
}

var _ policy.Evaluator = (*Policy)(nil)

// LoadPolicy loads a module for a hook. Errors are those of [Host.Load]; a module that
// does not implement the hook is one of class Load.
func (h *Host) LoadPolicy(ctx context.Context, src Source) (*Policy, error) {
	refuse := func(format string, args ...any) error {
		return &policy.Error{Class: policy.ClassLoad, Policy: src.Name, Msg: fmt.Sprintf(format, args...)}
	}
	var hook frame.Hook
	for number, name := range hookNames {
		if name == src.Hook {
			hook = number
		}
	}
	if hook == 0 {
		return nil, refuse("hook %q is not known", src.Hook)
	}
	params := []byte("{}")
	if len(src.Parameters) > 0 {
		var err error
		if params, err = json.Marshal(src.Parameters); err != nil {
			return nil, refuse("parameters: %v", err)
		}
	}
	m, err := h.Load(ctx, Options{
		Name: src.Name, Wasm: src.Wasm, Parameters: params, Fresh: src.Fresh, Instances: src.Instances, Unmetered: src.Unmetered,
		MemoryPages: uint32(min((src.Limits.MemoryBytes+PageSize-1)/PageSize, math.MaxUint32)),
		ResultBytes: int(src.Limits.ResultBytes),
		Budgets:     map[frame.Hook]Budget{hook: {Timeout: src.Limits.Deadline, PerRow: src.Limits.PerRow, Fuel: src.Limits.Fuel}},
	})
	if err != nil {
		return nil, err
	}
	if !m.implements(hook) {
		m.Close()
		return nil, refuse("no hook %s: the module exports no %s", src.Hook, hook.Export())
	}
	p := &Policy{Module: m, name: src.Name, hook: src.Hook, params: src.Parameters}
	p.describe(hook)
	return p, nil
}

// describe derives from the module's description what it gets, and so can read.
func (p *Policy) describe(hook frame.Hook) {
	d := p.Description()
	for _, s := range frame.Specs() {
		if slices.Contains(s.Hooks, hook) && (d.Columns == nil || slices.Contains(d.Columns, s.Name)) {
			p.columns = append(p.columns, s)
		}
	}
	p.json = hook == frame.Admit || slices.Contains(d.Uses, "json")
	if d.Uses != nil {
		p.uses = []string{"parameters"}
		for _, u := range d.Uses {
			if u == "time" {
				u = "now"
			}
			p.uses = append(p.uses, u)
		}
	}
	if hook != frame.Score || d.Columns == nil || d.Uses == nil || p.json {
		return
	}
	p.reads = policy.Reads{}
	for _, s := range p.columns {
		p.reads = append(p.reads, "candidates.*."+s.Name)
	}
	p.reads = append(p.reads, p.uses...)
	slices.Sort(p.reads)
	p.reads = slices.Compact(p.reads)
}

// Reads is part of [policy.Evaluator]. It is what the module says it reads, and holds
// because it gets nothing else.
func (p *Policy) Reads() policy.Reads { return p.reads }

// Score is part of [policy.Evaluator].
func (p *Policy) Score(ctx context.Context, in *policy.ScoreInput) (policy.ScoreAnswer, policy.Stats, error) {
	table := &frame.Table{Hook: frame.Score, Minor: frame.Minor, Rows: in.Candidates.Len()}
	if table.Rows > 0 {
		fixed := in.Candidates.Memo(columnsKey{p.columnsKey()}, func() any {
			t := &frame.Table{Strings: &frame.Strings{}}
			rows := make([]row, in.Candidates.Len())
			for i := range rows {
				r := &in.Candidates.Rows[i]
				rows[i] = row{machine: r.InstanceType, offering: &r.Offering, daemons: &r.DaemonOverhead}
			}
			t.Columns = columnsOf(p.columns, rows, t.Strings)
			return t
		}).(*frame.Table)
		table.Strings = fixed.Strings
		table.Columns = slices.Clone(fixed.Columns)
		for _, s := range p.columns {
			c := frame.Column{ID: s.ID, Type: s.Type}
			switch s.Name + " " + s.Type.String() {
			case "cost i64":
				for i := range table.Rows {
					c.I64 = append(c.I64, in.CostAt(i))
				}
			case "cost f64":
				for i := range table.Rows {
					c.F64 = append(c.F64, float64(in.CostAt(i))/1e6)
				}
			case "bias i64":
				for i := range table.Rows {
					c.I64 = append(c.I64, in.BiasAt(i))
				}
			default:
				continue
			}
			table.Columns = append(table.Columns, c)
		}
	}
	rest := *in
	rest.Candidates = nil
	st, answer, err := p.ask(ctx, table, &rest, &rest.Meta)
	if err != nil {
		return policy.ScoreAnswer{}, st, err
	}
	out := scoreAnswer(&answer)
	if err := p.named(out.Check(table.Rows)); err != nil {
		return policy.ScoreAnswer{}, st, err
	}
	return out, st, nil
}

// Gate is part of [policy.Evaluator].
func (p *Policy) Gate(ctx context.Context, in policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	table := &frame.Table{Minor: frame.Minor, Strings: &frame.Strings{}}
	var rows []row
	var names []string
	var rest any
	var meta *policy.Meta
	switch in := in.(type) {
	case *policy.DisruptInput:
		table.Hook = frame.Disrupt
		for i := range in.Command.Candidates {
			c := &in.Command.Candidates[i]
			rows = append(rows, row{machine: c.InstanceType, offering: c.Offering, daemons: c.DaemonOverhead, node: c})
			names = append(names, c.Node)
		}
		whole := *in
		if !p.json {
			whole.Command.Candidates = nil
		}
		rest, meta = &whole, &whole.Meta
	case *policy.LaunchInput:
		table.Hook = frame.Launch
		for i := range in.Claims {
			c := &in.Claims[i]
			rows = append(rows, row{machine: c.InstanceType, offering: &c.Offering, daemons: &c.DaemonOverhead, claim: c})
			names = append(names, c.Name)
		}
		whole := *in
		if !p.json {
			whole.Claims = nil
		}
		rest, meta = &whole, &whole.Meta
	case *policy.AdmitInput:
		table.Hook = frame.Admit
		rows = make([]row, 1)
		whole := *in
		rest, meta = &whole, &whole.Meta
	}
	table.Rows = len(rows)
	if table.Hook != frame.Admit {
		table.Columns = columnsOf(p.columns, rows, table.Strings)
	}
	st, answer, err := p.ask(ctx, table, rest, meta)
	if err != nil {
		return policy.GateAnswer{}, st, err
	}
	out := gateAnswer(&answer, table.Hook, names)
	if err := p.named(out.Check(in)); err != nil {
		return policy.GateAnswer{}, st, err
	}
	return out, st, nil
}

func (p *Policy) named(err error) error {
	if e, ok := err.(*policy.Error); ok {
		e.Policy = p.name
	}
	return err
}

// ask completes a table by its context and evaluates it. rest is the input without what
// is in the rows.
func (p *Policy) ask(ctx context.Context, t *frame.Table, rest any, meta *policy.Meta) (policy.Stats, frame.Answer, error) {
	if p.params != nil {
		meta.Parameters = p.params
	}
	var err error
	if t.Context, err = p.context(rest); err != nil {
		return policy.Stats{Rows: t.Rows}, frame.Answer{}, &policy.Error{Class: policy.ClassBadResult, Policy: p.name, Rule: "input", Msg: err.Error(), Err: err}
	}
	answer, st, err := p.Eval(ctx, t.Hook, t)
	return policy.Stats{Duration: st.Duration, Fuel: st.Fuel, ResultBytes: int64(st.ResultBytes), Rows: st.Rows}, answer, err
}

// context flattens an input. Lists of rows that are columns are left out of it.
func (p *Policy) context(in any) ([]frame.Value, error) {
	if len(p.uses) == 1 && len(p.params) == 0 && !p.json {
		return nil, nil // nothing is asked for
	}
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var tree map[string]any
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	delete(tree, "candidates")
	delete(tree, "claims")
	if command, ok := tree["command"].(map[string]any); ok {
		delete(command, "candidates")
	}
	values, err := frame.Flatten("", tree)
	if err != nil {
		return nil, err
	}
	if p.uses != nil {
		values = slices.DeleteFunc(values, func(v frame.Value) bool {
			return !slices.ContainsFunc(p.uses, func(path string) bool { return below(v.Key, path) })
		})
	}
	if p.json {
		values = append(values, frame.Value{Key: "json", Type: frame.String, Text: string(text)})
	}
	return values, nil
}

// below reports whether a key is the path or lies below it.
func below(key, path string) bool {
	return key == path || strings.HasPrefix(key, path) && key[len(path)] == '.'
}

type columnsKey struct{ ids string }

func (p *Policy) columnsKey() string {
	var b strings.Builder
	for _, s := range p.columns {
		fmt.Fprintf(&b, "%d,", s.ID)
	}
	return b.String()
}

// row is what the rows of the hooks have, nil where one lacks it.
type row struct {
	machine  *policy.InstanceType
	offering *policy.Offering
	daemons  *policy.Daemons
	node     *policy.Candidate
	claim    *policy.Claim
}

// cell is a value of a row; the zero cell is none.
type cell struct {
	ok   bool
	n    int64
	text string
}

func number[T int | int32 | int64](n T) cell { return cell{ok: true, n: int64(n)} }

func optional64(n *int64) cell {
	if n == nil {
		return cell{}
	}
	return number(*n)
}

func text(s string) cell {
	if s == "" {
		return cell{}
	}
	return cell{ok: true, text: s}
}

func flag(b bool) cell {
	if b {
		return number(1)
	}
	return number(0)
}

func list(items []string) cell { return text(strings.Join(items, ",")) }

func pairs[V any](m map[string]V) cell {
	var items []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		items = append(items, fmt.Sprintf("%s=%v", k, m[k]))
	}
	return list(items)
}

// columnsOf builds the columns of specs; those that no row has are left out.
func columnsOf(specs []frame.Spec, rows []row, set *frame.Strings) []frame.Column {
	var out []frame.Column
	for _, s := range specs {
		c := frame.Column{ID: s.ID, Type: s.Type}
		some := false
		for i := range rows {
			v := rows[i].value(s.Name)
			some = some || v.ok
			switch s.Type {
			case frame.I32:
				n := int32(frame.NoI32)
				if v.ok {
					n = int32(max(math.MinInt32+1, min(v.n, math.MaxInt32)))
				}
				c.I32 = append(c.I32, n)
			case frame.I64:
				n := int64(frame.NoI64)
				if v.ok {
					n = max(frame.NoI64+1, v.n)
				}
				c.I64 = append(c.I64, n)
			case frame.F64:
				c.F64 = append(c.F64, float64(v.n)/1e6)
			case frame.U8:
				c.U8 = append(c.U8, uint8(v.n))
			case frame.String:
				id := frame.None
				if v.ok {
					id = set.ID(v.text)
				}
				c.Str = append(c.Str, id)
			}
		}
		if some {
			out = append(out, c)
		}
	}
	return out
}

// value is the value of a column in a row, by the column's name.
func (r *row) value(name string) cell {
	switch group, field, _ := strings.Cut(name, "."); group {
	case "instanceType":
		if r.machine != nil {
			return machineValue(r.machine, field)
		}
		if field == "name" && r.node != nil {
			return text(r.node.Type)
		}
	case "offering":
		if r.offering != nil {
			return offeringValue(r.offering, field)
		}
		if r.node != nil {
			switch field {
			case "zone":
				return text(r.node.Zone)
			case "capacityType":
				return text(r.node.CapacityType)
			}
		}
	case "daemonOverhead":
		if r.daemons == nil {
			return cell{}
		}
		switch field {
		case "cpu":
			return number(r.daemons.CPU)
		case "memory":
			return number(r.daemons.Memory)
		case "pods":
			return number(r.daemons.Pods)
		case "names":
			return list(r.daemons.Names)
		}
	default:
		if r.node != nil {
			return nodeValue(r.node, name)
		}
		if r.claim != nil {
			return claimValue(r.claim, name)
		}
	}
	return cell{}
}

func machineValue(m *policy.InstanceType, field string) cell {
	switch field {
	case "name":
		return text(m.Name)
	case "family":
		return text(m.Family)
	case "generation":
		return number(m.Generation)
	case "size":
		return text(m.Size)
	case "arch":
		return text(m.Arch)
	case "os":
		return list(m.OS)
	case "manufacturer":
		return text(m.Manufacturer)
	case "cpu":
		return number(m.CPU)
	case "memory":
		return number(m.Memory)
	case "pods":
		return number(m.Pods)
	case "localDisk":
		return number(m.LocalDisk)
	case "network":
		return number(m.Network)
	case "burstable":
		return flag(m.Burstable)
	case "bareMetal":
		return flag(m.BareMetal)
	case "labels":
		return pairs(m.Labels)
	case "attachLimits":
		return pairs(m.AttachLimits)
	case "gpu.count":
		if m.GPU == nil {
			return number(0)
		}
		return number(m.GPU.Count)
	case "gpu.name":
		if m.GPU != nil {
			return text(m.GPU.Name)
		}
	case "gpu.memory":
		if m.GPU != nil {
			return number(m.GPU.Memory)
		}
	}
	return cell{}
}

func offeringValue(o *policy.Offering, field string) cell {
	switch field {
	case "zone":
		return text(o.Zone)
	case "capacityType":
		return text(o.CapacityType)
	case "available":
		return flag(o.Available)
	case "listPrice":
		return number(o.ListPrice)
	case "onDemandPrice":
		return optional64(o.OnDemandPrice)
	case "spotPrice":
		return optional64(o.SpotPrice)
	case "priceAgeSeconds":
		return number(o.PriceAgeSeconds)
	case "priceSource":
		return text(o.PriceSource)
	case "overlayChain":
		return list(o.OverlayChain)
	case "reservation.id":
		if o.Reservation != nil {
			return text(o.Reservation.ID)
		}
	case "reservation.remaining":
		if o.Reservation != nil {
			return number(o.Reservation.Remaining)
		}
	case "quotaRemaining":
		return optional64(o.QuotaRemaining)
	case "zoneFreeIPs":
		return optional64(o.ZoneFreeIPs)
	case "iceHistory.1h":
		return number(o.ICEHistory.LastHour)
	case "iceHistory.24h":
		return number(o.ICEHistory.LastDay)
	case "interruptionRate":
		return optional64(o.InterruptionRate)
	}
	return cell{}
}

func nodeValue(c *policy.Candidate, name string) cell {
	switch name {
	case "node":
		return text(c.Node)
	case "pool":
		return text(c.Pool)
	case "type":
		return text(c.Type)
	case "hourlyCost":
		return number(c.HourlyCost)
	case "labels":
		return pairs(c.Labels)
	case "annotations":
		return pairs(c.Annotations)
	case "ageSeconds":
		return number(c.AgeSeconds)
	case "secondsSinceLastPodEvent":
		return optional64(c.SecondsSinceLastPodEvent)
	case "secondsSinceEmpty":
		return optional64(c.SecondsSinceEmpty)
	case "utilization.cpu":
		return number(c.Utilization.CPU)
	case "utilization.memory":
		return number(c.Utilization.Memory)
	case "utilization.gpu":
		return optional64(c.Utilization.GPU)
	case "fallback":
		return flag(c.Fallback)
	case "blockedSeconds":
		return number(c.BlockedSeconds)
	case "blockers":
		return list(c.Blockers)
	case "conditions":
		return list(c.Conditions)
	}
	if c.Drift == nil {
		return cell{}
	}
	switch name {
	case "drift.field":
		return text(c.Drift.Field)
	case "drift.old":
		return text(c.Drift.Old)
	case "drift.new":
		return text(c.Drift.New)
	case "drift.sinceSeconds":
		return number(c.Drift.SinceSeconds)
	}
	return cell{}
}

func claimValue(c *policy.Claim, name string) cell {
	switch name {
	case "name":
		return text(c.Name)
	case "pool":
		return text(c.Pool)
	case "hourlyCost":
		return number(c.HourlyCost)
	case "labels":
		return pairs(c.Labels)
	case "commitment":
		return text(c.Commitment)
	case "requestedCpu":
		return number(c.RequestedCPU)
	case "requestedMemory":
		return number(c.RequestedMemory)
	case "wasteRatio":
		return number(c.WasteRatio)
	case "attempt":
		return number(c.Attempt)
	case "fallbackFrom.reason":
		if c.FallbackFrom != nil {
			return text(c.FallbackFrom.Reason)
		}
	case "minPrice":
		return number(c.MinPrice)
	case "maxPrice":
		return number(c.MaxPrice)
	case "types":
		var names []string
		for _, t := range c.Types {
			names = append(names, t.Name)
		}
		return list(names)
	case "typesCount":
		return number(c.TypesCount)
	case "pods.count":
		return number(c.Pods.Count)
	case "pods.sumRequests.cpu":
		return number(c.Pods.SumRequests.CPU)
	case "pods.sumRequests.memory":
		return number(c.Pods.SumRequests.Memory)
	case "pods.namespaces":
		return list(c.Pods.Namespaces)
	case "pods.teams":
		return list(c.Pods.Teams)
	case "pods.maxPendingSeconds":
		return number(c.Pods.MaxPendingSeconds)
	}
	return cell{}
}

func scoreAnswer(a *frame.Answer) policy.ScoreAnswer {
	var out policy.ScoreAnswer
	for _, d := range a.Denials {
		out.Deny = append(out.Deny, policy.RowDeny{Row: d.Row, Code: d.Code, Msg: d.Message})
	}
	for _, f := range a.Permille {
		out.Adjust = append(out.Adjust, policy.RowAdjust{Row: f.Row, Permille: f.Value, Factor: true})
	}
	for _, f := range a.Add {
		out.Adjust = append(out.Adjust, policy.RowAdjust{Row: f.Row, AddMicroUSD: f.Value})
	}
	slices.SortStableFunc(out.Adjust, func(x, y policy.RowAdjust) int { return x.Row - y.Row })
	for _, c := range a.Cost {
		out.Cost = append(out.Cost, policy.RowAmount{Row: c.Row, MicroUSD: c.Value})
	}
	for _, b := range a.Bias {
		out.Bias = append(out.Bias, policy.RowAmount{Row: b.Row, MicroUSD: b.Value})
	}
	for _, c := range a.Covers {
		out.Cover = append(out.Cover, policy.RowCover{Row: c.Row, Commitment: c.Commitment, Units: c.Units, MicroUSD: c.Cost})
	}
	for _, c := range a.Commitments {
		out.Commitments = append(out.Commitments, policy.Units{ID: c.ID, Units: c.Units})
	}
	return out
}

// gateAnswer names the rows of an answer.
func gateAnswer(a *frame.Answer, hook frame.Hook, names []string) policy.GateAnswer {
	var out policy.GateAnswer
	reason := func(o frame.Opinion) policy.Reason {
		r := policy.Reason{Code: o.Code, Msg: o.Message, Seconds: o.Seconds}
		var subjects []string
		for _, row := range o.Rows {
			if row < len(names) {
				subjects = append(subjects, names[row])
			}
		}
		if hook == frame.Launch {
			r.Claims = subjects
		} else {
			r.Nodes = subjects
		}
		return r
	}
	for _, d := range a.Denials {
		out.Deny = append(out.Deny, reason(frame.Opinion{Rows: []int{d.Row}, Code: d.Code, Message: d.Message}))
	}
	for _, o := range a.Opinions {
		switch o.Verdict {
		case frame.Deny:
			out.Deny = append(out.Deny, reason(o))
		case frame.Defer:
			out.Defer = append(out.Defer, reason(o))
		case frame.Keep:
			out.Keep = append(out.Keep, reason(o))
		case frame.Warn:
			out.Warn = append(out.Warn, reason(o))
		case frame.Restrict:
			for _, row := range o.Rows {
				out.Restrict = append(out.Restrict, policy.Restriction{Claim: names[row], DropTypes: o.Drop, MaxMicroUSD: o.Max, HasMax: o.HasMax})
			}
		}
	}
	return out
}
