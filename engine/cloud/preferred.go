package cloud

import (
	"strings"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
)

// PreferredAnnotation is set on NodeClaims: the offerings to try first, best first, as
// "type/zone/capacity type[/reservation ID]" separated by commas. It carries the ranking
// of scoring policies to the provider, across restarts.
const PreferredAnnotation = "dovetail.sh/offerings"

// MaxPreferred is how many offerings a claim names.
const MaxPreferred = 50

// Offering names something that can be bought.
type Offering struct {
	InstanceType, Zone, CapacityType, ReservationID string
}

func (o Offering) String() string {
	s := o.InstanceType + "/" + o.Zone + "/" + o.CapacityType
	if o.ReservationID != "" {
		s += "/" + o.ReservationID
	}
	return s
}

// Preferred are the offerings that a claim wants to be tried first, best first. What
// cannot be read is left out.
func Preferred(claim *karpv1.NodeClaim) []Offering {
	text := claim.Annotations[PreferredAnnotation]
	if text == "" {
		return nil
	}
	var out []Offering
	for name := range strings.SplitSeq(text, ",") {
		parts := strings.Split(strings.TrimSpace(name), "/")
		if len(parts) < 3 || len(parts) > 4 {
			continue
		}
		o := Offering{InstanceType: parts[0], Zone: parts[1], CapacityType: parts[2]}
		if len(parts) == 4 {
			o.ReservationID = parts[3]
		}
		out = append(out, o)
	}
	return out
}

// FormatPreferred is the value of PreferredAnnotation for offerings, the first
// MaxPreferred of them.
func FormatPreferred(offerings []Offering) string {
	names := make([]string, 0, min(len(offerings), MaxPreferred))
	for _, o := range offerings[:min(len(offerings), MaxPreferred)] {
		names = append(names, o.String())
	}
	return strings.Join(names, ",")
}
