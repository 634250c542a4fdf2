package karpenter

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// offeringLabels are settled by an offering and not by its type.
var offeringLabels = []string{
	corev1.LabelTopologyZone, karpenterv1.CapacityTypeLabelKey, cloudprovider.ReservationIDLabel,
}

// FakeTypes are the first n instance types of Karpenter's fake cloud, which its
// benchmark buys from: type i has i CPUs, 2i GiB and room for 10i pods, in three
// zones on demand and in two of them as spot at the same price.
func FakeTypes(n int) ([]*catalog.InstanceType, error) {
	var out []*catalog.InstanceType
	for _, it := range fake.InstanceTypes(n) {
		t, err := FromKarpenter(it)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// FromKarpenter converts an instance type of Karpenter's provider port. Prices are
// rounded to a micro-dollar. Offerings that override the capacity of their type are an
// error, since the catalogue has no such thing.
func FromKarpenter(in *cloudprovider.InstanceType) (*catalog.InstanceType, error) {
	out := &catalog.InstanceType{Name: in.Name}
	var err error
	if out.Requirements, err = fromRequirements(in.Requirements); err != nil {
		return nil, fmt.Errorf("instance type %s: %w", in.Name, err)
	}
	if out.Capacity, err = resources.FromQuantities(in.Capacity); err != nil {
		return nil, fmt.Errorf("instance type %s: capacity: %w", in.Name, err)
	}
	if out.Allocatable, err = resources.FromQuantities(in.Allocatable()); err != nil {
		return nil, fmt.Errorf("instance type %s: allocatable: %w", in.Name, err)
	}
	for driver, limit := range in.VolumeAttachmentLimits {
		if out.AttachLimits == nil {
			out.AttachLimits = map[string]int64{}
		}
		out.AttachLimits[driver] = int64(limit)
	}
	for i, o := range in.Offerings {
		if o.CapacityOverride != nil || o.OverheadOverride != nil {
			return nil, fmt.Errorf("instance type %s: offering %d: overrides the capacity of its type, which is not supported", in.Name, i)
		}
		of := catalog.Offering{
			Price:               catalog.FromDollars(o.Price),
			Unavailable:         !o.Available,
			ReservationCapacity: o.ReservationCapacity,
		}
		for key, into := range map[string]*string{
			corev1.LabelTopologyZone:         &of.Zone,
			karpenterv1.CapacityTypeLabelKey: &of.CapacityType,
			cloudprovider.ReservationIDLabel: &of.ReservationID,
		} {
			if o.Requirements.Has(key) {
				*into = o.Requirements.Get(key).Any()
			}
		}
		rest, err := fromRequirements(o.Requirements)
		if err != nil {
			return nil, fmt.Errorf("instance type %s: offering %d: %w", in.Name, i, err)
		}
		if len(rest) > 0 {
			of.Requirements = rest
		}
		out.Offerings = append(out.Offerings, of)
	}
	return out, nil
}

func fromRequirements(in scheduling.Requirements) (requirements.Set, error) {
	out := requirements.Set{}
	for _, e := range in.NodeSelectorRequirements() {
		if slices.Contains(offeringLabels, e.Key) {
			continue
		}
		req, err := requirements.New(e.Key, e.Operator, e.Values...)
		if err != nil {
			return nil, err
		}
		if e.MinValues != nil {
			req = req.WithMinValues(*e.MinValues)
		}
		out.Add(req)
	}
	return out, nil
}

// ToKarpenter is the inverse of [FromKarpenter]: what the catalogue has set aside of a
// type's capacity becomes its overhead, and the type's zones and capacity types are
// those of its available offerings, as Karpenter asks of providers.
func ToKarpenter(in *catalog.InstanceType) *cloudprovider.InstanceType {
	out := &cloudprovider.InstanceType{
		Name:         in.Name,
		Requirements: toRequirements(in.Requirements),
		Capacity:     in.Capacity.Quantities(),
	}
	reserved := in.Capacity.Clone()
	reserved.SubFrom(in.Allocatable)
	for name, v := range reserved {
		if v <= 0 {
			delete(reserved, name)
		}
	}
	out.Overhead = &cloudprovider.InstanceTypeOverhead{KubeReserved: reserved.Quantities()}
	for driver, limit := range in.AttachLimits {
		if out.VolumeAttachmentLimits == nil {
			out.VolumeAttachmentLimits = map[string]int{}
		}
		out.VolumeAttachmentLimits[driver] = int(limit)
	}
	var zones, capacityTypes []string
	for _, o := range in.Offerings {
		of := &cloudprovider.Offering{
			Requirements:        toRequirements(o.Requirements),
			Price:               o.Price.Dollars(),
			Available:           !o.Unavailable,
			ReservationCapacity: o.ReservationCapacity,
		}
		for key, v := range map[string]string{
			corev1.LabelTopologyZone:         o.Zone,
			karpenterv1.CapacityTypeLabelKey: o.CapacityType,
			cloudprovider.ReservationIDLabel: o.ReservationID,
		} {
			if v != "" {
				of.Requirements.Add(scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, v))
			}
		}
		out.Offerings = append(out.Offerings, of)
		if of.Available {
			zones, capacityTypes = append(zones, o.Zone), append(capacityTypes, o.CapacityType)
		}
	}
	out.Requirements.Add(
		scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zones...),
		scheduling.NewRequirement(karpenterv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, capacityTypes...),
	)
	return out
}

func toRequirements(in requirements.Set) scheduling.Requirements {
	out := scheduling.NewRequirements()
	for _, e := range in.Entries() {
		out.Add(scheduling.NewRequirementWithFlexibility(e.Key, e.Operator, e.MinValues, e.Values...))
	}
	return out
}

// toNodePool goes through JSON, which both types share.
func toNodePool(in *karpv1.NodePool) (*karpenterv1.NodePool, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("nodepool %s: %w", in.Name, err)
	}
	out := &karpenterv1.NodePool{}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("nodepool %s: %w", in.Name, err)
	}
	return out, nil
}

// cheapest is the offering Karpenter's providers would launch for a claim: the one of
// the lowest price among the claim's types, by name if equal.
func cheapest(types cloudprovider.InstanceTypes, reqs scheduling.Requirements) (it *cloudprovider.InstanceType, offering *cloudprovider.Offering) {
	price := math.Inf(1)
	for _, t := range types {
		for _, o := range t.Offerings.Launchable().Compatible(reqs) {
			if o.Price < price || o.Price == price && t.Name < it.Name {
				it, offering, price = t, o, o.Price
			}
		}
	}
	return it, offering
}
