package fleet

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

func TestWritten(t *testing.T) {
	node := func(uid, version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID(uid), ResourceVersion: version}}
	}
	tests := map[string]struct {
		read  *corev1.Node
		after time.Duration
		want  bool
	}{
		"an older version is behind":               {read: node("u", "9"), want: true},
		"the same version is not":                  {read: node("u", "10")},
		"nor is a newer one":                       {read: node("u", "11")},
		"another object of the name is not":        {read: node("v", "9")},
		"a version that cannot be compared is not": {read: node("u", "x")},
		"nothing is behind for ever":               {read: node("u", "9"), after: time.Hour},
		"an object that was not written is not":    {read: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", ResourceVersion: "1"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			w := newWritten(func() time.Time { return now })
			w.note(node("u", "10"))
			now = now.Add(tt.after)
			if got := w.behind(tt.read); got != tt.want {
				t.Errorf("behind() = %t", got)
			}
		})
	}
	t.Run("what is written and never read again is dropped", func(t *testing.T) {
		now := time.Now()
		w := newWritten(func() time.Time { return now })
		for i := range 100 {
			n := node("u", "1")
			n.Name += string(rune('a' + i))
			w.note(n)
			w.deleted(n)
			now = now.Add(time.Hour)
		}
		if len(w.marks) > 2 || len(w.gone) > 2 {
			t.Errorf("%d marks and %d deletions are kept", len(w.marks), len(w.gone))
		}
	})
}

func TestProtectionOf(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	tests := map[string]struct {
		value   string
		started time.Duration // ago; 0 is not yet
		want    Protection
		problem bool
	}{
		"for ever":               {value: "true", want: Protection{On: true}},
		"for a time":             {value: "10m", started: 4 * time.Minute, want: Protection{On: true, Until: now.Add(6 * time.Minute)}},
		"a time that is over":    {value: "10m", started: 10 * time.Minute, want: Protection{Until: now}},
		"a pod that has not run": {value: "10m", want: Protection{On: true}},
		"no":                     {value: "false", problem: true},
		"nothing":                {value: "", problem: true},
		"a negative time":        {value: "-1m", problem: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{karpv1.DoNotDisruptAnnotationKey: tt.value}}}
			if tt.started > 0 {
				p.Status.StartTime = new(metav1.NewTime(now.Add(-tt.started)))
			}
			got := ProtectionOf(p, now)
			if (got.Problem != "") != tt.problem {
				t.Errorf("problem %q", got.Problem)
			}
			got.Problem = ""
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("ProtectionOf() (-want +got):\n%s", diff)
			}
		})
	}
	if got := ProtectionOf(&corev1.Pod{}, now); got != (Protection{}) {
		t.Errorf("a pod without annotation: %+v", got)
	}
}
