package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// MaxFileSize is the size in bytes above which [ReadFile] refuses a file.
const MaxFileSize = 64 << 20

// maxOfferings bounds what one type's lists of zones may multiply to.
const maxOfferings = 10_000

// ReadFile reads a catalogue in the format of README.md, as YAML or JSON, or the
// instance types of Karpenter's KWOK provider, which are a list.
//
// What cannot be used is left out; each error names the file, and the line or the
// instance type and the field. The catalogue holds everything else; it is never nil.
// name is used in errors only.
func ReadFile(r io.Reader, name string) (*catalog.Catalog, []error) {
	types, errs := readTypes(r)
	c, problems := catalog.New(types)
	errs = append(errs, problems...)
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s: %w", name, err)
	}
	return c, errs
}

func readTypes(r io.Reader) ([]catalog.InstanceType, []error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFileSize+1))
	switch {
	case err != nil:
		return nil, []error{err}
	case len(data) > MaxFileSize:
		return nil, []error{fmt.Errorf("is larger than %d MiB", MaxFileSize>>20)}
	}
	text, err := toJSON(data)
	if err != nil {
		return nil, []error{err}
	}
	if text[0] == '[' {
		return readKWOK(text)
	}
	return readOwn(text)
}

// toJSON returns the one JSON value in data, which may be YAML.
func toJSON(data []byte) ([]byte, error) {
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\ufeff")))
	var jsonErr error
	if len(data) > 0 && (data[0] == '{' || data[0] == '[') {
		var v json.RawMessage
		if jsonErr = json.Unmarshal(data, &v); jsonErr == nil {
			return data, nil
		}
	}
	out, err := fromYAML(data)
	if err != nil && jsonErr != nil {
		if syntax := (*json.SyntaxError)(nil); errors.As(jsonErr, &syntax) {
			return nil, fmt.Errorf("line %d: %w", 1+bytes.Count(data[:min(int(syntax.Offset), len(data))], []byte("\n")), jsonErr)
		}
		return nil, jsonErr
	}
	return out, err
}

func fromYAML(data []byte) ([]byte, error) {
	documents := 0
	for doc := range bytes.SplitSeq(append([]byte("\n"), data...), []byte("\n---")) {
		for line := range bytes.Lines(doc) {
			if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
				documents++
				break
			}
		}
	}
	if documents > 1 {
		return nil, fmt.Errorf("has %d documents, must have one", documents)
	}
	out, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	if out = bytes.TrimSpace(out); len(out) == 0 || out[0] != '{' && out[0] != '[' {
		return nil, errors.New("must hold a map with instanceTypes, or a list of KWOK instance types")
	}
	return out, nil
}

// file is the format of README.md.
type file struct {
	Description   string            `json:"description"`
	InstanceTypes []json.RawMessage `json:"instanceTypes"`
}

type fileType struct {
	Name         string            `json:"name"`
	Labels       map[string]values `json:"labels"`
	Capacity     map[string]scalar `json:"capacity"`
	Overhead     map[string]scalar `json:"overhead"`
	Allocatable  map[string]scalar `json:"allocatable"`
	AttachLimits map[string]int64  `json:"attachLimits"`
	Offerings    []fileOffering    `json:"offerings"`
}

type fileOffering struct {
	Zone                string            `json:"zone"`
	Zones               []string          `json:"zones"`
	CapacityType        string            `json:"capacityType"`
	Price               scalar            `json:"price"`
	Available           *bool             `json:"available"`
	ReservationID       string            `json:"reservationID"`
	ReservationCapacity int               `json:"reservationCapacity"`
	Labels              map[string]values `json:"labels"`
}

// scalar is a string, a number or a boolean, as written; empty if missing.
type scalar string

func (s *scalar) UnmarshalJSON(b []byte) error {
	switch {
	case b[0] == '"':
		return json.Unmarshal(b, (*string)(s))
	case b[0] == '{' || b[0] == '[':
		return errors.New("is a list or a map, must be a single value")
	case string(b) != "null":
		*s = scalar(b)
	}
	return nil
}

// values is one scalar or a list of them.
type values []string

func (v *values) UnmarshalJSON(b []byte) error {
	if b[0] == '[' {
		var list []scalar
		if err := json.Unmarshal(b, &list); err != nil {
			return err
		}
		*v = make(values, len(list)) // not nil: an empty list is an error later
		for i, s := range list {
			(*v)[i] = string(s)
		}
		return nil
	}
	var s scalar
	if err := s.UnmarshalJSON(b); err != nil {
		return err
	}
	*v = values{string(s)}
	return nil
}

