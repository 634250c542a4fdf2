package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// loopback is the address at which a pod's process listens.
const loopback = "127.0.0.1"

// podIP is the address that the API has of pods: it takes no loopback addresses.
const podIP = "10.255.255.254"

// run is a pod that runs.
type run struct {
	node *Node
	// pod is as it was when it was started, but for its deletion.
	pod *corev1.Pod
	dir string
	// tokens are those that the pod has; of its own goroutine.
	tokens map[string]issued

	// stopping is closed when the pod is to stop, and killed when it is to stop at once.
	stopping, killed chan struct{}
	stopOnce         sync.Once
	killOnce         sync.Once
	// grace is how long it may take to stop.
	grace atomic.Int64

	mu     sync.Mutex
	states map[string]*state
	// changed has room for one.
	changed chan struct{}
}

// state is what a container does.
type state struct {
	pid      int
	restarts int32
	started  metav1.Time
	// waiting is why it does not run, if it is to run; waitingFor tells it in full.
	waiting, waitingFor string
	// exited says that it has ended for good, or that it will be started again.
	exited   bool
	exitCode int32
	finished metav1.Time
	// up and ready are what its probes say.
	up, ready bool
}

func newRun(n *Node, pod *corev1.Pod) *run {
	r := &run{
		node: n, pod: pod, dir: filepath.Join(n.opts.Dir, "pods", string(pod.UID)),
		tokens: map[string]issued{}, stopping: make(chan struct{}), killed: make(chan struct{}),
		states: map[string]*state{}, changed: make(chan struct{}, 1),
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		r.states[container.Name] = &state{waiting: "ContainerCreating"}
	}
	return r
}

// terminate lets the pod stop within the grace period of its deletion.
func (r *run) terminate(pod *corev1.Pod) {
	grace := int64(30)
	if pod.DeletionGracePeriodSeconds != nil {
		grace = *pod.DeletionGracePeriodSeconds
	}
	r.grace.Store(int64(time.Duration(grace) * time.Second))
	r.stopOnce.Do(func() { close(r.stopping) })
}

// kill ends the pod at once.
func (r *run) kill() { r.killOnce.Do(func() { close(r.killed) }) }

func (r *run) pid(container string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.states[container]; s != nil {
		return s.pid
	}
	return 0
}

// set changes what is known of a container.
func (r *run) set(container string, change func(*state)) {
	r.mu.Lock()
	change(r.states[container])
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *run) get(container string) state {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *r.states[container]
}

// loop runs the pod from its start to its end.
func (r *run) loop(parent context.Context) {
	log := r.node.opts.Log.With("pod", r.pod.Namespace+"/"+r.pod.Name)
	// What ends with the pod ends with this context; the end of parent kills it.
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	// Outlives ctx, to report the end of what ctx ended.
	reporting, stopReporting := context.WithCancel(context.WithoutCancel(parent))
	defer stopReporting()
	group.Go(func() { r.report(reporting, log) })

	err := r.prepare(ctx, log)
	if err == nil {
		err = r.runContainers(ctx, log)
	}
	cancel()
	stopReporting()
	if err == nil && parent.Err() == nil {
		r.finish(parent, log)
		// A pod that ended by itself stays until it is deleted.
		select {
		case <-parent.Done():
		case <-r.killed:
		case <-r.stopping:
			r.finish(parent, log)
		}
	}
	_ = os.RemoveAll(r.dir) // what is left does no harm
}

// errStopped is why a pod does not go on.
var errStopped = errors.New("the pod is stopped")

// prepare waits until the volumes are there.
func (r *run) prepare(ctx context.Context, log logger) error {
	for {
		err := r.writeVolumes(ctx)
		if err == nil {
			return nil
		}
		log.Warn("prepare volumes", "err", err)
		for name := range r.states {
			r.set(name, func(s *state) { s.waitingFor = err.Error() })
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.killed:
			return errStopped
		case <-r.stopping:
			return nil
		case <-time.After(retryInterval):
		}
	}
}

