package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/webhook"
)

// kubectl applies objects, and hears the API server's warnings as kubectl does.
type kubectl struct {
	*scene
	client   dynamic.Interface
	mu       sync.Mutex
	warnings []string
}

func (k *kubectl) HandleWarningHeader(_ int, _, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.warnings = append(k.warnings, text)
}

func newKubectl(s *scene) *kubectl {
	s.Helper()
	k := &kubectl{scene: s}
	config := s.cluster.RESTConfig()
	config.WarningHandler = k
	var err error
	if k.client, err = dynamic.NewForConfig(config); err != nil {
		s.Fatal(err)
	}
	return k
}

// apply is kubectl apply --server-side; it returns the warnings.
func (k *kubectl) apply(o client.Object, dryRun bool) ([]string, error) {
	k.Helper()
	gvr := karpv1.GroupVersion.WithResource("nodepools")
	if _, ok := o.(*v1alpha1.NodePolicy); ok {
		gvr = v1alpha1.GroupVersion.WithResource("nodepolicies")
	}
	body, err := json.Marshal(o)
	if err != nil {
		k.Fatal(err)
	}
	opts := metav1.PatchOptions{FieldManager: "kubectl", Force: new(true)}
	if dryRun {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	k.mu.Lock()
	k.warnings = nil
	k.mu.Unlock()
	_, err = k.client.Resource(gvr).Patch(k.ctx, o.GetName(), types.ApplyPatchType, body, opts)
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.warnings), err
}

// nodePool is what users write; change is made to it.
func (k *kubectl) nodePool(change ...func(*karpv1.NodePool)) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: k.name, Labels: map[string]string{"case": k.name}}}
	p.TypeMeta = metav1.TypeMeta{APIVersion: karpv1.GroupVersion.String(), Kind: "NodePool"}
	p.Spec.Template.Labels = map[string]string{"case": k.name}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "SimNodeClass", Name: k.name}
	p.Spec.Template.Spec.Requirements = []karpv1.Requirement{require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand")}
	p.SetDefaults()
	for _, f := range change {
		f(p)
	}
	return p
}

func (k *kubectl) nodePolicy(hook v1alpha1.Hook, rules string) *v1alpha1.NodePolicy {
	text := fmt.Sprintf("package dovetail.%s.%s\n\n%s\n", hook, strings.ReplaceAll(k.name, "-", "_"), rules)
	return &v1alpha1.NodePolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodePolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: k.name, Labels: map[string]string{"case": k.name}},
		Spec: v1alpha1.NodePolicySpec{
			Hook: hook, Runtime: v1alpha1.RuntimeRego, Source: v1alpha1.PolicySource{Inline: &text},
			NodePoolSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"case": k.name}},
			Timeout:          &metav1.Duration{Duration: 3 * time.Second}, // machines are slow at times
		},
	}
}

func owned(p *karpv1.NodePool) { p.Labels["owner"] = "shop" }

// configuration tells the API server to ask at a port about the case's objects.
func (s *scene) configuration(port int) *admissionregv1.ValidatingWebhookConfiguration {
	s.Helper()
	c := &admissionregv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{"case": s.name}}}
	for _, w := range []struct{ path, resource, group, version string }{
		{webhook.NodePoolsPath, "nodepools", karpv1.Group, "v1"},
		{webhook.NodePoliciesPath, "nodepolicies", v1alpha1.Group, "v1alpha1"},
	} {
		url := fmt.Sprintf("https://localhost:%d%s", port, w.path)
		c.Webhooks = append(c.Webhooks, admissionregv1.ValidatingWebhook{
			Name: w.resource + ".dovetail.sh", ClientConfig: admissionregv1.WebhookClientConfig{URL: &url},
			Rules: []admissionregv1.RuleWithOperations{{
				Operations: []admissionregv1.OperationType{admissionregv1.Create, admissionregv1.Update},
				Rule:       admissionregv1.Rule{APIGroups: []string{w.group}, APIVersions: []string{w.version}, Resources: []string{w.resource}},
			}},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"case": s.name}},
			FailurePolicy:  new(admissionregv1.Ignore), SideEffects: new(admissionregv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(5)),
		})
	}
	s.create(c)
	s.Cleanup(func() { _ = s.client.Delete(context.Background(), c) })
	return c
}

