package kubelet

import (
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// backoff is how long a container that exited waits before it is started again.
const backoff = 5 * time.Second

// due is how long it takes until d has passed since t, which the API cut to a second.
func due(t metav1.Time, d time.Duration, now time.Time) time.Duration {
	if d <= 0 {
		return 0
	}
	return max(0, t.Add(d+time.Second).Sub(now))
}

// sooner is the shorter of two delays, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// running returns the status of a pod that is not being deleted, on a node that is Ready,
// and after how long it has to be looked at again; 0 is when the pod changes.
func running(pod *corev1.Pod, b Pod, now time.Time) (corev1.PodStatus, time.Duration) {
	status := *pod.Status.DeepCopy()
	if status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed {
		return status, 0
	}
	stamp := metav1.NewTime(now)
	status.ObservedGeneration = pod.Generation
	if status.StartTime == nil {
		status.StartTime = &stamp
	}
	status.QOSClass = pod.Status.QOSClass
	if status.Phase != corev1.PodRunning {
		if wait := due(*status.StartTime, b.Start, now); wait > 0 {
			status.Phase = corev1.PodPending
			status.ContainerStatuses = containers(pod, pod.Spec.Containers, nil, func(s *corev1.ContainerStatus) {
				s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
			})
			setConditions(&status, pod, stamp, false)
			return status, wait
		}
		status.Phase = corev1.PodRunning
		status.HostIP = "10.0.0.1"
		status.HostIPs = []corev1.HostIP{{IP: status.HostIP}}
		status.PodIP = address(pod)
		status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
		start(&status, pod, stamp)
	}

	first := status.ContainerStatuses[0]
	if first.State.Waiting != nil && first.LastTerminationState.Terminated != nil {
		wait := due(first.LastTerminationState.Terminated.FinishedAt, backoff, now)
		if wait > 0 {
			return status, wait
		}
		start(&status, pod, stamp)
		first = status.ContainerStatuses[0]
	}
	if first.State.Running == nil {
		return status, 0
	}
	started := first.State.Running.StartedAt
	var next time.Duration
	if b.Run > 0 {
		if next = due(started, b.Run, now); next == 0 {
			return exit(status, pod, b, stamp)
		}
	}
	wait := due(started, b.Ready, now)
	ready := wait == 0
	status.ContainerStatuses = containers(pod, pod.Spec.Containers, status.ContainerStatuses, func(s *corev1.ContainerStatus) { s.Ready = ready })
	setConditions(&status, pod, stamp, ready)
	return status, sooner(wait, next)
}

// start starts the containers of a pod; those that initialise it have finished.
func start(status *corev1.PodStatus, pod *corev1.Pod, now metav1.Time) {
	status.ContainerStatuses = containers(pod, pod.Spec.Containers, status.ContainerStatuses, func(s *corev1.ContainerStatus) {
		s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	})
	if len(status.InitContainerStatuses) > 0 {
		return
	}
	sidecars := map[string]bool{}
	for _, c := range pod.Spec.InitContainers {
		sidecars[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	status.InitContainerStatuses = containers(pod, pod.Spec.InitContainers, nil, func(s *corev1.ContainerStatus) {
		s.Ready = true
		if sidecars[s.Name] {
			s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
			return
		}
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}
	})
}

// exit ends the containers of a pod by themselves.
func exit(status corev1.PodStatus, pod *corev1.Pod, b Pod, now metav1.Time) (corev1.PodStatus, time.Duration) {
	policy := pod.Spec.RestartPolicy
	if policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && b.ExitCode == 0 {
		finish(&status, pod, b.ExitCode, now)
		return status, 0
	}
	status.ContainerStatuses = containers(pod, pod.Spec.Containers, status.ContainerStatuses, func(s *corev1.ContainerStatus) {
		s.LastTerminationState = corev1.ContainerState{Terminated: terminated(s.State, b.ExitCode, now)}
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		s.RestartCount++
		s.Ready = false
	})
	setConditions(&status, pod, now, false)
	return status, backoff
}

// finish ends a pod for good.
func finish(status *corev1.PodStatus, pod *corev1.Pod, code int32, now metav1.Time) {
	status.Phase = corev1.PodSucceeded
	if code != 0 {
		status.Phase = corev1.PodFailed
	}
	status.ContainerStatuses = containers(pod, pod.Spec.Containers, status.ContainerStatuses, func(s *corev1.ContainerStatus) {
		s.State = corev1.ContainerState{Terminated: terminated(s.State, code, now)}
		s.Ready = false
	})
	setConditions(status, pod, now, false)
}

func terminated(state corev1.ContainerState, code int32, now metav1.Time) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Completed", StartedAt: now, FinishedAt: now}
	if code != 0 {
		t.Reason = "Error"
	}
	if state.Running != nil {
		t.StartedAt = state.Running.StartedAt
	}
	return t
}

// containers returns the statuses of containers after change, which starts from what
// was reported before.
func containers(pod *corev1.Pod, specs []corev1.Container, before []corev1.ContainerStatus, change func(*corev1.ContainerStatus)) []corev1.ContainerStatus {
	statuses := make([]corev1.ContainerStatus, 0, len(specs))
	for i := range specs {
		spec := &specs[i]
		status := corev1.ContainerStatus{Name: spec.Name, Image: spec.Image, ImageID: spec.Image}
		for j := range before {
			if before[j].Name == spec.Name {
				status = *before[j].DeepCopy()
			}
		}
		change(&status)
		up := status.State.Running != nil
		status.Started = &up
		if up {
			status.ContainerID = fmt.Sprintf("fake://%s/%s/%d", pod.UID, spec.Name, status.RestartCount)
		}
		// A pod is resized in place when its new resources are reported here.
		status.Resources = spec.Resources.DeepCopy()
		status.AllocatedResources = spec.Resources.DeepCopy().Requests
		statuses = append(statuses, status)
	}
	return statuses
}

// setConditions sets the conditions that a kubelet reports and keeps those of others.
func setConditions(status *corev1.PodStatus, pod *corev1.Pod, now metav1.Time, ready bool) {
	set := func(kind corev1.PodConditionType, ok bool, reason string) {
		value := corev1.ConditionFalse
		if ok {
			value, reason = corev1.ConditionTrue, ""
		}
		want := corev1.PodCondition{Type: kind, Status: value, Reason: reason, LastTransitionTime: now, ObservedGeneration: pod.Generation}
		for i := range status.Conditions {
			if have := &status.Conditions[i]; have.Type == kind {
				if have.Status == value {
					want.LastTransitionTime = have.LastTransitionTime
				}
				*have = want
				return
			}
		}
		status.Conditions = append(status.Conditions, want)
	}
	gates := true
	for _, gate := range pod.Spec.ReadinessGates {
		passed := false
		for _, condition := range status.Conditions {
			passed = passed || condition.Type == gate.ConditionType && condition.Status == corev1.ConditionTrue
		}
		gates = gates && passed
	}
	started, reason := status.Phase != corev1.PodPending, "ContainersNotReady"
	switch status.Phase {
	case corev1.PodSucceeded:
		reason = "PodCompleted"
	case corev1.PodFailed:
		reason = "PodFailed"
	}
	set(corev1.PodReadyToStartContainers, started, "")
	set(corev1.PodInitialized, started, "ContainersNotInitialized")
	set(corev1.ContainersReady, ready, reason)
	if ready && !gates {
		reason = "ReadinessGatesNotReady"
	}
	set(corev1.PodReady, ready && gates, reason)
}

// address makes an address for a pod. Two pods may share one, which matters to nobody
// since nothing listens there.
func address(pod *corev1.Pod) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(pod.UID))
	sum := hash.Sum32()
	return fmt.Sprintf("10.%d.%d.%d", 64+sum>>16&0x7f, sum>>8&0xff, 1+sum&0xff%254)
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
