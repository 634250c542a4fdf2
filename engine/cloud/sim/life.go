package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
)

// Progress is how far a machine is at some time, and what is to be done about it.
type Progress struct {
	// Changed is true if the machine's status is new.
	Changed bool
	// Boot asks for the machine's Node to be made, and status.nodeName and nodeTime to be
	// set.
	Boot bool
	// Ended is true if the machine no longer exists: its Node must go. It becomes true
	// together with status.endTime.
	Ended bool
	// Forget asks for the record to be deleted, when the Node is gone.
	Forget bool
	// Next is when to look again; zero if nothing will happen by itself.
	Next time.Time
}

// Advance brings the status of in to what it is at now. It is all that decides how a
// machine lives, and it depends on its arguments alone, so a controller that starts again
// goes on where another stopped. class brings the interruptions; nil means none.
func Advance(in *v1alpha1.SimInstance, class *v1alpha1.SimNodeClass, now time.Time) Progress {
	var p Progress
	later := func(at time.Time) {
		if p.Next.IsZero() || at.Before(p.Next) {
			p.Next = at
		}
	}
	s := &in.Status
	phase := func(to v1alpha1.SimPhase) {
		if s.Phase != to {
			s.Phase, p.Changed = to, true
		}
	}
	if s.TerminatingTime == nil {
		if class != nil && announce(in, class, now, later) {
			p.Changed = true
		}
		for _, notice := range s.Interruptions {
			switch {
			case notice.End == nil:
			case now.Before(notice.End.Time):
				later(notice.End.Time)
			case s.TerminatingTime == nil || notice.End.Before(s.TerminatingTime):
				s.TerminatingTime, p.Changed = notice.End.DeepCopy(), true
			}
		}
	}
	if s.TerminatingTime != nil {
		phase(v1alpha1.SimTerminating)
		ended := s.TerminatingTime.Add(in.Spec.TerminateLatency.Duration)
		forgotten := ended.Add(in.Spec.ForgetLatency.Duration)
		p.Ended, p.Forget = !now.Before(ended), !now.Before(forgotten)
		if p.Ended && s.EndTime == nil {
			s.EndTime, p.Changed = microTime(ended), true
		}
		p.Next = time.Time{}
		switch {
		case !p.Ended:
			p.Next = ended
		case !p.Forget:
			p.Next = forgotten
		}
		return p
	}
	running := in.Spec.LaunchTime.Add(in.Spec.LaunchLatency.Duration)
	if now.Before(running) {
		phase(v1alpha1.SimPending)
		later(running)
		return p
	}
	phase(v1alpha1.SimRunning)
	if s.RunningTime == nil {
		s.RunningTime, p.Changed = microTime(running), true
	}
	if s.NodeTime == nil && !in.Spec.NeverRegisters {
		if appears := running.Add(in.Spec.RegistrationLatency.Duration); now.Before(appears) {
			later(appears)
		} else {
			p.Boot = true
		}
	}
	return p
}

// announce adds the notices that are due, and reports whether there are any.
func announce(in *v1alpha1.SimInstance, class *v1alpha1.SimNodeClass, now time.Time, later func(time.Time)) bool {
	added := false
	launched := in.Spec.LaunchTime.Time
	for i := range class.Spec.Interruptions {
		r := &class.Spec.Interruptions[i]
		kind := r.Kind
		if kind == "" {
			kind = v1alpha1.SpotInterruption
		}
		if !r.Matches(in.Spec.InstanceType, in.Spec.Zone, in.Spec.CapacityType) ||
			len(r.Claims) > 0 && !slices.Contains(r.Claims, in.Spec.Claim.Name) ||
			!hits(r.Percent, in.Spec.Claim.UID, "interruption/"+string(kind)) ||
			slices.ContainsFunc(in.Status.Interruptions, func(n v1alpha1.SimNotice) bool { return n.Kind == kind }) {
			continue
		}
		due := launched
		switch {
		case r.After != nil:
			due = launched.Add(r.After.Duration)
		case r.At != "":
			at, err := r.At.Resolve(class.CreationTimestamp.Time)
			if err != nil || launched.After(at) {
				continue
			}
			due = at
		}
		if now.Before(due) {
			later(due)
			continue
		}
		notice := v1alpha1.SimNotice{Kind: kind, Time: *microTime(now)}
		if warning, ends := warningOf(kind, r.Warning); ends {
			notice.End = microTime(now.Add(warning))
		}
		in.Status.Interruptions = append(in.Status.Interruptions, notice)
		added = true
	}
	return added
}

