package set

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
)

// Options tune a [Set]. Engine and Loader are required.
type Options struct {
	// Engine is kept in step. Nothing else may swap its policies.
	Engine *policy.Engine
	// Loader compiles policies.
	Loader *Loader
	// Open opens the source of a policy. Defaults to that of the zero [source.Opener].
	Open func(*v1alpha1.NodePolicy) (source.Source, error)
	// Folder has policies as well, see [FromFolder]. Defaults to none.
	Folder string
	// FilePoll is how often files and folders are looked at. Defaults to 250 ms.
	FilePoll time.Duration
	// Poll is how often other sources are asked: a server that has nothing new says so in a
	// few bytes. Each policy is a little ahead of it by its name, so that not all ask at once.
	// Sources that name their content by digest are asked until they gave it. Defaults to
	// 500 ms.
	Poll time.Duration
	// MaxBackoff bounds the delay after failed fetches, which starts at the source's interval
	// and doubles. Defaults to 5 min.
	MaxBackoff time.Duration
	// FetchTimeout bounds one fetch. Defaults to 30 s.
	FetchTimeout time.Duration
	// StaleAfter is how long the source of a policy's documents may fail until the policy is
	// told that they are stale. Defaults to 10 min.
	StaleAfter time.Duration
	// CacheDir keeps what sources gave last, for a restart while they are down. It must be
	// writable for this user only: what is in it is not verified again. Defaults to none.
	CacheDir string
	// Activity fills status.lastHour. Defaults to none.
	Activity *Activity
	// Changed is called after the status of a policy has changed, with its name. It may be
	// called from several goroutines and must not wait. Defaults to none.
	Changed func(name string)
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&o.FilePoll, 250 * time.Millisecond}, {&o.Poll, 500 * time.Millisecond}, {&o.MaxBackoff, 5 * time.Minute}, {&o.FetchTimeout, 30 * time.Second}, {&o.StaleAfter, 10 * time.Minute}} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	if o.Open == nil {
		o.Open = source.Opener{}.Open
	}
	return o
}

// Set keeps the policies of an engine as NodePolicies and their sources say. All methods
// may be called at the same time; policies do not wait for each other.
type Set struct {
	opts Options
	wake chan struct{}

	// publishing orders swaps of the engine.
	publishing sync.Mutex

	mu      sync.Mutex
	members map[string]*member
	folder  folderState
}

// member is one policy.
type member struct {
	name string

	// working is held while the policy is fetched and loaded; who holds it uses these.
	working    sync.Mutex
	source     source.Source
	opened     *v1alpha1.NodePolicySpec // that source was opened for
	artifact   source.Artifact          // what source gave last that could be loaded
	tried      string                   // what was loaded or refused last: artefact and spec
	triedErr   error
	triedTwice bool
	triedAt    time.Time

	// These are used by who holds Set.mu.
	spec     *v1alpha1.NodePolicy
	version  int64
	fromDir  bool
	busy     bool
	due      time.Time // zero: never
	failures int
	good     *policy.Policy
	// confirmed is when the source last gave what good was made of.
	confirmed time.Time
	stale     bool
	digest    string // of the artefact of good
	status    v1alpha1.NodePolicyStatus
	removed   bool
}

// New returns a set without policies. It does nothing until it is told of policies, or
// [Set.Run] runs.
func New(opts Options) *Set {
	return &Set{opts: opts.withDefaults(), wake: make(chan struct{}, 1), members: map[string]*member{}}
}

// Apply puts policies in force, or their new specs. It returns when each was tried; those
// that work take force together, and of the others the last good revision stays. The error
// joins what is wrong with policies, and is ctx.Err() if there was no time. NodePolicies
// are not changed and must not be changed later.
func (s *Set) Apply(ctx context.Context, policies ...*v1alpha1.NodePolicy) error {
	return s.apply(ctx, policies, false, nil)
}

func (s *Set) apply(ctx context.Context, policies []*v1alpha1.NodePolicy, fromDir bool, artifacts map[string]source.Artifact) error {
	var todo []*member
	s.mu.Lock()
	for _, np := range policies {
		m := s.members[np.Name]
		if m == nil {
			m = &member{name: np.Name}
			s.members[np.Name] = m
		}
		if m.spec == nil || m.fromDir != fromDir || !reflect.DeepEqual(m.spec.Spec, np.Spec) || len(artifacts) > 0 {
			m.version++
		}
		m.spec, m.fromDir = np, fromDir
		todo = append(todo, m)
	}
	s.mu.Unlock()
	err := s.update(ctx, todo, artifacts)
	s.kick()
	return err
}

