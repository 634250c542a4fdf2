package kubelet

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// UnmanagedLabel on a node says that something else runs its pods: with any value, the
// default Options.Manages leaves the node alone.
const UnmanagedLabel = "dovetail.sh/kubelet"

// Annotations of nodes. Seconds are decimal numbers, such as 1.5.
const (
	// NodeReadySeconds is how long after its creation a node becomes Ready.
	NodeReadySeconds = "dovetail.sh/ready-seconds"
	// NodeNeverReady keeps a node from becoming Ready; the value is "true".
	NodeNeverReady = "dovetail.sh/never-ready"
	// NodeShutdown is a machine that is off: no leases, no change to its pods; "true".
	NodeShutdown = "dovetail.sh/shutdown"
	// NodeUntaintSeconds lists keys of taints that go away, each with the seconds after the
	// node became Ready: "example.com/agent=2,example.com/network=0.5".
	NodeUntaintSeconds = "dovetail.sh/untaint-seconds"
	// NodeDevices lists extended resources that device plugins report: "nvidia.com/gpu=4".
	NodeDevices = "dovetail.sh/devices"
	// NodeDevicesSeconds is how long after the node's creation they do.
	NodeDevicesSeconds = "dovetail.sh/devices-seconds"
	// NodeCSIDrivers lists storage drivers with the volumes that each can attach:
	// "ebs.csi.aws.com=26".
	NodeCSIDrivers = "dovetail.sh/csi-drivers"
)

// Annotations of pods.
const (
	// PodStartSeconds is how long a pod's containers take to start.
	PodStartSeconds = "dovetail.sh/start-seconds"
	// PodReadySeconds is how long after their start the pod becomes Ready.
	PodReadySeconds = "dovetail.sh/ready-seconds"
	// PodRunSeconds is how long after their start containers exit.
	PodRunSeconds = "dovetail.sh/run-seconds"
	// PodExitCode is what they exit with, by default 0.
	PodExitCode = "dovetail.sh/exit-code"
	// PodStopSeconds is how long they take to stop when the pod is deleted.
	PodStopSeconds = "dovetail.sh/stop-seconds"
)

// Node is how a machine behaves. The zero value is Ready at once and stays so.
type Node struct {
	// Ready is the time from the Node's creation until it is Ready.
	Ready time.Duration
	// NeverReady is a machine whose kubelet runs and reports that it is not Ready.
	NeverReady bool
	// Shutdown is a machine that is off.
	Shutdown bool
	// Untaint removes the taints with a key so long after the node became Ready, as agents
	// do that startup taints wait for.
	Untaint map[string]time.Duration
	// Devices are extended resources that the node has DevicesAfter its creation.
	Devices      corev1.ResourceList
	DevicesAfter time.Duration
	// CSIDrivers are the storage drivers of the node's CSINode, with the number of volumes
	// that each can attach.
	CSIDrivers map[string]int32
}

// Pod is how a pod's containers behave. The zero value starts and is Ready at once, runs
// for ever, and stops at once.
type Pod struct {
	// Start is the time until containers run, and Ready from then until the pod is Ready.
	Start, Ready time.Duration
	// Run is the time from their start until the containers exit; 0 is never.
	Run time.Duration
	// ExitCode is what they exit with. The pod's restartPolicy says what follows.
	ExitCode int32
	// Stop is the time that they take to stop; the pod's grace period bounds it.
	Stop time.Duration
}

// NodeOf reads a node's behaviour from its annotations. What cannot be read counts as
// absent.
func NodeOf(node *corev1.Node) Node {
	annotations := node.Annotations
	b := Node{
		Ready:        seconds(annotations[NodeReadySeconds]),
		NeverReady:   annotations[NodeNeverReady] == "true",
		Shutdown:     annotations[NodeShutdown] == "true",
		DevicesAfter: seconds(annotations[NodeDevicesSeconds]),
	}
	for key, value := range pairs(annotations[NodeUntaintSeconds]) {
		if b.Untaint == nil {
			b.Untaint = map[string]time.Duration{}
		}
		b.Untaint[key] = seconds(value)
	}
	for key, value := range pairs(annotations[NodeDevices]) {
		quantity, err := resource.ParseQuantity(value)
		if err != nil {
			continue
		}
		if b.Devices == nil {
			b.Devices = corev1.ResourceList{}
		}
		b.Devices[corev1.ResourceName(key)] = quantity
	}
	for key, value := range pairs(annotations[NodeCSIDrivers]) {
		count, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			continue
		}
		if b.CSIDrivers == nil {
			b.CSIDrivers = map[string]int32{}
		}
		b.CSIDrivers[key] = int32(count)
	}
	return b
}

// PodOf reads a pod's behaviour from its annotations. Pods of Jobs that do not say how
// long they run take a second.
func PodOf(pod *corev1.Pod) Pod {
	annotations := pod.Annotations
	run, given := annotations[PodRunSeconds]
	if owner := metav1.GetControllerOf(pod); !given && owner != nil && owner.Kind == "Job" {
		run = "1"
	}
	code, err := strconv.ParseInt(cmp.Or(annotations[PodExitCode], "0"), 10, 32)
	if err != nil {
		code = 0
	}
	return Pod{
		Start:    seconds(annotations[PodStartSeconds]),
		Ready:    seconds(annotations[PodReadySeconds]),
		Run:      seconds(run),
		ExitCode: int32(code),
		Stop:     seconds(annotations[PodStopSeconds]),
	}
}

func seconds(text string) time.Duration {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || value <= 0 || value > 1e9 {
		return 0
	}
	return time.Duration(value * float64(time.Second))
}

// pairs reads "a=1,b=2".
func pairs(text string) map[string]string {
	read := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(strings.TrimSpace(pair), "="); ok {
			read[key] = value
		}
	}
	return read
}
