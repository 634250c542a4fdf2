package scenario

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/script"
)

// File is the first document of a scenario file.
type File struct {
	// About says what must happen, in a sentence or a few.
	About string `json:"about"`
	Case  `json:",inline"`
	// Variants repeat the case with some of its fields replaced.
	Variants []Variant `json:"variants"`
}

// Variant is a case that differs from the file's in the fields it sets.
type Variant struct {
	Name string `json:"name"`
	Case `json:",inline"`
}

// Case is one cluster state and its outcome.
type Case struct {
	Catalog *Catalog `json:"catalog"`
	Options *Options `json:"options"`
	Pools   []Pool   `json:"pools"`
	Nodes   []Node   `json:"nodes"`
	Pods    []Pod    `json:"pods"`
	// Daemons are DaemonSets, one pod on every node that suits.
	Daemons []Pod `json:"daemons"`
	// Volumes are PersistentVolumes with a claim of the same name bound to each.
	Volumes []Volume `json:"volumes"`
	// Policies are in force.
	Policies []Policy `json:"policies"`
	// Loops is how many loops of ten seconds the cluster lives on after the last of Events,
	// by which it must have come to rest. A case with neither is planned once. Defaults to
	// DefaultLoops.
	Loops int `json:"loops"`
	// Quiet is how many loops more it is watched for staying at rest. Defaults to
	// DefaultQuiet.
	Quiet  int              `json:"quiet"`
	Events []script.Written `json:"events"`
	Expect *Expect          `json:"expect"`
}

// DefaultLoops is how many loops a cluster has to come to rest.
const DefaultLoops = 30

// DefaultQuiet is for how many loops a cluster must then stay at rest.
const DefaultQuiet = 10

// lives reports whether a case happens in time.
func (c *Case) lives() bool { return c.Loops > 0 || len(c.Events) > 0 }

// Policy is a policy in force.
type Policy struct {
	// File is that of the policy, relative to the scenario.
	File       string         `json:"file"`
	Parameters map[string]any `json:"parameters"`
	// Order defaults to 0.
	Order int `json:"order"`
}

// Catalog changes the catalogue for a scenario.
type Catalog struct {
	// From is a catalogue file, relative to the scenario. Defaults to cat-1.yaml.
	From string `json:"from"`
	// Types leaves only these types; empty leaves all.
	Types []string `json:"types"`
	// Zones replaces the zones of every offering; [""] means offerings without a zone.
	Zones []string `json:"zones"`
	// AttachLimits are set on every type, by CSI driver.
	AttachLimits map[string]int64 `json:"attachLimits"`
	// Offerings change some of the offerings.
	Offerings []OfferingChange `json:"offerings"`
	// Reservations are more offerings, of capacity type reserved.
	Reservations []Reservation `json:"reservations"`
	// More are further types.
	More []MoreType `json:"more"`
}

// Reservation is capacity that is paid for.
type Reservation struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	// Zone defaults to z1.
	Zone  string  `json:"zone"`
	Units int     `json:"units"`
	Price float64 `json:"price"`
}

// MoreType is an instance type like those of the catalogue, in all their zones.
type MoreType struct {
	Name   string            `json:"name"`
	CPU    resource.Quantity `json:"cpu"`
	Memory resource.Quantity `json:"memory"`
	// Price is that of on-demand capacity; spot costs 40 % of it.
	Price float64 `json:"price"`
}

// OfferingChange changes the offerings that match its first three fields; an empty one
// matches all.
type OfferingChange struct {
	Type         string `json:"type"`
	Zone         string `json:"zone"`
	CapacityType string `json:"capacityType"`
	// Price is in US dollars per hour; unset keeps it.
	Price       *float64 `json:"price"`
	Unavailable bool     `json:"unavailable"`
}

// Options tune the plan.
type Options struct {
	Preferences schedule.PreferencePolicy `json:"preferences"`
	MinValues   schedule.MinValuesPolicy  `json:"minValues"`
	// DefaultSpread are constraints as [load.ParseSpread] reads them.
	DefaultSpread []string `json:"defaultSpread"`
	// MinSaving, in permille, and SpotTypes are those of consolidation; negative is none.
	MinSaving int `json:"minSaving"`
	SpotTypes int `json:"spotTypes"`
	// Shuffles is in how many other orders of objects a case is repeated. Defaults to
	// Shuffles; negative is none.
	Shuffles int `json:"shuffles"`
	// Arrivals repeats a life with its pending pods in all orders of arrival that differ. There
	// must not be many.
	Arrivals bool `json:"arrivals"`
}

