package frame

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Spec describes a column of a question.
type Spec struct {
	ID   uint16
	Type Type
	// Name is the path of the value in a row of the hook's typed input, as the JSON
	// schemas name it.
	Name string
	// Unit of numbers, or the form of composed strings.
	Unit string
	// Hooks that carry the column.
	Hooks []Hook
	// Since is the minor version that introduced the column.
	Since uint16
}

// machine are the hooks whose rows have an instance type.
var machine = []Hook{Score, Disrupt, Launch}

// Specs lists the columns of all questions in the order of their ids.
func Specs() []Spec {
	list := []Spec{
		{ID: 1, Type: I64, Name: "cost", Unit: "micro-USD/h", Hooks: []Hook{Score}},
		{ID: 1, Type: I64, Name: "hourlyCost", Unit: "micro-USD/h", Hooks: []Hook{Disrupt, Launch}},
		{ID: 2, Type: F64, Name: "cost", Unit: "USD/h, for display", Hooks: []Hook{Score}},
		{ID: 2, Type: F64, Name: "hourlyCost", Unit: "USD/h, for display", Hooks: []Hook{Disrupt, Launch}},
		{ID: 3, Type: I32, Name: "offering.interruptionRate", Unit: "permille/h", Hooks: machine},
		{ID: 4, Type: I32, Name: "instanceType.cpu", Unit: "millicores", Hooks: machine},
		{ID: 5, Type: I32, Name: "instanceType.memory", Unit: "MiB", Hooks: machine},
		{ID: 6, Type: I32, Name: "instanceType.gpu.count", Unit: "devices", Hooks: machine},
		{ID: 7, Type: I32, Name: "instanceType.pods", Unit: "pods", Hooks: machine},
		{ID: 8, Type: String, Name: "instanceType.family", Hooks: machine},
		{ID: 9, Type: String, Name: "instanceType.size", Hooks: machine},
		{ID: 10, Type: String, Name: "instanceType.arch", Hooks: machine},
		{ID: 11, Type: String, Name: "offering.zone", Hooks: machine},
		{ID: 12, Type: String, Name: "offering.capacityType", Hooks: machine},
		{ID: 13, Type: String, Name: "instanceType.name", Hooks: machine},
		{ID: 14, Type: I64, Name: "bias", Unit: "micro-USD/h", Hooks: []Hook{Score}},
		{ID: 15, Type: I64, Name: "offering.listPrice", Unit: "micro-USD/h", Hooks: machine},
		{ID: 16, Type: I64, Name: "offering.onDemandPrice", Unit: "micro-USD/h", Hooks: machine},
		{ID: 17, Type: I64, Name: "offering.spotPrice", Unit: "micro-USD/h", Hooks: machine},
		{ID: 18, Type: I32, Name: "instanceType.generation", Hooks: machine},
		{ID: 19, Type: String, Name: "instanceType.manufacturer", Hooks: machine},
		{ID: 20, Type: String, Name: "instanceType.os", Unit: "list", Hooks: machine},
		{ID: 21, Type: String, Name: "instanceType.gpu.name", Hooks: machine},
		{ID: 22, Type: I32, Name: "instanceType.gpu.memory", Unit: "MiB of one device", Hooks: machine},
		{ID: 23, Type: I64, Name: "instanceType.localDisk", Unit: "MiB", Hooks: machine},
		{ID: 24, Type: I32, Name: "instanceType.network", Unit: "Mbit/s", Hooks: machine},
		{ID: 25, Type: U8, Name: "instanceType.burstable", Unit: "0 or 1", Hooks: machine},
		{ID: 26, Type: U8, Name: "instanceType.bareMetal", Unit: "0 or 1", Hooks: machine},
		{ID: 27, Type: U8, Name: "offering.available", Unit: "0 or 1", Hooks: machine},
		{ID: 28, Type: I32, Name: "offering.priceAgeSeconds", Unit: "seconds", Hooks: machine},
		{ID: 29, Type: String, Name: "offering.priceSource", Hooks: machine},
		{ID: 30, Type: String, Name: "offering.overlayChain", Unit: "list", Hooks: machine},
		{ID: 31, Type: String, Name: "offering.reservation.id", Hooks: machine},
		{ID: 32, Type: I32, Name: "offering.reservation.remaining", Unit: "units", Hooks: machine},
		{ID: 33, Type: I64, Name: "offering.quotaRemaining", Unit: "vCPUs", Hooks: machine},
		{ID: 34, Type: I32, Name: "offering.zoneFreeIPs", Unit: "addresses", Hooks: machine},
		{ID: 35, Type: I32, Name: "offering.iceHistory.1h", Unit: "errors", Hooks: machine},
		{ID: 36, Type: I32, Name: "offering.iceHistory.24h", Unit: "errors", Hooks: machine},
		{ID: 37, Type: I32, Name: "daemonOverhead.cpu", Unit: "millicores", Hooks: machine},
		{ID: 38, Type: I32, Name: "daemonOverhead.memory", Unit: "MiB", Hooks: machine},
		{ID: 39, Type: I32, Name: "daemonOverhead.pods", Unit: "pods", Hooks: machine},
		{ID: 40, Type: String, Name: "instanceType.labels", Unit: "map", Hooks: machine},
		{ID: 41, Type: String, Name: "daemonOverhead.names", Unit: "list", Hooks: machine},
		{ID: 42, Type: String, Name: "instanceType.attachLimits", Unit: "map", Hooks: machine},
		{ID: 64, Type: String, Name: "node", Hooks: []Hook{Disrupt}},
		{ID: 64, Type: String, Name: "name", Hooks: []Hook{Launch}},
		{ID: 65, Type: String, Name: "pool", Hooks: []Hook{Disrupt, Launch}},
		{ID: 66, Type: String, Name: "labels", Unit: "map", Hooks: []Hook{Disrupt, Launch}},
		{ID: 67, Type: String, Name: "annotations", Unit: "map", Hooks: []Hook{Disrupt}},
		{ID: 68, Type: String, Name: "type", Hooks: []Hook{Disrupt}},
		{ID: 69, Type: I64, Name: "ageSeconds", Unit: "seconds", Hooks: []Hook{Disrupt}},
		{ID: 70, Type: I64, Name: "secondsSinceLastPodEvent", Unit: "seconds", Hooks: []Hook{Disrupt}},
		{ID: 71, Type: I64, Name: "secondsSinceEmpty", Unit: "seconds", Hooks: []Hook{Disrupt}},
		{ID: 72, Type: I32, Name: "utilization.cpu", Unit: "permille", Hooks: []Hook{Disrupt}},
		{ID: 73, Type: I32, Name: "utilization.memory", Unit: "permille", Hooks: []Hook{Disrupt}},
		{ID: 74, Type: I32, Name: "utilization.gpu", Unit: "permille", Hooks: []Hook{Disrupt}},
		{ID: 75, Type: U8, Name: "fallback", Unit: "0 or 1", Hooks: []Hook{Disrupt}},
		{ID: 76, Type: String, Name: "drift.field", Hooks: []Hook{Disrupt}},
		{ID: 77, Type: String, Name: "drift.old", Hooks: []Hook{Disrupt}},
		{ID: 78, Type: String, Name: "drift.new", Hooks: []Hook{Disrupt}},
		{ID: 79, Type: I64, Name: "drift.sinceSeconds", Unit: "seconds", Hooks: []Hook{Disrupt}},
		{ID: 80, Type: I64, Name: "blockedSeconds", Unit: "seconds", Hooks: []Hook{Disrupt}},
		{ID: 81, Type: String, Name: "blockers", Unit: "list", Hooks: []Hook{Disrupt}},
		{ID: 82, Type: String, Name: "conditions", Unit: "list", Hooks: []Hook{Disrupt}},
		{ID: 83, Type: String, Name: "commitment", Hooks: []Hook{Launch}},
		{ID: 84, Type: I64, Name: "pods.count", Unit: "pods", Hooks: []Hook{Launch}},
		{ID: 85, Type: I64, Name: "pods.sumRequests.cpu", Unit: "millicores", Hooks: []Hook{Launch}},
		{ID: 86, Type: I64, Name: "pods.sumRequests.memory", Unit: "MiB", Hooks: []Hook{Launch}},
		{ID: 87, Type: String, Name: "pods.namespaces", Unit: "list", Hooks: []Hook{Launch}},
		{ID: 88, Type: String, Name: "pods.teams", Unit: "list", Hooks: []Hook{Launch}},
		{ID: 89, Type: I64, Name: "pods.maxPendingSeconds", Unit: "seconds", Hooks: []Hook{Launch}},
		{ID: 90, Type: I64, Name: "requestedCpu", Unit: "millicores", Hooks: []Hook{Launch}},
		{ID: 91, Type: I64, Name: "requestedMemory", Unit: "MiB", Hooks: []Hook{Launch}},
		{ID: 92, Type: I32, Name: "wasteRatio", Unit: "permille", Hooks: []Hook{Launch}},
		{ID: 93, Type: I32, Name: "attempt", Hooks: []Hook{Launch}},
		{ID: 94, Type: String, Name: "fallbackFrom.reason", Hooks: []Hook{Launch}},
		{ID: 95, Type: I64, Name: "minPrice", Unit: "micro-USD/h", Hooks: []Hook{Launch}},
		{ID: 96, Type: I64, Name: "maxPrice", Unit: "micro-USD/h", Hooks: []Hook{Launch}},
		{ID: 97, Type: String, Name: "types", Unit: "list, cheapest first", Hooks: []Hook{Launch}},
		{ID: 98, Type: I32, Name: "typesCount", Unit: "types", Hooks: []Hook{Launch}},
	}
	slices.SortStableFunc(list, func(a, b Spec) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Flatten makes context entries of a JSON value: objects and arrays become dotted keys
// ("nodePool.labels.team", "command.replacements.0.pool"), booleans u8, whole numbers
// i64, other numbers f64. Nulls and empty objects and arrays are left out. v is what
// encoding/json decodes, numbers as [json.Number] or float64, or built by hand from the
// same types and Go integers. It is an error if v holds another type or a number that is
// not finite.
func Flatten(prefix string, v any) ([]Value, error) {
	return flatten(nil, prefix, v)
}

func flatten(out []Value, key string, v any) ([]Value, error) {
	under := func(name string) string {
		if key == "" {
			return name
		}
		return key + "." + name
	}
	var err error
	switch v := v.(type) {
	case nil:
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			if out, err = flatten(out, under(name), v[name]); err != nil {
				return nil, err
			}
		}
	case []any:
		for i, item := range v {
			if out, err = flatten(out, under(strconv.Itoa(i)), item); err != nil {
				return nil, err
			}
		}
	case string:
		out = append(out, Value{Key: key, Type: String, Text: v})
	case bool:
		n := int64(0)
		if v {
			n = 1
		}
		out = append(out, Value{Key: key, Type: U8, Int: n})
	case int:
		out = append(out, Value{Key: key, Type: I64, Int: int64(v)})
	case int64:
		out = append(out, Value{Key: key, Type: I64, Int: v})
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return append(out, Value{Key: key, Type: I64, Int: int64(v)}), nil
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("frame: key %q is %v", key, v)
		}
		out = append(out, Value{Key: key, Type: F64, Float: v})
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return append(out, Value{Key: key, Type: I64, Int: n}), nil
		}
		n, err := v.Float64()
		if err != nil {
			return nil, fmt.Errorf("frame: key %q: %w", key, err)
		}
		return flatten(out, key, n)
	default:
		return nil, fmt.Errorf("frame: key %q has Go type %T", key, v)
	}
	return out, nil
}
