package provision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

func TestEffectiveZone(t *testing.T) {
	in := func(zones ...string) requirements.Set {
		return requirements.NewSet(requirements.In(corev1.LabelTopologyZone, zones...))
	}
	tests := map[string]struct {
		terms []requirements.Set
		want  string
	}{
		"nothing is asked for":               {[]requirements.Set{{}}, "flexible"},
		"one zone":                           {[]requirements.Set{in("a")}, "a"},
		"several zones":                      {[]requirements.Set{in("a", "b")}, "flexible"},
		"alternatives in one zone":           {[]requirements.Set{in("a"), in("a")}, "a"},
		"alternatives in several zones":      {[]requirements.Set{in("a"), in("b")}, "flexible"},
		"an alternative that is not bound":   {[]requirements.Set{in("a"), {}}, "flexible"},
		"its volumes are in different zones": {[]requirements.Set{in()}, "none"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := effectiveZone(&snapshot.Class{Terms: tc.terms}); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
