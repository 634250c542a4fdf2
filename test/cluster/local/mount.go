package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// mount is a folder or file that a process sees at another path.
type mount struct {
	source, target string
	readOnly       bool
}

// mounter puts volumes where processes look for them.
type mounter struct {
	// namespaces says that a process can have mounts of its own.
	namespaces bool

	mu *sync.Mutex
	// made are the mount points that did not exist, in the order in which they were made.
	made *[]string
}

func newMounter(without bool) mounter {
	m := mounter{mu: &sync.Mutex{}, made: &[]string{}}
	if without || runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return m
	}
	// Being root does not suffice inside of some containers.
	probe := exec.Command("unshare", "--mount", "sh", "-c", "mount --bind /tmp /tmp") //nolint:noctx // it takes milliseconds
	m.namespaces = probe.Run() == nil
	return m
}

// script mounts pairs of folders and becomes the program. The arguments are the number
// of mounts, three for each, and the program with its own.
const script = `set -e
n=$1; shift
while [ "$n" -gt 0 ]; do
	mount --bind "$1" "$2"
	if [ "$3" = ro ]; then mount -o remount,bind,ro "$2"; fi
	shift 3; n=$((n - 1))
done
exec "$@"`

// wrap returns the command line that runs another with mounts.
func (m mounter) wrap(command []string, mounts []mount) ([]string, error) {
	if !m.namespaces || len(mounts) == 0 {
		return command, nil
	}
	// Outer ones come first, or they would hide the inner ones.
	mounts = slices.Clone(mounts)
	slices.SortFunc(mounts, func(a, b mount) int { return strings.Compare(a.target, b.target) })
	args := []string{"unshare", "--mount", "sh", "-c", script, "sh", fmt.Sprint(len(mounts))}
	for _, one := range mounts {
		if err := m.makePoint(one); err != nil {
			return nil, err
		}
		mode := "rw"
		if one.readOnly {
			mode = "ro"
		}
		args = append(args, one.source, one.target, mode)
	}
	return append(args, command...), nil
}

// makePoint makes the file or folder that is mounted over. It is on this machine's own
// file system, and close removes it.
func (m mounter) makePoint(one mount) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var missing []string
	for dir := filepath.Clean(one.target); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, dir)
	}
	source, err := os.Stat(one.source)
	if err != nil {
		return err
	}
	for i, path := range slices.Backward(missing) {
		if i == 0 && !source.IsDir() {
			err = os.WriteFile(path, nil, 0o600)
		} else {
			err = os.Mkdir(path, 0o755)
		}
		if err != nil {
			return err
		}
		*m.made = append(*m.made, path)
	}
	return nil
}

// close removes the mount points that were made, unless something was put there.
func (m mounter) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, path := range slices.Backward(*m.made) {
		if info, err := os.Stat(path); err == nil && (info.IsDir() || info.Size() == 0) {
			// A folder that is not empty is somebody's by now.
			_ = os.Remove(path)
		}
	}
	*m.made = nil
}

// replacer replaces paths of volumes by where the files are, for a process that cannot
// have mounts.
func replacer(mounts []mount) *strings.Replacer {
	mounts = slices.Clone(mounts)
	// Inner ones come first, or their beginning would be replaced as that of the outer.
	slices.SortFunc(mounts, func(a, b mount) int { return strings.Compare(b.target, a.target) })
	var pairs []string
	for _, one := range mounts {
		pairs = append(pairs, one.target, one.source)
	}
	return strings.NewReplacer(pairs...)
}
