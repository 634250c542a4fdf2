package set

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
)

// kept is an artefact on disk.
type kept struct {
	// Origin is the digest of the source that gave it: a source that has changed since, be
	// it by a digest or key, does not get it back.
	Origin    string            `json:"origin"`
	Revision  string            `json:"revision"`
	Files     map[string][]byte `json:"files"`
	Documents map[string][]byte `json:"documents,omitempty"`
}

// keptAt is the file that keeps what a source gave, and the digest of its source. Sources that are
// always there have no file.
func (s *Set) keptAt(np *v1alpha1.NodePolicy) (file, origin string, err error) {
	if s.opts.CacheDir == "" || np.Spec.Source.File != nil || np.Spec.Source.Inline != nil && np.Spec.Data == nil {
		return "", "", nil
	}
	b, err := json.Marshal([]any{np.Spec.Runtime, np.Spec.Source, np.Spec.Data})
	if err != nil {
		return "", "", err
	}
	name := strings.TrimPrefix(digest(np.Name), "sha256:") + ".json"
	return filepath.Join(s.opts.CacheDir, name), digest(string(b)), nil
}

// remember keeps what a source gave.
func (s *Set) remember(np *v1alpha1.NodePolicy, a source.Artifact) error {
	err := func() error {
		file, origin, err := s.keptAt(np)
		if err != nil || file == "" {
			return err
		}
		b, err := json.Marshal(kept{origin, a.Revision, a.Files, a.Documents})
		if err != nil {
			return err
		}
		if err := os.MkdirAll(s.opts.CacheDir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file+".new", b, 0o600); err != nil {
			return err
		}
		return os.Rename(file+".new", file)
	}()
	if err != nil {
		return fmt.Errorf("policy %q: keep its files for a restart: %w", np.Name, err)
	}
	return nil
}

// remembered returns what is kept for a policy; the revision is empty if there is nothing
// that can be used.
func (s *Set) remembered(np *v1alpha1.NodePolicy) source.Artifact {
	file, origin, err := s.keptAt(np)
	if err != nil || file == "" {
		return source.Artifact{}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return source.Artifact{}
	}
	var k kept
	if json.Unmarshal(b, &k) != nil || k.Origin != origin {
		return source.Artifact{}
	}
	a, err := source.New(k.Files, k.Documents)
	if err != nil || a.Revision != k.Revision {
		return source.Artifact{}
	}
	return a
}

// forgetKept removes what is kept for a policy.
func (s *Set) forgetKept(np *v1alpha1.NodePolicy) {
	if file, _, err := s.keptAt(np); err == nil && file != "" {
		_ = os.Remove(file) // gone already, or of no use to anyone
	}
}
