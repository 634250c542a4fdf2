package chart_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/test/cluster"
)

var update = flag.Bool("update", false, "write the rights into README.md")

// account is the controller's, in releases with the name dovetail.
const account = "system:serviceaccount:" + namespace + ":dovetail"

// right is something that may be asked of the API server.
type right struct {
	// namespace is empty for the whole cluster.
	namespace, verb, group, resource string
}

func (r right) String() string {
	where := "the cluster"
	if r.namespace != "" {
		where = r.namespace
	}
	return fmt.Sprintf("%s %s.%s in %s", r.verb, r.resource, r.group, where)
}

// granted are the rights of an account, from the roles that are bound to it.
func granted(t *testing.T, account string) map[right]bool {
	t.Helper()
	out := map[right]bool{}
	add := func(namespace string, rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						out[right{namespace, verb, group, resource}] = true
					}
				}
			}
		}
	}
	bound := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return s.Kind == "ServiceAccount" && "system:serviceaccount:"+s.Namespace+":"+s.Name == account
		})
	}
	for _, b := range list(t, &rbacv1.ClusterRoleBindingList{}).Items {
		if !bound(b.Subjects) {
			continue
		}
		var role rbacv1.ClusterRole
		if err := world.client.Get(t.Context(), client.ObjectKey{Name: b.RoleRef.Name}, &role); err != nil {
			t.Fatal(err)
		}
		add("", role.Rules)
	}
	for _, b := range list(t, &rbacv1.RoleBindingList{}).Items {
		if !bound(b.Subjects) {
			continue
		}
		var role rbacv1.Role
		if err := world.client.Get(t.Context(), client.ObjectKey{Namespace: b.Namespace, Name: b.RoleRef.Name}, &role); err != nil {
			t.Fatal(err)
		}
		add(b.Namespace, role.Rules)
	}
	return out
}

// request is one of the audit log.
type request struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource    string `json:"resource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"responseStatus"`
}

// requests are those of an account so far.
func requests(t *testing.T, log, account string) []request {
	t.Helper()
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			continue // the line that is being written
		}
		if r.User.Username == account && r.ObjectRef != nil && r.ObjectRef.Resource != "" {
			out = append(out, r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// unseen are rights that are needed where this test does not come.
var unseen = map[right]bool{
	// The API server looks them up itself, on clusters that enforce the permissions of owner
	// references.
	{"", "update", "karpenter.sh", "nodepools/finalizers"}:  true,
	{"", "update", "karpenter.sh", "nodeclaims/finalizers"}: true,
	// An event that happens again is counted up, after minutes.
	{"", "patch", "", "events"}: true,
}

// checkRights holds the rights of the controller against what it asked for: nothing was
// forbidden, and nothing is granted in vain.
func checkRights(t *testing.T, all []request, rights map[right]bool) {
	t.Helper()
	left := maps.Clone(rights)
	maps.DeleteFunc(left, func(r right, _ bool) bool { return unseen[r] })
	forbidden := map[string]bool{}
	for _, r := range all {
		o := r.ObjectRef
		resource := o.Resource
		if o.Subresource != "" {
			resource += "/" + o.Subresource
		}
		asked := right{o.Namespace, r.Verb, o.APIGroup, resource}
		if r.ResponseStatus != nil && r.ResponseStatus.Code == 403 {
			forbidden[fmt.Sprintf("%s (%s): %s", asked, o.Name, r.ResponseStatus.Message)] = true
			continue
		}
		if !rights[asked] {
			asked.namespace = ""
		}
		delete(left, asked)
		if asked.verb == "watch" {
			// Where an API server is older, what is watched is listed first.
			delete(left, right{asked.namespace, "list", asked.group, asked.resource})
		}
	}
	for _, text := range slices.Sorted(maps.Keys(forbidden)) {
		t.Errorf("a right is missing: %s", text)
	}
	var vain []string
	for r := range left {
		vain = append(vain, r.String())
	}
	slices.Sort(vain)
	for _, text := range vain {
		t.Errorf("a right was never used: %s", text)
	}
}

// listed is what `kubectl auth can-i --list` says an account may do in a namespace, one
// line for each resource, without what every account may.
func listed(t *testing.T, c *cluster.Cluster, namespace, account string) []string {
	t.Helper()
	rules := func(account string) map[string]map[string]bool {
		config := c.RESTConfig()
		config.Impersonate = rest.ImpersonationConfig{UserName: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}}
		clients, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		review, err := clients.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]map[string]bool{}
		for _, r := range review.Status.ResourceRules {
			names := r.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, name := range names {
						id := resource
						if group != "" {
							base, sub, ok := strings.Cut(resource, "/")
							id = base + "." + group
							if ok {
								id += "/" + sub
							}
						}
						if name != "" {
							id += " [" + name + "]"
						}
						if out[id] == nil {
							out[id] = map[string]bool{}
						}
						for _, verb := range r.Verbs {
							out[id][verb] = true
						}
					}
				}
			}
		}
		return out
	}
	everybody := rules("system:serviceaccount:" + namespace + ":nobody")
	var out []string
	for id, verbs := range rules(account) {
		if everybody[id] == nil {
			out = append(out, fmt.Sprintf("%-62s %s", id, strings.Join(slices.Sorted(maps.Keys(verbs)), " ")))
		}
	}
	slices.Sort(out)
	return out
}

