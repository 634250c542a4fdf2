package replay

import (
	"testing"

	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

func TestRemove_Unknown(t *testing.T) {
	in := input(t)
	in.Cluster = load.Read([]load.Input{{Name: "cluster.yaml", Data: []byte(`
{apiVersion: v1, kind: Node, metadata: {name: b}}
---
{apiVersion: v1, kind: Node, metadata: {name: a}}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: web}
spec: {template: {spec: {nodeClassRef: {group: dovetail.sh, kind: SimNodeClass, name: default}, requirements: []}}}
`)}})
	tests := map[string]struct{ node, pool, want string }{
		"a node":                   {"x", "", "there is no node x: there are a, b"},
		"a NodePool":               {"", "x", "there is no NodePool x: there are web"},
		"a NodePool without nodes": {"", "web", "NodePool web has no node"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Remove(t.Context(), in, Setting{}, tt.node, tt.pool); err == nil || err.Error() != tt.want {
				t.Errorf("Remove() error = %v, want %q", err, tt.want)
			}
		})
	}
}