// logger is what a run tells of itself.
type logger interface {
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
}

// runContainers runs the containers that initialise the pod one after the other, and
// then the others, until all have ended. It returns an error if the pod did not end by
// itself or by being deleted.
func (r *run) runContainers(ctx context.Context, log logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sidecars, group sync.WaitGroup
	defer sidecars.Wait()
	defer cancel()
	group.Go(func() { r.refresh(ctx, log) })
	defer group.Wait()
	defer cancel()

	for i := range r.pod.Spec.InitContainers {
		if r.isStopping() {
			break
		}
		container := &r.pod.Spec.InitContainers[i]
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars.Go(func() { r.runContainer(ctx, log, container, corev1.RestartPolicyAlways) })
			for !r.get(container.Name).up && ctx.Err() == nil && !r.isStopping() {
				time.Sleep(50 * time.Millisecond)
			}
			continue
		}
		policy := r.pod.Spec.RestartPolicy
		if policy == corev1.RestartPolicyAlways {
			policy = corev1.RestartPolicyOnFailure
		}
		r.runContainer(ctx, log, container, policy)
		if !r.isStopping() && r.get(container.Name).exitCode != 0 {
			return ctx.Err() // the pod has failed
		}
	}
	if !r.isStopping() {
		var main sync.WaitGroup
		for i := range r.pod.Spec.Containers {
			main.Go(func() { r.runContainer(ctx, log, &r.pod.Spec.Containers[i], r.pod.Spec.RestartPolicy) })
		}
		main.Wait()
	}
	select {
	case <-r.killed:
		return errStopped
	default:
		return ctx.Err()
	}
}

func (r *run) isStopping() bool {
	select {
	case <-r.stopping:
		return true
	case <-r.killed:
		return true
	default:
		return false
	}
}

// refresh keeps the files of volumes up to date.
func (r *run) refresh(ctx context.Context, log logger) {
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.stopping:
			return
		case <-tick.C:
		}
		if err := r.writeVolumes(ctx); err != nil && ctx.Err() == nil {
			log.Warn("refresh volumes", "err", err)
		}
	}
}

// runContainer runs a container's program, again and again as the policy says, until the
// pod stops.
func (r *run) runContainer(ctx context.Context, log logger, container *corev1.Container, policy corev1.RestartPolicy) {
	for {
		cmd, err := r.command(ctx, container)
		if err != nil {
			log.Warn("start", "container", container.Name, "err", err)
			r.set(container.Name, func(s *state) { s.waiting, s.waitingFor = "CreateContainerError", err.Error() })
			select {
			case <-ctx.Done():
				return
			case <-r.stopping:
				return
			case <-r.killed:
				return
			case <-time.After(retryInterval):
			}
			continue
		}
		code := r.execute(ctx, log, container, cmd)
		again := policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && code != 0
		again = again && ctx.Err() == nil && !r.isStopping()
		log.Info("exited", "container", container.Name, "code", code, "again", again)
		r.set(container.Name, func(s *state) {
			s.pid, s.up, s.ready = 0, false, false
			s.exited, s.exitCode, s.finished = true, code, metav1.Now()
			s.waiting, s.waitingFor = "", ""
			if again {
				s.restarts++
				s.waiting = "CrashLoopBackOff"
			}
		})
		if !again {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-r.stopping:
			return
		case <-r.killed:
			return
		case <-time.After(restartDelay):
		}
	}
}

