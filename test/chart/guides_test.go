package chart_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dovetail-sh/dovetail/test/cluster"
)

// section is a part of a guide with the commands in it.
type section struct {
	title  string
	blocks []string
}

// sections are the parts of a Markdown file that have blocks of shell.
func sections(t *testing.T, path string) []section {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []section
	for part := range strings.SplitSeq("\n"+string(text), "\n## ") {
		title, body, _ := strings.Cut(part, "\n")
		s := section{title: title}
		for _, m := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(body, -1) {
			s.blocks = append(s.blocks, m[1])
		}
		if len(s.blocks) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// guide runs the commands of a guide as they are, in the root of a checkout.
type guide struct {
	dir string
	env []string
}

// newGuide makes a folder with the tools as users have them, but for one thing: helm is
// told of this machine, which has one network for all pods.
func newGuide(t *testing.T, c *cluster.Cluster) *guide {
	t.Helper()
	dir := t.TempDir()
	program, err := dovetail()
	if err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(dir, "machine.json")
	wrapper := fmt.Sprintf(`#!/bin/sh
case $1 in
install | upgrade) exec %[1]s/helm "$@" --values %[2]s ;;
*) exec %[1]s/helm "$@" ;;
esac
`, bin, values)
	for name, text := range map[string]string{values: machineValues(t), filepath.Join(dir, "helm"): wrapper} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(program, filepath.Join(dir, "dovetail")); err != nil {
		t.Fatal(err)
	}
	return &guide{dir: dir, env: environment("PATH="+dir+":"+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Kubeconfig(), "HOME="+dir)}
}

// run runs a block. Two replicas have no place on one machine.
func (g *guide) run(t *testing.T, block string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", strings.ReplaceAll(block, "scale deployment dovetail --replicas=2", "scale deployment dovetail --replicas=1"))
	var out bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "../..", g.env, &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, block, out.String())
	}
	return out.String()
}

// before is what a section of charts/dovetail/README.md takes for granted.
var before = map[string]string{
	"Migrate from Karpenter, and back": `
apiVersion: v1
kind: Namespace
metadata: {name: karpenter}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: karpenter, namespace: karpenter, labels: {app.kubernetes.io/name: karpenter}}
spec:
  replicas: 1
  selector: {matchLabels: {app.kubernetes.io/name: karpenter}}
  template:
    metadata: {labels: {app.kubernetes.io/name: karpenter}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {group: old}
      containers: [{name: main, image: example.com/karpenter}]
---
` + oldNode,
	"Migrate from Cluster Autoscaler": oldNode + `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cluster-autoscaler, namespace: kube-system}
spec:
  replicas: 1
  selector: {matchLabels: {app: cluster-autoscaler}}
  template:
    metadata: {labels: {app: cluster-autoscaler}}
    spec: {containers: [{name: main, image: example.com/cluster-autoscaler}]}
`,
}

// oldNode is one that a group has, not a NodePool.
const oldNode = `
apiVersion: v1
kind: Node
metadata: {name: old, labels: {group: old, kubernetes.io/os: linux}}
`

// TestGuides runs the commands of the guides, in one cluster.
func TestGuides(t *testing.T) {
	c := shared.Get(t)
	g := newGuide(t, c)
	t.Cleanup(func() { uninstall(t, c) })
	run := func(t *testing.T, s section) {
		t.Helper()
		t.Run(s.title, func(t *testing.T) {
			if text := before[s.title]; text != "" {
				kubectl(t, c, text, "apply", "-f", "-")
			}
			for _, block := range s.blocks {
				t.Log(g.run(t, block))
			}
		})
	}
	var guide []section
	for _, s := range sections(t, filepath.Join(chart, "README.md")) {
		// Nothing may be installed before that of Karpenter.
		if strings.HasPrefix(s.title, "Migrate from Karpenter") {
			run(t, s)
			kubectl(t, c, "", "delete", "deployment", "karpenter", "-n", "karpenter")
			kubectl(t, c, "", "delete", "node", "old")
			continue
		}
		guide = append(guide, s)
	}
	for _, s := range guide {
		run(t, s)
		if s.title == "Policies" {
			for _, s := range sections(t, "../../policies/README.md") {
				run(t, s)
			}
		}
	}
}
