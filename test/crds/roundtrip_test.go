package crds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	theirsv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	theirsv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/randfill"

	oursv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	oursv1alpha1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1alpha1"
)

// objectsPerKind is how many objects of each kind make the round trip.
const objectsPerKind = 2000

// TestRoundTrip sends objects filled at random through Karpenter's types, ours, and back.
func TestRoundTrip(t *testing.T) {
	kinds := map[string]struct{ theirs, ours, back any }{
		"NodePool":    {&theirsv1.NodePool{}, &oursv1.NodePool{}, &theirsv1.NodePool{}},
		"NodeClaim":   {&theirsv1.NodeClaim{}, &oursv1.NodeClaim{}, &theirsv1.NodeClaim{}},
		"NodeOverlay": {&theirsv1alpha1.NodeOverlay{}, &oursv1alpha1.NodeOverlay{}, &theirsv1alpha1.NodeOverlay{}},
	}
	for kind, objects := range kinds {
		t.Run(kind, func(t *testing.T) {
			fields := map[string]int{}
			for seed := range int64(objectsPerKind) {
				theirs, ours, back := blank(objects.theirs), blank(objects.ours), blank(objects.back)
				filler(seed).Fill(theirs)
				sent := encode(t, theirs)
				decode(t, sent, ours)
				got := encode(t, ours)
				want := tree(t, sent)
				count(fields, "", want)
				if diff := cmp.Diff(want, tree(t, got)); diff != "" {
					t.Fatalf("seed %d: through our JSON (-sent +got):\n%s", seed, diff)
				}
				decode(t, got, back)
				if diff := cmp.Diff(want, tree(t, encode(t, back))); diff != "" {
					t.Fatalf("seed %d: back in Karpenter's type (-sent +got):\n%s", seed, diff)
				}
				// Controllers patch objects in the form of maps.
				untyped, err := runtime.DefaultUnstructuredConverter.ToUnstructured(ours)
				if err != nil {
					t.Fatalf("seed %d: to a map: %v", seed, err)
				}
				if diff := cmp.Diff(want, tree(t, encode(t, untyped))); diff != "" {
					t.Fatalf("seed %d: through a map (-sent +got):\n%s", seed, diff)
				}
				typed := blank(objects.ours)
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(untyped, typed); err != nil {
					t.Fatalf("seed %d: from a map: %v", seed, err)
				}
				if diff := cmp.Diff(want, tree(t, encode(t, typed))); diff != "" {
					t.Fatalf("seed %d: from a map (-sent +got):\n%s", seed, diff)
				}
			}
			for _, path := range fieldsOf(reflect.TypeOf(objects.theirs).Elem(), "") {
				if fields[path] == 0 {
					t.Errorf("no object had %s: its round trip is unproven", path)
				}
			}
		})
	}
}

// fieldsOf lists the JSON paths of the fields of a type below spec and status.
func fieldsOf(typ reflect.Type, path string) []string {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Marshaler]()) {
		return nil
	}
	var paths []string
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || field.Type == reflect.TypeFor[metav1.ObjectMeta]() || strings.Contains(options, "inline") {
			continue
		}
		at := path + "." + name
		paths = append(paths, at)
		paths = append(paths, fieldsOf(field.Type, at)...)
	}
	return paths
}

// count adds the JSON paths of a value to counts; items of a list share their path.
func count(counts map[string]int, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, member := range value {
			counts[path+"."+key]++
			count(counts, path+"."+key, member)
		}
	case []any:
		for _, item := range value {
			count(counts, path, item)
		}
	}
}

func blank(like any) any { return reflect.New(reflect.TypeOf(like).Elem()).Interface() }

func encode(t *testing.T, object any) []byte {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatalf("encode %T: %v", object, err)
	}
	return data
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("decode into %T: %v\n%s", into, err, data)
	}
}

// tree is JSON as an API server sees it: a null is an absent field.
func tree(t *testing.T, data []byte) any {
	t.Helper()
	var value any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("decode: %v", err)
	}
	return withoutNulls(value)
}

func withoutNulls(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, member := range value {
			if member == nil {
				delete(value, key)
				continue
			}
			value[key] = withoutNulls(member)
		}
	case []any:
		for i := range value {
			value[i] = withoutNulls(value[i])
		}
	}
	return value
}

// filler fills Karpenter's types with values that have a JSON form.
func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).Funcs(
		func(d *theirsv1.NillableDuration, c randfill.Continue) {
			if c.Intn(4) == 0 {
				*d = theirsv1.NillableDuration{}
				return
			}
			*d = theirsv1.MustParseNillableDuration(durationText(c))
		},
		func(d *metav1.Duration, c randfill.Continue) {
			d.Duration = time.Duration(c.Int31n(1_000_000)) * time.Second
		},
		func(at *metav1.Time, c randfill.Continue) {
			*at = metav1.Unix(c.Int63n(4_000_000_000), 0)
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = resource.MustParse(quantityText(c))
		},
		func(f *metav1.FieldsV1, c randfill.Continue) {
			f.Raw = []byte(fmt.Sprintf(`{"f:spec":{"f:x%d":{}}}`, c.Intn(9)))
		},
		func(m *metav1.TypeMeta, c randfill.Continue) {
			m.APIVersion, m.Kind = c.String(9), c.String(9)
		},
		func(effect *corev1.TaintEffect, c randfill.Continue) {
			*effect = []corev1.TaintEffect{"NoSchedule", "PreferNoSchedule", "NoExecute"}[c.Intn(3)]
		},
	)
}

// durationText is one of the many ways to write a duration.
func durationText(c randfill.Continue) string {
	n := c.Int31n(10_000)
	return []string{
		fmt.Sprintf("%ds", n), fmt.Sprintf("%dm", n), fmt.Sprintf("%dh", n), fmt.Sprintf("0%dh", n),
		fmt.Sprintf("%dh%dm", n, n), fmt.Sprintf("%dm%ds", n, n), fmt.Sprintf("1h%dm%ds", n, n), "0s",
	}[c.Intn(8)]
}

// quantityText is a resource quantity in one of its notations.
func quantityText(c randfill.Continue) string {
	units := []string{"", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti"}
	return fmt.Sprintf("%d%s", c.Int31n(100_000), units[c.Intn(len(units))])
}

// TestNillableDurationText reads texts with both types: both refuse the same ones, and
// write the others back alike.
func TestNillableDurationText(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const alphabet = "01259hmhms.-"
	texts := []string{`"Never"`, `"never"`, `"720h"`, `"0s"`, `"1h30m"`, `"90m"`, `""`, `"1d"`, `720`, `true`, `{}`, `"-1h"`, `"1.5h"`}
	for range 3000 {
		var b strings.Builder
		for range random.IntN(6) {
			b.WriteByte(alphabet[random.IntN(len(alphabet))])
		}
		texts = append(texts, fmt.Sprintf("%q", b.String()))
	}
	read := 0
	for _, text := range texts {
		var theirs theirsv1.NillableDuration
		var ours oursv1.NillableDuration
		theirErr, ourErr := json.Unmarshal([]byte(text), &theirs), json.Unmarshal([]byte(text), &ours)
		if (theirErr == nil) != (ourErr == nil) {
			t.Errorf("%s: error %v, want as Karpenter's %v", text, ourErr, theirErr)
			continue
		}
		if theirErr != nil {
			continue
		}
		read++
		if got, want := string(encode(t, ours)), string(encode(t, theirs)); got != want {
			t.Errorf("%s is written back as %s, want %s", text, got, want)
		}
	}
	if read < 100 {
		t.Errorf("only %d of %d texts could be read", read, len(texts))
	}
}
