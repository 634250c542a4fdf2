package provision

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestBatcher(t *testing.T) {
	type trigger struct {
		at  time.Duration
		key string
	}
	tests := map[string]struct {
		triggers []trigger
		want     []time.Duration // when windows close
	}{
		"a window closes when nothing more has come for the idle time": {
			triggers: []trigger{{5 * time.Second, "a"}},
			want:     []time.Duration{6 * time.Second},
		},
		"another key keeps it open": {
			triggers: []trigger{{0, "a"}, {900 * time.Millisecond, "b"}, {1800 * time.Millisecond, "c"}},
			want:     []time.Duration{2800 * time.Millisecond},
		},
		"a known key does not keep it open": {
			triggers: []trigger{{0, "a"}, {900 * time.Millisecond, "a"}},
			want:     []time.Duration{time.Second},
		},
		"a known key counts again in the next window": {
			triggers: []trigger{{0, "a"}, {3 * time.Second, "a"}},
			want:     []time.Duration{time.Second, 4 * time.Second},
		},
		"a window is never open for longer than the most": {
			triggers: func() (out []trigger) {
				for i := range 30 {
					out = append(out, trigger{time.Duration(i) * 500 * time.Millisecond, fmt.Sprint(i)})
				}
				return out
			}(),
			want: []time.Duration{10 * time.Second, 15500 * time.Millisecond},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBatcher(time.Second, 10*time.Second)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begin := time.Now()
				var got []time.Duration
				done := make(chan struct{})
				go func() {
					defer close(done)
					for b.wait(ctx) {
						got = append(got, time.Since(begin))
					}
				}()
				for _, tr := range tt.triggers {
					time.Sleep(time.Until(begin.Add(tr.at)))
					b.trigger(tr.key)
				}
				time.Sleep(time.Minute)
				cancel()
				<-done
				if len(got) != len(tt.want) {
					t.Fatalf("windows closed at %v, want %v", got, tt.want)
				}
				for i := range got {
					if got[i] != tt.want[i] {
						t.Errorf("window %d closed at %v, want %v", i, got[i], tt.want[i])
					}
				}
			})
		})
	}
}
