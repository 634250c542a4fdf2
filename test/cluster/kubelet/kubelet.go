package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	defaultWorkers       = 16
	defaultLeaseInterval = 10 * time.Second
	// leaseDuration is what a kubelet puts into its leases.
	leaseDuration = 40 * time.Second
	// retryDelay is short: errors are conflicts with what the watch is about to bring, or
	// an API server that restarts.
	retryDelay = 100 * time.Millisecond
	// byNode is the index of pods by the node that they are bound to.
	byNode = "node"
)

// Options says how nodes and pods behave. The zero value is ready to use.
type Options struct {
	// Manages says which nodes to play the kubelet of. Defaults to those without
	// UnmanagedLabel.
	Manages func(*corev1.Node) bool
	// Node and Pod say how one behaves, now: they may answer otherwise later. They default
	// to NodeOf and PodOf.
	Node func(*corev1.Node) Node
	Pod  func(*corev1.Pod) Pod
	// WithoutPods leaves the pods of the nodes to somebody else.
	WithoutPods bool
	// Capacity is that of nodes whose status has none. Defaults to 4 CPUs, 16 GiB, 110 pods.
	Capacity corev1.ResourceList
	// LeaseInterval is how often leases are renewed. Defaults to 10 s.
	LeaseInterval time.Duration
	// Workers is how many nodes, and how many pods, are looked at at once. Defaults to 16.
	Workers int
	// Log gets the errors that are not mere conflicts. Defaults to nothing.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Manages == nil {
		o.Manages = func(node *corev1.Node) bool {
			_, unmanaged := node.Labels[UnmanagedLabel]
			return !unmanaged
		}
	}
	if o.Node == nil {
		o.Node = NodeOf
	}
	if o.Pod == nil {
		o.Pod = PodOf
	}
	if o.Capacity == nil {
		o.Capacity = corev1.ResourceList{
			corev1.ResourceCPU:              resource.MustParse("4"),
			corev1.ResourceMemory:           resource.MustParse("16Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
			corev1.ResourcePods:             resource.MustParse("110"),
		}
	}
	o.LeaseInterval = cmp.Or(o.LeaseInterval, defaultLeaseInterval)
	o.Workers = cmp.Or(o.Workers, defaultWorkers)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Fleet is the kubelets of a cluster's nodes. It is safe for concurrent use.
type Fleet struct {
	opts     Options
	client   kubernetes.Interface
	version  string
	nodes    cache.SharedIndexInformer
	pods     cache.SharedIndexInformer
	nodeWork workqueue.TypedDelayingInterface[string]
	podWork  workqueue.TypedDelayingInterface[string]

	mu       sync.Mutex
	machines map[string]*machine
	// down are the nodes that Shutdown turned off.
	down map[string]bool
}

// machine is what is remembered of a node between two looks at it.
type machine struct {
	uid types.UID
	// lease is the node's lease as it was last written; nil if that is not known.
	lease *coordinationv1.Lease
	// renew is when the lease is next written.
	renew time.Time
	// hasCSINode says that the CSINode was written.
	hasCSINode bool
}

// New returns the kubelets of the cluster that config names. They do nothing before Run.
// The rate limits of config do not apply.
func New(config *rest.Config, opts Options) (*Fleet, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubelets: %w", err)
	}
	f := &Fleet{
		opts:     opts.withDefaults(),
		client:   client,
		nodeWork: workqueue.NewTypedDelayingQueue[string](),
		podWork:  workqueue.NewTypedDelayingQueue[string](),
		machines: map[string]*machine{},
		down:     map[string]bool{},
	}
	f.nodes = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(stripManagedFields)).
		Core().V1().Nodes().Informer()
	_, err = f.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { f.nodeChanged(nil, object.(*corev1.Node)) },
		UpdateFunc: func(before, after any) { f.nodeChanged(before.(*corev1.Node), after.(*corev1.Node)) },
		DeleteFunc: func(object any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
				f.forget(key)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("kubelets: %w", err)
	}
	if opts.WithoutPods {
		return f, nil
	}
	bound := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(stripManagedFields),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		}))
	f.pods = bound.Core().V1().Pods().Informer()
	if err := f.pods.AddIndexers(cache.Indexers{byNode: func(object any) ([]string, error) {
		return []string{object.(*corev1.Pod).Spec.NodeName}, nil
	}}); err != nil {
		return nil, fmt.Errorf("kubelets: %w", err)
	}
	_, err = f.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { f.podWork.Add(keyOf(object)) },
		UpdateFunc: func(_, object any) { f.podWork.Add(keyOf(object)) },
	})
	if err != nil {
		return nil, fmt.Errorf("kubelets: %w", err)
	}
	return f, nil
}