// webhookFlags have a controller serve the webhook of the case.
func (s *scene) webhookFlags(port int) []string {
	return []string{
		"--system-namespace", s.name, "--webhook-port", fmt.Sprint(port), "--webhook-service-name", "dovetail",
		"--webhook-secret-name", "certs", "--webhook-configuration-name", s.name,
	}
}

// refused waits until an object is refused with a text: until then, the API server may not
// reach the webhook, or the webhook not have seen what it judges by.
func (k *kubectl) refused(o client.Object, text string) {
	k.Helper()
	k.eventually("refused with "+text, func() error {
		switch _, err := k.apply(o, true); {
		case err == nil:
			return fmt.Errorf("it was allowed")
		case strings.Contains(err.Error(), text):
			return nil
		default:
			return err
		}
	})
}

const ownerRule = `deny contains {"code": "owner", "msg": "label owner is missing"} if not input.object.metadata.labels.owner

warn contains {"code": "limits", "msg": sprintf("there are no limits, %s", [input.user.name])} if not input.object.spec.limits`

func TestWebhook(t *testing.T) {
	s := alone(t)
	port := freePort(t)
	s.class()
	config := s.configuration(port)
	flags := append(slices.Clone(quick), s.webhookFlags(port)...)
	ctl := start(t, s.cluster, flags...)
	k := newKubectl(s)

	// A policy that does not compile is refused, with file and line.
	k.refused(k.nodePolicy("admit", "deny contains ]"), `NodePolicy "`+s.name+`": policy "`+s.name+`": policy.rego:3:`)
	if _, err := k.apply(k.nodePolicy("admit", "deny contains ]"), false); !apierrors.IsInvalid(err) {
		t.Errorf("a policy that does not compile: %v, want that it is invalid", err)
	}
	policy := k.nodePolicy("admit", ownerRule)
	if warnings, err := k.apply(policy, false); err != nil || len(warnings) > 0 {
		t.Fatalf("a good policy: %v, warnings %q", err, warnings)
	}

	// What policies deny is refused, in dry runs too, and warnings are shown.
	k.refused(k.nodePool(), "policy "+s.name+": owner: label owner is missing")
	if _, err := k.apply(k.nodePool(), false); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "nodepools.dovetail.sh") {
		t.Errorf("a NodePool without owner: %v, want that it is forbidden by the webhook", err)
	}
	if _, err := k.apply(k.nodePool(owned, func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, require("karpenter.sh/nothing", corev1.NodeSelectorOpExists))
	}), false); !apierrors.IsInvalid(err) {
		t.Errorf("an invalid NodePool: %v, want that it is invalid", err)
	}
	warned := func(warnings []string, text string) bool {
		return slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, text) })
	}
	for _, dryRun := range []bool{true, false} {
		warnings, err := k.apply(k.nodePool(owned), dryRun)
		if err != nil || !warned(warnings, "policy "+s.name+": limits: there are no limits, ") {
			t.Fatalf("dry run %t: %v, warnings %q, want one of the policy", dryRun, err, warnings)
		}
		err = s.client.Get(s.ctx, client.ObjectKey{Name: s.name}, &karpv1.NodePool{})
		if stored := err == nil; stored == dryRun {
			t.Errorf("dry run %t: stored %t (%v)", dryRun, stored, err)
		}
	}

	// A dry run says what a change would do.
	s.pods(1)
	s.run(1)
	labelled := k.nodePool(owned, func(p *karpv1.NodePool) { p.Spec.Template.Labels["more"] = "yes" })
	s.eventually("a dry run says that the node drifts", func() error {
		warnings, err := k.apply(labelled, true)
		if err != nil || !warned(warnings, "1 of 1 nodes drift and are replaced") {
			return fmt.Errorf("%v, warnings %q", err, warnings)
		}
		return nil
	})

	// What breaks the connection is repaired.
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "certs"}}
	for name, harm := range map[string]func(){
		"the Secret and the authority lost": func() { s.delete(secret); update(s, config, forget) },
		"garbage in the Secret": func() {
			update(s, secret, func(o *corev1.Secret) { o.Data = map[string][]byte{"tls.crt": []byte("x")} })
		},
	} {
		harm()
		s.eventually(name+" is repaired", func() error {
			if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
				return err
			}
			if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(config), config); err != nil {
				return err
			}
			for _, w := range config.Webhooks {
				if len(secret.Data["tls.key"]) == 0 || !bytes.Equal(w.ClientConfig.CABundle, secret.Data["ca.crt"]) {
					return fmt.Errorf("not yet")
				}
			}
			return nil
		})
		k.refused(k.nodePool(func(p *karpv1.NodePool) { p.Spec.Template.Labels["again"] = "yes" }), "label owner is missing")
	}

	// While the webhook is down, nobody is held up, and the controller catches up.
	ctl.stop()
	var stored karpv1.NodePool
	if err := s.client.Get(s.ctx, client.ObjectKey{Name: s.name}, &stored); err != nil {
		t.Fatal(err)
	}
	delete(stored.Labels, "owner")
	begin := time.Now()
	if err := s.client.Update(s.ctx, &stored); err != nil {
		t.Errorf("while the webhook is down: %v", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("a change while the webhook is down took %s", took)
	}
	broken := k.nodePolicy("launch", "deny contains ]")
	broken.Name += "-broken"
	if _, err := k.apply(broken, false); err != nil {
		t.Errorf("a policy while the webhook is down: %v", err)
	}
	start(t, s.cluster, flags...)
	s.condition(&stored, func() []metav1.Condition { return stored.Status.Conditions }, karpv1.ConditionPolicyAdmitted, metav1.ConditionFalse, "label owner is missing")
	var again v1alpha1.NodePolicy
	again.Name = broken.Name
	s.condition(&again, func() []metav1.Condition { return again.Status.Conditions }, v1alpha1.ConditionReady, metav1.ConditionFalse, "")
	s.delete(&again)
	// What was denied while nobody looked can still be changed for the better.
	if _, err := k.apply(k.nodePool(owned), false); err != nil {
		t.Errorf("mending a NodePool that is denied: %v", err)
	}
	s.condition(&stored, func() []metav1.Condition { return stored.Status.Conditions }, karpv1.ConditionPolicyAdmitted, metav1.ConditionTrue, "")
}

