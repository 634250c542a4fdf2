package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const poolYAML = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: main}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
      - {key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r, g]}
`

const podsYAML = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, resources: {requests: {cpu: 500m, memory: 1Gi}}}]
`

const hugeYAML = `
apiVersion: v1
kind: Pod
metadata: {name: huge}
spec: {containers: [{name: a, resources: {requests: {cpu: 5000}}}]}
`

const traceCSV = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n" +
	"a,4000,8192,1,500,,LS\nb,1000,2048,0,0,,BE\nc,1000,2048,0,0,,BE\n"

const catalogYAML = `
instanceTypes:
- name: small
  capacity: {cpu: 2, memory: 4Gi, pods: 20}
  offerings: [{zone: here, price: 0.1}]
- name: small
  capacity: {cpu: 9}
  offerings: [{zone: here, price: 0.2}]
- name: free
  capacity: {cpu: 4, memory: 8Gi}
  offerings: [{zone: here}]
`

// files writes the named texts into a folder and returns a function that gives paths in it.
func files(t *testing.T, texts map[string]string) func(name string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(name string) string { return filepath.Join(dir, name) }
}

func TestSimulate(t *testing.T) {
	at := files(t, map[string]string{
		"pool.yaml": poolYAML, "pods.yaml": podsYAML, "huge.yaml": hugeYAML, "trace.csv": traceCSV, "catalog.yaml": catalogYAML,
		"broken.yaml": "a: [\n", "note.txt": "hello", "typo.yaml": strings.Replace(podsYAML, "replicas: 3", "replicas: three", 1) + "\n---\n" + hugeYAML,
		"spread.yaml":   "podTopologySpread: {defaultConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}]}",
		"unspread.yaml": "podTopologySpread: {defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]}",
		"nopool.yaml":   "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: odd}\nspec: {template: {spec: {nodeClassRef: {group: a.b, kind: C, name: d}, requirements: [{key: x/y, operator: In, values: [a]}, {key: x/y, operator: In, values: [b]}]}}}",
	})
	tests := map[string]struct {
		args     []string
		stdin    string
		wantCode int
		wantOut  []string // in stdout
		wantErr  []string // in stderr
	}{
		"files": {
			args:    []string{at("pods.yaml"), at("pool.yaml")},
			wantOut: []string{"3 pods pending: 3 on 1 new node, 0 unscheduled", "main/1", "Cost of the new nodes: $", "of the bound"},
		},
		"standard input": {
			args: []string{"-", "--nodepool", at("pool.yaml")}, stdin: podsYAML,
			wantOut: []string{"3 pods pending"},
		},
		"a trace": {
			args:    []string{"--trace", at("trace.csv"), "--nodepool", at("pool.yaml")},
			wantOut: []string{"3 pods pending", "NVIDIA.COM/GPU", "0 unscheduled"},
		},
		"no NodePool": {
			args:    []string{at("pods.yaml")},
			wantOut: []string{"3 pods pending: 3 on", "the input has no NodePool; this one is assumed: kubernetes.io/os In [linux]"},
		},
		"no NodePool and KWOK's types": {
			args:    []string{at("pods.yaml"), "--catalog", "kwok"},
			wantOut: []string{"3 pods pending: 3 on", "-amd64-linux"},
		},
		"a catalogue file with faults": {
			args:    []string{at("pods.yaml"), "--catalog", at("catalog.yaml")},
			wantOut: []string{"small", "is there twice", "has no price"},
		},
		"a pod that fits nowhere": {
			args: []string{at("pods.yaml"), at("huge.yaml"), at("pool.yaml")}, wantCode: 2,
			wantOut: []string{"4 pods pending: 3 on 1 new node, 1 unscheduled", "default/huge", "cpu: wants 5"},
			wantErr: []string{"1 of 4 pods have no node"},
		},
		"a pod that fits nowhere, allowed": {
			args:    []string{at("pods.yaml"), at("huge.yaml"), at("pool.yaml"), "--allow-unscheduled"},
			wantOut: []string{"1 unscheduled"},
		},
		"an object with faults spares the others": {
			args:    []string{at("typo.yaml"), at("pool.yaml"), "--allow-unscheduled"},
			wantOut: []string{"1 pod pending", "Problems:", `typo.yaml:6: Deployment default/web: spec.replicas: must be a whole number, not "three"`},
		},
		"strict": {
			args: []string{at("typo.yaml"), at("pool.yaml"), "--strict"}, wantCode: 3,
			wantErr: []string{"--strict"},
		},
		"a NodePool that contradicts itself": {
			args: []string{at("pods.yaml"), at("nopool.yaml")}, wantCode: 2,
			wantOut: []string{"nopool.yaml:1: NodePool odd: spec.template.spec.requirements[x/y]", "contradicts"},
		},
		"wide": {
			args:    []string{at("pods.yaml"), at("pool.yaml"), "--wide"},
			wantOut: []string{"ALTERNATIVES", "  default/web-"},
		},
		"default spread": {
			args:    []string{at("pods.yaml"), at("pool.yaml"), "--default-spread", "zone:1"},
			wantOut: []string{"3 pods pending: 3 on 3 new nodes"},
		},
		"a scheduler's configuration": {
			args:    []string{at("pods.yaml"), at("pool.yaml"), "--scheduler-config", at("spread.yaml")},
			wantOut: []string{"3 pods pending: 3 on 3 new nodes"},
		},
		"a scheduler's configuration with a selector": {
			args: []string{at("pods.yaml"), "--scheduler-config", at("unspread.yaml")}, wantCode: 1,
			wantErr: []string{"labelSelector: unknown field"},
		},
		"explain": {
			args: []string{at("huge.yaml"), at("pool.yaml"), "--explain", "pod", "default/huge"}, wantCode: 2,
			wantOut: []string{"default/huge gets no node", "NodePool main:", "cpu: wants 5"},
		},
		"explain by workload": {
			args:    []string{at("pods.yaml"), at("pool.yaml"), "--explain", "web"},
			wantOut: []string{"goes to a new node, main/1", "with 2 other pods", "would do"},
		},
		"explain a pod that is not there": {
			args: []string{at("huge.yaml"), at("pool.yaml"), "--explain", "hug"}, wantCode: 1,
			wantErr: []string{"there is no pod default/hug; did you mean default/huge?"},
		},
		"explain nothing": {
			args: []string{at("huge.yaml"), "--explain", "pod"}, wantCode: 1,
			wantErr: []string{"name the pod after it"},
		},
		"nothing to plan": {wantCode: 1, wantErr: []string{"nothing to plan"}},
		"a file that is not there": {
			args: []string{at("absent.yaml")}, wantCode: 1,
			wantErr: []string{"absent.yaml"},
		},
		"only broken input": {
			args: []string{at("broken.yaml"), at("note.txt")}, wantCode: 1,
			wantErr: []string{"no object in the input can be used", "broken.yaml:1: not valid YAML", "note.txt:1: expected a Kubernetes object"},
		},
		"every wrong flag at once": {
			args: []string{at("pods.yaml"), "--preference-policy", "Maybe", "--min-values-policy", "Some", "-o", "xml", "--now", "noon", "--default-spread", "zone:0", "--catalog", at("none.yaml")}, wantCode: 1,
			wantErr: []string{"--preference-policy Maybe", "--min-values-policy Some", "--output xml", "--now", "--default-spread", "--catalog"},
		},
		"an unknown flag": {args: []string{"--frob"}, wantCode: 1, wantErr: []string{"unknown flag: --frob"}},
		"help":            {args: []string{"--help"}, wantOut: []string{"Exit codes:", "--trace", "--nodepool"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"simulate"}, test.args...)
			code := run(t.Context(), args, strings.NewReader(test.stdin), &stdout, &stderr)
			if code != test.wantCode {
				t.Errorf("exit code %d, want %d", code, test.wantCode)
			}
			for _, want := range test.wantOut {
				if !strings.Contains(stdout.String(), want) {
					t.Errorf("stdout lacks %q", want)
				}
			}
			for _, want := range test.wantErr {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("stderr lacks %q", want)
				}
			}
			if t.Failed() {
				t.Logf("stdout:\n%s\nstderr:\n%s", stdout.String(), stderr.String())
			}
		})
	}
}