// Run plays the kubelets until ctx ends. An API server that goes away is waited for; the
// error is about one that does not answer at the start. Run may be called once.
func (f *Fleet) Run(ctx context.Context) error {
	server, err := f.client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("kubelets: %w", err)
	}
	f.version = server.GitVersion

	var group sync.WaitGroup
	defer group.Wait()
	defer f.nodeWork.ShutDown()
	defer f.podWork.ShutDown()
	group.Go(func() { f.nodes.RunWithContext(ctx) })
	synced := []cache.InformerSynced{f.nodes.HasSynced}
	if f.pods != nil {
		group.Go(func() { f.pods.RunWithContext(ctx) })
		synced = append(synced, f.pods.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	for range f.opts.Workers {
		group.Go(func() { f.work(ctx, "node", f.nodeWork, f.syncNode) })
		if f.pods != nil {
			group.Go(func() { f.work(ctx, "pod", f.podWork, f.syncPod) })
		}
	}
	f.renewLeases(ctx)
	return nil
}

// Shutdown turns the machine of a node off: its lease is not renewed, and nothing
// happens to its pods. The node need not exist.
func (f *Fleet) Shutdown(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down[name] = true
}

// PowerOn undoes Shutdown.
func (f *Fleet) PowerOn(name string) {
	f.mu.Lock()
	delete(f.down, name)
	delete(f.machines, name)
	f.mu.Unlock()
	f.nodeWork.Add(name)
	f.addPods(name)
}

// off says whether the node's machine does nothing.
func (f *Fleet) off(node *corev1.Node, b Node) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return b.Shutdown || f.down[node.Name]
}

func (f *Fleet) nodeChanged(before, after *corev1.Node) {
	f.nodeWork.Add(after.Name)
	if before == nil || isReady(before) != isReady(after) || !maps.Equal(before.Annotations, after.Annotations) {
		f.addPods(after.Name)
	}
}

// addPods looks at the pods of a node again.
func (f *Fleet) addPods(node string) {
	if f.pods == nil {
		return
	}
	pods, err := f.pods.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return // the index exists
	}
	for _, pod := range pods {
		f.podWork.Add(keyOf(pod))
	}
}

func (f *Fleet) forget(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.machines, node)
	delete(f.down, node)
}

// machine returns what is remembered of a node, nothing if it is another of that name.
func (f *Fleet) machine(node *corev1.Node) machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.machines[node.Name]; m != nil && m.uid == node.UID {
		return *m
	}
	return machine{uid: node.UID}
}

func (f *Fleet) remember(name string, m machine) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.machines[name] = &m
}

// work takes keys from a queue and looks at them. sync returns when to look again; 0 is
// when something changes.
func (f *Fleet) work(ctx context.Context, kind string, queue workqueue.TypedDelayingInterface[string], sync func(context.Context, string) (time.Duration, error)) {
	for {
		key, shutdown := queue.Get()
		if shutdown {
			return
		}
		after, err := sync(ctx, key)
		if err != nil && ctx.Err() == nil {
			after = retryDelay
			if !apierrors.IsConflict(err) {
				f.opts.Log.Error("look at "+kind, "name", key, "err", err)
				after = time.Second
			}
		}
		// Every look sets its own timer, since the queue keeps only the earliest of a key.
		if after > 0 && ctx.Err() == nil {
			queue.AddAfter(key, after)
		}
		queue.Done(key)
	}
}

