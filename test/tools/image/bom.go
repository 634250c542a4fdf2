package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// bom lists what a compiled program is made of, as the program itself says: its modules and
// the standard library. It returns CycloneDX's JSON, of a version that scanners read, and how
// many components it lists.
func (g program) bom(binary string) ([]byte, int, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, 0, fmt.Errorf("bill of materials: %w", err)
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, 0, err
	}
	sum := sha256.Sum256(content)
	main := cdx.Component{
		Type: cdx.ComponentTypeApplication, Name: info.Main.Path, Version: g.version, PackageURL: purl(info.Main.Path, g.version),
		BOMRef: purl(info.Main.Path, g.version), Description: info.Path,
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	std := strings.TrimPrefix(info.GoVersion, "go")
	parts := []cdx.Component{{
		Type: cdx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion, PackageURL: purl("std", std), BOMRef: purl("std", std),
		Scope: cdx.ScopeRequired, Licenses: &cdx.Licenses{{License: &cdx.License{ID: "BSD-3-Clause"}}},
	}}
	for _, m := range info.Deps {
		c, err := component(m)
		if err != nil {
			return nil, 0, err
		}
		parts = append(parts, c)
	}
	var refs []string
	for _, c := range parts {
		refs = append(refs, c.BOMRef)
	}
	b := cdx.NewBOM()
	// Follows from the content, for the same reason as all times.
	b.SerialNumber = "urn:uuid:" + uuid.NewSHA1(uuid.NameSpaceURL, sum[:]).String()
	b.Metadata = &cdx.Metadata{
		Timestamp: g.time.Format(time.RFC3339), Component: &main,
		Lifecycles: &[]cdx.Lifecycle{{Phase: cdx.LifecyclePhasePostBuild}},
	}
	b.Components = &parts
	b.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(b, cdx.SpecVersion1_6); err != nil {
		return nil, 0, fmt.Errorf("bill of materials: %w", err)
	}
	return out.Bytes(), len(parts), nil
}

func purl(path, version string) string {
	// A version may have build metadata after a plus, which means a blank in URLs.
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B") + "?type=module"
}

// component is a module as it was compiled: what a module was replaced with counts.
func component(m *debug.Module) (cdx.Component, error) {
	name := m.Path
	if m.Replace != nil {
		m = m.Replace
	}
	if strings.HasPrefix(m.Path, ".") || strings.HasPrefix(m.Path, "/") { // replaced with a folder
		m = &debug.Module{Path: name, Version: "(devel)"}
	}
	c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl(m.Path, m.Version), BOMRef: purl(m.Path, m.Version), Scope: cdx.ScopeRequired}
	if sum, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
		hash, err := base64.StdEncoding.DecodeString(sum)
		if err != nil {
			return cdx.Component{}, fmt.Errorf("bill of materials: sum of module %s: %w", m.Path, err)
		}
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(hash)}}
	}
	return c, nil
}