// Pool is a NodePool in short.
type Pool struct {
	Name   string `json:"name"`
	Weight int32  `json:"weight"`
	// Types, Zones and CapacityTypes become requirements. CapacityTypes defaults to
	// on-demand.
	Types         []string             `json:"types"`
	Zones         []string             `json:"zones"`
	CapacityTypes []string             `json:"capacityTypes"`
	Requirements  []karpv1.Requirement `json:"requirements"`
	Labels        map[string]string    `json:"labels"`
	// Taints and StartupTaints are written "key=value:Effect" or "key:Effect".
	Taints        []string            `json:"taints"`
	StartupTaints []string            `json:"startupTaints"`
	Limits        corev1.ResourceList `json:"limits"`
	Annotations   map[string]string   `json:"annotations"`
	// Consolidation is the consolidation policy, WhenEmptyOrUnderutilized by default; After is
	// consolidateAfter, 0s by default; Budgets are 100 % by default.
	Consolidation karpv1.ConsolidationPolicy `json:"consolidation"`
	After         string                     `json:"after"`
	Budgets       []karpv1.Budget            `json:"budgets"`
	Replicas      *int64                     `json:"replicas"`
	// ExpireAfter is Never by default.
	ExpireAfter string `json:"expireAfter"`
	// GracePeriod is terminationGracePeriod.
	GracePeriod string `json:"gracePeriod"`
}

// Node is an existing node in short. It is initialised.
type Node struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Zone string `json:"zone"`
	// CapacityType defaults to on-demand.
	CapacityType string `json:"capacityType"`
	// Pool is the NodePool that made the node; empty for a node of someone else.
	Pool   string            `json:"pool"`
	Labels map[string]string `json:"labels"`
	Taints []string          `json:"taints"`
	// Allocatable replaces amounts of the type.
	Allocatable corev1.ResourceList `json:"allocatable"`
	Annotations map[string]string   `json:"annotations"`
	// Count makes nodes name-1, name-2 and so on, each with its own Pods. Defaults to 1.
	Count int `json:"count"`
	// Age is how long it has been there; a day by default. Event is how long ago a pod last
	// came or went; unset if it is not known.
	Age   string `json:"age"`
	Event string `json:"event"`
	// Reservation is the reservation that it was bought by.
	Reservation string `json:"reservation"`
	// Drifted is the reason for which it is no longer what its pool asks for.
	Drifted string `json:"drifted"`
	// NotReady and Deleting are what they say.
	NotReady bool `json:"notReady"`
	Deleting bool `json:"deleting"`
	// Pods are bound to the node.
	Pods []Pod `json:"pods"`
}

// Pod is some equal pods in short.
type Pod struct {
	Name string `json:"name"`
	// Count is the number of pods: name if it is 1, else name-1, name-2 and so on.
	// Defaults to 1.
	Count    int                 `json:"count"`
	CPU      *resource.Quantity  `json:"cpu"`
	Memory   *resource.Quantity  `json:"memory"`
	GPU      int64               `json:"gpu"`
	Requests corev1.ResourceList `json:"requests"`
	// Labels are those beside app, which is App, or Name if that is empty.
	App       string            `json:"app"`
	Labels    map[string]string `json:"labels"`
	Namespace string            `json:"namespace"`
	Priority  *int32            `json:"priority"`
	// Annotations are those of the pod. DoNotDisrupt sets Karpenter's, Disposable ours.
	Annotations  map[string]string `json:"annotations"`
	DoNotDisrupt bool              `json:"doNotDisrupt"`
	Disposable   bool              `json:"disposable"`
	// Daemon says that it belongs to the DaemonSet of that name, Alone that to nothing.
	Daemon string `json:"daemon"`
	Alone  bool   `json:"alone"`
	// Selector is spec.nodeSelector.
	Selector map[string]string `json:"selector"`
	// Tolerates lists taint keys to tolerate with any value and effect.
	Tolerates []string `json:"tolerates"`
	Spread    []Spread `json:"spread"`
	// Apart and Near are topology keys of required anti-affinity and affinity to pods
	// of the same app. ApartIfPossible and NearIfPossible prefer.
	Apart           []string `json:"apart"`
	Near            []string `json:"near"`
	ApartIfPossible []string `json:"apartIfPossible"`
	NearIfPossible  []string `json:"nearIfPossible"`
	// NearApp makes Near and NearIfPossible look at that app.
	NearApp string `json:"nearApp"`
	// Require are required node affinity terms, any of which must hold; each maps label
	// keys to values. Prefer are preferred terms.
	Require []corev1.NodeSelectorTerm        `json:"require"`
	Prefer  []corev1.PreferredSchedulingTerm `json:"prefer"`
	// HostPorts are TCP ports of the host.
	HostPorts []int32 `json:"hostPorts"`
	// Claims are PersistentVolumeClaims. "%d" becomes the pod's number.
	Claims []string `json:"claims"`
}