// checkDocumented holds README.md to what the controller may do.
func checkDocumented(t *testing.T, have []string) {
	t.Helper()
	path := filepath.Join(chart, "README.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- rights -->\n```\n", "```\n<!-- /rights -->\n"
	head, rest, ok := strings.Cut(string(text), begin)
	want, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("README.md has no %s...%s", begin, end)
	}
	got := strings.Join(have, "\n") + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(head+begin+got+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights in README.md, see go test -update (-want +got):\n%s", diff)
	}
}

// machineClass is a kind of NodeClass of some other cloud.
const machineClass = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: machineclasses.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {kind: MachineClass, plural: machineclasses, singular: machineclass}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// everythingOn are values that make the controller use all its rights.
const everythingOn = `
settings: {featureGates: {staticCapacity: true, nodeRepair: true, nodeOverlay: true}}
sim: {standIns: [{group: example.com, version: v1, kind: MachineClass, plural: machineclasses}]}
policyAccess: {configMapNamespaces: [rules], secrets: [{name: pull}]}
userPolicies:
  from-configmap: {hook: score, runtime: rego, source: {configMapRef: {namespace: rules, name: mine, key: mine.rego}}}
  from-namespace: {hook: score, runtime: rego, source: {configMapRef: {namespace: dovetail, name: mine, key: mine.rego}}}
`

const myPolicy = `package dovetail.score.mine

bias contains {"i": i, "microUSD": 1} if some i, c in input.candidates
`

// remotePolicy is in a registry that is not there. It is no value of the chart, since
// Helm waits until policies are ready.
const remotePolicy = `
apiVersion: dovetail.sh/v1alpha1
kind: NodePolicy
metadata: {name: from-registry}
spec: {hook: score, runtime: rego, source: {oci: {ref: "127.0.0.1:1/policy@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", pullSecretRef: {namespace: dovetail, name: pull}}}}
---
`

// work are pools and pods of which something becomes due that is done with each right.
const work = `
apiVersion: dovetail.sh/v1alpha1
kind: SimNodeClass
metadata: {name: work}
spec: {instanceTypes: ["m6a.*", "c6a.*"]}
---
apiVersion: example.com/v1
kind: MachineClass
metadata: {name: other}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: work}
spec:
  template:
    spec:
      nodeClassRef: {group: dovetail.sh, kind: SimNodeClass, name: work}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
      terminationGracePeriod: 3s
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: fixed}
spec:
  replicas: 1
  template:
    spec:
      nodeClassRef: {group: example.com, kind: MachineClass, name: other}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
      taints: [{key: fixed, effect: NoSchedule}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: default}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: stuck, namespace: default}
spec: {maxUnavailable: 0, selector: {matchLabels: {app: stuck}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {karpenter.sh/nodepool: work}
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: example.com/pause, resources: {requests: {cpu: "1", memory: 1Gi}}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: stuck, namespace: default}
spec:
  replicas: 1
  selector: {matchLabels: {app: stuck}}
  template:
    metadata: {labels: {app: stuck}}
    spec:
      nodeSelector: {karpenter.sh/nodepool: work}
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: example.com/pause, resources: {requests: {cpu: "1", memory: 1Gi}}}]
`

