package observe

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// recorder is a sink with a clock that tests move.
type recorder struct {
	now  time.Time
	said []string
}

func (r *recorder) events() *Events {
	return NewEvents(func(about runtime.Object, kind, reason, message string) {
		r.said = append(r.said, fmt.Sprintf("%s %s %s: %s", about.(metav1.Object).GetNamespace(), kind, reason, message))
	}, func() time.Time { return r.now })
}

func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func TestEvents_Publish(t *testing.T) {
	type step struct {
		after time.Duration
		event Event
	}
	tests := map[string]struct {
		steps []step
		want  []string
	}{
		"an event is published with its type": {
			steps: []step{{0, Event{About: pod("a", "p"), Reason: "R", Message: "m"}}, {0, Event{About: pod("a", "p"), Warning: true, Reason: "W", Message: "m"}}},
			want:  []string{"a Normal R: m", "a Warning W: m"},
		},
		"a repetition is dropped until its time is over": {
			steps: []step{{0, Event{About: pod("a", "p"), Reason: "R", Message: "m"}}, {time.Minute, Event{About: pod("a", "p"), Reason: "R", Message: "m"}}, {61 * time.Second, Event{About: pod("a", "p"), Reason: "R", Message: "m"}}},
			want:  []string{"a Normal R: m", "a Normal R: m"},
		},
		"another message is another event": {
			steps: []step{{0, Event{About: pod("a", "p"), Reason: "R", Message: "m"}}, {0, Event{About: pod("a", "p"), Reason: "R", Message: "n"}}},
			want:  []string{"a Normal R: m", "a Normal R: n"},
		},
		"one key is one event whatever the message": {
			steps: []step{{0, Event{About: pod("a", "p"), Reason: "R", Key: "k", Message: "m"}}, {0, Event{About: pod("a", "p"), Reason: "R", Key: "k", Message: "n"}}},
			want:  []string{"a Normal R: m"},
		},
		"objects of one name in two namespaces are two": {
			steps: []step{{0, Event{About: pod("a", "p"), Reason: "R", Message: "m"}}, {0, Event{About: pod("b", "p"), Reason: "R", Message: "m"}}},
			want:  []string{"a Normal R: m", "b Normal R: m"},
		},
		"an event has a time of its own": {
			steps: []step{{0, Event{About: pod("a", "p"), Reason: "R", Message: "m", Every: time.Hour}}, {59 * time.Minute, Event{About: pod("a", "p"), Reason: "R", Message: "m", Every: time.Hour}}},
			want:  []string{"a Normal R: m"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := &recorder{now: time.Unix(0, 0)}
			e := r.events()
			for _, s := range tt.steps {
				r.now = r.now.Add(s.after)
				e.Publish(s.event)
			}
			if d := cmp.Diff(tt.want, r.said); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestEvents_limit(t *testing.T) {
	r := &recorder{now: time.Unix(0, 0)}
	e := r.events()
	publish := func(from, to int) int {
		before := len(r.said)
		for i := from; i < to; i++ {
			e.Publish(Event{About: pod("a", fmt.Sprint("p", i)), Reason: Nominated, Message: "m", Limited: true})
		}
		return len(r.said) - before
	}
	if got := publish(0, 50); got != 10 {
		t.Errorf("published %d at once, want the burst of 10", got)
	}
	r.now = r.now.Add(2 * time.Second)
	if got := publish(50, 100); got != 10 {
		t.Errorf("published %d after two seconds, want 10", got)
	}
	e.Publish(Event{About: pod("a", "q"), Reason: Evicted, Message: "m", Limited: true})
	if got := r.said[len(r.said)-1]; got != "a Normal Evicted: m" {
		t.Errorf("the limit of one reason holds up another: last is %q", got)
	}
}

func TestEvents_nil(t *testing.T) {
	var e *Events
	e.Publish(Event{About: pod("a", "p"), Reason: "R"}) // does not crash
}

func TestNewMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	m.NodeClaimsCreated.WithLabelValues(ReasonProvisioned, "default", "false").Inc()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range families {
		found = found || f.GetName() == "karpenter_nodeclaims_created_total"
	}
	if !found {
		t.Error("karpenter_nodeclaims_created_total is not exported")
	}
	if _, err := NewMetrics(reg); err == nil {
		t.Error("registering twice: no error")
	}
}
