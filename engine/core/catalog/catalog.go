// Package catalog describes what can be bought: instance types and their offerings.
package catalog

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// Price is money per hour in micro-US-dollars.
type Price int64

// Dollars is p in US dollars per hour, for display.
func (p Price) Dollars() float64 { return float64(p) / 1e6 }

// FromDollars rounds d US dollars per hour to a Price.
func FromDollars(d float64) Price {
	if d < 0 {
		return Price(d*1e6 - 0.5)
	}
	return Price(d*1e6 + 0.5)
}

// Capacity types, the values of label karpenter.sh/capacity-type.
const (
	OnDemand = "on-demand"
	Spot     = "spot"
	Reserved = "reserved"
)

// Offering is one way to buy an instance type.
type Offering struct {
	// Zone is the value of topology.kubernetes.io/zone; it may be empty.
	Zone string
	// CapacityType is OnDemand, Spot or Reserved.
	CapacityType string
	// Price is the list price, after NodeOverlays.
	Price Price
	// Unavailable offerings are known but cannot be bought now.
	Unavailable bool
	// ReservationID names the capacity reservation of a Reserved offering; units are
	// shared by all offerings with the same ID. Empty otherwise.
	ReservationID string
	// ReservationCapacity is the number of units left; ignored without ReservationID.
	ReservationCapacity int
	// Requirements hold labels of the offering besides zone, capacity type and
	// reservation ID (zone IDs, placement groups). Nil means none.
	Requirements requirements.Set
	// PriceOverlay is true if a NodeOverlay changed Price.
	PriceOverlay bool
}

// InstanceType is a kind of machine.
type InstanceType struct {
	// Name is the value of node.kubernetes.io/instance-type.
	Name string
	// Requirements are the labels a node of this type may carry; a label with
	// several values (kubernetes.io/os In [linux, windows]) is settled at launch.
	// Zone and capacity type come from Offerings.
	Requirements requirements.Set
	// Capacity is the machine's size, the unit of NodePool limits.
	Capacity resources.List
	// Allocatable is what pods and daemons may use.
	Allocatable resources.List
	// AttachLimits is the number of volumes a node attaches per CSI driver; a missing
	// driver is unlimited.
	AttachLimits map[string]int64
	Offerings    []Offering
	// CapacityOverlay is true if a NodeOverlay added to Capacity.
	CapacityOverlay bool
}

// ReservationIDLabel is the label a reserved offering's ID is matched on. Providers
// may name another (karpenter.k8s.aws/capacity-reservation-id).
const ReservationIDLabel = "karpenter.sh/reservation-id"

// PodsResource is the number of pods a node takes.
const PodsResource = corev1.ResourcePods
