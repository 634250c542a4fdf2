package main

import (
	"context"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/observe"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
	"github.com/dovetail-sh/dovetail/engine/policy/set"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
	"github.com/dovetail-sh/dovetail/engine/policy/source/remote"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
)

// inForce are the policies in force in a controller.
type inForce struct {
	engine   *policy.Engine
	set      *set.Set
	loader   *set.Loader
	open     func(*v1alpha1.NodePolicy) (source.Source, error)
	activity *set.Activity
	// changed names policies whose status has changed.
	changed chan string
}

// addPolicies makes the engine, and the set that keeps it as NodePolicies say.
func (a *assembly) addPolicies() error {
	log := ctrl.Log.WithName("policy")
	p := &inForce{activity: &set.Activity{}, changed: make(chan string, 256)}
	told, err := a.decisions()
	if err != nil {
		return exit{2, err}
	}
	p.engine = policy.NewEngine(policy.Options{OnDecision: func(r policy.Record, in any) {
		p.activity.Observe(r, in)
		measureDecision(a.metrics, r)
		if told != nil {
			told(r, in)
		}
	}})
	wasmHost, err := newWasmHost()
	if err != nil {
		// Rego policies and the rest need no host.
		log.Error(err, "Wasm policies cannot run")
	}
	objects := clusterObjects{a.mgr.GetAPIReader()}
	p.loader = &set.Loader{Compilers: compilers(wasmHost)}
	p.open = source.Opener{Objects: objects, Remote: remote.Options{Objects: objects}.Open}.Open
	p.set = set.New(set.Options{
		Engine:   p.engine,
		Loader:   p.loader,
		Open:     p.open,
		Folder:   a.settings.policyDir,
		CacheDir: a.settings.policyCache,
		Activity: p.activity,
		Changed: func(name string) {
			select {
			case p.changed <- name:
			default: // the controller looks at all of them from time to time
			}
		},
	})
	a.inForce = p
	return a.mgr.Add(everywhere(p.set.Run))
}

// decisions is where decision records go; nil is nowhere.
func (a *assembly) decisions() (func(policy.Record, any), error) {
	var w io.Writer
	switch a.settings.decisionLog {
	case "":
		return nil, nil
	case "-":
		w = os.Stdout
	default:
		f, err := os.OpenFile(a.settings.decisionLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("--decision-log: %w", err)
		}
		w = f
	}
	return policy.NewLog(w, func(err error) { ctrl.Log.WithName("policy").Error(err, "writing the decision log failed") }), nil
}

func measureDecision(m *observe.Metrics, r policy.Record) {
	for i := range r.Policies {
		p := &r.Policies[i]
		m.PolicyDecisions.WithLabelValues(string(r.Hook), p.Name, string(p.Mode), p.Verdict).Inc()
		if !p.Cached {
			m.PolicyDuration.WithLabelValues(string(r.Hook), p.Name).Observe(float64(p.Micros) / 1e6)
		}
		if p.Error != "" {
			m.PolicyErrors.WithLabelValues(string(r.Hook), p.Name, string(p.ErrorClass)).Inc()
		}
	}
}

// compilers are the runtimes of policies. A nil host refuses modules.
func compilers(host *wasm.Host) map[v1alpha1.Runtime]set.Compiler {
	return map[v1alpha1.Runtime]set.Compiler{
		v1alpha1.RuntimeRego: func(ctx context.Context, p set.Program) (policy.Evaluator, error) {
			files := map[string]string{}
			for name, b := range p.Files {
				files[name] = string(b)
			}
			m, err := rego.Load(ctx, rego.Source{Name: p.Name, Hook: p.Hook, Files: files, Data: p.Data, Parameters: p.Parameters, Limits: p.Limits})
			if err != nil {
				return nil, err // a nil *rego.Module in an interface is not nil
			}
			return m, nil
		},
		v1alpha1.RuntimeWasm: func(ctx context.Context, p set.Program) (policy.Evaluator, error) {
			if host == nil {
				return nil, fmt.Errorf("this controller cannot run Wasm policies; its log says why")
			}
			for _, b := range p.Files {
				m, err := host.LoadPolicy(ctx, wasm.Source{Name: p.Name, Hook: p.Hook, Wasm: b, Parameters: p.Parameters, Limits: p.Limits})
				if err != nil {
					return nil, err
				}
				return m, nil
			}
			return nil, fmt.Errorf("policy %s has no module", p.Name)
		},
	}
}

// clusterObjects reads what NodePolicies refer to, without a cache: the controller needs
// no right to list or watch ConfigMaps and Secrets.
type clusterObjects struct{ reader client.Reader }

func (c clusterObjects) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	var o corev1.ConfigMap
	return &o, c.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &o)
}

func (c clusterObjects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	var o corev1.Secret
	return &o, c.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &o)
}