// Remove takes policies out of force. Unknown names, and policies of the folder, are left
// alone.
func (s *Set) Remove(names ...string) { s.remove(names, false) }

func (s *Set) remove(names []string, fromDir bool) {
	s.mu.Lock()
	for _, name := range names {
		m := s.members[name]
		if m == nil || m.fromDir != fromDir {
			continue
		}
		m.removed = true
		delete(s.members, name)
		s.forgetKept(m.spec)
		if s.opts.Activity != nil {
			s.opts.Activity.Forget(name)
		}
	}
	s.mu.Unlock()
	s.publish()
}

// Refresh fetches policies anew, as after a change of a ConfigMap or Secret. Without names
// it fetches all. Errors are as of [Set.Apply].
func (s *Set) Refresh(ctx context.Context, names ...string) error {
	s.mu.Lock()
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(s.members))
	}
	var todo []*member
	for _, name := range names {
		if m := s.members[name]; m != nil && !m.fromDir {
			todo = append(todo, m)
		}
	}
	s.mu.Unlock()
	return s.update(ctx, todo, nil)
}

// Status returns what is known of a policy, and false if there is none of that name.
func (s *Set) Status(name string) (v1alpha1.NodePolicyStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[name]
	if m == nil {
		return v1alpha1.NodePolicyStatus{}, false
	}
	out := *m.status.DeepCopy()
	if s.opts.Activity != nil {
		out.LastHour = s.opts.Activity.LastHour(name)
	}
	return out, true
}

// Names lists the policies, in force or not.
func (s *Set) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.members))
}