// command is the container's program with its arguments, environment and volumes.
func (r *run) command(ctx context.Context, container *corev1.Container) (*exec.Cmd, error) {
	program, err := r.node.program(container.Image)
	if err != nil {
		return nil, err
	}
	env, err := r.environment(ctx, container)
	if err != nil {
		return nil, err
	}
	mounts, err := r.mounts(container)
	if err != nil {
		return nil, err
	}
	// The image's entry point is the program; a command replaces it, and names the same.
	args := []string{program}
	if len(container.Command) > 0 {
		args = append(args, container.Command[1:]...)
	}
	args = append(args, container.Args...)
	for i := range args[1:] {
		args[i+1] = expand(args[i+1], env)
	}
	if r.node.mounter.namespaces {
		if args, err = r.node.mounter.wrap(args, mounts); err != nil {
			return nil, err
		}
	} else {
		replace := replacer(mounts)
		for i := range args[1:] {
			args[i+1] = replace.Replace(args[i+1])
		}
		for name, value := range env {
			env[name] = replace.Replace(value)
		}
		kubeconfig, err := r.writeKubeconfig(container)
		if err != nil {
			return nil, err
		}
		if _, set := env["KUBECONFIG"]; kubeconfig != "" && !set {
			env["KUBECONFIG"] = kubeconfig
		}
	}
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // execute stops it, with a grace period
	cmd.Dir = container.WorkingDir
	for _, name := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, name+"="+env[name])
	}
	return cmd, nil
}

// execute runs a program until it exits, is killed, or fails its probes, and returns its
// exit code.
func (r *run) execute(ctx context.Context, log logger, container *corev1.Container, cmd *exec.Cmd) int32 {
	path := r.node.Log(r.pod.Namespace, r.pod.Name, container.Name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // logs are for everybody
	if err != nil {
		log.Warn("open log", "container", container.Name, "err", err)
		return 128
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	if err := r.node.spawner.Start(cmd); err != nil {
		log.Warn("start", "container", container.Name, "err", err)
		r.set(container.Name, func(s *state) { s.waitingFor = err.Error() })
		return 128
	}
	log.Info("started", "container", container.Name, "pid", cmd.Process.Pid)
	r.set(container.Name, func(s *state) {
		s.pid, s.started, s.waiting, s.waitingFor, s.exited = cmd.Process.Pid, metav1.Now(), "", "", false
		s.up, s.ready = false, false
	})
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	probing, stopProbing := context.WithCancel(ctx)
	unhealthy := make(chan struct{})
	var probes sync.WaitGroup
	defer probes.Wait()
	defer stopProbing()
	probes.Go(func() {
		if r.probe(probing, container) {
			close(unhealthy)
		}
	})

	// The whole group: a program may have started others.
	signal := func(s syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, s) }
	var timeout <-chan time.Time
	stopping, killed, over := r.stopping, r.killed, ctx.Done()
	for {
		select {
		case err := <-done:
			signal(syscall.SIGKILL) // what it left behind
			return exitCode(err)
		case <-unhealthy:
			log.Warn("liveness probe failed", "container", container.Name)
			unhealthy = nil
			signal(syscall.SIGTERM)
			timeout = time.After(graceOf(r.pod))
		case <-stopping:
			stopping = nil
			r.set(container.Name, func(s *state) { s.ready = false })
			signal(syscall.SIGTERM)
			timeout = time.After(time.Duration(r.grace.Load()))
		case <-timeout:
			signal(syscall.SIGKILL)
		case <-killed:
			killed = nil
			signal(syscall.SIGKILL)
		case <-over:
			over = nil
			signal(syscall.SIGKILL)
		}
	}
}

// graceOf is how long a pod's programs may take to stop when it is not deleted.
func graceOf(pod *corev1.Pod) time.Duration {
	if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return 30 * time.Second
}

// exitCode is a program's exit code; that of a signal is 128 and its number.
func exitCode(err error) int32 {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return 128
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(exit.ExitCode())
}

// finish reports how the pod ended, and removes it if it was deleted.
func (r *run) finish(ctx context.Context, log logger) {
	for {
		err := r.patch(ctx)
		if err == nil && r.isStopping() {
			err = r.node.remove(ctx, r.pod)
		}
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		log.Warn("report the end", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryInterval):
		}
	}
}

