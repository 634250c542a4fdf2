// Command measure times the scoring of offerings in Rego and prints lines:
//
//	runtime=rego types=<rows> ms=<per call> ratio=<to bare OPA> rules=<which> cached_us=<nothing changed> answer=<digest>
//
// Bare OPA evaluates the same rules on an input of ready terms. The rules called sparse leave
// the arithmetic to the host; those called integer do it themselves, and are the rules of the
// Wasm guests: their answer is the same to the digit. Times are the least of many, taken in
// turn: the machine may be busy with others.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	oparego "github.com/open-policy-agent/opa/v1/rego"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
)

// rules have a licence per core, a preference of families, a penalty on spot, exclusions.
//
//go:embed rules.rego
var rules string

// licensed are the rules of the Wasm guests.
//
//go:embed licensed.rego
var licensed string

func main() {
	runs := flag.Int("runs", 40, "number of runs of 850 offerings; of 8160 a fifth")
	flag.Parse()
	for _, c := range []struct {
		name, rules string
		in          *policy.ScoreInput
	}{{"sparse", rules, sample.Score(850)}, {"sparse", rules, sample.Score(8160)}, {"integer", licensed, sample.Licensed(850)}} {
		n := *runs
		if c.in.Candidates.Len() > 1000 {
			n = max(n/5, 1)
		}
		if err := measure(c.name, c.rules, c.in, n); err != nil {
			fmt.Fprintln(os.Stderr, "measure:", err)
			os.Exit(1)
		}
	}
}

const cachedCalls = 100

func measure(name, rules string, in *policy.ScoreInput, runs int) error {
	ctx := context.Background()
	m, err := rego.Load(ctx, rego.Source{Name: "bench", Hook: policy.Score, Files: map[string]string{"rules.rego": rules}, Limits: policy.Limits{Deadline: 10 * time.Second}})
	if err != nil {
		return err
	}
	bare, err := plain(ctx, rules, in)
	if err != nil {
		return err
	}
	e := policy.NewEngine(policy.Options{})
	if err := e.Swap([]policy.Policy{{Name: "bench", Hook: policy.Score, Revision: m.Revision(), Evaluator: m, Limits: policy.Limits{Deadline: 10 * time.Second}}}); err != nil {
		return err
	}
	answer, _, err := m.Score(ctx, in)
	if err != nil {
		return err
	}
	// Once the engine knows the answer it takes microseconds, so many of them are timed.
	cached := func() error {
		for range cachedCalls {
			if _, err := e.Score(ctx, in); err != nil {
				return err
			}
		}
		return nil
	}
	calls := []func() error{func() error { _, _, err := m.Score(ctx, in); return err }, bare, cached}
	best := make([]time.Duration, len(calls))
	for range runs {
		for i, call := range calls {
			begin := time.Now()
			if err := call(); err != nil {
				return err
			}
			if d := time.Since(begin); best[i] == 0 || d < best[i] {
				best[i] = d
			}
		}
	}
	fmt.Printf("runtime=rego types=%d ms=%.3f ratio=%.2f rules=%s cached_us=%.1f answer=%s\n", in.Candidates.Len(), float64(best[0].Nanoseconds())/1e6,
		float64(best[0])/float64(best[1]), name, float64(best[2].Nanoseconds())/1e3/cachedCalls, sample.Digest(in, answer))
	return nil
}

// plain is the same rules in OPA alone.
func plain(ctx context.Context, rules string, in *policy.ScoreInput) (func() error, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	var doc any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	v, err := ast.InterfaceToValue(doc)
	if err != nil {
		return nil, err
	}
	q, err := oparego.New(oparego.Query("x = data.dovetail.score.bench"), oparego.Module("rules.rego", rules)).PrepareForEval(ctx)
	if err != nil {
		return nil, err
	}
	raw := oparego.EvalGenerateJSON(func(t *ast.Term, _ *oparego.EvalContext) (any, error) { return t.Value, nil })
	return func() error {
		rs, err := q.Eval(ctx, oparego.EvalParsedInput(v), raw)
		if err == nil && len(rs) != 1 {
			err = fmt.Errorf("%d results", len(rs))
		}
		return err
	}, nil
}
