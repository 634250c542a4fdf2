// Package ec2 keeps the facts about EC2 instance types that the built-in catalogue is
// made from, in a compact form, and derives the rest from them.
//
// # The file
//
// The file is gzipped text. Its first line is "ec2 1", the region, and name=id of each
// zone, separated by tabs. Every further line is one instance type, ordered by name,
// with these columns separated by tabs; an empty column is a fact that is not known or
// not there:
//
//	name, architecture, CPU manufacturer, sustained clock in MHz, vCPUs, memory in MiB,
//	hypervisor, encryption in transit (1 or 0), EBS bandwidth in Mbit/s, network
//	bandwidth in Mbit/s, local NVMe storage in GB, GPU (name/manufacturer/count/MiB),
//	accelerator (name/manufacturer/count), pods, devices (resource=count, separated by
//	spaces), on-demand price in micro-US-dollars per hour
//
// # What is derived
//
// Capacity and allocatable follow the rules of the AWS provider for a node of the
// AL2023 family with its default volume and kubelet settings. Spot prices are not
// facts: see [Row.SpotPrice].
package ec2

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// Zone is an availability zone.
type Zone struct{ Name, ID string }

// Device is a GPU or an accelerator.
type Device struct {
	Name, Manufacturer string
	Count              int64
	// MemoryMiB is that of one GPU; 0 for accelerators.
	MemoryMiB int64
}

// Row holds the facts about one instance type. Zero numbers are not known.
type Row struct {
	Name, Arch, CPUManufacturer string
	ClockMHz, CPUs, MemoryMiB   int64
	// Hypervisor is empty for bare metal.
	Hypervisor           string
	Encryption           bool
	EBSMbps, NetworkMbps int64
	LocalNVMeGB          int64
	GPU, Accelerator     *Device
	Pods                 int64
	Devices              map[corev1.ResourceName]int64
	Price                catalog.Price
}

// Table is the content of a file.
type Table struct {
	Region string
	Zones  []Zone
	Rows   []Row
}

const (
	magic   = "ec2 1"
	columns = 16
)

// Write writes t, rows ordered by name. Equal tables give equal bytes.
func (t *Table) Write(w io.Writer) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	head := []string{magic, t.Region}
	for _, zone := range t.Zones {
		head = append(head, zone.Name+"="+zone.ID)
	}
	fmt.Fprintln(z, strings.Join(head, "\t"))
	for _, r := range slices.SortedFunc(slices.Values(t.Rows), func(a, b Row) int { return strings.Compare(a.Name, b.Name) }) {
		number := func(n int64) string {
			if n == 0 {
				return ""
			}
			return strconv.FormatInt(n, 10)
		}
		device := func(d *Device, parts int) string {
			if d == nil {
				return ""
			}
			all := []string{d.Name, d.Manufacturer, strconv.FormatInt(d.Count, 10), strconv.FormatInt(d.MemoryMiB, 10)}
			return strings.Join(all[:parts], "/")
		}
		var devices []string
		for _, name := range slices.Sorted(maps.Keys(r.Devices)) {
			devices = append(devices, fmt.Sprintf("%s=%d", name, r.Devices[name]))
		}
		encryption := "0"
		if r.Encryption {
			encryption = "1"
		}
		fmt.Fprintln(z, strings.Join([]string{
			r.Name, r.Arch, r.CPUManufacturer, number(r.ClockMHz), number(r.CPUs), number(r.MemoryMiB), r.Hypervisor, encryption,
			number(r.EBSMbps), number(r.NetworkMbps), number(r.LocalNVMeGB), device(r.GPU, 4), device(r.Accelerator, 3),
			number(r.Pods), strings.Join(devices, " "), number(int64(r.Price)),
		}, "\t"))
	}
	return z.Close()
}

// Read reads what [Table.Write] wrote.
func Read(r io.Reader) (*Table, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	t := &Table{Rows: make([]Row, 0, bytes.Count(text, []byte("\n")))}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSuffix(line, "\n")
		f := strings.Split(line, "\t")
		if n == 1 {
			if f[0] != magic || len(f) < 3 {
				return nil, fmt.Errorf("line 1: is %q, must be %q, a region and zones", line, magic)
			}
			t.Region = f[1]
			for _, zone := range f[2:] {
				name, id, _ := strings.Cut(zone, "=")
				t.Zones = append(t.Zones, Zone{Name: name, ID: id})
			}
			continue
		}
		row, err := parseRow(f)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		t.Rows = append(t.Rows, row)
	}
	if t.Region == "" {
		return nil, io.ErrUnexpectedEOF
	}
	return t, nil
}

