package cloud

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

func TestPreferred(t *testing.T) {
	many := make([]Offering, MaxPreferred+10)
	for i := range many {
		many[i] = Offering{InstanceType: fmt.Sprint("t", i), Zone: "a", CapacityType: "spot"}
	}
	tests := map[string]struct {
		text string
		want []Offering
	}{
		"nothing":                 {},
		"one":                     {text: "m5.large/a/spot", want: []Offering{{InstanceType: "m5.large", Zone: "a", CapacityType: "spot"}}},
		"a reservation":           {text: "m5.large/a/reserved/cr-1", want: []Offering{{InstanceType: "m5.large", Zone: "a", CapacityType: "reserved", ReservationID: "cr-1"}}},
		"without a zone":          {text: "metal//on-demand", want: []Offering{{InstanceType: "metal", CapacityType: "on-demand"}}},
		"what cannot be read":     {text: "m5.large, ,a/b,a/b/c/d/e, x/y/spot ", want: []Offering{{InstanceType: "x", Zone: "y", CapacityType: "spot"}}},
		"more than a claim names": {text: FormatPreferred(many), want: many[:MaxPreferred]},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := &karpv1.NodeClaim{}
			if tt.text != "" {
				claim.Annotations = map[string]string{PreferredAnnotation: tt.text}
			}
			got := Preferred(claim)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Preferred() (-want +got):\n%s", diff)
			}
			claim.Annotations = map[string]string{PreferredAnnotation: FormatPreferred(got)}
			if diff := cmp.Diff(got, Preferred(claim)); diff != "" {
				t.Errorf("written and read again (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClass(t *testing.T) {
	cause := errors.New("cause")
	tests := map[string]struct {
		err                  error
		wantClass, wantError string
	}{
		"none":        {},
		"any":         {err: cause, wantError: "cause"},
		"no capacity": {err: &InsufficientCapacityError{Offerings: []string{"a", "b"}}, wantClass: "InsufficientCapacityError", wantError: "insufficient capacity for a, b"},
		"no capacity of many": {
			err:       &InsufficientCapacityError{Offerings: []string{"a", "b", "c", "d", "e", "f", "g"}, Err: cause},
			wantClass: "InsufficientCapacityError", wantError: "insufficient capacity for a, b, c, d, e and 2 more: cause",
		},
		"no class":   {err: &NodeClassNotReadyError{NodeClass: "K/n", Err: cause}, wantClass: "NodeClassNotReadyError", wantError: "NodeClass K/n is not ready: cause"},
		"no machine": {err: &NotFoundError{Machine: "m"}, wantClass: "NodeClaimNotFoundError", wantError: "machine m not found"},
		"no launch":  {err: &CreateError{Reason: "Quota", Message: "no", Err: cause}, wantClass: "CreateError", wantError: "Quota: no"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Class(tt.err); got != tt.wantClass {
				t.Errorf("Class() = %q, want %q", got, tt.wantClass)
			}
			if tt.err == nil {
				return
			}
			if got := tt.err.Error(); got != tt.wantError {
				t.Errorf("Error() = %q, want %q", got, tt.wantError)
			}
			if got := Class(fmt.Errorf("launch: %w", tt.err)); got != tt.wantClass {
				t.Errorf("Class() when wrapped = %q, want %q", got, tt.wantClass)
			}
		})
	}
}
