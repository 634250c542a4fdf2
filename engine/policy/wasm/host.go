package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/fuel"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

// HostOptions tunes a [Host]. The zero value works, and compiles in this process.
type HostOptions struct {
	// CacheDir keeps compiled modules across restarts. Its content is executable code: it
	// must be writable for this user only, and is made so if it does not exist. Empty
	// means no cache on disk.
	CacheDir string

	// CompileCommand is a program and arguments that call [CompileChildMain]: usually this
	// program with a hidden subcommand. Compiling then happens in a child process with
	// limits on processor time and memory, which CacheDir is needed for. Empty means to
	// compile in this process, which a hostile module can make expensive in spite of the
	// structural limits: for modules of a trusted origin only.
	CompileCommand []string

	// CompileSeconds is the processor time of such a child process. Defaults to 10.
	CompileSeconds int

	// CompileMemory is the address space, in bytes, that it may use on top of what a bare
	// process has. Defaults to 1 GiB.
	CompileMemory int64

	// Concurrency is how many evaluations run at once. Defaults to GOMAXPROCS.
	Concurrency int

	// CheckParameters holds parameters against the JSON Schema that a module describes; both
	// are JSON, and parameters are empty if there are none. Without it a module that has a schema is refused.
	CheckParameters func(schema, parameters []byte) error
}

// Host loads modules and bounds how many evaluations run at once. It is safe for
// concurrent use.
type Host struct {
	opts  HostOptions
	slots chan struct{}

	compiling sync.Mutex // one module at a time
}

// NewHost returns a host, or an error if the cache directory is missing where it is
// needed, or cannot be used.
func NewHost(opts HostOptions) (*Host, error) {
	if opts.Concurrency < 0 || opts.CompileSeconds < 0 || opts.CompileMemory < 0 {
		return nil, fmt.Errorf("wasm host: concurrency %d, compile seconds %d or compile memory %d is negative", opts.Concurrency, opts.CompileSeconds, opts.CompileMemory)
	}
	if opts.CompileSeconds == 0 {
		opts.CompileSeconds = compileSeconds
	}
	if opts.CompileMemory == 0 {
		opts.CompileMemory = compileMemory
	}
	if opts.Concurrency == 0 {
		opts.Concurrency = runtime.GOMAXPROCS(0)
	}
	if len(opts.CompileCommand) > 0 && opts.CacheDir == "" {
		return nil, errors.New("wasm host: compiling in a child process needs a cache directory")
	}
	if opts.CacheDir != "" {
		if err := privateDir(opts.CacheDir); err != nil {
			return nil, fmt.Errorf("wasm host: %w", err)
		}
	}
	return &Host{opts: opts, slots: make(chan struct{}, opts.Concurrency)}, nil
}

// Budget bounds one call.
type Budget struct {
	// Timeout is wall time, for up to 1000 rows; PerRow is added for each row more. A
	// Timeout that is set has no PerRow unless that is set as well.
	Timeout, PerRow time.Duration
	// Fuel is in units of package fuel.
	Fuel int64
}

// wall is the wall time for a number of rows.
func (b Budget) wall(rows int) time.Duration {
	return b.Timeout + b.PerRow*time.Duration(max(0, rows-1000))
}

// PageSize is the size of a page of guest memory.
const PageSize = 65536

const (
	defaultPages  = 256     // 16 MiB
	maxPages      = 1024    // 64 MiB
	defaultResult = 1 << 20 // bytes
	defaultCalls  = 10_000
)

// Options describes a module to load. Name and Wasm are required; other zero fields mean
// their defaults.
type Options struct {
	// Name of the policy, for errors.
	Name string
	// Wasm is the module in binary form.
	Wasm []byte
	// Parameters of the policy as JSON, for modules that export dv_configure. Defaults to
	// an empty object.
	Parameters []byte
	// MemoryPages bounds the memory of an instance, in pages of 64 KiB. Defaults to 256;
	// at most 1024.
	MemoryPages uint32
	// Budgets of the hooks. A hook without one has the limits of policy.DefaultLimits.
	Budgets map[frame.Hook]Budget
	// Init is the budget of bringing up an instance: its start function, initializer and
	// settings. Defaults to 1 s and 100 million units.
	Init Budget
	// ResultBytes is the size of an answer to up to 1000 rows; each row more adds 256
	// bytes. Defaults to 1 MiB.
	ResultBytes int
	// Instances is how many calls of this module run at once. Defaults to GOMAXPROCS.
	Instances int
	// Calls is after how many calls an instance is replaced. Defaults to 10,000.
	Calls int
	// Fresh gives each call an instance of its own.
	Fresh bool
	// Structure are the limits of the module's structure.
	Structure fuel.Limits

	// Unmetered leaves the module as it is: without fuel, and so without a deadline. It is
	// for measuring what metering costs, never for a module of others.
	Unmetered bool
}

