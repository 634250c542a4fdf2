package stage_test

import (
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/stage"
	"github.com/dovetail-sh/dovetail/engine/controller/nodeclaim"
	"github.com/dovetail-sh/dovetail/engine/controller/repair"
	"github.com/dovetail-sh/dovetail/engine/controller/terminate"
)

// TestRegister adds all controllers to one manager: neither their names nor the fields
// that they index may collide.
func TestRegister(t *testing.T) {
	s := stage.New(t)
	s.Cloud.Policies = []cloud.RepairPolicy{{Condition: corev1.NodeReady, Status: corev1.ConditionFalse}}
	scheme := runtime.NewScheme()
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme, resourcev1.AddToScheme, karpv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for kind, scope := range map[schema.GroupVersionKind]meta.RESTScope{
		corev1.SchemeGroupVersion.WithKind("Node"):                meta.RESTScopeRoot,
		corev1.SchemeGroupVersion.WithKind("Pod"):                 meta.RESTScopeNamespace,
		storagev1.SchemeGroupVersion.WithKind("VolumeAttachment"): meta.RESTScopeRoot,
		resourcev1.SchemeGroupVersion.WithKind("ResourceSlice"):   meta.RESTScopeRoot,
		karpv1.GroupVersion.WithKind("NodeClaim"):                 meta.RESTScopeRoot,
	} {
		mapper.Add(kind, scope)
	}
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, manager.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := repair.New(repair.Options{Client: mgr.GetClient(), Provider: s.Cloud})
	if err != nil {
		t.Fatal(err)
	}
	for name, register := range map[string]func(manager.Manager) error{
		"nodeclaim": nodeclaim.New(nodeclaim.Options{Client: mgr.GetClient(), Provider: s.Cloud, DeviceDrivers: true}).Register,
		"terminate": terminate.New(terminate.Options{Client: mgr.GetClient(), Provider: s.Cloud}).Register,
		"repair":    r.Register,
	} {
		if err := register(mgr); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
