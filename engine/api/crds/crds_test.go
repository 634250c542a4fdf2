package crds

import (
	"io/fs"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestFS(t *testing.T) {
	names, err := fs.Glob(FS(), "*.yaml")
	if err != nil || len(names) < 3 {
		t.Fatalf("files %v (%v), want one for each kind", names, err)
	}
	for _, name := range names {
		group, plural, _ := strings.Cut(strings.TrimSuffix(name, ".yaml"), "_")
		data, err := Read(group, plural)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct{ Metadata struct{ Name string } }
		if err := yaml.Unmarshal(data, &crd); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want := plural + "." + group; crd.Metadata.Name != want {
			t.Errorf("%s defines %q, want %q", name, crd.Metadata.Name, want)
		}
	}
	if _, err := Read("karpenter.sh", "nodes"); err == nil {
		t.Error("Read() of an unknown kind succeeded")
	}
}