func (f *Fleet) node(name string) *corev1.Node {
	object, ok, err := f.nodes.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	return object.(*corev1.Node)
}

func (f *Fleet) syncNode(ctx context.Context, name string) (time.Duration, error) {
	node := f.node(name)
	if node == nil || !f.opts.Manages(node) {
		return 0, nil
	}
	b := f.opts.Node(node)
	if f.off(node, b) {
		return 0, nil
	}
	m := f.machine(node)
	if m.renew.IsZero() {
		// The lease goes first: a node that is Ready without one is suspect.
		if err := f.renew(ctx, node, &m); err != nil {
			return 0, err
		}
		f.remember(name, m)
	}
	now := time.Now()
	wait := due(node.CreationTimestamp, b.Ready, now)
	devices := due(node.CreationTimestamp, b.DevicesAfter, now)
	ready := wait == 0 && !b.NeverReady
	if err := f.patchStatus(ctx, node, b, ready, devices == 0, metav1.NewTime(now)); err != nil {
		return 0, err
	}
	if err := f.patchLabels(ctx, node); err != nil {
		return 0, err
	}
	if !m.hasCSINode {
		if err := f.createCSINode(ctx, node, b); err != nil {
			return 0, err
		}
		m.hasCSINode = true
		f.remember(name, m)
	}
	next := sooner(wait, devices)
	if ready {
		untaint, err := f.untaint(ctx, node, b, now)
		if err != nil {
			return 0, err
		}
		next = sooner(next, untaint)
	}
	return next, nil
}

// patchStatus reports what a kubelet knows of its node, if that is not what the node
// says already.
func (f *Fleet) patchStatus(ctx context.Context, node *corev1.Node, b Node, ready, devices bool, now metav1.Time) error {
	want := node.Status.DeepCopy()
	if len(want.Capacity) == 0 {
		want.Capacity = maps.Clone(f.opts.Capacity)
	}
	if len(want.Allocatable) == 0 {
		want.Allocatable = maps.Clone(want.Capacity)
	}
	if devices {
		maps.Copy(want.Capacity, b.Devices)
		maps.Copy(want.Allocatable, b.Devices)
	}
	if len(want.Addresses) == 0 {
		want.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: node.Name}}
	}
	if want.NodeInfo.KubeletVersion == "" {
		want.NodeInfo = corev1.NodeSystemInfo{
			MachineID: string(node.UID), SystemUUID: string(node.UID), BootID: string(node.UID),
			KernelVersion: "6.12.0", OSImage: "Linux", ContainerRuntimeVersion: "fake://1.0.0",
			KubeletVersion:  f.version,
			OperatingSystem: cmp.Or(node.Labels[corev1.LabelOSStable], "linux"),
			Architecture:    cmp.Or(node.Labels[corev1.LabelArchStable], "amd64"),
		}
	}
	conditions := []corev1.NodeCondition{
		condition(corev1.NodeMemoryPressure, false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		condition(corev1.NodeDiskPressure, false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		condition(corev1.NodePIDPressure, false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		condition(corev1.NodeReady, true, "KubeletReady", "kubelet is posting ready status"),
	}
	if !ready {
		conditions[3] = condition(corev1.NodeReady, false, "KubeletNotReady", "container runtime network not ready")
	}
	want.Conditions = merge(want.Conditions, conditions, now)
	if equality.Semantic.DeepEqual(&node.Status, want) {
		return nil
	}
	// Conditions are merged by type: those of others stay as they are by now.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status": map[string]any{
			"capacity": want.Capacity, "allocatable": want.Allocatable, "addresses": want.Addresses, "nodeInfo": want.NodeInfo,
			"conditions": slices.DeleteFunc(want.Conditions, func(have corev1.NodeCondition) bool {
				return !slices.ContainsFunc(conditions, func(own corev1.NodeCondition) bool { return own.Type == have.Type })
			}),
		},
	})
	if err != nil {
		return err
	}
	_, err = f.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return gone(err)
}

