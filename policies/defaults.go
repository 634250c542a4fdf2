package policies

import (
	"io/fs"
	"path"
	"strings"
)

// Defaults are the policies that are safe to enable everywhere, as "<hook>/<name>" in
// order: those whose METADATA says custom.default: true.
func Defaults() []string {
	var out []string
	for _, hook := range []string{"score", "disrupt", "launch", "admit"} {
		files, err := fs.Glob(Files, hook+"/*.rego")
		if err != nil {
			panic(err) // the pattern is constant
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.rego") {
				continue
			}
			text, err := Files.ReadFile(file)
			if err != nil {
				panic(err) // the file is embedded
			}
			head, _, _ := strings.Cut(string(text), "\npackage ")
			if strings.Contains(head, "\n#   default: true\n") {
				out = append(out, hook+"/"+strings.TrimSuffix(path.Base(file), ".rego"))
			}
		}
	}
	return out
}

// Source returns the Rego files of a policy, "<hook>/<name>", by file name without
// folders: its own and those of the library. The error is that of a missing file.
func Source(policy string) (map[string]string, error) {
	text, err := Files.ReadFile(policy + ".rego")
	if err != nil {
		return nil, err
	}
	out := map[string]string{path.Base(policy) + ".rego": string(text)}
	libs, err := fs.Glob(Files, "lib/*.rego")
	if err != nil {
		return nil, err
	}
	for _, file := range libs {
		if strings.HasSuffix(file, "_test.rego") {
			continue
		}
		text, err := Files.ReadFile(file)
		if err != nil {
			return nil, err
		}
		out["lib_"+path.Base(file)] = string(text)
	}
	return out, nil
}