func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		return o, errors.New("a policy needs a name")
	}
	if o.MemoryPages > maxPages {
		return o, fmt.Errorf("%d memory pages, at most %d are allowed", o.MemoryPages, maxPages)
	}
	if o.MemoryPages == 0 {
		o.MemoryPages = defaultPages
	}
	if o.ResultBytes <= 0 {
		o.ResultBytes = defaultResult
	}
	if o.Instances <= 0 {
		o.Instances = runtime.GOMAXPROCS(0)
	}
	if o.Calls <= 0 {
		o.Calls = defaultCalls
	}
	if o.Init.Timeout <= 0 {
		o.Init.Timeout = time.Second
	}
	if o.Init.Fuel <= 0 {
		o.Init.Fuel = 100_000_000
	}
	if o.Parameters == nil {
		o.Parameters = []byte("{}")
	}
	budgets := map[frame.Hook]Budget{}
	for hook, name := range hookNames {
		limits := policy.DefaultLimits(name)
		b := o.Budgets[hook]
		if b.Timeout <= 0 {
			b.Timeout, b.PerRow = limits.Deadline, limits.PerRow
		}
		if b.Fuel <= 0 {
			b.Fuel = limits.Fuel
		}
		budgets[hook] = b
	}
	o.Budgets = budgets
	return o, nil
}

var hookNames = map[frame.Hook]policy.Hook{
	frame.Score: policy.Score, frame.Disrupt: policy.Disrupt, frame.Admit: policy.Admit, frame.Launch: policy.Launch,
}

// Load checks, compiles and tries out a module. The error is a [*policy.Error]: of class
// Load if the module was refused before it ran, of the class of what it did otherwise. It
// may match the errors of this package and of package module.
func (h *Host) Load(ctx context.Context, opts Options) (*Module, error) {
	m, err := h.load(ctx, opts)
	if err == nil {
		return m, nil
	}
	var classed *policy.Error
	if !errors.As(err, &classed) {
		class := policy.ClassLoad
		if ctx.Err() != nil {
			class = policy.ClassCanceled
		}
		classed = &policy.Error{Class: class, Policy: opts.Name, Msg: err.Error(), Err: err}
	}
	if m != nil {
		m.Close()
	}
	return nil, classed
}

func (h *Host) load(ctx context.Context, opts Options) (*Module, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	most := opts.Structure.Size
	if most == 0 {
		most = 16 << 20
	}
	if len(opts.Wasm) > most {
		return nil, fmt.Errorf("module of %d bytes, at most %d are allowed: %w", len(opts.Wasm), most, module.ErrLimit)
	}
	decoded, err := module.Decode(opts.Wasm)
	if err != nil {
		return nil, err
	}
	hooks, err := check(decoded)
	if err != nil {
		return nil, err
	}
	rewritten := opts.Wasm
	metered, report, err := fuel.Rewrite(decoded, opts.Structure)
	if err != nil {
		return nil, err
	}
	if !opts.Unmetered {
		rewritten = metered
	}
	digest := sha256.Sum256(opts.Wasm)
	m := &Module{
		host: h, opts: opts, hooks: hooks, digest: "sha256:" + hex.EncodeToString(digest[:]), report: report,
		slots: make(chan struct{}, opts.Instances),
	}
	opts.Wasm = nil
	m.opts.Wasm = nil
	if section, ok := decoded.Custom(descriptionSection); ok {
		if m.description, err = parseDescription(section); err != nil {
			return nil, err
		}
		m.described = true
	}
	if err := m.compile(ctx, rewritten); err != nil {
		return m, err
	}
	first, err := m.open(ctx)
	if err != nil {
		return m, err
	}
	if err := m.selfTest(ctx, first); err != nil {
		return m, err
	}
	m.ready = true
	return m, nil
}

// compile makes native code of the rewritten module and loads it.
func (m *Module) compile(ctx context.Context, wasm []byte) error {
	h := m.host
	h.compiling.Lock()
	defer h.compiling.Unlock()
	if err := fuel.Expired(ctx); err != nil {
		return err
	}
	config := runtimeConfig(m.opts.MemoryPages)
	if h.opts.CacheDir != "" {
		// A directory for each module: what is in it is this module, or nothing.
		key := sha256.New()
		key.Write(wasm)
		key.Write(binary.LittleEndian.AppendUint32(nil, m.opts.MemoryPages))
		dir := filepath.Join(h.opts.CacheDir, hex.EncodeToString(key.Sum(nil)))
		if err := privateDir(dir); err != nil {
			return err
		}
		now := time.Now()
		if err := os.Chtimes(dir, now, now); err != nil {
			return err
		}
		if len(h.opts.CompileCommand) > 0 && native() {
			if err := h.compileInChild(ctx, wasm, dir, m.opts.MemoryPages); err != nil {
				return err
			}
		}
		cache, err := wazero.NewCompilationCacheWithDir(dir)
		if err != nil {
			return err
		}
		m.cache = cache
		config = config.WithCompilationCache(cache)
		prune(h.opts.CacheDir)
	}
	m.runtime = wazero.NewRuntimeWithConfig(ctx, config)
	if err := imports(ctx, m.runtime); err != nil {
		return err
	}
	if err := fuel.Instantiate(ctx, m.runtime); err != nil {
		return err
	}
	compiled, err := m.runtime.CompileModule(ctx, wasm)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCompile, err)
	}
	m.compiled = compiled
	return nil
}

