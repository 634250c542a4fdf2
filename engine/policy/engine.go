package policy

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Policy is one policy in force.
type Policy struct {
	// Name is unique.
	Name string
	Hook Hook
	// Order of the chain; policies of equal order run by name.
	Order int
	// Mode defaults to Enforce.
	Mode Mode
	// Failure defaults to that of the hook.
	Failure FailurePolicy
	// Revision is the digest of everything the policy's answers depend on besides the
	// input: source, data, parameters.
	Revision string
	// Evaluator answers.
	Evaluator Evaluator
	// Parameters are shown to the policy as input.parameters.
	Parameters map[string]any
	// Documents say how old the policy's documents are.
	Documents map[string]Document
	// Limits default to those of the hook; of them the engine applies
	// Deadline and PerRow.
	Limits Limits
	// Applies says for which NodePools the policy is asked; nil means all.
	Applies func(*NodePool) bool
	// Reasons for which a disrupt policy is asked; empty means all.
	Reasons []string
}

// Options tune an [Engine]. The zero value is ready to use.
type Options struct {
	// Records is the number of decision records kept. Defaults to 1024; negative keeps
	// none.
	Records int
	// CacheBytes bounds the memory of the score caches, roughly. Defaults to 64 MiB.
	CacheBytes int
	// Concurrent bounds evaluations at the same time. Defaults to GOMAXPROCS.
	Concurrent int
	// OnDecision is called after each decision with its record and input, which it must
	// not change. It may be called from several goroutines. Defaults to none.
	OnDecision func(Record, any)
}

func (o Options) withDefaults() Options {
	if o.Records == 0 {
		o.Records = 1024
	}
	if o.CacheBytes <= 0 {
		o.CacheBytes = 64 << 20
	}
	if o.Concurrent <= 0 {
		o.Concurrent = runtime.GOMAXPROCS(0)
	}
	return o
}

// Engine asks the policies in force. All methods may be called at the same time: a
// decision keeps the policies it began with.
type Engine struct {
	opts    Options
	set     atomic.Pointer[set]
	swaps   atomic.Int64
	slots   chan struct{}
	ring    ring
	answers *lru[ScoreAnswer]
	scores  *lru[*Scores]

	mu       sync.Mutex
	lastGood map[string]goodAnswer
	breakers map[string]*breaker
	pools    map[string]poolScores
}

// poolScores are the cached scores of a NodePool. They hold its table of offerings, so
// those of an older table are dropped when there is a new one.
type poolScores struct {
	table *Offerings
	keys  []string
}

// putScores caches s under key.
func (e *Engine) putScores(key string, s *Scores) {
	e.mu.Lock()
	ps := e.pools[s.Pool]
	var old []string
	if ps.table != s.Rows {
		old, ps = ps.keys, poolScores{table: s.Rows}
	}
	ps.keys = append(ps.keys, key)
	if n := len(ps.keys) - maxScoresPerPool; n > 0 {
		old = append(old, ps.keys[:n]...)
		ps.keys = slices.Clone(ps.keys[n:])
	}
	e.pools[s.Pool] = ps
	e.mu.Unlock()
	for _, k := range old {
		e.scores.drop(k)
	}
	e.scores.put(key, s, 48*len(s.Cost)+96*len(s.Cover))
}

// maxScoresPerPool is how many results are kept for one table of a NodePool.
const maxScoresPerPool = 8

// set is an immutable state of all policies.
type set struct {
	byHook     map[Hook][]*entry
	generation int64
	// reads are the questions, and rows what is read of the rows of a score's.
	reads map[Hook]*Tree
	rows  *Tree
}

// question is what the policies of a hook read together.
func (s *set) question(h Hook) *Tree {
	if t := s.reads[h]; t != nil {
		return t
	}
	return &Tree{}
}

type entry struct {
	Policy
	tree, rows *Tree
}

type goodAnswer struct {
	answer ScoreAnswer
	unix   int64
}

// NewEngine returns an engine without policies.
func NewEngine(opts Options) *Engine {
	opts = opts.withDefaults()
	e := &Engine{
		opts:     opts,
		slots:    make(chan struct{}, opts.Concurrent),
		answers:  newLRU[ScoreAnswer](opts.CacheBytes / 2),
		scores:   newLRU[*Scores](opts.CacheBytes / 2),
		lastGood: map[string]goodAnswer{},
		breakers: map[string]*breaker{},
		pools:    map[string]poolScores{},
	}
	e.ring.size = max(opts.Records, 0)
	e.set.Store(&set{byHook: map[Hook][]*entry{}})
	return e
}