func condition(kind corev1.NodeConditionType, status bool, reason, message string) corev1.NodeCondition {
	value := corev1.ConditionFalse
	if status {
		value = corev1.ConditionTrue
	}
	return corev1.NodeCondition{Type: kind, Status: value, Reason: reason, Message: message}
}

// merge sets conditions among those that there are. Times change with the status only:
// leases tell that a kubelet is alive.
func merge(have, set []corev1.NodeCondition, now metav1.Time) []corev1.NodeCondition {
	for _, c := range set {
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		i := slices.IndexFunc(have, func(h corev1.NodeCondition) bool { return h.Type == c.Type })
		switch {
		case i < 0:
			have = append(have, c)
		case have[i].Status != c.Status || have[i].Reason != c.Reason:
			have[i] = c
		}
	}
	return have
}

// patchLabels adds the labels that a kubelet gives the node it registers.
func (f *Fleet) patchLabels(ctx context.Context, node *corev1.Node) error {
	missing := map[string]string{}
	for label, value := range map[string]string{
		corev1.LabelHostname: node.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
	} {
		if _, ok := node.Labels[label]; !ok {
			missing[label] = value
		}
	}
	if len(missing) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID, "labels": missing}})
	if err != nil {
		return err
	}
	_, err = f.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return gone(err)
}

// untaint removes the taints whose time has come and returns when to look again.
func (f *Fleet) untaint(ctx context.Context, node *corev1.Node, b Node, now time.Time) (time.Duration, error) {
	if len(b.Untaint) == 0 {
		return 0, nil
	}
	var since metav1.Time
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			since = c.LastTransitionTime
		}
	}
	if since.IsZero() {
		return 0, nil // the watch brings the node that is Ready
	}
	var next time.Duration
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(taint corev1.Taint) bool {
		after, ok := b.Untaint[taint.Key]
		if !ok {
			return false
		}
		wait := due(since, after, now)
		next = sooner(next, wait)
		return wait == 0
	})
	if len(taints) == len(node.Spec.Taints) {
		return next, nil
	}
	// The version guards the taints that others add meanwhile.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return 0, err
	}
	_, err = f.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return next, gone(err)
}

func (f *Fleet) createCSINode(ctx context.Context, node *corev1.Node, b Node) error {
	object := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{ownerOf(node)}}}
	for _, name := range slices.Sorted(maps.Keys(b.CSIDrivers)) {
		count := b.CSIDrivers[name]
		object.Spec.Drivers = append(object.Spec.Drivers, storagev1.CSINodeDriver{
			Name: name, NodeID: node.Name, Allocatable: &storagev1.VolumeNodeResources{Count: &count},
		})
	}
	_, err := f.client.StorageV1().CSINodes().Create(ctx, object, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	have, err := f.client.StorageV1().CSINodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if metav1.IsControlledBy(have, node) || len(have.OwnerReferences) > 0 && have.OwnerReferences[0].UID == node.UID {
		return nil
	}
	// It is that of an earlier node of the same name, which the garbage collector has not
	// taken yet.
	uid := have.UID
	err = f.client.StorageV1().CSINodes().Delete(ctx, node.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err = f.client.StorageV1().CSINodes().Create(ctx, object, metav1.CreateOptions{})
	return err
}

// renewLeases renews what is due until ctx ends.
func (f *Fleet) renewLeases(ctx context.Context) {
	tick := time.NewTicker(f.opts.LeaseInterval / 20)
	defer tick.Stop()
	slots := make(chan struct{}, f.opts.Workers)
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// One round ends before the next begins, so that no node is renewed twice at once.
		group.Wait()
		for name, m := range f.renewals(time.Now()) {
			node := f.node(name)
			if node == nil || node.UID != m.uid || !f.opts.Manages(node) || f.off(node, f.opts.Node(node)) {
				continue
			}
			slots <- struct{}{}
			group.Go(func() {
				defer func() { <-slots }()
				if err := f.renew(ctx, node, &m); err != nil {
					if ctx.Err() == nil {
						f.opts.Log.Error("renew lease", "name", name, "err", err)
					}
					return
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				if have := f.machines[name]; have != nil && have.uid == m.uid {
					have.lease, have.renew = m.lease, m.renew
				}
			})
		}
	}
}

// renewals are the machines whose lease is due.
func (f *Fleet) renewals(now time.Time) map[string]machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	due := map[string]machine{}
	for name, m := range f.machines {
		if !now.Before(m.renew) {
			due[name] = *m
		}
	}
	return due
}