// TestSimulate_formats holds that JSON and YAML say the same, under names that programs
// rely on, and that two runs print the same bytes.
func TestSimulate_formats(t *testing.T) {
	at := files(t, map[string]string{"pool.yaml": poolYAML, "huge.yaml": hugeYAML, "trace.csv": traceCSV})
	output := func(format string, more ...string) []byte {
		var stdout, stderr bytes.Buffer
		args := append([]string{"simulate", "--trace", at("trace.csv"), "--nodepool", at("pool.yaml"), at("huge.yaml"), "-o", format}, more...)
		if code := run(t.Context(), args, nil, &stdout, &stderr); code != 2 {
			t.Fatalf("exit code %d, want 2: %s", code, stderr.String())
		}
		return stdout.Bytes()
	}
	raw := output("json")
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	cost, _ := got["cost"].(map[string]any)
	nodes, _ := got["nodes"].([]any)
	unscheduled, _ := got["unscheduled"].([]any)
	hourly, _ := cost["hourly"].(float64)
	bound, _ := cost["bound"].(float64)
	if hourly <= 0 || bound <= 0 || bound > hourly || len(nodes) == 0 || len(unscheduled) != 1 {
		t.Errorf("cost %v, %d nodes, %d unscheduled; want a cost above its bound, nodes, and one pod", cost, len(nodes), len(unscheduled))
	}
	asJSON, err := yaml.YAMLToJSON(output("yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var fromYAML, fromJSON any
	for _, p := range []struct {
		raw  []byte
		into *any
	}{{asJSON, &fromYAML}, {raw, &fromJSON}} {
		if err := json.Unmarshal(p.raw, p.into); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(fromYAML) != fmt.Sprint(fromJSON) {
		t.Error("YAML and JSON say different things")
	}
	if again := output("json"); !bytes.Equal(raw, again) {
		t.Error("two runs print different bytes")
	}
	var explained struct {
		Pod   string
		Pools []struct {
			Nearest []struct{ InstanceType string }
		}
	}
	if err := json.Unmarshal(output("json", "--explain", "huge"), &explained); err != nil {
		t.Fatal(err)
	}
	if explained.Pod != "default/huge" || len(explained.Pools) != 1 || len(explained.Pools[0].Nearest) == 0 {
		t.Errorf("explanation %+v", explained)
	}
}

func TestScenario(t *testing.T) {
	at := files(t, map[string]string{
		"cat-1.yaml": catalogYAMLWithoutFaults,
		"good.yaml":  "about: One pod, one node.\npods: [{name: web, cpu: 1}]\nexpect: {cost: 0.1, types: {small: 1}}\n",
		"bad.yaml":   "about: One pod, two nodes.\npods: [{name: web, cpu: 1}]\nexpect: {nodes: 2}\n",
		"typo.yaml":  "about: A slip.\npod: []\nexpect: {}\n",
	})
	tests := map[string]struct {
		args     []string
		wantCode int
		wantOut  string
		wantErr  string
	}{
		"one that holds":     {args: []string{at("good.yaml")}, wantOut: "ok    good\nscenarios=1 passed=1\n"},
		"one that does not":  {args: []string{at("good.yaml"), at("bad.yaml")}, wantCode: 2, wantOut: "- new nodes: got 1, want 2\nscenarios=2 passed=1\n", wantErr: "1 of 2 do not hold"},
		"one with a fault":   {args: []string{at("typo.yaml")}, wantCode: 1, wantErr: "typo.yaml:2: pod: unknown field; did you mean pods?"},
		"the catalogue only": {args: []string{at("cat-1.yaml")}, wantCode: 1, wantErr: "no scenario file"},
		"nothing":            {wantCode: 1, wantErr: "requires at least 1 arg"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), slices.Concat([]string{"simulate", "scenario"}, test.args), nil, &stdout, &stderr)
			if code != test.wantCode || !strings.Contains(stdout.String(), test.wantOut) || !strings.Contains(stderr.String(), test.wantErr) {
				t.Errorf("exit code %d, want %d\nstdout: %s\nwant %q in it\nstderr: %s\nwant %q in it", code, test.wantCode, stdout.String(), test.wantOut, stderr.String(), test.wantErr)
			}
		})
	}
}

const catalogYAMLWithoutFaults = `
instanceTypes:
- name: small
  capacity: {cpu: 2, memory: 4Gi, pods: 20}
  offerings: [{zone: here, price: 0.1}]
`

func TestVersion(t *testing.T) {
	var stdout bytes.Buffer
	if code := run(t.Context(), []string{"version"}, nil, &stdout, os.Stderr); code != 0 || !strings.HasPrefix(stdout.String(), "dovetail ") {
		t.Errorf("version printed %q with exit code %d", stdout.String(), code)
	}
}

// TestProgress holds that long work is told about, in plain lines where nobody watches.
func TestProgress(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	p.begin("counting")
	p.show()
	p.stop()
	p.stop()
	if got := b.String(); got != "counting … 0 s\n" {
		t.Errorf("progress wrote %q", got)
	}
	b.Reset()
	p = startProgress(&b, true)
	p.begin("counting")
	p.show()
	p.stop()
	if got := b.String(); !strings.HasPrefix(got, "\r\x1b[Kcounting … 0.") || !strings.HasSuffix(got, " s\r\x1b[K") {
		t.Errorf("progress on a terminal wrote %q", got)
	}
}
