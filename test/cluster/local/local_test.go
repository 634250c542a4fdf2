package local_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dovetail-sh/dovetail/test/cluster"
	"github.com/dovetail-sh/dovetail/test/cluster/local"
	"github.com/dovetail-sh/dovetail/test/cluster/proxy"
)

// image is what pods name; this test's own program stands for it.
const image = "registry.example/team/program"

var (
	// nodes are one whose pods have mounts, if that is possible, and one without.
	nodes  = map[string]*local.Node{}
	shared = cluster.Shared{Started: func(ctx context.Context, c *cluster.Cluster) error {
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		for name, without := range map[string]bool{"local": false, "plain": true} {
			node, err := local.New(c.RESTConfig(), local.Options{
				Name: name, Programs: map[string]string{image: os.Args[0]}, WithoutMounts: without, Log: log,
			})
			if err != nil {
				return err
			}
			nodes[name] = node
			go run(ctx, "node "+name, node.Run)
		}
		p, err := proxy.New(c.RESTConfig(), proxy.Options{Log: log})
		if err != nil {
			return err
		}
		go p.Run(ctx)
		return nil
	}}
)

func run(ctx context.Context, what string, f func(context.Context) error) {
	if err := f(ctx); err != nil {
		fmt.Fprintln(os.Stderr, what, err)
	}
}

func TestMain(m *testing.M) {
	if port := os.Getenv("PROGRAM_PORT"); port != "" {
		os.Exit(program(port))
	}
	os.Exit(shared.Main(m))
}

// program is what runs in pods. It serves what it sees, and reviews admissions if it has
// a certificate.
func program(port string) int {
	fmt.Println("program started")
	if code, err := strconv.Atoi(os.Getenv("PROGRAM_EXIT")); err == nil {
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var broken atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("/break", func(http.ResponseWriter, *http.Request) { broken.Store(true) })
	mux.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, strings.Join(append(os.Args[1:], os.Environ()...), "\n"))
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		content, err := os.ReadFile(r.FormValue("path"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(content)
	})
	mux.HandleFunc("/api", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, useAPI(r.Context())) })
	mux.HandleFunc("/admit", admit)
	server := &http.Server{Addr: "127.0.0.1:" + port, Handler: mux}
	errs := make(chan error)
	go func() {
		if cert := os.Getenv("PROGRAM_CERT"); cert != "" {
			errs <- server.ListenAndServeTLS(cert+"/tls.crt", cert+"/tls.key")
			return
		}
		errs <- server.ListenAndServe()
	}()
	select {
	case err := <-errs:
		fmt.Println(err)
		return 1
	case <-ctx.Done():
		fmt.Println("program asked to stop")
		return 0
	}
}

// useAPI does what the ServiceAccount may do, and what it may not.
func useAPI(ctx context.Context) string {
	config, err := rest.InClusterConfig()
	if err != nil {
		// Without mounts, the token is where a kubeconfig says.
		if config, err = clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")); err != nil {
			return err.Error()
		}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err.Error()
	}
	list, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	_, err = client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "no"}}, metav1.CreateOptions{})
	return fmt.Sprintf("listed %t, create forbidden %t: %v", len(list.Items) > 0, apierrors.IsForbidden(err), err)
}

func admit(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "unwanted"}
	if !review.Response.Allowed {
		review.Response.Result = &metav1.Status{Message: "the program does not want it"}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

func client(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(shared.Get(t).RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func apply(t *testing.T, manifest string, values ...any) {
	t.Helper()
	if err := shared.Get(t).ApplyText(t.Context(), fmt.Sprintf(manifest, values...)); err != nil {
		t.Fatal(err)
	}
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
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func waitPod(t *testing.T, name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, "pod "+name+" is "+what, func(ctx context.Context) (err error) {
		if pod, err = client(t).CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !is(pod) {
			return fmt.Errorf("phase %s, containers %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return nil
	})
	return pod
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// gone waits until a process does not exist any more.
func gone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d is gone", pid), func(context.Context) error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal it: %v", err)
		}
		return nil
	})
}

// TestNode_Pod runs one pod with everything, on a node with mounts and on one without.
func TestNode_Pod(t *testing.T) {
	for _, node := range []string{"local", "plain"} {
		t.Run(node, func(t *testing.T) { testPod(t, node) })
	}
}

func testPod(t *testing.T, node string) {
	port := freePort(t)
	name := "full-" + node
	apply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[1]s}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: default}]
