package cluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var shared Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

func clientset(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// eventually repeats check until it succeeds, for a minute.
func eventually(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(pollInterval):
		}
	}
}

func TestCluster_Version(t *testing.T) {
	client := clientset(t, shared.Get(t).RESTConfig())
	got, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if got.GitVersion != version || got.Major != "1" || got.Minor != "37" {
		t.Errorf("server version %+v, want %s", got, version)
	}
}

func TestCluster_Users(t *testing.T) {
	c := shared.Get(t)
	admin := clientset(t, c.RESTConfig())
	_, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "readers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "readers"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	user := func(name string, groups ...string) *rest.Config {
		config, err := c.UserConfig(name, groups...)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	account, err := c.TokenConfig(t.Context(), "default", "default")
	if err != nil {
		t.Fatal(err)
	}
	stranger := c.RESTConfig()
	stranger.CertData, stranger.KeyData = nil, nil

	tests := map[string]struct {
		config *rest.Config
		// want is part of the error of listing pods and of making a namespace; empty if it works.
		wantList, wantMake string
	}{
		"a user without roles may do nothing": {
			config: user("jane"), wantList: `User "jane" cannot list`, wantMake: `User "jane" cannot create`,
		},
		"a user has what the groups may": {
			config: user("joe", "readers"), wantMake: `User "joe" cannot create`,
		},
		"a ServiceAccount without roles may do nothing": {
			config:   account,
			wantList: `User "system:serviceaccount:default:default" cannot list`,
			wantMake: `User "system:serviceaccount:default:default" cannot create`,
		},
		"nobody may do nothing": {
			config: stranger, wantList: `User "system:anonymous" cannot list`, wantMake: `User "system:anonymous" cannot create`,
		},
		"masters may do everything": {config: user("root", "system:masters")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			client := clientset(t, tt.config)
			_, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			checkForbidden(t, "list pods", err, tt.wantList)
			_, err = client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"},
			}, metav1.CreateOptions{})
			checkForbidden(t, "make a namespace", err, tt.wantMake)
		})
	}
}

func checkForbidden(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v, want no error", what, err)
	case want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: error %v, want Forbidden: %s", what, err, want)
	}
}

