package cluster

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
)

// Test starts a cluster for one test and stops it at its end. The logs of a failed test
// are kept, and it says where. Use [Shared] where a cluster of one's own is not needed.
func Test(t testing.TB, opts Options) *Cluster {
	t.Helper()
	if opts.Progress == nil {
		opts.Progress = os.Stderr
	}
	c, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.Keep()
			t.Logf("the cluster's logs are in %s", c.Dir())
		}
		c.Stop()
	})
	return c
}

// Shared is one cluster for the tests of a package, which starts when the first of them
// needs it. The zero value is ready to use, in a package variable:
//
//	var shared cluster.Shared
//
//	func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }
//
//	func TestSomething(t *testing.T) {
//		c := shared.Get(t)
type Shared struct {
	// Options are set before the first test.
	Options Options
	// Started is called once with the new cluster, for what all tests need in it. It may be
	// nil. What it starts runs until its context ends, which is when the tests are done.
	Started func(ctx context.Context, c *Cluster) error

	once   sync.Once
	c      *Cluster
	err    error
	cancel context.CancelFunc
}

// Get returns the cluster.
func (s *Shared) Get(t testing.TB) *Cluster {
	t.Helper()
	s.once.Do(func() { s.err = s.start() })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.c
}

func (s *Shared) start() error {
	opts := s.Options
	if opts.Progress == nil {
		opts.Progress = os.Stderr
	}
	// It outlives the test that starts it.
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	c, err := Start(ctx, opts)
	if err != nil {
		return err
	}
	s.c = c
	if s.Started == nil {
		return nil
	}
	return s.Started(ctx, c)
}

// Main runs the tests, stops the cluster, and returns the exit code. It keeps the logs
// if a test failed, and says where.
func (s *Shared) Main(m *testing.M) int {
	code := m.Run()
	if s.cancel != nil {
		s.cancel()
	}
	if s.c != nil {
		if code != 0 {
			s.c.Keep()
			fmt.Fprintf(os.Stderr, "the cluster's logs are in %s\n", s.c.Dir())
		}
		s.c.Stop()
	}
	return code
}