---
apiVersion: v1
kind: Secret
metadata: {name: %[1]s}
stringData: {password: first, name: secret-name}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s}
data: {FROM_MAP: mapped}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: full, team: web}}
spec:
  serviceAccountName: %[1]s
  nodeName: %[2]s
  tolerations: [{operator: Exists}]
  initContainers:
  - {name: init, image: %[3]s, env: [{name: PROGRAM_PORT, value: "1"}, {name: PROGRAM_EXIT, value: "0"}]}
  containers:
  - name: main
    image: %[3]s:v1@sha256:0000000000000000000000000000000000000000000000000000000000000000
    args: ["--dir=/etc/secrets", "--pod=$(POD_NAME)", "--price=$$(POD_NAME)"]
    ports: [{name: http, containerPort: %[4]d}]
    readinessProbe: {httpGet: {path: /healthz, port: http}}
    resources: {requests: {cpu: 1500m, memory: 64Mi}}
    envFrom: [{configMapRef: {name: %[1]s}, prefix: P_}]
    env:
    - {name: PROGRAM_PORT, value: "%[4]d"}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: TEAM, valueFrom: {fieldRef: {fieldPath: "metadata.labels['team']"}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: CPUS, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}
    - {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: %[1]s, key: name}}}
    - {name: MISSING, valueFrom: {secretKeyRef: {name: none, key: name, optional: true}}}
    volumeMounts: [{name: secret, mountPath: /etc/secrets, readOnly: true}, {name: info, mountPath: /etc/secrets/info}, {name: scratch, mountPath: /scratch}]
  volumes:
  - {name: secret, secret: {secretName: %[1]s, items: [{key: password, path: sub/password}, {key: name, path: info/placeholder}]}}
  - {name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: scratch, emptyDir: {}}
`, name, node, image, port)
	pod := waitPod(t, name, "Ready", ready)
	if s := pod.Status.InitContainerStatuses; len(s) != 1 || s[0].State.Terminated == nil || s[0].State.Terminated.Reason != "Completed" {
		t.Errorf("status of the container that initialises %+v, want completed", s)
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	env, err := get(t.Context(), url+"/env")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(env, "\n")
	for _, want := range []string{
		"--pod=" + name, "--price=$(POD_NAME)", "POD_NAME=" + name, "NAMESPACE=default", "TEAM=web", "IP=127.0.0.1", "CPUS=2",
		"FROM_SECRET=secret-name", "P_FROM_MAP=mapped", "HOSTNAME=" + name,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("arguments and variables %q, want %q among them", lines, want)
		}
	}
	if strings.Contains(env, "MISSING=") {
		t.Error("a variable from a Secret that is missing is set, want it left out")
	}

	// The argument says where the program finds its files: with mounts, where the pod says.
	dir := strings.TrimPrefix(lines[0], "--dir=")
	if mounted := dir == "/etc/secrets"; mounted != (node == "local" && os.Geteuid() == 0) {
		t.Errorf("folder of the Secret %q on node %s", dir, node)
	}
	file := func(ctx context.Context, name string) (string, error) {
		return get(ctx, url+"/file?path="+dir+"/"+name)
	}
	if got, err := file(t.Context(), "sub/password"); err != nil || got != "first" {
		t.Errorf("file of the Secret %q, %v, want the value of its key", got, err)
	}
	if node == "local" {
		if got, err := file(t.Context(), "info/labels"); err != nil || got != "app=\"full\"\nteam=\"web\"\n" {
			t.Errorf("file of the downward API %q, %v, want the labels", got, err)
		}
	}
	patch := `{"stringData":{"password":"second"}}`
	if _, err := client(t).CoreV1().Secrets("default").Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file follows the Secret", func(ctx context.Context) error {
		got, err := file(ctx, "sub/password")
		if err == nil && got != "second" {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})

	api, err := get(t.Context(), url+"/api")
	if err != nil {
		t.Fatal(err)
	}
	if want := "listed true, create forbidden true"; !strings.HasPrefix(api, want) || !strings.Contains(api, "system:serviceaccount:default:"+name) {
		t.Errorf("the program with its token: %q, want %q for its ServiceAccount", api, want)
	}

	pid := nodes[node].Pid("default", name, "main")
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("signal process %d: %v", pid, err)
	}
	log := nodes[node].Log("default", name, "main")
	if err := client(t).CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
	eventually(t, "the pod is gone", func(ctx context.Context) error {
		_, err := client(t).CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	if content, err := os.ReadFile(log); err != nil || !bytes.Contains(content, []byte("program asked to stop")) {
		t.Errorf("log %q, %v, want that the program was asked to stop", content, err)
	}
}

// small is a pod that runs the program and nothing else.
func small(name, node string, port int, more string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 5
  containers:
  - name: main
    image: %s
    ports: [{name: http, containerPort: %d}]
    env: [{name: PROGRAM_PORT, value: "%d"}]
%s`, name, node, image, port, port, more)
}

