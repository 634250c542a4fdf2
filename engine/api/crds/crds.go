// Package crds holds the CustomResourceDefinitions of all kinds that Dovetail reads and
// writes, as YAML files that `make generate` makes from the markers on the Go types.
package crds

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var files embed.FS

// FS holds one file per kind, named GROUP_PLURAL.yaml.
func FS() fs.FS { return files }

// Read returns the CustomResourceDefinition of a kind, such as
// Read("karpenter.sh", "nodepools"). The error is that of a missing file if there is
// no such kind.
func Read(group, plural string) ([]byte, error) {
	return files.ReadFile(group + "_" + plural + ".yaml")
}