// strict decodes b into v and refuses unknown fields.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return explain(d.Decode(v))
}

// explain rewords the errors of package json for people who write no Go.
func explain(err error) error {
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		want := map[string]string{"string": "text", "bool": "true or false", "int": "an integer", "int64": "an integer", "slice": "a list", "map": "a map", "struct": "a map"}
		kind := wrong.Type.Kind().String()
		if w, ok := want[kind]; ok {
			kind = w
		}
		field := wrong.Field
		if field == "" {
			field = "value"
		}
		return fmt.Errorf("%s: must be %s, not %s", field, kind, wrong.Value)
	}
	if err != nil {
		if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return fmt.Errorf("field %s: is unknown", field)
		}
	}
	return err
}

func readOwn(text []byte) ([]catalog.InstanceType, []error) {
	var f file
	if err := strict(text, &f); err != nil {
		return nil, []error{err}
	}
	if f.InstanceTypes == nil {
		return nil, []error{errors.New("instanceTypes: must be a list")}
	}
	var types []catalog.InstanceType
	var errs []error
	for i, raw := range f.InstanceTypes {
		t := readType(raw, func(field, format string, args ...any) {
			// The name comes first if it can be read at all.
			var named struct{ Name string }
			_ = json.Unmarshal(raw, &named) // a type without a readable name is known by its place
			errs = append(errs, typeError(i, named.Name, field, fmt.Sprintf(format, args...)))
		})
		if t != nil {
			types = append(types, *t)
		}
	}
	return types, errs
}

func typeError(index int, name, field, message string) error {
	if name == "" {
		name = fmt.Sprintf("#%d", index+1)
	}
	return &catalog.Problem{InstanceType: name, Field: field, Message: message}
}

// readType returns nil if the type cannot be used.
func readType(raw []byte, report func(field, format string, args ...any)) *catalog.InstanceType {
	var f fileType
	if err := strict(raw, &f); err != nil {
		report("", "%v", err)
		return nil
	}
	bad := false
	fail := func(field, format string, args ...any) {
		bad = true
		report(field, format, args...)
	}
	if msgs := validation.IsValidLabelValue(f.Name); f.Name == "" || len(msgs) > 0 {
		fail("name", "%q: must be a label value that is not empty", f.Name)
	}
	t := &catalog.InstanceType{Name: f.Name, AttachLimits: f.AttachLimits, Requirements: make(requirements.Set, len(f.Labels)+3)}
	readLabels("labels", f.Labels, t.Requirements, fail)
	for key, value := range map[string]string{corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"} {
		if !t.Requirements.Has(key) {
			t.Requirements.Add(requirements.In(key, value))
		}
	}
	t.Capacity = readList("capacity", f.Capacity, fail)
	if _, ok := t.Capacity[corev1.ResourcePods]; !ok {
		t.Capacity[corev1.ResourcePods] = defaultPods
	}
	switch {
	case len(f.Allocatable) > 0 && len(f.Overhead) > 0:
		fail("overhead", "must not be set together with allocatable")
	case len(f.Allocatable) > 0:
		t.Allocatable = readList("allocatable", f.Allocatable, fail)
		for _, name := range t.Allocatable.Names() {
			if t.Allocatable[name] > t.Capacity[name] {
				fail("allocatable["+string(name)+"]", "%s: must not be more than capacity", f.Allocatable[string(name)])
			}
		}
		for name, n := range t.Capacity {
			if _, ok := t.Allocatable[name]; !ok {
				t.Allocatable[name] = n
			}
		}
	default:
		t.Allocatable = t.Capacity.Clone()
		t.Allocatable.SubFrom(readList("overhead", f.Overhead, fail))
	}
	for i := range f.Offerings {
		t.Offerings = append(t.Offerings, readOffering(&f.Offerings[i], fmt.Sprintf("offerings[%d]", i), report)...)
		if len(t.Offerings) > maxOfferings {
			fail("offerings", "are more than %d", maxOfferings)
			break
		}
	}
	if bad {
		return nil
	}
	return t
}

// defaultPods is the kubelet's default number of pods.
const defaultPods = 110

