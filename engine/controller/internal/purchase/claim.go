// Package purchase makes NodeClaims of planned nodes, and creates them: that a pod waits or
// that a node is replaced makes no difference to what is bought.
package purchase

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud/order"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Claim is the NodeClaim for a planned node, as package order makes it, under a new name.
func Claim(pool *karpv1.NodePool, n *schedule.NewNode, allowed requirements.Set, offers []schedule.Offer, pod func(snapshot.PodKey) *corev1.Pod) *karpv1.NodeClaim {
	return order.Claim(pool, Name(pool.Name), n, allowed, offers, pod)
}

// Name is the pool's name and five random letters, as the API server would make it.
// It is made here so that a creation whose answer was lost can be repeated.
func Name(pool string) string {
	const letters = 5
	return pool[:min(len(pool), 63-1-letters)] + "-" + rand.String(letters)
}

// Create creates a claim. After an error that leaves open whether it was created, the same
// name is tried again: finding it there means that it was. A name that somebody else has is
// changed. The claim is then as it is stored.
func Create(ctx context.Context, to client.Client, claim *karpv1.NodeClaim) error {
	maybe := false
	err := wait.ExponentialBackoffWithContext(ctx, wait.Backoff{Duration: 50 * time.Millisecond, Factor: 3, Jitter: 0.2, Steps: 5}, func(ctx context.Context) (bool, error) {
		created := claim.DeepCopy()
		err := to.Create(ctx, created)
		switch {
		case err == nil:
			*claim = *created
			return true, nil
		case apierrors.IsAlreadyExists(err) && maybe:
			return true, to.Get(ctx, client.ObjectKeyFromObject(claim), claim)
		case apierrors.IsAlreadyExists(err):
			claim.Name = Name(claim.Labels[karpv1.NodePoolLabelKey])
			return false, nil
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
			return false, err
		}
		maybe = true
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("NodeClaim %s: %w", claim.Name, err)
	}
	return nil
}