// useEverything installs the chart with everything switched on, has the controller buy,
// drain and end nodes, and looks at what it asked the API server for.
func useEverything(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	kubectl(t, c, machineClass, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Established", "crd/machineclasses.example.com", "--timeout=60s")
	kubectl(t, c, "", "create", "namespace", "rules")
	for _, ns := range []string{"rules", namespace} {
		kubectl(t, c, "", "create", "configmap", "mine", "-n", ns, "--from-literal=mine.rego="+myPolicy)
	}
	kubectl(t, c, "", "create", "secret", "docker-registry", "pull", "-n", namespace, "--docker-server=127.0.0.1:1", "--docker-username=u", "--docker-password=p")
	// The first to come makes the Lease. Helm takes rights and processes away at once, so that
	// nobody gave back the one that is left.
	kubectl(t, c, "", "delete", "lease", "--all", "-n", namespace)
	before := len(requests(t, auditLog, account))
	install(t, c, everythingOn)
	kubectl(t, c, remotePolicy+work, "apply", "-f", "-")

	running := func(app string, n int) []string {
		var nodes []string
		eventually(t, fmt.Sprintf("%d pods of %s run", n, app), func() error {
			nodes = nil
			for _, p := range list(t, &corev1.PodList{}, client.InNamespace("default"), client.MatchingLabels{"app": app}).Items {
				if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
					nodes = append(nodes, p.Spec.NodeName)
				}
			}
			if len(nodes) != n {
				return fmt.Errorf("on %v", nodes)
			}
			return nil
		})
		return nodes
	}
	running("web", 3)
	doomed := running("stuck", 1)[0]
	eventually(t, "the fixed pool has its node", func() error {
		if out := kubectl(t, c, "", "get", "nodes", "-l", "karpenter.sh/nodepool=fixed", "-o", "name"); out == "" {
			return fmt.Errorf("no node: %s", kubectl(t, c, "", "get", "nodepool", "fixed", "-o", "jsonpath={.status.conditions}"))
		}
		return nil
	})
	// The node with all pods goes: the budget of one lets its pods go one at a time, and the
	// other's does not let its pod go until the claim's time is over.
	kubectl(t, c, "", "delete", "node", doomed, "--wait=false")
	// Those that another release left go with their pool.
	kubectl(t, c, "", "delete", "nodepool", "default", "--wait=false")
	eventually(t, "the nodes are gone", func() error {
		out := kubectl(t, c, "", "get", "node", doomed, "--ignore-not-found", "-o", "name") + kubectl(t, c, "", "get", "nodes", "-l", "karpenter.sh/nodepool=default", "-o", "name")
		if out != "" {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	running("web", 3)
	// A claim that is deleted takes its node with it.
	moved := running("stuck", 1)[0]
	kubectl(t, c, "", "delete", "nodeclaim", moved)
	running("stuck", 1)
	running("web", 3)
	eventually(t, "policies are ready", func() error {
		out := kubectl(t, c, "", "get", "nodepolicies", "-o", `jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}`)
		for item := range strings.FieldsSeq(out) {
			if !strings.HasSuffix(item, "=True") && item != "from-registry=False" {
				return fmt.Errorf("%s", out)
			}
		}
		return nil
	})
	rights := granted(t, account)
	if len(rights) < 50 {
		t.Errorf("only %d rights are granted", len(rights))
	}
	// What is done from time to time is waited for.
	var last []request
	eventually(t, "the Lease is renewed", func() error {
		last = requests(t, auditLog, account)[before:]
		if !slices.ContainsFunc(last, func(r request) bool { return r.Verb == "update" && r.ObjectRef.Resource == "leases" }) {
			return fmt.Errorf("%d requests", len(last))
		}
		return nil
	})
	checkRights(t, last, rights)
}

// restricted makes the namespace of releases, with the strictest profile of Pod Security.
func restricted(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	kubectl(t, c, `{apiVersion: v1, kind: Namespace, metadata: {name: `+namespace+`, labels: {pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/enforce-version: latest}}}`, "apply", "-f", "-")
	eventually(t, "the namespace has its ServiceAccount", func() error {
		return world.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{})
	})
}