func TestNode_Ends(t *testing.T) {
	tests := map[string]struct {
		manifest string
		what     string
		is       func(*corev1.Pod) bool
	}{
		"fails": {
			manifest: strings.Replace(small("fails", "local", 1, "  restartPolicy: Never"), "env: [", `env: [{name: PROGRAM_EXIT, value: "3"}, `, 1),
			what:     "Failed",
			is: func(p *corev1.Pod) bool {
				return p.Status.Phase == corev1.PodFailed && p.Status.ContainerStatuses[0].State.Terminated.ExitCode == 3
			},
		},
		"succeeds": {
			manifest: strings.Replace(small("succeeds", "local", 1, "  restartPolicy: OnFailure"), "env: [", `env: [{name: PROGRAM_EXIT, value: "0"}, `, 1),
			what:     "Succeeded",
			is:       func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded },
		},
		"restarts": {
			manifest: strings.Replace(small("restarts", "local", 1, ""), "env: [", `env: [{name: PROGRAM_EXIT, value: "1"}, `, 1),
			what:     "restarted",
			is: func(p *corev1.Pod) bool {
				s := p.Status.ContainerStatuses
				return p.Status.Phase == corev1.PodRunning && len(s) == 1 && s[0].RestartCount >= 2 && s[0].LastTerminationState.Terminated.ExitCode == 1 && !ready(p)
			},
		},
		"unknown": {
			manifest: strings.Replace(small("unknown", "local", 1, ""), image, "registry.example/other:v1", 1),
			what:     "waiting, and says why",
			is: func(p *corev1.Pod) bool {
				s := p.Status.ContainerStatuses
				return len(s) == 1 && s[0].State.Waiting != nil && strings.Contains(s[0].State.Waiting.Message, `"registry.example/other:v1"`)
			},
		},
		"lacks": {
			manifest: small("lacks", "local", 1, "    volumeMounts: [{name: v, mountPath: /v}]\n  volumes: [{name: v, secret: {secretName: not-there}}]"),
			what:     "waiting for its Secret, and says so",
			is: func(p *corev1.Pod) bool {
				s := p.Status.ContainerStatuses
				return len(s) == 1 && s[0].State.Waiting != nil && strings.Contains(s[0].State.Waiting.Message, `secrets "not-there" not found`)
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			apply(t, "%s", tt.manifest)
			waitPod(t, name, tt.what, tt.is)
			if err := client(t).CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the pod is gone", func(ctx context.Context) error {
				_, err := client(t).CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return fmt.Errorf("it is there: %w", err)
			})
		})
	}
}

