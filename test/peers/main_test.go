package main

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

func TestRun_Diverse(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-work", "diverse", "-n", "100"}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d, want 0; stderr:\n%s", code, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) < 4 {
		t.Fatalf("output has %d lines, want more:\n%s", len(lines), out.String())
	}
	for i, engine := range []string{"dovetail", "karpenter"} {
		want := regexp.MustCompile(`^engine=` + engine + ` pods=100 seconds=\d+\.\d{4} nodes=\d+ cost=\d+\.\d\d bound=\d+\.\d\d unscheduled=0$`)
		if got := lines[len(lines)-2+i]; !want.MatchString(got) {
			t.Errorf("line %q does not match %s", got, want)
		}
	}
	summary := lines[len(lines)-3]
	for _, want := range []string{"summary: ", "speed-up=", "cost/peer=", "dovetail-cost/bound=", "karpenter-cost/bound="} {
		if !strings.Contains(summary, want) {
			t.Errorf("summary %q has no %q", summary, want)
		}
	}
}

func TestRun_JSON(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-work", "diverse", "-n", "50", "-peer-limit", "49", "-json"}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d, want 0; stderr:\n%s", code, errs.String())
	}
	var got report
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("output is not one JSON document: %v\n%s", err, out.String())
	}
	if len(got.Results) != 1 || got.Results[0].Engine != "dovetail" || got.Results[0].Pods != 50 {
		t.Errorf("results = %+v, want dovetail alone, on 50 pods", got.Results)
	}
	if len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "-peer-limit 49") {
		t.Errorf("notes = %q, want one about -peer-limit", got.Notes)
	}
}

func TestRun_Growth(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-work", "growth", "-n", "1200", "-repeat", "1"}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d, want 0; stderr:\n%s", code, errs.String())
	}
	if got := strings.Count(out.String(), "\nengine=dovetail pods="); got != 3 {
		t.Errorf("%d result lines, want 3: 1000 pods, 1200, and 1200 on existing nodes\n%s", got, out.String())
	}
	if !strings.Contains(out.String(), "time-per-pod-growth=") {
		t.Errorf("no growth of the time per pod:\n%s", out.String())
	}
}

func TestRun_Consolidation(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-work", "consolidation", "-nodes", "12", "-rounds", "1"}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d, want 0; stderr:\n%s", code, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) < 4 {
		t.Fatalf("output has %d lines, want more:\n%s", len(lines), out.String())
	}
	for i, engine := range []string{"dovetail", "karpenter"} {
		want := regexp.MustCompile(`^engine=` + engine + ` nodes=12 round_seconds=\d+\.\d{4} cost_before=(\d+\.\d\d) cost_after=(\d+\.\d\d) bound=\d+\.\d\d evictions=[1-9]\d*$`)
		if got := want.FindStringSubmatch(lines[len(lines)-2+i]); got == nil || got[1] == got[2] {
			t.Errorf("line %q does not match %s, or saves nothing", lines[len(lines)-2+i], want)
		}
	}
	if at := lines[len(lines)-3]; !strings.HasPrefix(at, "at the ") {
		t.Errorf("line %q does not compare what was spent", at)
	}
	summary := lines[len(lines)-4]
	for _, want := range []string{"summary: ", "dovetail-evictions/$=", "karpenter-evictions/$=", "round-speed-up=", "cost/peer=", "evictions-per-dollar/peer="} {
		if !strings.Contains(summary, want) {
			t.Errorf("summary %q has no %q", summary, want)
		}
	}
}

func TestRun_Usage(t *testing.T) {
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"no work":            {code: 2, want: "-work is \"\""},
		"an unknown work":    {args: []string{"-work", "x"}, code: 2, want: "want one of diverse, uniform"},
		"an unknown engine":  {args: []string{"-work", "diverse", "-engine", "x"}, code: 2, want: "-engine is \"x\""},
		"openb needs pods":   {args: []string{"-work", "openb"}, code: 2, want: "needs -trace"},
		"a missing trace":    {args: []string{"-work", "openb", "-trace", "no such file"}, code: 1, want: "no such file"},
		"growth of the peer": {args: []string{"-work", "growth", "-engine", "karpenter"}, code: 2, want: "dovetail alone"},
		"a negative number":  {args: []string{"-work", "diverse", "-n", "-1"}, code: 2, want: "must not be negative"},
		"no nodes":           {args: []string{"-work", "consolidation", "-nodes", "0"}, code: 2, want: "must be positive"},
		"a stray argument":   {args: []string{"-work", "diverse", "x"}, code: 2, want: "unexpected argument"},
		"an unknown flag":    {args: []string{"-x"}, code: 2, want: "not defined"},
		"help":               {args: []string{"-h"}, want: "-peer-limit"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(t.Context(), tt.args, &out, &errs); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(errs.String(), tt.want) {
				t.Errorf("stderr %q, want it to contain %q", errs.String(), tt.want)
			}
		})
	}
}
