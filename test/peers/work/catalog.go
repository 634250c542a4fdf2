package work

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// ReadCatalog reads the instance types of a JSON document of schema aws-catalog/v1.
// Types without a price are left out; each of the others has one on-demand offering
// per zone.
func ReadCatalog(in io.Reader) ([]*catalog.InstanceType, error) {
	var doc struct {
		Schema        string
		InstanceTypes []struct {
			Name, Family, Category, Size, Arch string
			Generation                         int
			VCPU                               int
			OS                                 []string
			Capacity, Allocatable              corev1.ResourceList
			OnDemandUSD                        *float64
			Zones                              []string
		}
	}
	if err := json.NewDecoder(in).Decode(&doc); err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	if want := "aws-catalog/v1"; doc.Schema != want {
		return nil, fmt.Errorf("catalogue: schema is %q, want %q", doc.Schema, want)
	}
	var out []*catalog.InstanceType
	for _, t := range doc.InstanceTypes {
		if t.OnDemandUSD == nil {
			continue
		}
		it := &catalog.InstanceType{
			Name: t.Name,
			Requirements: requirements.NewSet(
				requirements.In(corev1.LabelInstanceTypeStable, t.Name),
				requirements.In(corev1.LabelArchStable, t.Arch),
				requirements.In(corev1.LabelOSStable, t.OS...),
				requirements.In(CategoryLabel, t.Category),
				requirements.In(GenerationLabel, strconv.Itoa(t.Generation)),
				requirements.In("karpenter.k8s.aws/instance-family", t.Family),
				requirements.In("karpenter.k8s.aws/instance-size", t.Size),
				requirements.In("karpenter.k8s.aws/instance-cpu", strconv.Itoa(t.VCPU)),
			),
		}
		var err error
		if it.Capacity, err = resources.FromQuantities(t.Capacity); err != nil {
			return nil, fmt.Errorf("catalogue: %s: capacity: %w", t.Name, err)
		}
		if it.Allocatable, err = resources.FromQuantities(t.Allocatable); err != nil {
			return nil, fmt.Errorf("catalogue: %s: allocatable: %w", t.Name, err)
		}
		for _, zone := range t.Zones {
			it.Offerings = append(it.Offerings, catalog.Offering{
				Zone: zone, CapacityType: catalog.OnDemand, Price: catalog.FromDollars(*t.OnDemandUSD),
			})
		}
		out = append(out, it)
	}
	return out, nil
}
