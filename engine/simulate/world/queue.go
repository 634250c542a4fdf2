package world

import (
	"container/heap"
	"time"
)

// queue is what is still to come, in the order of time; what comes at the same time is in the
// order in which it was added.
type queue struct {
	items items
	count int
}

type item struct {
	at     time.Time
	number int
	do     func()
}

type items []item

func (h items) Len() int { return len(h) }
func (h items) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].number < h[j].number
}
func (h items) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *items) Push(x any)   { *h = append(*h, x.(item)) }
func (h *items) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = item{}
	*h = old[:len(old)-1]
	return x
}

func (q *queue) push(at time.Time, do func()) {
	q.count++
	heap.Push(&q.items, item{at, q.count, do})
}

// next is the time of what comes next.
func (q *queue) next() (time.Time, bool) {
	if len(q.items) == 0 {
		return time.Time{}, false
	}
	return q.items[0].at, true
}

// pop takes out what is due at a time. What that adds for the same time comes after.
func (q *queue) pop(at time.Time) []func() {
	var out []func()
	for len(q.items) > 0 && !q.items[0].at.After(at) {
		out = append(out, heap.Pop(&q.items).(item).do)
	}
	return out
}
