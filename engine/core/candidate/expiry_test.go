package candidate

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

func TestExpiryOf(t *testing.T) {
	created := time.Date(2025, 6, 4, 12, 0, 0, 0, time.UTC) // a Wednesday
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
	claim.Spec.ExpireAfter = karpv1.DurationOf(24 * time.Hour)
	due := created.Add(24 * time.Hour)
	sunday := time.Date(2025, 6, 8, 2, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		annotations map[string]string
		graceful    bool
		forced      time.Time // zero is never
		open, shut  []time.Time
		problem     string
	}{
		"none is Karpenter's way": {forced: due, shut: []time.Time{due}},
		"graceful at any time":    {annotations: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful"}, graceful: true, open: []time.Time{due, sunday}},
		"in a window, with a deadline": {
			annotations: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful", v1alpha1.ExpirationWindowAnnotation: "0 2 * * sun/4h", v1alpha1.ExpirationDeadlineAnnotation: "72h"},
			graceful:    true, forced: due.Add(72 * time.Hour),
			open: []time.Time{sunday, sunday.Add(4*time.Hour - time.Second)},
			shut: []time.Time{due, sunday.Add(-time.Second), sunday.Add(4 * time.Hour)},
		},
		"in another time zone": {
			annotations: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful", v1alpha1.ExpirationWindowAnnotation: "CRON_TZ=America/New_York 0 2 * * sun/1h"},
			graceful:    true, open: []time.Time{sunday.Add(4 * time.Hour)}, shut: []time.Time{sunday},
		},
		"steps are no duration": {
			annotations: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful", v1alpha1.ExpirationWindowAnnotation: "0 2 * * */5"},
			graceful:    true, problem: v1alpha1.ExpirationWindowAnnotation, shut: []time.Time{sunday},
		},
		"steps and a duration": {
			annotations: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful", v1alpha1.ExpirationWindowAnnotation: "*/30 * * * */10m"},
			graceful:    true, open: []time.Time{sunday.Add(5 * time.Minute)}, shut: []time.Time{sunday.Add(15 * time.Minute)},
		},
		"a window that cannot be read": {
			annotations: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful", v1alpha1.ExpirationWindowAnnotation: "sundays"},
			graceful:    true, problem: v1alpha1.ExpirationWindowAnnotation, shut: []time.Time{sunday, due},
		},
		"a deadline that cannot be read": {
			annotations: map[string]string{v1alpha1.ExpirationAnnotation: "Graceful", v1alpha1.ExpirationDeadlineAnnotation: "3d"},
			graceful:    true, problem: v1alpha1.ExpirationDeadlineAnnotation, open: []time.Time{due},
		},
		"another way": {annotations: map[string]string{v1alpha1.ExpirationAnnotation: "Soft"}, forced: due, problem: v1alpha1.ExpirationAnnotation},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := ExpiryOf(&karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Annotations: tt.annotations}})
			if e.Graceful != tt.graceful {
				t.Errorf("Graceful = %v", e.Graceful)
			}
			if at, ok := e.Forced(claim); ok == tt.forced.IsZero() || ok && !at.Equal(tt.forced) {
				t.Errorf("Forced() = %v, %v; want %v", at, ok, tt.forced)
			}
			for _, at := range tt.open {
				if !e.Open(at) {
					t.Errorf("shut at %v", at)
				}
			}
			for _, at := range tt.shut {
				if e.Open(at) {
					t.Errorf("open at %v", at)
				}
			}
			if got := strings.Join(e.Problems, "; "); (tt.problem == "") != (got == "") || !strings.Contains(got, tt.problem) {
				t.Errorf("Problems = %q, want %q", got, tt.problem)
			}
		})
	}
}

func TestExpiry_never(t *testing.T) {
	if _, ok := ExpiryOf(nil).Forced(&karpv1.NodeClaim{}); ok {
		t.Error("a claim without age is deleted")
	}
}