// report writes the pod's status when it changes.
func (r *run) report(ctx context.Context, log logger) {
	for {
		var retry <-chan time.Time
		if err := r.patch(ctx); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			log.Warn("report", "err", err)
			retry = time.After(retryInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-retry:
		}
	}
}

// patch writes the pod's status. Conditions of others stay.
func (r *run) patch(ctx context.Context) error {
	have, err := r.node.client.CoreV1().Pods(r.pod.Namespace).Get(ctx, r.pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if have.UID != r.pod.UID {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": r.pod.UID}, "status": r.status(have, metav1.Now())})
	if err != nil {
		return err
	}
	_, err = r.node.client.CoreV1().Pods(r.pod.Namespace).Patch(ctx, r.pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}

// status is what there is to say of the pod.
func (r *run) status(have *corev1.Pod, now metav1.Time) map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	statuses := func(specs []corev1.Container) (list []corev1.ContainerStatus, ready, ended, failed, begun bool) {
		ready, ended = true, true
		for _, spec := range specs {
			s := r.states[spec.Name]
			up := s.up
			one := corev1.ContainerStatus{
				Name: spec.Name, Image: spec.Image, ImageID: spec.Image, RestartCount: s.restarts, Ready: s.ready, Started: &up,
			}
			last := &corev1.ContainerStateTerminated{ExitCode: s.exitCode, Reason: "Completed", StartedAt: s.started, FinishedAt: s.finished}
			if s.exitCode != 0 {
				last.Reason = "Error"
			}
			switch {
			case s.pid != 0:
				one.State.Running = &corev1.ContainerStateRunning{StartedAt: s.started}
				one.ContainerID = fmt.Sprintf("process://%d", s.pid)
				begun = true
			case s.waiting != "":
				one.State.Waiting = &corev1.ContainerStateWaiting{Reason: s.waiting, Message: s.waitingFor}
				begun = begun || s.restarts > 0
			default:
				one.State.Terminated = last
				one.Ready = s.exitCode == 0
			}
			if s.exited && s.waiting != "" {
				one.LastTerminationState.Terminated = last
			}
			list = append(list, one)
			ready = ready && s.ready
			finished := one.State.Terminated != nil
			ended = ended && finished
			failed = failed || finished && s.exitCode != 0
		}
		return list, ready, ended, failed, begun
	}
	inits, _, _, initFailed, _ := statuses(r.pod.Spec.InitContainers)
	mains, ready, ended, failed, begun := statuses(r.pod.Spec.Containers)
	phase := corev1.PodPending
	switch {
	case initFailed, ended && failed:
		phase, ready = corev1.PodFailed, false
	case ended:
		phase, ready = corev1.PodSucceeded, false
	case begun:
		phase = corev1.PodRunning
	}
	condition := func(kind corev1.PodConditionType, ok bool) corev1.PodCondition {
		value := corev1.ConditionFalse
		if ok {
			value = corev1.ConditionTrue
		}
		for _, c := range have.Status.Conditions {
			if c.Type == kind && c.Status == value {
				return c
			}
		}
		return corev1.PodCondition{Type: kind, Status: value, LastTransitionTime: now}
	}
	started := have.Status.StartTime
	if started == nil {
		started = &now
	}
	return map[string]any{
		"phase": phase, "startTime": started, "observedGeneration": have.Generation,
		"hostIP": podIP, "hostIPs": []corev1.HostIP{{IP: podIP}}, "podIP": podIP, "podIPs": []corev1.PodIP{{IP: podIP}},
		"initContainerStatuses": inits, "containerStatuses": mains,
		"conditions": []corev1.PodCondition{
			condition(corev1.PodInitialized, begun || ended), condition(corev1.ContainersReady, ready), condition(corev1.PodReady, ready),
		},
	}
}
