// Package judge replays a plan with kube-scheduler's own filter plugins and says which
// placements it would refuse and which pods it could have placed.
package judge

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// filters are the plugins that decide, in kube-scheduler's order.
var filters = []string{
	names.NodeUnschedulable, names.NodeName, names.TaintToleration, names.NodeAffinity, names.NodePorts, names.NodeResourcesFit,
	names.VolumeRestrictions, names.NodeVolumeLimits, names.VolumeBinding, names.VolumeZone, names.PodTopologySpread, names.InterPodAffinity,
}

// scheduler is kube-scheduler's framework over objects that are put into its caches
// directly: no informer runs, so one scheduler serves many problems one after the other.
type scheduler struct {
	ctx      context.Context
	fw       framework.Framework
	stores   map[string]cache.Indexer
	classes  cache.Indexer
	claims   cache.Indexer
	volumes  cache.Indexer
	csiNodes cache.Indexer
	nodes    *nodeLister
}

// newScheduler makes a framework with kube-scheduler's default arguments, apart from
// the cluster's default spread constraints. It runs until ctx is done.
func newScheduler(ctx context.Context, spread []corev1.TopologySpreadConstraint) (*scheduler, error) {
	metrics.Register()
	klog.SetLogger(logr.Discard())
	klog.SetOutput(io.Discard)
	cfg, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("scheduler configuration: %w", err)
	}
	profile := cfg.Profiles[0]
	for i := range profile.PluginConfig {
		if args, ok := profile.PluginConfig[i].Args.(*config.PodTopologySpreadArgs); ok {
			args.DefaultConstraints, args.DefaultingType = spread, config.ListDefaulting
		}
	}
	set := func(list ...string) config.PluginSet {
		s := config.PluginSet{}
		for _, n := range list {
			s.Enabled = append(s.Enabled, config.Plugin{Name: n})
		}
		return s
	}
	profile.Plugins = &config.Plugins{
		QueueSort: set(names.PrioritySort), Bind: set(names.DefaultBinder), Filter: set(filters...),
		PreFilter: set(slices.DeleteFunc(slices.Clone(filters), func(n string) bool {
			return slices.Contains([]string{names.NodeUnschedulable, names.NodeName, names.TaintToleration}, n)
		})...),
	}
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	s := &scheduler{ctx: ctx, nodes: &nodeLister{}, stores: map[string]cache.Indexer{}}
	core, storage, apps := factory.Core().V1(), factory.Storage().V1(), factory.Apps().V1()
	s.claims, s.volumes = core.PersistentVolumeClaims().Informer().GetIndexer(), core.PersistentVolumes().Informer().GetIndexer()
	s.classes, s.csiNodes = storage.StorageClasses().Informer().GetIndexer(), storage.CSINodes().Informer().GetIndexer()
	s.stores["namespaces"] = core.Namespaces().Informer().GetIndexer()
	s.stores["services"] = core.Services().Informer().GetIndexer()
	s.stores["replicationcontrollers"] = core.ReplicationControllers().Informer().GetIndexer()
	s.stores["replicasets"] = apps.ReplicaSets().Informer().GetIndexer()
	s.stores["statefulsets"] = apps.StatefulSets().Informer().GetIndexer()
	s.stores["nodes"] = core.Nodes().Informer().GetIndexer()
	s.fw, err = runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), &profile,
		runtime.WithClientSet(client), runtime.WithInformerFactory(factory), runtime.WithSnapshotSharedLister(s.nodes),
		runtime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(storage.CSINodes().Lister())), runtime.WithParallelism(1),
	)
	if err != nil {
		return nil, fmt.Errorf("scheduler framework: %w", err)
	}
	return s, nil
}

// store replaces what an indexer holds.
func store[T any](ix cache.Indexer, objs []T) error {
	items := make([]any, len(objs))
	for i := range objs {
		items[i] = objs[i]
	}
	return ix.Replace(items, "")
}

// world is everything outside pods that filters look at.
type world struct {
	nodes        []*corev1.Node
	csiNodes     []*storagev1.CSINode
	claims       []*corev1.PersistentVolumeClaim
	volumes      []*corev1.PersistentVolume
	classes      []*storagev1.StorageClass
	namespaces   []*corev1.Namespace
	services     []*corev1.Service
	controllers  []*corev1.ReplicationController
	replicaSets  []*appsv1.ReplicaSet
	statefulSets []*appsv1.StatefulSet
}

