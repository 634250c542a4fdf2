package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestHolder(t *testing.T) {
	dir := t.TempDir()
	if _, err := holder(dir); err == nil || !strings.Contains(err.Error(), "no control plane runs") {
		t.Errorf("holder() of an empty folder: %v, want that none runs", err)
	}
	release, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := holder(dir); err != nil || pid != os.Getpid() {
		t.Errorf("holder() = %d, %v, want this process, %d", pid, err, os.Getpid())
	}
	if _, err := claim(dir); err == nil || !strings.Contains(err.Error(), "runs in "+dir+" already") {
		t.Errorf("claim() of a folder in use: %v, want that it is", err)
	}
	release()
	if _, err := holder(dir); err == nil {
		t.Error("holder() of a folder that was released, want an error")
	}
	var out, errs bytes.Buffer
	for _, command := range []string{"down", "kubeconfig"} {
		if code := run(t.Context(), []string{command, "--dir", dir}, &out, &errs); code != 1 {
			t.Errorf("%s where nothing runs: exit code %d, want 1", command, code)
		}
	}
}

// TestUp runs the whole command, and a pod on a node that it made.
func TestUp(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	dir, manifests := t.TempDir(), t.TempDir()
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: one}\nspec: {containers: [{name: c, image: i}]}\n"
	if err := os.WriteFile(filepath.Join(manifests, "pod.yaml"), []byte(pod), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out, errs buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"up", "--dir", dir, "--nodes", "1", "--apply", manifests}, &out, &errs)
	}()
	deadline := time.After(3 * time.Minute)
	for !strings.Contains(out.String(), "export KUBECONFIG=") {
		select {
		case code := <-done:
			t.Fatalf("up: exit code %d\n%s", code, errs.String())
		case <-deadline:
			t.Fatalf("up is not ready\n%s", errs.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
	var path bytes.Buffer
	if code := run(t.Context(), []string{"kubeconfig", "--dir", dir}, &path, &errs); code != 0 || "export KUBECONFIG="+path.String() != out.String() {
		t.Errorf("kubeconfig: exit code %d, %q, want what up printed, %q", code, path.String(), out.String())
	}
	config, err := clientcmd.BuildConfigFromFlags("", strings.TrimSpace(path.String()))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for {
		got, err := client.CoreV1().Pods("default").Get(t.Context(), "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Phase == "Running" && got.Spec.NodeName == "node-1" {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("pod on node %q, status %+v, want it to run on node-1", got.Spec.NodeName, got.Status)
		case <-time.After(50 * time.Millisecond):
		}
	}
	interrupt()
	select {
	case code := <-done:
		if code != 0 {
			t.Errorf("up after an interrupt: exit code %d, want 0\n%s", code, errs.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("up does not stop")
	}
}
