package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestEmbedded runs itself where there are no certificate authorities and no time zones.
func TestEmbedded(t *testing.T) {
	const child = "DOVETAIL_TEST_EMBEDDED"
	if os.Getenv(child) == "" {
		nothing := t.TempDir()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEmbedded$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1", "SSL_CERT_FILE="+nothing+"/none", "SSL_CERT_DIR="+nothing, "ZONEINFO="+nothing)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestEmbedded") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	roots, err := x509.SystemCertPool()
	if err != nil || roots.Equal(x509.NewCertPool()) {
		t.Errorf("no certificate authorities (%v)", err)
	}
	// The zones of the machine would be found before those that are compiled in; that these
	// are there is for the test of the image to see.
	if _, err := time.LoadLocation("Europe/Berlin"); err != nil {
		t.Error(err)
	}
}

func TestVersion_release(t *testing.T) {
	defer func(old string) { release = old }(release)
	release = "v1.2.3"
	if got := version(); !strings.HasPrefix(got, "dovetail v1.2.3") || !strings.Contains(got, " go1.") {
		t.Errorf("version() = %q, want the release and the version of Go", got)
	}
}