func parseRow(f []string) (r Row, err error) {
	if len(f) != columns {
		return r, fmt.Errorf("has %d columns, must have %d", len(f), columns)
	}
	number := func(s string) int64 {
		if s == "" {
			return 0
		}
		n, e := strconv.ParseInt(s, 10, 64)
		if e != nil || n < 0 {
			err = fmt.Errorf("type %s: %q: must be a number that is not negative", f[0], s)
		}
		return n
	}
	device := func(s string) *Device {
		if s == "" {
			return nil
		}
		p := append(strings.Split(s, "/"), "", "", "")
		return &Device{Name: p[0], Manufacturer: p[1], Count: number(p[2]), MemoryMiB: number(p[3])}
	}
	r = Row{
		Name: f[0], Arch: f[1], CPUManufacturer: f[2], ClockMHz: number(f[3]), CPUs: number(f[4]), MemoryMiB: number(f[5]),
		Hypervisor: f[6], Encryption: f[7] == "1", EBSMbps: number(f[8]), NetworkMbps: number(f[9]), LocalNVMeGB: number(f[10]),
		GPU: device(f[11]), Accelerator: device(f[12]), Pods: number(f[13]), Price: catalog.Price(number(f[15])),
	}
	if f[14] != "" {
		r.Devices = make(map[corev1.ResourceName]int64)
		for d := range strings.SplitSeq(f[14], " ") {
			name, count, _ := strings.Cut(d, "=")
			r.Devices[corev1.ResourceName(name)] = number(count)
		}
	}
	return r, err
}

// Labels of the AWS provider.
const (
	group       = "karpenter.k8s.aws/"
	zoneIDLabel = "topology.k8s.aws/zone-id"
)

const mib = 1 << 20

// Capacity is the size of a node: memory less what firmware and hypervisor keep (64 MiB
// on arm64, then 7.5 %), and a volume of 20 GiB.
func (r *Row) Capacity() resources.List {
	memory := r.MemoryMiB
	if r.Arch == "arm64" {
		memory -= 64
	}
	memory -= (memory*75 + 999) / 1000
	out := resources.List{
		corev1.ResourceCPU:              r.CPUs * 1000,
		corev1.ResourceMemory:           memory * mib,
		corev1.ResourceEphemeralStorage: 20 << 30,
		corev1.ResourcePods:             r.Pods,
	}
	for name, n := range r.Devices {
		out[name] = n
	}
	return out
}

// Allocatable is capacity less what the kubelet reserves and its eviction thresholds: a
// part of each core, 255 MiB and 11 MiB per pod and 100 MiB, and 3 GiB of the volume.
func (r *Row) Allocatable(capacity resources.List) resources.List {
	out := capacity.Clone()
	band := func(from, to, perCore10k int64) int64 { // perCore10k is in 1/10000 of a core
		return max(min(r.CPUs, to)-from, 0) * perCore10k / 10
	}
	out[corev1.ResourceCPU] -= band(0, 1, 600) + band(1, 2, 100) + band(2, 4, 50) + band(4, math.MaxInt64, 25)
	out[corev1.ResourceMemory] -= (11*r.Pods + 255 + 100) * mib
	out[corev1.ResourceEphemeralStorage] -= 3 << 30
	return out
}

// SpotPrice makes up a price for zone, since AWS publishes none that stays: the
// on-demand price less 45 to 85 percent (20 to 60 for types with a GPU or an
// accelerator), depending only on the names of type and zone.
func (r *Row) SpotPrice(zone string) catalog.Price {
	base := int64(50)
	if r.GPU != nil || r.Accelerator != nil {
		base = 25
	}
	byType, byZone := crc32.ChecksumIEEE([]byte(r.Name)), crc32.ChecksumIEEE([]byte(r.Name+"/"+zone))
	keep := 100 - (base + int64(byType%31) + int64(byZone%11) - 5)
	hundredths := int64(r.Price) * keep
	if hundredths%100 != 50 {
		return catalog.Price((hundredths + 50) / 100)
	}
	// Half a micro-dollar falls to the side on which the price in binary lies.
	s := strconv.FormatFloat(float64(r.Price)/1e6*float64(keep)/100, 'f', 6, 64)
	dollars, _ := strconv.ParseFloat(s, 64)
	return catalog.FromDollars(dollars)
}

// InstanceTypes are t's rows as a catalogue has them: spot and on-demand offerings in
// every zone.
func (t *Table) InstanceTypes() []catalog.InstanceType {
	b := builder{region: t.Region, seen: make(map[[2]string]requirements.Requirement, 1024)}
	zones := slices.SortedFunc(slices.Values(t.Zones), func(a, b Zone) int { return strings.Compare(a.Name, b.Name) })
	zoneIDs := make([]requirements.Set, len(zones))
	for i, zone := range zones {
		zoneIDs[i] = requirements.NewSet(requirements.In(zoneIDLabel, zone.ID))
	}
	out := make([]catalog.InstanceType, len(t.Rows))
	offerings := make([]catalog.Offering, 0, 2*len(zones)*len(t.Rows))
	for i := range t.Rows {
		r := &t.Rows[i]
		start := len(offerings)
		for j, zone := range zones {
			offerings = append(offerings,
				catalog.Offering{Zone: zone.Name, CapacityType: catalog.OnDemand, Price: r.Price, Requirements: zoneIDs[j]},
				catalog.Offering{Zone: zone.Name, CapacityType: catalog.Spot, Price: r.SpotPrice(zone.Name), Requirements: zoneIDs[j]})
		}
		capacity := r.Capacity()
		out[i] = catalog.InstanceType{
			Name:         r.Name,
			Requirements: b.labels(r),
			Capacity:     capacity,
			Allocatable:  r.Allocatable(capacity),
			Offerings:    offerings[start:len(offerings):len(offerings)],
		}
	}
	return out
}