func TestNode_Probes(t *testing.T) {
	port := freePort(t)
	apply(t, "%s", small("probed", "local", port,
		"    readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1, failureThreshold: 1}\n"+
			"    livenessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1, failureThreshold: 3}\n"+
			"    startupProbe: {tcpSocket: {port: http}, periodSeconds: 1}\n"))
	waitPod(t, "probed", "Ready", ready)
	if _, err := get(t.Context(), fmt.Sprintf("http://127.0.0.1:%d/break", port)); err != nil {
		t.Fatal(err)
	}
	waitPod(t, "probed", "not Ready", func(p *corev1.Pod) bool { return !ready(p) })
	waitPod(t, "probed", "restarted and Ready", func(p *corev1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	pid := nodes["local"].Pid("default", "probed", "main")
	if err := client(t).CoreV1().Pods("default").Delete(t.Context(), "probed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
}

// TestNode_Webhook runs a webhook as charts do: a Deployment that the scheduler places,
// a certificate in a Secret, and a Service with a ClusterIP that the API server calls.
func TestNode_Webhook(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("listening on port 443 needs root")
	}
	port := freePort(t)
	cert, key := selfSigned(t, "reviewer.default.svc")
	encode := base64.StdEncoding.EncodeToString
	apply(t, `
apiVersion: v1
kind: Secret
metadata: {name: reviewer}
type: kubernetes.io/tls
data: {tls.crt: %[1]s, tls.key: %[2]s}
---
apiVersion: v1
kind: Service
metadata: {name: reviewer}
spec: {selector: {app: reviewer}, ports: [{port: 443, targetPort: https}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: reviewer}
spec:
  selector: {matchLabels: {app: reviewer}}
  template:
    metadata: {labels: {app: reviewer}}
    spec:
      nodeSelector: {kubernetes.io/hostname: local}
      tolerations: [{key: CriticalAddonsOnly, operator: Exists}]
      containers:
      - name: main
        image: %[3]s:v1
        ports: [{name: https, containerPort: %[4]d}]
        readinessProbe: {httpGet: {path: /healthz, port: https, scheme: HTTPS}}
        env: [{name: PROGRAM_PORT, value: "%[4]d"}, {name: PROGRAM_CERT, value: /etc/reviewer}]
        volumeMounts: [{name: cert, mountPath: /etc/reviewer}]
      volumes: [{name: cert, secret: {secretName: reviewer}}]
`, encode(cert), encode(key), image, port)
	eventually(t, "the Deployment is available", func(ctx context.Context) error {
		got, err := client(t).AppsV1().Deployments("default").Get(ctx, "reviewer", metav1.GetOptions{})
		if err == nil && got.Status.AvailableReplicas != 1 {
			err = fmt.Errorf("status %+v", got.Status)
		}
		return err
	})
	apply(t, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: reviewer}
webhooks:
- name: reviewer.example.com
  clientConfig: {service: {namespace: default, name: reviewer, path: /admit}, caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  objectSelector: {matchLabels: {reviewed: "yes"}}
  sideEffects: None
  admissionReviewVersions: [v1]
`, encode(cert))
	t.Cleanup(func() {
		err := client(t).AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(context.Background(), "reviewer", metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	make := func(ctx context.Context, name string) error {
		_, err := client(t).CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"reviewed": "yes"}},
		}, metav1.CreateOptions{})
		return err
	}
	eventually(t, "the webhook denies", func(ctx context.Context) error {
		err := make(ctx, "unwanted")
		if err == nil || !strings.Contains(err.Error(), "the program does not want it") {
			// It takes a moment until the API server knows of the webhook.
			_ = client(t).CoreV1().ConfigMaps("default").Delete(ctx, "unwanted", metav1.DeleteOptions{})
			return fmt.Errorf("error %v, want that of the webhook", err)
		}
		return nil
	})
	if err := make(t.Context(), "wanted"); err != nil {
		t.Errorf("what the webhook allows: %v", err)
	}
	if err := client(t).CoreV1().ConfigMaps("default").Delete(t.Context(), "wanted", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}

	// The API server itself is behind its Service, too.
	config := shared.Get(t).RESTConfig()
	config.Host = "https://" + net.JoinHostPort(shared.Get(t).ServiceIP(), "443")
	through, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := through.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Errorf("API server at its ClusterIP: %v", err)
	}

	// Without pods, the Service refuses connections.
	if err := client(t).AppsV1().Deployments("default").Delete(t.Context(), "reviewer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Service has nothing behind it", func(ctx context.Context) error {
		err := make(ctx, "late")
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			_ = client(t).CoreV1().ConfigMaps("default").Delete(ctx, "late", metav1.DeleteOptions{})
			return fmt.Errorf("error %v, want that the connection is refused", err)
		}
		return nil
	})
}

// TestNode_Stop checks that the end of a node leaves no process.
func TestNode_Stop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	node, err := local.New(shared.Get(t).RESTConfig(), local.Options{Name: "brief", Programs: map[string]string{image: os.Args[0]}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	apply(t, "%s", small("brief", "brief", freePort(t), ""))
	waitPod(t, "brief", "Ready", ready)
	pid := node.Pid("default", "brief", "main")
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Run does not return")
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("signal process %d after the end of its node: %v, want no such process", pid, err)
	}
}

// selfSigned makes a certificate that is its own authority.
func selfSigned(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}
