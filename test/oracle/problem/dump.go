package problem

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
)

// Dump writes the problem of a seed to folder: seed-<n>.yaml with its manifests, and
// seed-<n>.types.json with its instance types, in Karpenter's KWOK form.
func Dump(folder string, seed uint64, c *Problem) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var b bytes.Buffer
	o := &c.Objects
	w := &writer{b: &b}
	put(w, "v1", "Namespace", o.Namespaces)
	put(w, "karpenter.sh/v1", "NodePool", o.NodePools)
	put(w, "karpenter.sh/v1", "NodeClaim", o.NodeClaims)
	put(w, "v1", "Node", o.Nodes)
	put(w, storagev1.SchemeGroupVersion.String(), "CSINode", o.CSINodes)
	put(w, storagev1.SchemeGroupVersion.String(), "StorageClass", o.StorageClasses)
	put(w, "v1", "PersistentVolume", o.PersistentVolumes)
	put(w, "v1", "PersistentVolumeClaim", o.PersistentVolumeClaims)
	put(w, appsv1.SchemeGroupVersion.String(), "DaemonSet", o.DaemonSets)
	put(w, "v1", "Service", o.Services)
	put(w, "v1", "Pod", o.Pods)
	if w.err != nil {
		return fmt.Errorf("dump seed %d: %w", seed, w.err)
	}
	types, err := json.MarshalIndent(kwok(c.Types), "", " ")
	if err != nil {
		return err
	}
	base := filepath.Join(folder, fmt.Sprintf("seed-%d", seed))
	if err := os.WriteFile(base+".types.json", types, 0o644); err != nil {
		return err
	}
	return os.WriteFile(base+".yaml", b.Bytes(), 0o644)
}

type writer struct {
	b   *bytes.Buffer
	err error
}

// put writes objects as YAML documents. ReplicaSets are left out: a reader would expand
// them to pods once more.
func put[T metav1.Object](w *writer, version, kind string, list []T) {
	for _, o := range list {
		raw, err := json.Marshal(o)
		if err != nil {
			w.err = err
			return
		}
		m := map[string]any{}
		if err := json.Unmarshal(raw, &m); err != nil {
			w.err = err
			return
		}
		m["apiVersion"], m["kind"] = version, kind
		text, err := yaml.Marshal(m)
		if err != nil {
			w.err = err
			return
		}
		fmt.Fprintf(w.b, "---\n%s", text)
	}
}

// kwokType is an instance type of Karpenter's KWOK provider.
type kwokType struct {
	Name             string              `json:"name"`
	Offerings        []kwokOffering      `json:"offerings"`
	Architecture     string              `json:"architecture"`
	OperatingSystems []string            `json:"operatingSystems"`
	Resources        corev1.ResourceList `json:"resources"`
	// Allocatable, Requirements and AttachLimits go beyond that form.
	Allocatable  corev1.ResourceList              `json:"allocatable"`
	Requirements []corev1.NodeSelectorRequirement `json:"requirements"`
	AttachLimits map[string]int64                 `json:"attachLimits,omitempty"`
}

type kwokOffering struct {
	Price               float64                          `json:"Price"`
	Available           bool                             `json:"Available"`
	Requirements        []corev1.NodeSelectorRequirement `json:"Requirements"`
	ReservationCapacity int                              `json:"ReservationCapacity,omitempty"`
}

func kwok(types []catalog.InstanceType) []kwokType {
	var out []kwokType
	for i := range types {
		t := &types[i]
		k := kwokType{
			Name: t.Name, Architecture: t.Requirements.Get(corev1.LabelArchStable).Values()[0], OperatingSystems: t.Requirements.Get(corev1.LabelOSStable).Values(),
			Resources: t.Capacity.Quantities(), Allocatable: t.Allocatable.Quantities(), Requirements: t.Requirements.NodeSelectorRequirements(), AttachLimits: t.AttachLimits,
		}
		for j := range t.Offerings {
			f := &t.Offerings[j]
			at := requirements.NewSet(requirements.In(corev1.LabelTopologyZone, f.Zone), requirements.In("karpenter.sh/capacity-type", f.CapacityType))
			if f.ReservationID != "" {
				at.Add(requirements.In(catalog.ReservationIDLabel, f.ReservationID))
			}
			k.Offerings = append(k.Offerings, kwokOffering{Price: f.Price.Dollars(), Available: !f.Unavailable, Requirements: at.NodeSelectorRequirements(), ReservationCapacity: f.ReservationCapacity})
		}
		out = append(out, k)
	}
	return out
}
