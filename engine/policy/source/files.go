package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Files is a file, or a folder with all files below that belong to policies. Names that
// start with a dot are left out; links are followed, so that mounted ConfigMaps work.
//
// Asking it often costs little: a file whose size and times are as before is not read
// again.
type Files struct {
	// Path of the file or folder.
	Path string

	mu   sync.Mutex
	seen map[string]seenFile
	last Artifact
}

// seenFile is a file as it was read.
type seenFile struct {
	info  fs.FileInfo
	bytes []byte
}

// settled is the age at which a file's time tells of every change: a file may be written
// twice within a tick of the file system's clock.
const settled = 2 * time.Second

// Fetch reads what has changed.
func (f *Files) Fetch(ctx context.Context) (Artifact, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	root, err := os.Stat(f.Path)
	if err != nil {
		return Artifact{}, err
	}
	w := walk{seen: f.seen, next: map[string]seenFile{}, files: map[string][]byte{}}
	if root.IsDir() {
		err = w.folder(ctx, f.Path, "", 0)
	} else {
		err = w.file(f.Path, filepath.Base(f.Path), root)
	}
	if err != nil {
		return Artifact{}, err
	}
	if len(w.files) == 0 {
		return Artifact{}, fmt.Errorf("%s: there is no file of a policy", f.Path)
	}
	if !w.changed && len(w.next) == len(f.seen) && f.last.Revision != "" {
		f.seen = w.next
		return f.last, nil
	}
	a, err := New(w.files, nil)
	if err != nil {
		return Artifact{}, fmt.Errorf("%s: %w", f.Path, err)
	}
	f.seen, f.last = w.next, a
	return a, nil
}

type walk struct {
	seen, next map[string]seenFile
	files      map[string][]byte
	total      int64
	changed    bool
}

// maxDepth bounds folders in folders, so that links in a circle end.
const maxDepth = 16

func (w *walk) folder(ctx context.Context, dir, rel string, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if depth > maxDepth {
		return fmt.Errorf("%s: folders nest more than %d deep", dir, maxDepth)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		name, at := filepath.Join(dir, e.Name()), e.Name()
		if rel != "" {
			at = rel + "/" + at
		}
		info, err := os.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone since, or a link to nothing
		}
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			err = w.folder(ctx, name, at, depth+1)
		case info.Mode().IsRegular() && Belongs(e.Name()):
			err = w.file(name, at, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) file(name, rel string, info fs.FileInfo) error {
	if w.total += info.Size(); w.total > MaxBytes || len(w.files) >= MaxFiles {
		return fmt.Errorf("%s: more than %d bytes or %d files: %w", name, MaxBytes, MaxFiles, ErrTooLarge)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: neither a file nor a folder", name)
	}
	old, ok := w.seen[rel]
	if ok && os.SameFile(old.info, info) && old.info.Size() == info.Size() && old.info.ModTime().Equal(info.ModTime()) && time.Since(info.ModTime()) > settled {
		w.next[rel], w.files[rel] = old, old.bytes
		return nil
	}
	h, err := os.Open(name)
	if err != nil {
		return err
	}
	defer h.Close()
	b, err := io.ReadAll(io.LimitReader(h, MaxBytes+1))
	if err != nil {
		return err
	}
	if !ok || string(b) != string(old.bytes) {
		w.changed = true
	}
	w.next[rel], w.files[rel] = seenFile{info, b}, b
	return nil
}
