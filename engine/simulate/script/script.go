// Package script reads what is to happen to a cluster, and when, and makes it happen in a
// [world.World].
//
// # The document
//
// It is a YAML or JSON list of events, perhaps below the key events. Each begins with its
// time, which is counted from the start ("10m", "1h30m") or in RFC 3339, and goes on in words:
//
//   - at: 10m scale deploy/web to 30
//   - at: 20m delete pod shop/web-1
//   - at: 20m delete node default-bcdfg
//   - at: 25m interrupt node default-bcdfg
//   - at: 30m interrupt 50% capacity=spot
//   - at: 40m price type=c5.* capacity=spot 120%
//   - at: 50m price type=m5.large zone=us-east-1a $0.08
//   - at: 1h capacity type=m5.* 0 for 5m
//   - at: 1h fail launch type=m5.large for 5m
//   - at: 0s noise capacity=spot 3% every 10m seed 7
//   - at: 2h apply more.yaml
//   - at: 2h apply
//     manifests: |
//     apiVersion: karpenter.sh/v1
//     ...
//
// Workloads and pods are in namespace default unless they are named namespace/kind/name, or
// namespace/name. type, zone and capacity select offerings, where several values are separated
// by commas and types may have the wildcards * and ?; without them all are meant. Percentages
// of prices are of the price before, and "for" is how long something lasts; without it, it
// lasts for ever.
package script

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

// Event is something that happens at a time.
type Event struct {
	// After is the time since the start; At is set instead for an absolute one.
	After time.Duration
	At    time.Time
	// Text is the event in words, and Field where in the document it is.
	Text, Field string
	do          func(w *world.World) error
}

// Time is when the event happens in a world that starts at start.
func (e *Event) Time(start time.Time) time.Time {
	if e.At.IsZero() {
		return start.Add(e.After)
	}
	return e.At
}

// Schedule has the event happen in w at its time.
func (e *Event) Schedule(w *world.World, start time.Time) {
	w.At(e.Time(start), func() error {
		if err := e.do(w); err != nil {
			return fmt.Errorf("events %s: %q: %w", e.Field, e.Text, err)
		}
		return nil
	})
}

// Written is an event as it is written in a document.
type Written struct {
	At string `json:"at"`
	// Manifests are what apply applies.
	Manifests string `json:"manifests"`
}

// Read reads a document. Unlike manifests it is read strictly: anything unknown or invalid
// fails it. Files that it names are found beside it.
func Read(in load.Input) ([]Event, error) {
	var list []Written
	if err := load.Strict(in, &list); err != nil {
		var doc struct {
			Events []Written `json:"events"`
		}
		if err2 := load.Strict(in, &doc); err2 != nil {
			if strings.Contains(string(in.Data), "events:") {
				err = err2
			}
			return nil, err
		}
		list = doc.Events
	}
	events, err := Parse(list, filepath.Dir(in.Name))
	if err != nil {
		return nil, fmt.Errorf("events %s: %w", in.Name, err)
	}
	for i := range events {
		events[i].Field = in.Name + ": " + events[i].Field
	}
	return events, nil
}

// Parse reads events; files are found in folder. The error names all that are wrong.
func Parse(list []Written, folder string) ([]Event, error) {
	var out []Event
	var errs []error
	for i := range list {
		e, err := parse(&list[i], folder)
		if err != nil {
			errs = append(errs, fmt.Errorf("[%d].at: %q: %w", i, list[i].At, err))
			continue
		}
		e.Field = fmt.Sprintf("[%d].at", i)
		out = append(out, e)
	}
	return out, errors.Join(errs...)
}

func parse(in *Written, folder string) (Event, error) {
	words := strings.Fields(in.At)
	if len(words) < 2 {
		return Event{}, errors.New("must be a time and what happens, such as 10m scale deploy/web to 30")
	}
	e := Event{Text: strings.Join(words[1:], " ")}
	if d, err := time.ParseDuration(words[0]); err == nil && d >= 0 {
		e.After = d
	} else if e.At, err = time.Parse(time.RFC3339, words[0]); err != nil {
		return Event{}, fmt.Errorf("%q is neither a duration such as 10m nor a time in RFC 3339", words[0])
	}
	if in.Manifests != "" && words[1] != "apply" {
		return Event{}, errors.New("manifests go with apply only")
	}
	verb, ok := verbs[words[1]]
	if !ok {
		return Event{}, fmt.Errorf("%q: must be one of apply, capacity, delete, fail, interrupt, noise, price and scale", words[1])
	}
	p := &parser{words: words[2:], in: in, folder: folder}
	var err error
	if e.do, err = verb(p); err != nil {
		return Event{}, err
	}
	if len(p.words) > 0 {
		return Event{}, fmt.Errorf("%q is too much", strings.Join(p.words, " "))
	}
	return e, nil
}