// Swap puts policies in force in place of the present ones, all at once. Disabled ones
// are left out. It returns an error, and changes nothing, if two have one name, or one
// has no evaluator or an unknown hook.
func (e *Engine) Swap(policies []Policy) error {
	next := &set{byHook: map[Hook][]*entry{}, generation: e.swaps.Add(1)}
	seen := map[string]bool{}
	// The rows' names and prices belong to every result of a score.
	reads := map[Hook]Reads{Score: {"candidates.*.offering.listPrice", "candidates.*.offering.zone", "candidates.*.offering.capacityType", "candidates.*.instanceType.name"}}
	all := map[Hook]bool{}
	var errs []error
	for _, p := range policies {
		if seen[p.Name] {
			errs = append(errs, fmt.Errorf("policy %q: the name is used twice", p.Name))
		}
		seen[p.Name] = true
		if !slices.Contains(Hooks(), p.Hook) {
			errs = append(errs, fmt.Errorf("policy %q: hook %q is unknown", p.Name, p.Hook))
		}
		if p.Mode == Disabled {
			continue
		}
		if p.Evaluator == nil {
			errs = append(errs, fmt.Errorf("policy %q: no evaluator", p.Name))
			continue
		}
		p.Mode = cmp.Or(p.Mode, Enforce)
		p.Limits = p.Limits.WithDefaults(p.Hook)
		if p.Parameters == nil {
			p.Parameters = map[string]any{}
		}
		r := p.Evaluator.Reads()
		en := &entry{Policy: p, tree: r.Tree()}
		en.rows = en.tree.rowTree()
		all[p.Hook] = all[p.Hook] || r == nil
		reads[p.Hook] = append(reads[p.Hook], r...)
		next.byHook[p.Hook] = append(next.byHook[p.Hook], en)
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, list := range next.byHook {
		slices.SortFunc(list, func(a, b *entry) int {
			return cmp.Or(cmp.Compare(a.Order, b.Order), strings.Compare(a.Name, b.Name))
		})
	}
	next.reads = map[Hook]*Tree{}
	for hook, r := range reads {
		if all[hook] {
			r = nil
		}
		next.reads[hook] = r.Tree()
	}
	next.rows = next.question(Score).rowTree()
	// A later Swap may have stored first; the later one wins.
	for {
		old := e.set.Load()
		if old.generation > next.generation {
			return nil
		}
		if e.set.CompareAndSwap(old, next) {
			break
		}
	}
	e.forget(next)
	return nil
}

// forget drops what is known of revisions that are not in force any more.
func (e *Engine) forget(s *set) {
	live := map[string]bool{}
	for _, list := range s.byHook {
		for _, en := range list {
			live[en.Name+"@"+en.Revision] = true
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.breakers, func(k string, _ *breaker) bool { return !live[k] })
	maps.DeleteFunc(e.lastGood, func(k string, _ goodAnswer) bool {
		id, _, _ := strings.Cut(k, "\x00")
		return !live[id]
	})
}

// Policies lists the names of the policies in force for a hook, in order.
func (e *Engine) Policies(h Hook) []string {
	var out []string
	for _, en := range e.set.Load().byHook[h] {
		out = append(out, en.Name)
	}
	return out
}

// Records returns the latest decision records, oldest first.
func (e *Engine) Records() []Record { return e.ring.list() }

func (e *Engine) record(r Record, in any, round *Round) {
	e.ring.add(r)
	round.add(r)
	if e.opts.OnDecision != nil {
		e.opts.OnDecision(r, in)
	}
}

// meta is what policy en sees of m.
func (en *entry) meta(m Meta, h Hook, rows int) Meta {
	m.APIVersion, m.Hook = APIVersion, h
	m.Mode = en.Mode
	m.Bundle = Bundle{Name: en.Name, Revision: en.Revision}
	m.DeadlineMs = en.Limits.Wall(rows).Milliseconds()
	m.Parameters = en.Parameters
	if en.Documents != nil {
		m.Documents = en.Documents
	}
	return m
}

// run calls eval under the deadline of en, unless its breaker is open or the round has no
// time left.
func (e *Engine) run(ctx context.Context, en *entry, m *Meta, rows int, eval func(context.Context) (Stats, error)) (Stats, error) {
	now := m.Now.Unix
	wall, err := m.round.left(en.Hook, en.Limits.Wall(rows))
	if err != nil {
		return Stats{}, withPolicy(err, en.Name)
	}
	b := e.breaker(en)
	if err := b.allow(now); err != nil {
		return Stats{}, err
	}
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		b.release()
		return Stats{}, ctx.Err()
	}
	defer func() { <-e.slots }()
	ectx, cancel := context.WithTimeout(ctx, wall)
	defer cancel()
	begin := time.Now()
	st, err := guarded(func() (Stats, error) { return eval(ectx) })
	st.Duration = time.Since(begin)
	m.round.spend(en.Hook, st.Duration)
	if err != nil && ctx.Err() != nil {
		b.release()
		return st, ctx.Err()
	}
	var pe *Error
	if err != nil {
		if !errors.As(err, &pe) {
			pe = &Error{Class: ClassTrap, Msg: err.Error(), Err: err}
		} else {
			c := *pe
			pe = &c
		}
		pe.Policy = en.Name
	}
	b.done(pe, now)
	if pe != nil {
		return st, pe
	}
	return st, nil
}

// guarded turns a panic of an evaluator into an error: a guest must not end the process.
func guarded(f func() (Stats, error)) (st Stats, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &Error{Class: ClassTrap, Msg: fmt.Sprintf("evaluation panicked: %v", r)}
		}
	}()
	return f()
}