// load makes w, without pods, what the filters see.
func (s *scheduler) load(w *world) error {
	for _, err := range []error{
		store(s.stores["nodes"], w.nodes), store(s.csiNodes, w.csiNodes), store(s.claims, w.claims), store(s.volumes, w.volumes),
		store(s.classes, w.classes), store(s.stores["namespaces"], w.namespaces), store(s.stores["services"], w.services),
		store(s.stores["replicationcontrollers"], w.controllers), store(s.stores["replicasets"], w.replicaSets), store(s.stores["statefulsets"], w.statefulSets),
	} {
		if err != nil {
			return fmt.Errorf("load objects: %w", err)
		}
	}
	s.nodes.reset()
	for _, n := range w.nodes {
		s.nodes.add(n)
	}
	return nil
}

// cycle is what the PreFilter plugins found out about a pod.
type cycle struct {
	state  fwk.CycleState
	pod    *corev1.Pod
	result *fwk.PreFilterResult
	status *fwk.Status
}

// begin runs the PreFilter plugins for pod.
func (s *scheduler) begin(pod *corev1.Pod) *cycle {
	c := &cycle{state: framework.NewCycleState(), pod: pod}
	var by sets.Set[string]
	c.result, c.status, by = s.fw.RunPreFilterPlugins(s.ctx, c.state, pod)
	if !c.status.IsSuccess() && c.status.Plugin() == "" {
		c.status.SetPlugin(strings.Join(sets.List(by), ","))
	}
	return c
}

// Refusal is a filter's answer.
type Refusal struct {
	// Plugin is the filter that refused; Message is its own.
	Plugin, Message string
}

func refusal(s *fwk.Status) *Refusal {
	return &Refusal{Plugin: s.Plugin(), Message: s.Message()}
}

// accepts runs the Filter plugins for a node; nil is yes.
func (s *scheduler) accepts(c *cycle, node string) *Refusal {
	if !c.status.IsSuccess() {
		return refusal(c.status)
	}
	if !c.result.AllNodes() && !c.result.NodeNames.Has(node) {
		return &Refusal{Plugin: names.NodeAffinity, Message: "node is not among those that PreFilter left"}
	}
	info := s.nodes.byName[node]
	if info == nil {
		return &Refusal{Plugin: names.NodeName, Message: fmt.Sprintf("there is no node %q", node)}
	}
	if st := s.fw.RunFilterPlugins(s.ctx, c.state, c.pod, info); !st.IsSuccess() {
		return refusal(st)
	}
	return nil
}

// nodeLister is the snapshot the plugins read.
type nodeLister struct {
	fwk.SharedLister // pod groups are not used
	list             []fwk.NodeInfo
	byName           map[string]*framework.NodeInfo
	claims           map[string]int
}

func (l *nodeLister) reset() {
	l.list, l.byName, l.claims = nil, map[string]*framework.NodeInfo{}, map[string]int{}
}

func (l *nodeLister) add(n *corev1.Node) {
	info := framework.NewNodeInfo()
	info.SetNode(n)
	l.list = append(l.list, info)
	l.byName[n.Name] = info
}

// remove takes the newest node away again; it must hold no pods with claims.
func (l *nodeLister) remove(name string) {
	delete(l.byName, name)
	l.list = slices.DeleteFunc(l.list, func(n fwk.NodeInfo) bool { return n.Node().Name == name })
}

// bind puts pod on a node.
func (l *nodeLister) bind(pod *corev1.Pod, node string) {
	l.byName[node].AddPod(pod)
	for i := range pod.Spec.Volumes {
		if c := pod.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
			l.claims[pod.Namespace+"/"+c.ClaimName]++
		}
	}
}

func (l *nodeLister) NodeInfos() fwk.NodeInfoLister       { return l }
func (l *nodeLister) StorageInfos() fwk.StorageInfoLister { return l }
func (l *nodeLister) IsPVCUsedByPods(key string) bool     { return l.claims[key] > 0 }
func (l *nodeLister) List() ([]fwk.NodeInfo, error)       { return l.list, nil }

func (l *nodeLister) having(has func(fwk.NodeInfo) bool) []fwk.NodeInfo {
	var out []fwk.NodeInfo
	for _, n := range l.list {
		if has(n) {
			out = append(out, n)
		}
	}
	return out
}

func (l *nodeLister) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	return l.having(func(n fwk.NodeInfo) bool { return len(n.GetPodsWithAffinity()) > 0 }), nil
}

func (l *nodeLister) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return l.having(func(n fwk.NodeInfo) bool { return len(n.GetPodsWithRequiredAntiAffinity()) > 0 }), nil
}

func (l *nodeLister) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return l.having(func(n fwk.NodeInfo) bool { return len(n.GetPodsWithRequiredNonHostScopedAntiAffinity()) > 0 }), nil
}

func (l *nodeLister) Get(name string) (fwk.NodeInfo, error) {
	if n := l.byName[name]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("node %q not found", name)
}

// key names an object as its cache does.
func key(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}