// publish swaps the engine's policies for those that are good now.
func (s *Set) publish() {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	s.mu.Lock()
	var list []policy.Policy
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		if m := s.members[name]; m.good != nil {
			list = append(list, *m.good)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(list, byOrder)
	// What the engine would refuse, Load refuses; names are keys.
	if err := s.opts.Engine.Swap(list); err != nil {
		panic(fmt.Sprintf("the engine refuses loaded policies: %v", err))
	}
}

// update fetches and loads policies, notes what came of each, and lets those that work
// take force together. Of a policy with an artefact, that is what it has fetched.
func (s *Set) update(ctx context.Context, todo []*member, artifacts map[string]source.Artifact) error {
	// In one order everywhere, so that two updates never wait for each other.
	slices.SortFunc(todo, func(a, b *member) int { return strings.Compare(a.name, b.name) })
	todo = slices.Compact(todo)
	for _, m := range todo {
		m.working.Lock()
		defer m.working.Unlock()
	}
	type attempt struct {
		np      *v1alpha1.NodePolicy
		version int64
		outcome
	}
	attempts := make([]attempt, len(todo))
	s.mu.Lock()
	for i, m := range todo {
		attempts[i].np, attempts[i].version = m.spec, m.version
	}
	s.mu.Unlock()
	var wg sync.WaitGroup
	for i, m := range todo {
		wg.Go(func() {
			var fixed *source.Artifact
			if a, ok := artifacts[m.name]; ok {
				fixed = &a
			}
			attempts[i].outcome = s.outcome(ctx, m, attempts[i].np, attempts[i].version, fixed)
		})
	}
	wg.Wait()

	var errs []error
	var changed []string
	swap := false
	s.mu.Lock()
	for i, m := range todo {
		at := &attempts[i]
		failed := errors.Join(at.fetchErr, at.loadErr)
		if at.cacheErr != nil && !m.removed {
			errs = append(errs, at.cacheErr)
		}
		switch {
		case m.removed:
			continue
		case failed != nil && ctx.Err() != nil:
			// It says nothing about the policy.
			m.due = time.Now().Add(s.opts.FilePoll)
			continue
		case failed != nil:
			errs = append(errs, failed)
			m.failures++
		default:
			m.failures = 0
		}
		if at.fetchErr == nil {
			m.confirmed = time.Now()
		}
		if at.disabled {
			swap = swap || m.good != nil
			m.good, m.digest = nil, ""
		} else if at.loaded != nil {
			swap = true
			m.good, m.digest = at.loaded, at.digest
		}
		swap = m.age(at.np, s.opts.StaleAfter) || swap
		m.due = s.next(m, at.np, at.outcome)
		if m.version != at.version && !m.fromDir {
			m.due = time.Now()
		}
		before := m.status.DeepCopy()
		s.describe(m, at.np, at.outcome)
		if !reflect.DeepEqual(before, &m.status) {
			changed = append(changed, m.name)
		}
	}
	s.mu.Unlock()
	if swap {
		s.publish()
	}
	if s.opts.Changed != nil {
		for _, name := range changed {
			s.opts.Changed(name)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(errs...)
}

// age tells the policy in force how old its documents are, once they are stale and when
// they are not any more. It says whether that changed anything.
func (m *member) age(np *v1alpha1.NodePolicy, after time.Duration) bool {
	if m.good == nil || len(m.good.Documents) == 0 {
		m.stale = false
		return false
	}
	old := time.Since(m.confirmed)
	stale := !m.confirmed.IsZero() && old > after
	if !stale && !m.stale {
		return false
	}
	inline, err := np.Spec.Data.DecodeInline()
	if err != nil {
		return false
	}
	p := *m.good
	p.Documents = maps.Clone(p.Documents)
	for name, d := range p.Documents {
		if _, ok := inline[name]; ok {
			continue
		}
		d.Stale, d.AgeSeconds = stale, 0
		if stale {
			d.AgeSeconds = int64(old / time.Second)
		}
		p.Documents[name] = d
	}
	m.good, m.stale = &p, stale
	return true
}

// outcome is what came of one attempt.
type outcome struct {
	fetchErr, loadErr error
	cacheErr          error // of keeping the files for a restart; harmless for now
	invalid, disabled bool
	loaded            *policy.Policy // nil if what is in force stays
	digest            string
}

func (s *Set) outcome(ctx context.Context, m *member, np *v1alpha1.NodePolicy, version int64, fixed *source.Artifact) outcome {
	var o outcome
	fail := func(err error) error { return fmt.Errorf("policy %q: %w", np.Name, err) }
	if np.Spec.Mode == v1alpha1.ModeDisabled {
		m.tried, m.triedErr = "", nil
		o.disabled = true
		return o
	}
	if err := np.RuntimeValidate(); err != nil {
		o.invalid, o.loadErr = true, fail(err)
		return o
	}
	var a source.Artifact
	if fixed != nil {
		a = *fixed
		m.source = nil
	} else {
		if m.source == nil || m.opened.Runtime != np.Spec.Runtime || !reflect.DeepEqual(m.opened.Source, np.Spec.Source) || !reflect.DeepEqual(m.opened.Data, np.Spec.Data) {
			src, err := s.opts.Open(np)
			if err != nil {
				o.invalid, o.fetchErr = true, fail(err)
				return o
			}
			m.source, m.opened, m.artifact = src, &np.Spec, source.Artifact{}
		}
		fctx, cancel := context.WithTimeout(ctx, s.opts.FetchTimeout)
		var err error
		a, err = fetch(fctx, m.source)
		cancel()
		if err != nil {
			o.fetchErr = fail(fmt.Errorf("fetch: %w", err))
			if m.artifact.Revision == "" {
				m.artifact = s.remembered(np)
			}
			if m.artifact.Revision == "" {
				return o
			}
			// A changed spec still applies to the files fetched before.
			a = m.artifact
		}
	}
	// What was loaded or refused before would be again, but a refusal may have been for
	// want of time.
	key := fmt.Sprintf("%s %d", a.Revision, version)
	if key == m.tried && (m.triedErr == nil || m.triedTwice && time.Since(m.triedAt) < s.opts.MaxBackoff) {
		o.loadErr = m.triedErr
		return o
	}
	p, err := s.opts.Loader.Load(ctx, np, a)
	if ctx.Err() != nil && err != nil {
		o.loadErr = err
		return o
	}
	m.triedTwice = key == m.tried
	m.tried, m.triedErr, m.triedAt = key, err, time.Now()
	if err != nil {
		o.loadErr = err
		return o
	}
	o.loaded, o.digest = &p, a.Revision
	m.artifact = a
	if o.fetchErr == nil && fixed == nil {
		o.cacheErr = s.remember(np, a)
	}
	return o
}

// fetch turns a panic of a source into an error.
func fetch(ctx context.Context, src source.Source) (a source.Artifact, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the source panicked: %v", r)
		}
	}()
	return src.Fetch(ctx)
}

// next is when the policy is to be fetched again; zero is never.
func (s *Set) next(m *member, np *v1alpha1.NodePolicy, o outcome) time.Time {
	src := &np.Spec.Source
	failed := o.fetchErr != nil || o.loadErr != nil
	watchesData := np.Spec.Data != nil && len(np.Spec.Data.ConfigMapRefs) > 0
	every := s.opts.Poll
	switch {
	case m.fromDir, o.disabled, o.invalid && o.fetchErr == nil:
		return time.Time{} // until it is applied again
	case src.File != nil:
		every = s.opts.FilePoll
		// A look at a file costs little, so that a repaired one is seen at once.
		return time.Now().Add(every)
	case watchesData:
	case src.Inline != nil && !failed:
		return time.Time{}
	case (src.OCI != nil || src.HTTP != nil && src.HTTP.Digest != "") && !failed:
		return time.Time{}
	}
	// A source that gave something of no use may be repaired at any time, and is looked at as
	// before; one that gave nothing is spared.
	if o.fetchErr != nil {
		every = min(every<<min(m.failures-1, 16), max(s.opts.MaxBackoff, every))
	}
	return time.Now().Add(every - every/5*time.Duration(spread(np.Name))/256)
}

// spread is a number from 0 to 255 that differs from name to name.
func spread(name string) uint8 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return uint8(h.Sum32())
}