type action func(*world.World) error

type parser struct {
	words  []string
	in     *Written
	folder string
}

var verbs = map[string]func(*parser) (action, error){
	"scale": (*parser).scale, "delete": (*parser).remove, "interrupt": (*parser).interrupt, "price": (*parser).price,
	"capacity": (*parser).capacity, "fail": (*parser).fail, "noise": (*parser).noise, "apply": (*parser).apply,
}

// next is the next word; "" at the end.
func (p *parser) next() string {
	if len(p.words) == 0 {
		return ""
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w
}

// skip passes a word over if it is next.
func (p *parser) skip(word string) bool {
	if len(p.words) > 0 && p.words[0] == word {
		p.words = p.words[1:]
		return true
	}
	return false
}

func (p *parser) scale() (action, error) {
	target := strings.Split(p.next(), "/")
	namespace, kind, name := metav1.NamespaceDefault, "", ""
	switch len(target) {
	case 1:
		name = target[0]
	case 2:
		kind, name = target[0], target[1]
	case 3:
		namespace, kind, name = target[0], target[1], target[2]
	}
	p.skip("to")
	n, err := strconv.Atoi(p.next())
	if name == "" || err != nil || n < 0 || n > 100_000 {
		return nil, errors.New("write scale deploy/web to 30, or namespace/kind/name")
	}
	return func(w *world.World) error { return w.Scale(kind, namespace, name, n) }, nil
}

func (p *parser) remove() (action, error) {
	kind, name := p.next(), p.next()
	if name == "" {
		return nil, errors.New("write delete KIND NAME, such as delete pod shop/web-1")
	}
	namespace, short, ok := strings.Cut(name, "/")
	if !ok {
		namespace, short = metav1.NamespaceDefault, name
	}
	if !slices.Contains(world.Deletable(), strings.ToLower(kind)) {
		return nil, fmt.Errorf("%q cannot be deleted: must be one of %s", kind, strings.Join(world.Deletable(), ", "))
	}
	return func(w *world.World) error { return w.Delete(strings.ToLower(kind), namespace, short) }, nil
}

// selector reads type=, zone= and capacity= in any order, wherever they begin.
func (p *parser) selector() (v1alpha1.SimSelector, error) {
	var s v1alpha1.SimSelector
	rest := p.words[:0:0]
	for _, w := range p.words {
		key, value, ok := strings.Cut(w, "=")
		if !ok {
			rest = append(rest, w)
			continue
		}
		values := strings.Split(value, ",")
		switch key {
		case "type":
			s.InstanceTypes = values
		case "zone":
			s.Zones = values
		case "capacity":
			s.CapacityTypes = values
			for _, v := range values {
				if !slices.Contains([]string{"on-demand", "spot", "reserved"}, v) {
					return s, fmt.Errorf("capacity=%s: must be on-demand, spot or reserved", v)
				}
			}
		default:
			return s, fmt.Errorf("%s: must be type=, zone= or capacity=", w)
		}
	}
	p.words = rest
	return s, nil
}

// lasts reads "for DURATION".
func (p *parser) lasts() (time.Duration, error) {
	if !p.skip("for") {
		return 0, nil
	}
	d, err := time.ParseDuration(p.next())
	if err != nil || d <= 0 {
		return 0, errors.New("for must be followed by a duration such as 5m")
	}
	return d, nil
}

func percent(word string) (int32, bool) {
	number, ok := strings.CutSuffix(word, "%")
	n, err := strconv.ParseInt(number, 10, 32)
	return int32(n), ok && err == nil && n >= 0
}

// simTime is a time as rules of a SimNodeClass have it.
func simTime(t time.Time) v1alpha1.SimTime {
	return v1alpha1.SimTime(t.UTC().Format(time.RFC3339Nano))
}

func (p *parser) interrupt() (action, error) {
	if p.skip("node") {
		name := p.next()
		if name == "" {
			return nil, errors.New("write interrupt node NAME")
		}
		return func(w *world.World) error { return w.Interrupt(v1alpha1.SpotInterruption, []string{name}) }, nil
	}
	s, err := p.selector()
	if err != nil {
		return nil, err
	}
	share := int32(100)
	if len(p.words) > 0 {
		n, ok := percent(p.next())
		if !ok || n > 100 {
			return nil, errors.New("write interrupt node NAME, or interrupt 50% capacity=spot")
		}
		share = n
	}
	return func(w *world.World) error {
		return w.Change(func(c *v1alpha1.SimNodeClass) {
			c.Spec.Interruptions = append(c.Spec.Interruptions, v1alpha1.SimInterruption{SimSelector: s, Percent: &share, At: simTime(w.Now()), Kind: v1alpha1.SpotInterruption})
		})
	}, nil
}

func (p *parser) price() (action, error) {
	s, err := p.selector()
	if err != nil {
		return nil, err
	}
	rule := v1alpha1.SimPrice{SimSelector: s}
	word := p.next()
	if dollars, ok := strings.CutPrefix(word, "$"); ok {
		if f, err := strconv.ParseFloat(dollars, 64); err != nil || f < 0 {
			return nil, fmt.Errorf("price %q: must be dollars per hour such as $0.08", word)
		}
		rule.Price = dollars
	} else if n, ok := percent(word); ok && n > 0 {
		rule.Percent = &n
	} else {
		return nil, errors.New("write price type=NAME $0.08, or 120% of the price before")
	}
	return func(w *world.World) error {
		return w.Change(func(c *v1alpha1.SimNodeClass) {
			r := rule
			r.At = simTime(w.Now())
			c.Spec.Prices = append(c.Spec.Prices, r)
		})
	}, nil
}

func window(w *world.World, d time.Duration) v1alpha1.SimWindow {
	win := v1alpha1.SimWindow{From: simTime(w.Now())}
	if d > 0 {
		win.Until = simTime(w.Now().Add(d))
	}
	return win
}

func (p *parser) capacity() (action, error) {
	s, err := p.selector()
	if err != nil {
		return nil, err
	}
	known := p.skip("known")
	n, err := strconv.ParseInt(p.next(), 10, 32)
	if err != nil || n < 0 {
		return nil, errors.New("write capacity type=NAME 0 for 5m: the number of machines there may be; known before it takes it out of the catalogue")
	}
	d, err := p.lasts()
	if err != nil {
		return nil, err
	}
	return func(w *world.World) error {
		return w.Change(func(c *v1alpha1.SimNodeClass) {
			c.Spec.Capacity = append(c.Spec.Capacity, v1alpha1.SimCapacity{SimSelector: s, SimWindow: window(w, d), Available: int32(n), Known: known})
		})
	}, nil
}

func (p *parser) fail() (action, error) {
	kinds := map[string]v1alpha1.FailureKind{"launch": v1alpha1.FailureLaunch, "register": v1alpha1.FailureNeverRegisters}
	kind, ok := kinds[p.next()]
	if !ok {
		return nil, errors.New("write fail launch, or fail register")
	}
	s, err := p.selector()
	if err != nil {
		return nil, err
	}
	d, err := p.lasts()
	if err != nil {
		return nil, err
	}
	return func(w *world.World) error {
		return w.Change(func(c *v1alpha1.SimNodeClass) {
			c.Spec.Failures = append(c.Spec.Failures, v1alpha1.SimFailure{SimSelector: s, SimWindow: window(w, d), Kind: kind})
		})
	}, nil
}

func (p *parser) noise() (action, error) {
	s, err := p.selector()
	if err != nil {
		return nil, err
	}
	n, ok := percent(p.next())
	if !ok || n > 90 || len(s.InstanceTypes)+len(s.Zones) > 0 || len(s.CapacityTypes) > 1 {
		return nil, errors.New("write noise capacity=spot 3% every 10m seed 7")
	}
	period, seed := 10*time.Minute, uint64(1)
	if p.skip("every") {
		if period, err = time.ParseDuration(p.next()); err != nil || period < time.Second {
			return nil, errors.New("every must be followed by a duration of a second or more")
		}
	}
	if p.skip("seed") {
		if seed, err = strconv.ParseUint(p.next(), 10, 64); err != nil {
			return nil, errors.New("seed must be followed by a whole number")
		}
	}
	kind := ""
	if len(s.CapacityTypes) == 1 {
		kind = s.CapacityTypes[0]
	}
	return func(w *world.World) error {
		w.Noise(float64(n)/100, kind, period, seed)
		return nil
	}, nil
}

func (p *parser) apply() (action, error) {
	input := load.Input{Name: "manifests", Data: []byte(p.in.Manifests)}
	if p.in.Manifests == "" {
		file := p.next()
		if file == "" {
			return nil, errors.New("apply needs a file, or manifests")
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(p.folder, file)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		input = load.Input{Name: file, Data: data}
	}
	r := load.Read([]load.Input{input})
	for _, problem := range r.Problems {
		if problem.Severity == load.Error {
			return nil, errors.New(problem.String())
		}
	}
	return func(w *world.World) error { return w.Apply(r) }, nil
}