func TestCluster_Apply(t *testing.T) {
	c := shared.Get(t)
	dir := t.TempDir()
	// The object comes before its kind and its namespace.
	files := map[string]string{
		"a.yaml": "apiVersion: example.org/v1\nkind: Widget\nmetadata: {name: one, namespace: widgets}\nsize: 3\n---\n---\n" +
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: in-list}, data: {a: b}}\n",
		"b.yml":  "apiVersion: v1\nkind: Namespace\nmetadata: {name: widgets}\n",
		"c.json": widgetDefinition,
		"d.txt":  "not an object",
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Twice: the second time, everything exists.
	for range 2 {
		if err := c.ApplyFiles(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	client := clientset(t, c.RESTConfig())
	got, err := client.RESTClient().Get().AbsPath("/apis/example.org/v1/namespaces/widgets/widgets/one").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(got, []byte(`"size":3`)) {
		t.Errorf("widget %s, want size 3", got)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "in-list", metav1.GetOptions{}); err != nil {
		t.Errorf("object of a list: %v", err)
	}
	err = c.ApplyText(t.Context(), "apiVersion: example.org/v1\nkind: Widget\nmetadata: {name: two}\nsize: -1\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: beside}\n")
	if err == nil || !strings.Contains(err.Error(), `apply Widget "two"`) || !strings.Contains(err.Error(), "greater than or equal to 0") {
		t.Errorf("apply an invalid object: error %v, want one that names it and the reason", err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "beside", metav1.GetOptions{}); err != nil {
		t.Errorf("an object beside an invalid one: %v", err)
	}
}

const widgetDefinition = `{
"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.org"},
"spec": {"group": "example.org", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
"versions": [{"name": "v1", "served": true, "storage": true,
"schema": {"openAPIV3Schema": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0}}}}}]}}`

func TestCluster_Restart(t *testing.T) {
	c := shared.Get(t)
	client := clientset(t, c.RESTConfig())
	for _, component := range components {
		t.Run(string(component), func(t *testing.T) {
			name := "before-" + string(component)
			_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			before := c.Pid(component)
			c.Kill(component)
			if pid := c.Pid(component); pid != 0 {
				t.Errorf("process %d runs after it was killed", pid)
			}
			if err := syscall.Kill(before, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("signal process %d after it was killed: %v, want no such process", before, err)
			}
			if err := c.Restart(t.Context(), component); err != nil {
				t.Fatal(err)
			}
			if after := c.Pid(component); after == 0 || after == before {
				t.Errorf("process %d after the restart, %d before", after, before)
			}
			eventually(t, "read what was written before the restart", func(ctx context.Context) error {
				_, err := client.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
				return err
			})
		})
	}
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestCluster_Pause(t *testing.T) {
	c := shared.Get(t)
	if err := c.Pause(APIServer); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	client := clientset(t, c.RESTConfig())
	_, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	if err == nil {
		t.Error("a paused API server answers")
	}
	if err := c.Resume(APIServer); err != nil {
		t.Fatal(err)
	}
	eventually(t, "read after the pause", func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func TestCluster_KeepData(t *testing.T) {
	dir := t.TempDir()
	opts := Options{Dir: dir, KeepData: true, WithoutControllers: true, WithoutScheduler: true}
	mark := func(c *Cluster) error {
		_, err := clientset(t, c.RESTConfig()).CoreV1().ConfigMaps("default").Get(t.Context(), "mark", metav1.GetOptions{})
		return err
	}
	var pids []int
	cycle := func(opts Options, use func(c *Cluster)) {
		c, err := Start(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Stop()
		for _, component := range c.enabled() {
			pids = append(pids, c.Pid(component))
		}
		use(c)
	}
	cycle(opts, func(c *Cluster) {
		err := c.ApplyText(t.Context(), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mark}\n")
		if err != nil {
			t.Fatal(err)
		}
	})
	cycle(opts, func(c *Cluster) {
		if err := mark(c); err != nil {
			t.Errorf("kept data: %v", err)
		}
	})
	opts.KeepData = false
	cycle(opts, func(c *Cluster) {
		if err := mark(c); !apierrors.IsNotFound(err) {
			t.Errorf("data that is not kept: error %v, want not found", err)
		}
	})
	if len(pids) != 6 {
		t.Errorf("processes %v, want etcd and API server of 3 clusters", pids)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("signal process %d after Stop: %v, want no such process", pid, err)
		}
	}
}

func TestStart_Errors(t *testing.T) {
	binary, err := Binary(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		opts Options
		want []string
	}{
		"every bad option is named": {
			opts: Options{KeepData: true, Port: -1, GOGC: -1, ServiceCIDR: "x", Args: map[Component][]string{"kubelet": nil}},
			want: []string{"KeepData", "port -1", "GOGC -1", "ServiceCIDR", `"kubelet"`},
		},
		"a component that exits is named, with its log": {
			opts: Options{Binary: binary, Args: map[Component][]string{APIServer: {"--no-such-flag"}}},
			want: []string{"kube-apiserver exited", "unknown flag: --no-such-flag"},
		},
		"a program that is missing": {
			opts: Options{Binary: filepath.Join(t.TempDir(), "none")},
			want: []string{"start etcd", "no such file"},
		},
		"a scheduler configuration that is no YAML": {
			opts: Options{Binary: binary, SchedulerConfig: "a: [}"},
			want: []string{"SchedulerConfig"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := Start(t.Context(), tt.opts)
			if err == nil {
				c.Stop()
				t.Fatal("Start() works, want an error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Start() error %q, want %q in it", err, want)
				}
			}
		})
	}
}
