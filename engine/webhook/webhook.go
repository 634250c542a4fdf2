package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
)

// Paths that are served.
const (
	NodePoolsPath    = "/validate/nodepools"
	NodePoliciesPath = "/validate/nodepolicies"
)

// Moment is the cluster at one moment. Nothing in it is changed.
type Moment struct {
	Snapshot *snapshot.Snapshot
	// Objects are what Snapshot was made from.
	Objects snapshot.Objects
	// Catalogs are what NodePools may buy, by name, before NodeOverlays.
	Catalogs map[string]*catalog.Catalog
}

// Loader compiles policies; *set.Loader of engine/policy/set fits.
type Loader interface {
	Load(context.Context, *v1alpha1.NodePolicy, source.Artifact) (policy.Policy, error)
}

// Options tune a [Webhook]. Moment, Policies, Loader and Open are required.
type Options struct {
	// Namespace is the controller's: requests of its ServiceAccounts are never refused.
	Namespace string
	// Moment returns the cluster as it is now.
	Moment func(context.Context) (Moment, error)
	// Catalog returns what a NodePool may buy that is not stored yet, or whose NodeClass is
	// another now. Nil knows none.
	Catalog func(context.Context, *karpv1.NodePool) (*catalog.Catalog, error)
	// Solve are the options of plans. The zero value is ready to use.
	Solve schedule.Options
	// Policies are asked whether a NodePool is acceptable.
	Policies *policy.Engine
	// Facts are what policies are told besides the state. Defaults to none.
	Facts func() policy.Facts
	// Loader and Open compile NodePolicies.
	Loader Loader
	Open   func(*v1alpha1.NodePolicy) (source.Source, error)
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// MomentTime is how long a request waits for the state as it is now, before an earlier
	// one is taken, and for a catalogue. Defaults to 15 ms.
	MomentTime time.Duration
	// ImpactTime is how long a request waits for what a change would do to running nodes.
	// Defaults to 30 ms.
	ImpactTime time.Duration
	// CompileTime is how long a request waits for a policy to be compiled. Defaults to 3 s.
	CompileTime time.Duration
	// RefreshEvery is how often the state is looked at while nobody asks, so that it is at
	// hand. Defaults to 30 s.
	RefreshEvery time.Duration
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Facts == nil {
		o.Facts = func() policy.Facts { return policy.Facts{} }
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&o.MomentTime, 15 * time.Millisecond}, {&o.ImpactTime, 30 * time.Millisecond}, {&o.CompileTime, 3 * time.Second}, {&o.RefreshEvery, 30 * time.Second}} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	return o
}

// Webhook answers admission requests. Its methods may be called at the same time.
type Webhook struct {
	opts    Options
	inputs  policy.Inputs
	moments moments
	// impacts and compiles bound what goes on at the same time, also of requests that did
	// not wait for it.
	impacts, compiles chan struct{}
}

// New returns a webhook.
func New(opts Options) *Webhook {
	opts = opts.withDefaults()
	return &Webhook{opts: opts, moments: moments{get: opts.Moment}, impacts: make(chan struct{}, 2), compiles: make(chan struct{}, 2)}
}

// Handlers are the answers by path.
func (w *Webhook) Handlers() map[string]admission.Handler {
	return map[string]admission.Handler{
		NodePoolsPath:    w.guarded("NodePool", karpv1.Group, "nodepools", w.nodePool),
		NodePoliciesPath: w.guarded("NodePolicy", v1alpha1.Group, "nodepolicies", w.nodePolicy),
	}
}

// Serve adds a server for the webhook to mgr, on all replicas, with the certificates of
// certs, which it adds too. The replica is ready once it has one.
func (w *Webhook) Serve(mgr manager.Manager, port int, certs *Certificates) error {
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{Port: port, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
		c.MinVersion, c.GetCertificate = tls.VersionTLS12, certs.Get
	}}})
	for path, h := range w.Handlers() {
		server.Register(path, &admission.Webhook{Handler: h})
	}
	return errors.Join(mgr.Add(server), mgr.Add(certs), mgr.Add(everywhere(w.refresh)),
		mgr.AddReadyzCheck("webhook", func(r *http.Request) error {
			if err := server.StartedChecker()(r); err != nil && certs.Ready() == nil {
				return err
			}
			return certs.Ready()
		}))
}

// everywhere runs on all replicas, whoever leads.
type everywhere func(context.Context) error

func (f everywhere) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// answer is what the webhook says of a request.
type answer struct {
	// deny are the causes to refuse the request; none lets it pass.
	deny []string
	// invalid says that the object itself is at fault, not who asks or when.
	invalid  bool
	warnings []string
}

func (a *answer) warn(format string, args ...any) {
	a.warnings = append(a.warnings, fmt.Sprintf(format, args...))
}

// guarded lets everything pass that the webhook must not stand in the way of, faults of its
// own included.
func (w *Webhook) guarded(kind, group, resource string, handle func(context.Context, *admission.Request) (answer, error)) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) (resp admission.Response) {
		log := ctrl.LoggerFrom(ctx)
		defer func() {
			if r := recover(); r != nil {
				log.Error(fmt.Errorf("panic: %v", r), "an admission request was not judged", "stack", string(debug.Stack()))
				resp = admission.Allowed("").WithWarnings(fmt.Sprintf("the %s was not checked: a fault of the webhook, which its log has", kind))
			}
		}()
		if req.Resource.Group != group || req.Resource.Resource != resource || req.SubResource != "" ||
			req.Operation != admissionv1.Create && req.Operation != admissionv1.Update {
			return admission.Allowed("")
		}
		a, err := handle(ctx, &req)
		if err != nil {
			// The API server has checked the object against its schema. If it cannot be read
			// here, the schema is of another version.
			log.Error(err, "an admission request was not judged")
			return admission.Allowed("").WithWarnings(fmt.Sprintf("the %s was not checked: %v", kind, err))
		}
		if len(a.deny) > 0 && w.own(&req) {
			for _, text := range a.deny {
				a.warn("not refused, since it comes from the controller's namespace: %s", text)
			}
			a.deny = nil
		}
		if len(a.deny) == 0 {
			return admission.Allowed("").WithWarnings(a.warnings...)
		}
		log.Info("refused", "kind", kind, "causes", a.deny)
		return refuse(fmt.Sprintf("%s %q: ", kind, req.Name), a)
	})
}

// refuse is the response to a request that is denied.
func refuse(about string, a answer) admission.Response {
	text := about
	for i, cause := range a.deny {
		if i > 0 {
			text += "; "
		}
		text += cause
	}
	resp := admission.Denied(text)
	if a.invalid {
		resp.Result.Code, resp.Result.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
	}
	// The API server shows the message of a result, and takes its reason as it is.
	resp.Result.Message = text
	return resp.WithWarnings(a.warnings...)
}

// own reports whether a request comes from a ServiceAccount of the controller's namespace.
func (w *Webhook) own(req *admission.Request) bool {
	return w.opts.Namespace != "" && slices.Contains(req.UserInfo.Groups, "system:serviceaccounts:"+w.opts.Namespace)
}