// warningOf is the time from an announcement to a machine's end; false if it does not end.
func warningOf(kind v1alpha1.InterruptionKind, set *metav1.Duration) (time.Duration, bool) {
	switch {
	case kind == v1alpha1.RebalanceRecommendation:
		return 0, false
	case set != nil:
		return set.Duration, true
	case kind == v1alpha1.SpotInterruption:
		return 2 * time.Minute, true
	case kind == v1alpha1.ScheduledChange:
		return time.Hour, true
	}
	return 0, true
}

// Announcements are the interruptions that a machine was told of and that are still to
// come, in the form of the port.
func Announcements(in *v1alpha1.SimInstance) []cloud.Interruption {
	var out []cloud.Interruption
	for _, notice := range in.Status.Interruptions {
		i := cloud.Interruption{ProviderID: in.Spec.ProviderID, Kind: string(notice.Kind)}
		if notice.End != nil {
			i.At = notice.End.Time
		}
		out = append(out, i)
	}
	return out
}

// Node is the Node of a machine as its kubelet creates it: with the labels that every
// kubelet and cloud set and those of the SimNodeClass, but none of Karpenter's, which come
// at registration, and with the taint that keeps pods off until then. Nothing in it is
// shared with in.
func Node(in *v1alpha1.SimInstance) *corev1.Node {
	labels := map[string]string{corev1.LabelHostname: in.Spec.Claim.Name}
	for _, key := range []string{
		corev1.LabelArchStable, corev1.LabelOSStable, corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone,
		corev1.LabelTopologyRegion, "topology.k8s.aws/zone-id",
	} {
		if value, ok := in.Spec.Labels[key]; ok && value != "" {
			labels[key] = value
		}
	}
	maps.Copy(labels, in.Spec.NodeLabels)
	n := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: in.Spec.Claim.Name, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: NodeProviderID(in)},
	}
	for _, t := range in.Spec.Taints {
		n.Spec.Taints = append(n.Spec.Taints, *t.DeepCopy())
	}
	n.Spec.Taints = append(n.Spec.Taints, karpv1.UnregisteredTaint())
	n.Status.Capacity, n.Status.Allocatable = in.Spec.Capacity.DeepCopy(), in.Spec.Allocatable.DeepCopy()
	n.Status.NodeInfo.Architecture, n.Status.NodeInfo.OperatingSystem = labels[corev1.LabelArchStable], labels[corev1.LabelOSStable]
	return n
}

// NodeProviderID is the provider ID in the Node of a machine.
func NodeProviderID(in *v1alpha1.SimInstance) string {
	if in.Spec.NodeProviderID != "" {
		return in.Spec.NodeProviderID
	}
	return in.Spec.ProviderID
}

// Booted notes in the status of in that its Node was made at now.
func Booted(in *v1alpha1.SimInstance, now time.Time) {
	in.Status.NodeName, in.Status.NodeTime = in.Spec.Claim.Name, microTime(now)
}

// microTime is t at the precision that an API server keeps.
func microTime(t time.Time) *metav1.MicroTime {
	m := metav1.NewMicroTime(t.Truncate(time.Microsecond))
	return &m
}

// draw is a number in [0, 1) that depends on its arguments alone.
func draw(uid, purpose string) float64 {
	sum := sha256.Sum256([]byte(purpose + "\x00" + uid))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}

// hits reports whether uid is among percent of all; nil is all of them.
func hits(percent *int32, uid, purpose string) bool {
	return percent == nil || draw(uid, purpose)*100 < float64(*percent)
}

// latency is the value for uid in a range.
func latency(l v1alpha1.SimLatency, uid, purpose string) metav1.Duration {
	d := l.Base.Duration + time.Duration(draw(uid, purpose)*float64(l.Jitter.Duration))
	if l.Jitter.Duration > 0 {
		d = d.Truncate(time.Microsecond)
	}
	return metav1.Duration{Duration: d}
}
