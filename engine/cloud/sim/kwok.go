package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// kwokType is an instance type in the file that Karpenter's KWOK provider reads. Case
// of the keys does not matter, and unknown ones are ignored, as there.
type kwokType struct {
	Name             string
	Architecture     string
	OperatingSystems []string
	Resources        map[string]scalar
	Offerings        []kwokOffering
}

type kwokOffering struct {
	Price               scalar
	Available           *bool
	ReservationCapacity int
	Requirements        []struct {
		Key      string
		Operator requirements.Operator
		Values   []string
	}
	// Zone and CapacityType are in files of older versions.
	Zone, CapacityType string
}

// architectures are the names that files use for what Kubernetes calls otherwise.
var architectures = map[string]string{"x86_64": "amd64", "i386": "386", "aarch64": "arm64"}

// readKWOK reads a list of kwokType. Entries that differ in nothing but architecture
// and operating system, such as one for each system, are one type.
func readKWOK(text []byte) ([]catalog.InstanceType, []error) {
	var raws []json.RawMessage
	if err := json.Unmarshal(text, &raws); err != nil {
		return nil, []error{explain(err)}
	}
	var types []catalog.InstanceType
	var errs []error
	first := make(map[string]int)
	for i, raw := range raws {
		var k kwokType
		report := func(field, format string, args ...any) {
			errs = append(errs, typeError(i, k.Name, field, fmt.Sprintf(format, args...)))
		}
		if err := json.Unmarshal(raw, &k); err != nil {
			report("", "%v", explain(err))
			continue
		}
		t := convertKWOK(&k, report)
		if t == nil {
			continue
		}
		j, twice := first[t.Name]
		if twice && merge(&types[j], t) {
			continue
		}
		if !twice {
			first[t.Name] = len(types)
		}
		types = append(types, *t)
	}
	return types, errs
}

// merge adds the systems that b runs on to a, if that is all in which they differ.
func merge(a, b *catalog.InstanceType) bool {
	if a.Capacity.Compare(b.Capacity) != 0 || !slices.EqualFunc(a.Offerings, b.Offerings, func(x, y catalog.Offering) bool {
		same := x.Requirements.Equal(y.Requirements)
		x.Requirements, y.Requirements = nil, nil
		return same && x.Zone == y.Zone && x.CapacityType == y.CapacityType && x.Price == y.Price && x.Unavailable == y.Unavailable &&
			x.ReservationID == y.ReservationID && x.ReservationCapacity == y.ReservationCapacity
	}) {
		return false
	}
	for _, key := range []string{corev1.LabelArchStable, corev1.LabelOSStable} {
		a.Requirements[key] = requirements.In(key, slices.Concat(a.Requirements[key].Values(), b.Requirements[key].Values())...)
	}
	return true
}

func convertKWOK(k *kwokType, report func(field, format string, args ...any)) *catalog.InstanceType {
	bad := false
	fail := func(field, format string, args ...any) {
		bad = true
		report(field, format, args...)
	}
	if k.Name == "" {
		fail("name", "must not be empty")
	}
	if k.Architecture == "" {
		fail("architecture", "must not be empty")
	}
	if len(k.OperatingSystems) == 0 {
		fail("operatingSystems", "must have at least one")
	}
	arch := k.Architecture
	if a, ok := architectures[arch]; ok {
		arch = a
	}
	capacity := readList("resources", k.Resources, fail)
	if _, ok := capacity[corev1.ResourcePods]; !ok {
		capacity[corev1.ResourcePods] = defaultPods
	}
	shown := func(name corev1.ResourceName) string {
		q, err := parseQuantity(string(k.Resources[string(name)]))
		if err != nil {
			return "" // missing, or reported above
		}
		return q.String()
	}
	t := &catalog.InstanceType{
		Name: k.Name,
		Requirements: requirements.NewSet(
			requirements.In(corev1.LabelArchStable, arch),
			requirements.In(corev1.LabelOSStable, k.OperatingSystems...),
			requirements.In(kwokSize, kwokSizeOf(k.Name, shown(corev1.ResourceCPU))),
			requirements.In(kwokFamily, kwokFamilyOf(k.Name)),
			requirements.In(kwokCPU, shown(corev1.ResourceCPU)),
			requirements.In(kwokMemory, shown(corev1.ResourceMemory)),
		),
		Capacity:    capacity,
		Allocatable: allocatableKWOK(capacity),
	}
	for i := range k.Offerings {
		t.Offerings = append(t.Offerings, convertKWOKOffering(&k.Offerings[i], fmt.Sprintf("offerings[%d]", i), report)...)
	}
	if bad {
		return nil
	}
	slices.SortStableFunc(t.Offerings, func(a, b catalog.Offering) int {
		return cmp.Or(strings.Compare(a.Zone, b.Zone), strings.Compare(a.CapacityType, b.CapacityType), strings.Compare(a.ReservationID, b.ReservationID))
	})
	return t
}

func allocatableKWOK(capacity resources.List) resources.List {
	out := capacity.Clone()
	for name, n := range kwokOverhead {
		out[name] = max(out[name]-n, 0)
	}
	return out
}

// convertKWOKOffering returns an offering per zone and capacity type, none if it cannot
// be used.
func convertKWOKOffering(k *kwokOffering, path string, report func(field, format string, args ...any)) []catalog.Offering {
	zones, capacityTypes, ids := []string{k.Zone}, []string{k.CapacityType}, []string{""}
	if k.CapacityType == "" {
		capacityTypes[0] = catalog.OnDemand
	}
	o := catalog.Offering{ReservationCapacity: k.ReservationCapacity, Unavailable: k.Available != nil && !*k.Available}
	for i, r := range k.Requirements {
		req, err := requirements.New(r.Key, r.Operator, r.Values...)
		if err != nil {
			report(fmt.Sprintf("%s.requirements[%d]", path, i), "%v", err)
			return nil
		}
		var list *[]string
		switch req.Key() {
		case corev1.LabelTopologyZone:
			list = &zones
		case "karpenter.sh/capacity-type":
			list = &capacityTypes
		case catalog.ReservationIDLabel:
			list = &ids
		default:
			if o.Requirements == nil {
				o.Requirements = requirements.Set{}
			}
			o.Requirements.Add(req)
			continue
		}
		if req.Operator() != corev1.NodeSelectorOpIn {
			report(fmt.Sprintf("%s.requirements[%d]", path, i), "operator %s: must be In for label %s", r.Operator, req.Key())
			return nil
		}
		*list = req.Values()
	}
	if len(zones)*len(capacityTypes)*len(ids) > maxOfferings {
		report(path+".requirements", "give more than %d offerings", maxOfferings)
		return nil
	}
	var err error
	if o.Price, err = readPrice(string(k.Price)); err != nil {
		report(path+".price", "%v", err)
		return nil
	}
	var out []catalog.Offering
	for _, zone := range zones {
		for _, capacityType := range capacityTypes {
			for _, id := range ids {
				o.Zone, o.CapacityType, o.ReservationID = zone, capacityType, id
				out = append(out, o)
			}
		}
	}
	return out
}

var kwokSizes = regexp.MustCompile(`^\w+\.(nano|micro|small|medium|large|\d*xlarge|metal)$`)

// kwokSizeOf is the size in a name like m5.large, or the number of CPUs.
func kwokSizeOf(name, cpu string) string {
	if m := kwokSizes.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return cpu
}

// kwokFamilyOf is the name up to the first dot or dash, or its first letter.
func kwokFamilyOf(name string) string {
	if i := strings.IndexAny(name, ".-"); i >= 0 {
		return name[:i]
	}
	return name[:min(1, len(name))]
}