func forget(c *admissionregv1.ValidatingWebhookConfiguration) {
	for i := range c.Webhooks {
		c.Webhooks[i].ClientConfig.CABundle = nil
	}
}

// TestWebhookOfStandby asks a replica that does not lead.
func TestWebhookOfStandby(t *testing.T) {
	s := alone(t)
	s.class()
	ports := []int{freePort(t), freePort(t)}
	s.configuration(ports[1])
	flags := slices.DeleteFunc(slices.Clone(quick), func(f string) bool { return f == "--disable-leader-election" })
	start(t, s.cluster, append(slices.Clone(flags), s.webhookFlags(ports[0])...)...)
	lease := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	k := newKubectl(s)
	holder := func() string {
		l, err := k.client.Resource(lease).Namespace(s.name).Get(s.ctx, "karpenter-leader-election", metav1.GetOptions{})
		if err != nil {
			return ""
		}
		spec, _ := l.Object["spec"].(map[string]any)
		return fmt.Sprint(spec["holderIdentity"])
	}
	s.eventually("the first leads", func() error {
		if holder() == "" {
			return fmt.Errorf("nobody leads")
		}
		return nil
	})
	leader := holder()
	start(t, s.cluster, append(slices.Clone(flags), s.webhookFlags(ports[1])...)...)
	k.refused(k.nodePolicy("admit", "deny contains ]"), "policy.rego:3:")
	if _, err := k.apply(k.nodePolicy("admit", ownerRule), false); err != nil {
		t.Fatal(err)
	}
	k.refused(k.nodePool(), "policy "+s.name+": owner: label owner is missing")
	if now := holder(); now != leader {
		t.Errorf("the lease went from %q to %q: the one that was asked leads", leader, now)
	}
}