// selfTest runs the hooks on fixtures: the same question twice on one instance, with
// another in between, and once on a second instance. A guest may report an error of its
// own, such as a missing parameter.
func (m *Module) selfTest(ctx context.Context, first *instance) error {
	second, err := m.open(ctx)
	if err != nil {
		first.close()
		return err
	}
	for _, hook := range m.hooks {
		question, other := Fixture(hook, false), Fixture(hook, true)
		ask := func(i *instance, t *frame.Table) (string, int64, error) {
			c, cancel := context.WithTimeout(ctx, m.opts.Budgets[hook].wall(t.Rows))
			defer cancel()
			answer, stats, err := m.evaluate(c, i, hook, t)
			var guest *frame.GuestError
			if errors.As(err, &guest) {
				return guest.Error(), stats.Fuel, nil
			}
			if err != nil {
				return "", 0, fmt.Errorf("self-test: %w", err)
			}
			return fmt.Sprintf("%+v", answer), stats.Fuel, nil
		}
		want, units, err := ask(first, question)
		if err != nil {
			first.close()
			second.close()
			return err
		}
		unstable := func(how, got string) error {
			return fmt.Errorf("self-test: %s: %w: %s: first %.200q, then %.200q", hook, ErrUnstable, how, want, got)
		}
		got, again, err := ask(second, question)
		switch {
		case err != nil:
		case got != want:
			err = unstable("another instance", got)
		case again != units:
			err = unstable("another instance", fmt.Sprintf("%d units of fuel, not %d", again, units))
		}
		if err == nil {
			if _, _, err = ask(first, other); err == nil {
				if got, _, err = ask(first, question); err == nil && got != want {
					err = unstable("after another question", got)
				}
			}
		}
		if err != nil {
			first.close()
			second.close()
			return err
		}
	}
	m.put(first)
	m.put(second)
	return nil
}

// Fixture is the question of the self-test of a hook: 850 made-up offerings for score, a
// few rows for the others. Mixed has the same rows in another order.
func Fixture(hook frame.Hook, mixed bool) *frame.Table {
	rows := map[frame.Hook]int{frame.Score: 850, frame.Disrupt: 3, frame.Launch: 3, frame.Admit: 1}[hook]
	t := &frame.Table{Hook: hook, Minor: frame.Minor, Rows: rows, Strings: &frame.Strings{}}
	at := func(row int) int {
		if mixed {
			return (row*377 + 101) % rows // 377 shares no factor with the numbers of rows
		}
		return row
	}
	for _, spec := range frame.Specs() {
		if !bytes.Contains([]byte(hookList(spec.Hooks)), []byte("|"+hook.String()+"|")) {
			continue
		}
		c := frame.Column{ID: spec.ID, Type: spec.Type}
		for row := range rows {
			n := at(row)
			switch spec.Type {
			case frame.I32:
				c.I32 = append(c.I32, int32(n%97*250))
			case frame.I64:
				c.I64 = append(c.I64, int64(n)*1000)
			case frame.F64:
				c.F64 = append(c.F64, float64(n)/1000)
			case frame.U8:
				c.U8 = append(c.U8, uint8(n%2))
			case frame.String:
				c.Str = append(c.Str, t.Strings.ID(fmt.Sprintf("%s-%d", spec.Name, n%(1+rows/10))))
			}
		}
		t.Columns = append(t.Columns, c)
	}
	t.Context = []frame.Value{
		{Key: "cluster.name", Type: frame.String, Text: "fixture"},
		{Key: "nodePool.labels.team", Type: frame.String, Text: "web"},
		{Key: "nodePool.name", Type: frame.String, Text: "default"},
		{Key: "now.unix", Type: frame.I64, Int: 1_767_225_600},
		{Key: "share", Type: frame.F64, Float: math.Sqrt2},
	}
	return t
}

func hookList(hooks []frame.Hook) string {
	s := "|"
	for _, h := range hooks {
		s += h.String() + "|"
	}
	return s
}
