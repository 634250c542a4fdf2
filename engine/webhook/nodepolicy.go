package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
)

// nodePolicy judges a NodePolicy that is created or changed.
func (w *Webhook) nodePolicy(ctx context.Context, req *admission.Request) (answer, error) {
	var a answer
	var np v1alpha1.NodePolicy
	if err := json.Unmarshal(req.Object.Raw, &np); err != nil {
		return a, fmt.Errorf("the object cannot be read: %w", err)
	}
	if req.Operation == admissionv1.Update {
		var old v1alpha1.NodePolicy
		if err := json.Unmarshal(req.OldObject.Raw, &old); err != nil {
			return a, fmt.Errorf("the old object cannot be read: %w", err)
		}
		if reflect.DeepEqual(np.Spec, old.Spec) {
			return a, nil
		}
	}
	if np.DeletionTimestamp != nil {
		return a, nil
	}
	if np.Name == "" { // generateName: the API server names it later
		np.Name = np.GenerateName + "x"
	}
	err := w.usable(ctx, &np, &a)
	switch {
	case err == nil:
	case np.Spec.Mode == v1alpha1.ModeDisabled:
		// A policy that has come to be broken can be switched off.
		a.warn("the policy cannot be used, which does not matter while its mode is Disabled: %v", err)
	default:
		a.deny, a.invalid = append(a.deny, err.Error()), true
	}
	return a, nil
}

// usable compiles a policy whose files are at hand, and checks the form of others. What is
// not the policy's own fault becomes a warning.
func (w *Webhook) usable(ctx context.Context, np *v1alpha1.NodePolicy, a *answer) error {
	if err := np.RuntimeValidate(); err != nil {
		return err
	}
	src, err := w.opts.Open(np)
	if err != nil {
		return err
	}
	if s := &np.Spec.Source; s.Inline == nil && s.ConfigMapRef == nil {
		return nil // its files are looked at where and when they are fetched
	}
	ctx, cancel := context.WithTimeout(ctx, w.opts.CompileTime)
	defer cancel()
	select {
	case w.compiles <- struct{}{}:
	case <-ctx.Done():
		a.warn("the policy was not compiled: others are being compiled; its status will say how it fares")
		return nil
	}
	type outcome struct{ fetch, load error }
	got := make(chan outcome, 1)
	go func() {
		defer func() { <-w.compiles }()
		var o outcome
		defer func() {
			if r := recover(); r != nil {
				o = outcome{fetch: fmt.Errorf("panic: %v", r)}
			}
			got <- o
		}()
		artifact, err := src.Fetch(ctx)
		if err != nil {
			o.fetch = err
			return
		}
		_, o.load = w.opts.Loader.Load(ctx, np, artifact)
	}()
	select {
	case o := <-got:
		switch {
		case o.fetch != nil:
			a.warn("the policy was not compiled, and takes no force before it is: %v", o.fetch)
		case errors.Is(o.load, context.DeadlineExceeded), errors.Is(o.load, context.Canceled):
			a.warn("the policy was not compiled within %s; its status will say how it fares", w.opts.CompileTime)
		default:
			return o.load
		}
	case <-ctx.Done():
		a.warn("the policy was not compiled within %s; its status will say how it fares", w.opts.CompileTime)
	}
	return nil
}