// renew writes the lease of a node and notes in m when to do so next.
func (f *Fleet) renew(ctx context.Context, node *corev1.Node, m *machine) error {
	leases := f.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := time.Now()
	name, seconds, stamp := node.Name, int32(leaseDuration/time.Second), metav1.NewMicroTime(now)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &stamp}
	var err error
	if m.lease == nil {
		m.lease, err = leases.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			m.lease, err = leases.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{ownerOf(node)}},
				Spec:       spec,
			}, metav1.CreateOptions{})
			m.renew = now.Add(f.opts.LeaseInterval)
			return err
		}
	}
	if err == nil {
		lease := m.lease.DeepCopy()
		lease.Spec, lease.OwnerReferences = spec, []metav1.OwnerReference{ownerOf(node)}
		m.lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		// The next attempt reads what there is.
		m.lease = nil
		f.mu.Lock()
		if have := f.machines[name]; have != nil {
			have.lease = nil
		}
		f.mu.Unlock()
		return err
	}
	m.renew = now.Add(f.opts.LeaseInterval)
	return nil
}

func ownerOf(node *corev1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

func (f *Fleet) syncPod(ctx context.Context, key string) (time.Duration, error) {
	object, ok, err := f.pods.GetStore().GetByKey(key)
	if err != nil || !ok {
		return 0, err
	}
	pod := object.(*corev1.Pod)
	node := f.node(pod.Spec.NodeName)
	// The pods of a node that is gone are for the garbage collector.
	if node == nil || !f.opts.Manages(node) || f.off(node, f.opts.Node(node)) {
		return 0, nil
	}
	b := f.opts.Pod(pod)
	if pod.DeletionTimestamp != nil {
		return f.stopPod(ctx, pod, b)
	}
	if !isReady(node) {
		return 0, nil
	}
	status, next := running(pod, b, time.Now())
	return next, f.updateStatus(ctx, pod, status)
}

// stopPod ends a pod that is being deleted once its containers have stopped.
func (f *Fleet) stopPod(ctx context.Context, pod *corev1.Pod, b Pod) (time.Duration, error) {
	var grace time.Duration
	if seconds := pod.DeletionGracePeriodSeconds; seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	now := time.Now()
	requested := metav1.NewTime(pod.DeletionTimestamp.Add(-grace))
	if wait := due(requested, min(b.Stop, grace), now); wait > 0 {
		return wait, nil
	}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	// Whoever waits for the end of a pod, as Jobs do, has a finalizer on it. Others never
	// see how it ended, and their pods are not worth another request.
	if !finished && len(pod.Finalizers) > 0 {
		status := *pod.Status.DeepCopy()
		code := int32(143) // SIGTERM
		if b.Stop > grace {
			code = 137 // SIGKILL
		}
		finish(&status, pod, code, metav1.NewTime(now))
		return 0, f.updateStatus(ctx, pod, status) // the change brings the pod back
	}
	if grace == 0 && len(pod.Finalizers) > 0 {
		return 0, nil // it was deleted before, and its finalizers hold it
	}
	err := f.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	return 0, gone(err)
}

func (f *Fleet) updateStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	if equality.Semantic.DeepEqual(pod.Status, status) {
		return nil
	}
	// The version stays: what others wrote into the status meanwhile, as an eviction does,
	// must not be lost.
	update := pod.DeepCopy()
	update.Status = status
	_, err := f.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{})
	return gone(err)
}

// gone drops the error of an object that does not exist any more. That of one which
// exists anew is a conflict, and is over when the watch brings it.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func keyOf(object any) string {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return ""
	}
	return cache.NewObjectName(accessor.GetNamespace(), accessor.GetName()).String()
}

// stripManagedFields drops what nobody here reads.
func stripManagedFields(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}