// builder makes each label that many types share once.
type builder struct {
	region string
	seen   map[[2]string]requirements.Requirement
}

func (b *builder) labels(r *Row) requirements.Set {
	set := make(requirements.Set, 36)
	put := func(key, value string) {
		k := [2]string{key, value}
		req, ok := b.seen[k]
		if !ok {
			req = requirements.In(key, value)
			b.seen[k] = req
		}
		set[key] = req
	}
	absent := func(keys ...string) {
		for _, key := range keys {
			k := [2]string{key, "\x00"} // no label has this value
			req, ok := b.seen[k]
			if !ok {
				req = requirements.DoesNotExist(key)
				b.seen[k] = req
			}
			set[key] = req
		}
	}
	number := func(key string, n int64, known bool) {
		if known {
			put(key, strconv.FormatInt(n, 10))
		} else {
			absent(key)
		}
	}
	set[corev1.LabelInstanceTypeStable] = requirements.In(corev1.LabelInstanceTypeStable, r.Name)
	put(corev1.LabelArchStable, r.Arch)
	put(corev1.LabelOSStable, "linux")
	put(corev1.LabelTopologyRegion, b.region)
	absent(corev1.LabelWindowsBuild)

	category, generation := r.series()
	family, size, _ := strings.Cut(r.Name, ".")
	put(group+"instance-category", category)
	put(group+"instance-generation", generation)
	put(group+"instance-family", family)
	put(group+"instance-size", size)
	put(group+"instance-capability-flex", strconv.FormatBool(strings.Contains(family, "-flex")))
	number(group+"instance-cpu", r.CPUs, true)
	put(group+"instance-cpu-manufacturer", r.CPUManufacturer)
	number(group+"instance-cpu-sustained-clock-speed-mhz", r.ClockMHz, true)
	number(group+"instance-memory", r.MemoryMiB, true)
	put(group+"instance-hypervisor", r.Hypervisor)
	put(group+"instance-encryption-in-transit-supported", strconv.FormatBool(r.Encryption))
	number(group+"instance-ebs-bandwidth", r.EBSMbps, r.EBSMbps > 0)
	number(group+"instance-network-bandwidth", r.NetworkMbps, r.NetworkMbps > 0)
	number(group+"instance-local-nvme", r.LocalNVMeGB, r.LocalNVMeGB > 0)
	if g := r.GPU; g != nil {
		put(group+"instance-gpu-name", g.Name)
		put(group+"instance-gpu-manufacturer", g.Manufacturer)
		number(group+"instance-gpu-count", g.Count, true)
		number(group+"instance-gpu-memory", g.MemoryMiB, true)
	} else {
		absent(group+"instance-gpu-name", group+"instance-gpu-manufacturer", group+"instance-gpu-count", group+"instance-gpu-memory")
	}
	if a := r.Accelerator; a != nil {
		put(group+"instance-accelerator-name", a.Name)
		put(group+"instance-accelerator-manufacturer", a.Manufacturer)
		number(group+"instance-accelerator-count", a.Count, true)
	} else {
		absent(group+"instance-accelerator-name", group+"instance-accelerator-manufacturer", group+"instance-accelerator-count")
	}
	tenancy, ok := b.seen[[2]string{group + "instance-tenancy"}]
	if !ok {
		tenancy = requirements.In(group+"instance-tenancy", "default", "dedicated")
		b.seen[[2]string{group + "instance-tenancy"}] = tenancy
	}
	set[group+"instance-tenancy"] = tenancy
	absent(group+"capacity-reservation-id", group+"capacity-reservation-type", group+"capacity-reservation-interruptible")
	return set
}

// series splits a name like m7i.large, u-6tb1.metal or u7in-32tb.224xlarge into the
// letters before the generation, and the generation.
func (r *Row) series() (category, generation string) {
	letters := strings.IndexFunc(r.Name, func(c rune) bool { return c < 'a' || c > 'z' })
	category, rest := r.Name[:max(letters, 0)], r.Name[max(letters, 0):]
	if strings.HasPrefix(rest, "-") { // u-6tb1: the size of memory comes first
		_, rest, _ = strings.Cut(rest, "tb")
	}
	digits := strings.IndexFunc(rest, func(c rune) bool { return c < '0' || c > '9' })
	return category, rest[:max(digits, 0)]
}