// Spread is a topology spread constraint over the pods of the same app.
type Spread struct {
	// Key is a label, or zone or hostname for the labels of that name.
	Key string `json:"key"`
	// Skew defaults to 1.
	Skew       int32  `json:"skew"`
	MinDomains *int32 `json:"minDomains"`
	// Soft means ScheduleAnyway.
	Soft               bool                        `json:"soft"`
	NodeAffinityPolicy *corev1.NodeInclusionPolicy `json:"nodeAffinityPolicy"`
	NodeTaintsPolicy   *corev1.NodeInclusionPolicy `json:"nodeTaintsPolicy"`
	MatchLabelKeys     []string                    `json:"matchLabelKeys"`
}

// Volume is a bound volume and its claim.
type Volume struct {
	Name string `json:"name"`
	// Count makes name-1, name-2 and so on. Defaults to 1, which is name.
	Count int `json:"count"`
	// Zone is the only zone that reaches the volume; empty means any.
	Zone string `json:"zone"`
	// Driver defaults to csi.example.com.
	Driver string `json:"driver"`
}

// Expect is the outcome. Fields that are not set are not looked at.
type Expect struct {
	// Cost is the price per hour of the new nodes in US dollars, and of all nodes at the end
	// of a life. MaxCost is the most.
	Cost    *Bound   `json:"cost"`
	MaxCost *float64 `json:"maxCost"`
	// Nodes is the number of new nodes; the maps count them.
	Nodes         *int           `json:"nodes"`
	Types         map[string]int `json:"types"`
	Pools         map[string]int `json:"pools"`
	Zones         map[string]int `json:"zones"`
	CapacityTypes map[string]int `json:"capacityTypes"`
	// OneOf lists alternatives of which one must hold.
	OneOf []Expect `json:"oneOf"`
	// Offers bounds what the new nodes' claims may be launched as.
	Offers *Offers `json:"offers"`
	// Placed counts the pods that go to existing nodes, by node; other existing nodes
	// get none.
	Placed map[string]int `json:"placed"`
	// PodsIn counts all pods of an app, bound and placed, by zone.
	PodsIn map[string]map[string]int `json:"podsIn"`
	// Pending are the pods that get no node. Unset means none; other pods all get one.
	Pending []Pending `json:"pending"`
	// Relaxed is true if some new node has its minValues relaxed.
	Relaxed *bool `json:"relaxed"`
	Life    `json:",inline"`
}

// Life is the outcome of a case that happens in time. In it, Nodes, Types and the other counts
// are of the nodes that are there at the end, and Pending the pods that have none then.
type Life struct {
	// Evictions are pods that had to leave a node, Commands the moves made, Launches the nodes
	// bought for whatever cause, Attempts those and the ones that were in vain.
	Evictions *Bound `json:"evictions"`
	Commands  *Bound `json:"commands"`
	Launches  *Bound `json:"launches"`
	Attempts  *Bound `json:"attempts"`
	// ByReason bounds moves by their reason.
	ByReason map[string]Bound `json:"byReason"`
	// Untouched nodes are in no move and are there at the end; Gone ones are not.
	Untouched []string `json:"untouched"`
	Gone      []string `json:"gone"`
	// NotBefore is the time since the start before which nodes are in no move, and By the time
	// by which the last move must have been decided.
	NotBefore map[string]string `json:"notBefore"`
	By        string            `json:"by"`
	// AllBy is when all of Gone must be in a move.
	AllBy string `json:"allBy"`
	// Examined is by when every node that is there from the beginning must have had its turn.
	Examined string `json:"examined"`
	// Left are words that must be among the reasons for which nodes are left alone at the end.
	Left map[string][]string `json:"left"`
	// Disrupted is the number of nodes that are going or part of a move, at any time, and
	// Count the number of nodes that take pods.
	Disrupted *Bound `json:"disrupted"`
	Present   *Bound `json:"present"`
	// EvictedTwice are pods that had to move more than once.
	EvictedTwice *Bound `json:"evictedTwice"`
	// Says are words that the timeline must have, and Silent those that it must not.
	Says   []string `json:"says"`
	Silent []string `json:"silent"`
	// Restless says that the cluster need not come to rest.
	Restless bool `json:"restless"`
	// Pods counts the pods of apps by the node that they are on at the end.
	On map[string]map[string]int `json:"on"`
}