// readOffering returns one offering per zone, none if it cannot be used.
func readOffering(f *fileOffering, path string, report func(field, format string, args ...any)) []catalog.Offering {
	bad := false
	fail := func(field, format string, args ...any) {
		bad = true
		report(path+field, format, args...)
	}
	o := catalog.Offering{CapacityType: f.CapacityType, ReservationID: f.ReservationID, ReservationCapacity: f.ReservationCapacity}
	if o.CapacityType == "" {
		o.CapacityType = catalog.OnDemand
	}
	if !slices.Contains([]string{catalog.OnDemand, catalog.Spot, catalog.Reserved}, o.CapacityType) {
		fail(".capacityType", "%q: must be %s, %s or %s", o.CapacityType, catalog.OnDemand, catalog.Spot, catalog.Reserved)
	}
	o.Unavailable = f.Available != nil && !*f.Available
	var err error
	switch o.Price, err = readPrice(string(f.Price)); {
	case err != nil:
		fail(".price", "%v", err)
	case o.Price == 0 && !o.Unavailable && o.CapacityType != catalog.Reserved:
		fail(".price", "has no price")
	}
	if o.ReservationCapacity < 0 {
		fail(".reservationCapacity", "%d: must not be negative", o.ReservationCapacity)
	}
	if (o.ReservationID != "" || o.ReservationCapacity != 0) && o.CapacityType != catalog.Reserved {
		fail(".reservationID", "must be set on reserved offerings only")
	}
	zones := f.Zones
	if zones == nil {
		zones = []string{f.Zone}
	} else if f.Zone != "" || len(zones) == 0 {
		fail(".zones", "must hold at least one zone, and not be set together with zone")
	}
	for _, zone := range zones {
		if len(validation.IsValidLabelValue(zone)) > 0 {
			fail(".zone", "%q: must be a label value", zone)
		}
	}
	if len(f.Labels) > 0 {
		o.Requirements = make(requirements.Set, len(f.Labels))
		readLabels(path+".labels", f.Labels, o.Requirements, func(field, format string, args ...any) {
			bad = true
			report(field, format, args...)
		})
	}
	if bad {
		return nil
	}
	out := make([]catalog.Offering, len(zones))
	for i, zone := range zones {
		out[i] = o
		out[i].Zone = zone
	}
	return out
}

var decimal = regexp.MustCompile(`^-?\d{1,10}(\.\d+)?$|^-?\d(\.\d+)?[eE][+-]?\d{1,2}$`)

// readPrice reads US dollars per hour; empty is 0.
func readPrice(s string) (catalog.Price, error) {
	if s == "" {
		return 0, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !decimal.MatchString(s) || v > 1e9 {
		return 0, fmt.Errorf("%q: must be a decimal number of US dollars per hour", s)
	}
	p := catalog.FromDollars(v)
	switch {
	case v < 0:
		return 0, fmt.Errorf("%s: must not be negative", s)
	case v > 0 && p == 0:
		p = 1 // the smallest price: cheap, but not unknown
	}
	return p, nil
}

func readLabels(path string, labels map[string]values, set requirements.Set, fail func(field, format string, args ...any)) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		field := path + "[" + key + "]"
		if msgs := validation.IsQualifiedName(key); len(msgs) > 0 {
			fail(field, "must be a label key: %s", msgs[0])
			continue
		}
		if len(labels[key]) == 0 {
			fail(field, "must have at least one value")
			continue
		}
		for _, v := range labels[key] {
			if msgs := validation.IsValidLabelValue(v); len(msgs) > 0 {
				fail(field, "%q: must be a label value: %s", v, msgs[0])
			}
		}
		set.Add(requirements.In(key, labels[key]...))
	}
}

func readList(path string, in map[string]scalar, fail func(field, format string, args ...any)) resources.List {
	out := make(resources.List, len(in))
	for _, name := range slices.Sorted(maps.Keys(in)) {
		field := path + "[" + name + "]"
		q, err := parseQuantity(string(in[name]))
		switch {
		case err != nil:
			fail(field, "%v", err)
		case q.Sign() < 0:
			fail(field, "%s: must not be negative", in[name])
		case len(validation.IsQualifiedName(name)) > 0:
			fail(field, "must be the name of a resource")
		default:
			out[corev1.ResourceName(name)] = resources.Amount(corev1.ResourceName(name), q)
		}
	}
	return out
}

var longExponent = regexp.MustCompile(`[eE][+-]?\d{3,}`)

// parseQuantity refuses numbers that take Kubernetes' own parser minutes.
func parseQuantity(s string) (resource.Quantity, error) {
	if len(s) <= 64 && !longExponent.MatchString(s) {
		if q, err := resource.ParseQuantity(s); err == nil {
			return q, nil
		}
	}
	return resource.Quantity{}, fmt.Errorf("%q: must be a quantity such as 2, 500m or 16Gi", s)
}
