package fleet

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is how long an object may stay behind what was written to it. An API server
// that was restored from a backup would never catch up.
const patience = 30 * time.Second

// written remembers versions of objects that were written and not yet read back.
type written struct {
	now func() time.Time

	mu    sync.Mutex
	marks map[target]mark
	gone  map[types.UID]time.Time
	sweep time.Time
}

type target struct {
	kind string
	name types.NamespacedName
}

type mark struct {
	uid     types.UID
	version string
	at      time.Time
}

func newWritten(now func() time.Time) *written {
	return &written{now: now, marks: map[target]mark{}, gone: map[types.UID]time.Time{}}
}

func targetOf(o client.Object) target {
	return target{fmt.Sprintf("%T", o), client.ObjectKeyFromObject(o)}
}

func (w *written) note(o client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clean()
	w.marks[targetOf(o)] = mark{o.GetUID(), o.GetResourceVersion(), w.now()}
}

func (w *written) behind(o client.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := targetOf(o)
	m, ok := w.marks[t]
	if !ok {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), m.version)
	if m.uid == o.GetUID() && err == nil && order < 0 && w.now().Sub(m.at) < patience {
		return true
	}
	delete(w.marks, t)
	return false
}

func (w *written) forget(o client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.marks, targetOf(o))
}

// deleted notes a deletion, and reports whether it is the first of the object.
func (w *written) deleted(o client.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clean()
	_, again := w.gone[o.GetUID()]
	w.gone[o.GetUID()] = w.now()
	return !again
}

// clean drops, now and then, what no read can be behind any more.
func (w *written) clean() {
	now := w.now()
	if now.Before(w.sweep) {
		return
	}
	w.sweep = now.Add(time.Minute)
	for t, m := range w.marks {
		if now.Sub(m.at) >= patience {
			delete(w.marks, t)
		}
	}
	for uid, at := range w.gone {
		if now.Sub(at) >= 10*time.Minute {
			delete(w.gone, uid)
		}
	}
}