// Delays of a breaker in seconds.
const (
	breakerFailures = 3
	breakerFirst    = 10
	breakerLast     = 300
)

// breaker stops asking a policy that failed three times in a row, and tries it again
// after 10 s, then after twice as long each time, up to 5 min of snapshot time.
type breaker struct {
	mu      sync.Mutex
	fails   int
	last    *Error
	until   int64
	delay   int64
	probing bool
}

func (e *Engine) breaker(en *entry) *breaker {
	k := en.Name + "@" + en.Revision
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.breakers[k]
	if b == nil {
		b = &breaker{}
		e.breakers[k] = b
	}
	return b
}

func (b *breaker) allow(now int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails < breakerFailures {
		return nil
	}
	if now < b.until || b.probing {
		err := *b.last
		err.Msg = fmt.Sprintf("not asked after %d failures in a row; the last was: %s", b.fails, b.last.Msg)
		return &err
	}
	b.probing = true
	return nil
}

func (b *breaker) release() {
	b.mu.Lock()
	b.probing = false
	b.mu.Unlock()
}

func (b *breaker) done(err *Error, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if err == nil {
		b.fails, b.delay, b.last = 0, 0, nil
		return
	}
	b.fails++
	b.last = err
	if b.fails >= breakerFailures {
		b.delay = min(max(2*b.delay, breakerFirst), breakerLast)
		b.until = now + b.delay
	}
}

// lru is a cache bounded by the weight of its values.
type lru[V any] struct {
	mu     sync.Mutex
	max    int
	weight int
	order  list.List // of *lruEntry[V], the latest used first
	m      map[string]*list.Element
}

type lruEntry[V any] struct {
	key    string
	v      V
	weight int
}

func newLRU[V any](weight int) *lru[V] { return &lru[V]{max: weight, m: map[string]*list.Element{}} }

func (c *lru[V]) get(k string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	en, ok := c.m[k]
	if !ok {
		var zero V
		return zero, false
	}
	c.order.MoveToFront(en)
	return en.Value.(*lruEntry[V]).v, true
}

func (c *lru[V]) drop(k string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if en, ok := c.m[k]; ok {
		c.remove(en)
	}
}

func (c *lru[V]) remove(en *list.Element) {
	x := c.order.Remove(en).(*lruEntry[V])
	c.weight -= x.weight
	delete(c.m, x.key)
}

func (c *lru[V]) put(k string, v V, weight int) {
	weight += 256
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.m[k]; ok {
		c.remove(old)
	}
	c.m[k] = c.order.PushFront(&lruEntry[V]{k, v, weight})
	c.weight += weight
	for c.weight > c.max && len(c.m) > 1 {
		c.remove(c.order.Back())
	}
}