// describe writes the status of m; s.mu is held.
func (s *Set) describe(m *member, np *v1alpha1.NodePolicy, o outcome) {
	st := &m.status
	st.ObservedGeneration = np.Generation
	st.Revision, st.SourceDigest = "", m.digest
	if m.good != nil {
		st.Revision = m.good.Revision
	}
	err := errors.Join(o.fetchErr, o.loadErr)
	st.LastError = ""
	stays := ""
	if err != nil {
		if m.good != nil {
			stays = "; revision " + m.good.Revision + " stays in force"
		}
		st.LastError = cut(err.Error(), maxError) + stays
	}
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: np.Generation})
	}
	yes := func(kind string) { set(kind, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "") }
	switch {
	case o.disabled:
		for _, kind := range []string{v1alpha1.ConditionFetched, v1alpha1.ConditionCompiled} {
			set(kind, metav1.ConditionUnknown, v1alpha1.ReasonDisabled, "spec.mode is Disabled")
		}
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDisabled, "spec.mode is Disabled")
		return
	case o.invalid && o.fetchErr == nil:
		set(v1alpha1.ConditionCompiled, metav1.ConditionFalse, v1alpha1.ReasonInvalid, st.LastError)
	default:
		if o.fetchErr != nil {
			set(v1alpha1.ConditionFetched, metav1.ConditionFalse, v1alpha1.ReasonFetchFailed, st.LastError)
		} else {
			yes(v1alpha1.ConditionFetched)
		}
		switch {
		case o.loadErr != nil:
			set(v1alpha1.ConditionCompiled, metav1.ConditionFalse, v1alpha1.ReasonLoadFailed, st.LastError)
		case m.good != nil:
			yes(v1alpha1.ConditionCompiled)
		default:
			set(v1alpha1.ConditionCompiled, metav1.ConditionFalse, v1alpha1.ReasonFetchFailed, st.LastError)
		}
	}
	switch {
	case m.good == nil:
		reason := v1alpha1.ReasonLoadFailed
		if o.invalid {
			reason = v1alpha1.ReasonInvalid
		} else if o.fetchErr != nil {
			reason = v1alpha1.ReasonFetchFailed
		}
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, st.LastError)
	case err != nil:
		set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonLastGood, st.LastError)
	default:
		yes(v1alpha1.ConditionReady)
	}
}

// maxError is the length in bytes to which errors are cut: a condition's message is at
// most 32 KiB.
const maxError = 4096

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "..."
}

func (s *Set) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run asks the sources again when they are due, and looks at the folder, until ctx ends.
// It returns when everything it started has ended; the error is ctx.Err().
func (s *Set) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if s.opts.Folder != "" {
		wg.Go(func() { s.watchFolder(ctx) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
		case <-timer.C:
		}
		now := time.Now()
		wait := time.Hour
		s.mu.Lock()
		for _, m := range s.members {
			switch {
			case m.busy || m.due.IsZero():
			case m.due.After(now):
				wait = min(wait, m.due.Sub(now))
			default:
				m.busy = true
				wg.Go(func() {
					_ = s.update(ctx, []*member{m}, nil) // the status tells
					s.mu.Lock()
					m.busy = false
					s.mu.Unlock()
					s.kick()
				})
			}
		}
		s.mu.Unlock()
		timer.Reset(wait)
	}
}
