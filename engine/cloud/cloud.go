// Package cloud is the port through which controllers reach what sells machines. A
// provider implements [Provider], and the capabilities of capability.go as far as it has
// them; conformance is the test every provider passes.
package cloud

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// Provider sells machines for NodeClaims. Methods may be called at the same time, and
// every call may be repeated: controllers start again at any point.
type Provider interface {
	// Name is a label value of metrics, such as "sim".
	Name() string
	// NodeClasses are the kinds of NodeClass whose NodePools and NodeClaims belong to
	// this provider; the first is the default.
	NodeClasses() []schema.GroupVersionKind
	// Launch starts exactly one machine that meets the claim's requirements and holds
	// its requests. A second call for the same claim UID returns the machine of the
	// first, also from another process. The offerings of [Preferred] come first, in their
	// order, then others that fit, cheapest first; one that is out of capacity is passed
	// over, and left out of Catalog's available offerings for a while. Errors:
	// [InsufficientCapacityError] if none is left, [NodeClassNotReadyError],
	// [CreateError]; any other is retried.
	Launch(ctx context.Context, claim *karpv1.NodeClaim) (*Machine, error)
	// Terminate starts or confirms the end of the claim's machine. Nil means that it is
	// under way; a [NotFoundError] that the machine is gone.
	Terminate(ctx context.Context, claim *karpv1.NodeClaim) error
	// Get returns a machine by provider ID, or a [NotFoundError].
	Get(ctx context.Context, providerID string) (*Machine, error)
	// List returns all machines of this cluster, those that are ending included.
	List(ctx context.Context) ([]*Machine, error)
	// Catalog returns what a NodePool may buy of its NodeClass, unavailable offerings
	// included. It is called for every plan: the same pointer means that nothing changed.
	// A [NodeClassNotReadyError] means that the class is missing or cannot be used.
	Catalog(ctx context.Context, pool *karpv1.NodePool) (*catalog.Catalog, error)
	// Drift returns why a launched claim's machine is no longer what its NodeClass asks
	// for; empty if it is.
	Drift(ctx context.Context, claim *karpv1.NodeClaim) (string, error)
}

// Machine is what a provider tells of a machine.
type Machine struct {
	ProviderID string
	ImageID    string
	// ClaimName and ClaimUID are those of the NodeClaim that the machine was launched
	// for; empty if the provider does not know.
	ClaimName, ClaimUID string
	// Labels name the machine's instance type, zone, capacity type and whatever else its
	// Node will be labelled with. The NodeClaim gets those that it does not have yet.
	Labels      map[string]string
	Annotations map[string]string
	// Capacity and Allocatable are estimates until the Node reports its own.
	Capacity, Allocatable corev1.ResourceList
	// Created is when the machine was launched.
	Created time.Time
	// Ending is true from the moment on at which termination began.
	Ending bool
}