// Bound is a number, or a bound on one: 3, "<= 0.88", ">= 2", "< 3", "> 0".
type Bound struct {
	op    string
	value float64
}

// Exactly is a bound that only f keeps.
func Exactly(f float64) *Bound { return &Bound{value: f} }

// UnmarshalJSON reads a number or a text.
func (b *Bound) UnmarshalJSON(data []byte) error {
	text := strings.TrimSpace(strings.Trim(string(data), `"`))
	// JSON writes < and > as escapes.
	text = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(text)
	for _, op := range []string{"<=", ">=", "<", ">", "="} {
		if rest, ok := strings.CutPrefix(text, op); ok {
			b.op, text = op, strings.TrimSpace(rest)
			break
		}
	}
	f, err := strconv.ParseFloat(strings.TrimPrefix(text, "$"), 64)
	if err != nil {
		return fmt.Errorf("%s: must be a number, or a bound such as \"<= 0.88\"", data)
	}
	b.value = f
	return nil
}

func (b Bound) String() string {
	return strings.TrimSpace(b.op + " " + strconv.FormatFloat(b.value, 'f', -1, 64))
}

// keeps reports whether f is within the bound, to the millionth.
func (b Bound) keeps(f float64) bool {
	f, v := math.Round(f*1e6), math.Round(b.value*1e6)
	switch b.op {
	case "<=":
		return f <= v
	case ">=":
		return f >= v
	case "<":
		return f < v
	case ">":
		return f > v
	}
	return f == v
}

// Offers are the only values that offerings of the new nodes may have.
type Offers struct {
	Types         []string `json:"types"`
	CapacityTypes []string `json:"capacityTypes"`
	Zones         []string `json:"zones"`
}

// Pending is an expected pod without a node.
type Pending struct {
	// Pod is the name of a pod, or of the short form of several.
	Pod string `json:"pod"`
	// Count is how many of them. Defaults to 1.
	Count int `json:"count"`
	// Reason is the code that must be among the reasons, if set.
	Reason schedule.Code `json:"reason"`
	// Says are words that the reasons' texts must contain.
	Says []string `json:"says"`
}

// Read reads a scenario file.
func Read(path string) (*File, []byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	head, manifests := split(data)
	var f File
	if err := load.Strict(load.Input{Name: path, Data: head}, &f); err != nil {
		return nil, nil, fmt.Errorf("scenario %s: %w", path, err)
	}
	if f.About == "" {
		return nil, nil, fmt.Errorf("scenario %s: about: must say what is expected", path)
	}
	if f.Expect == nil {
		return nil, nil, fmt.Errorf("scenario %s: expect: must be set", path)
	}
	return &f, manifests, nil
}

// split separates the first document from the others, which keep their line numbers.
func split(data []byte) (head, rest []byte) {
	body := data
	offset := 0
	if bytes.HasPrefix(data, []byte("---\n")) {
		offset = 4
		body = data[4:]
	}
	i := bytes.Index(body, []byte("\n---"))
	if i < 0 {
		return data, nil
	}
	head = data[:offset+i+1]
	return head, append(bytes.Repeat([]byte("\n"), bytes.Count(head, []byte("\n"))), data[len(head):]...)
}

// IsScenario reports whether the file at path is a scenario: the catalogues beside them
// are not.
func IsScenario(path string) bool {
	base := filepath.Base(path)
	ext := filepath.Ext(base)
	return (ext == ".yaml" || ext == ".yml") && !bytes.HasPrefix([]byte(base), []byte("cat-"))
}

// over is base with the fields replaced that v sets.
func over(base, v Case) Case {
	if v.Catalog != nil {
		base.Catalog = v.Catalog
	}
	if v.Options != nil {
		base.Options = v.Options
	}
	if v.Pools != nil {
		base.Pools = v.Pools
	}
	if v.Nodes != nil {
		base.Nodes = v.Nodes
	}
	if v.Pods != nil {
		base.Pods = v.Pods
	}
	if v.Daemons != nil {
		base.Daemons = v.Daemons
	}
	if v.Volumes != nil {
		base.Volumes = v.Volumes
	}
	if v.Policies != nil {
		base.Policies = v.Policies
	}
	if v.Loops != 0 {
		base.Loops = v.Loops
	}
	if v.Quiet != 0 {
		base.Quiet = v.Quiet
	}
	if v.Events != nil {
		base.Events = v.Events
	}
	if v.Expect != nil {
		base.Expect = v.Expect
	}
	return base
}
