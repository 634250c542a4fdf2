package sim

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim/internal/ec2"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

func TestBuiltin(t *testing.T) {
	c := Builtin()
	if c.Len() != 1345 {
		t.Errorf("Len() = %d, want 1345", c.Len())
	}
	if len(builtin) > 120<<10 {
		t.Errorf("the file has %d bytes, want at most 120 KiB", len(builtin))
	}
	families, offerings := map[string]bool{}, 0
	arches := map[string]int{}
	devices := map[string]int{}
	for _, it := range c.Types() {
		family, _ := it.Requirements.Get("karpenter.k8s.aws/instance-family").IsSingle()
		families[family] = true
		arch, _ := it.Requirements.Get("kubernetes.io/arch").IsSingle()
		arches[arch]++
		offerings += len(it.Offerings)
		for name := range it.Capacity {
			devices[string(name)]++
		}
		if it.Capacity["cpu"] <= it.Allocatable["cpu"] || it.Capacity["memory"] <= it.Allocatable["memory"] {
			t.Errorf("%s: allocatable is not below capacity", it.Name)
		}
	}
	if offerings != 1345*12 || arches["amd64"]+arches["arm64"] != 1345 || len(families) != 169 {
		t.Errorf("%d offerings, architectures %v, %d families", offerings, arches, len(families))
	}
	want := map[string]int{"cpu": 1345, "memory": 1345, "pods": 1345, "ephemeral-storage": 1345,
		"nvidia.com/gpu": 59, "amd.com/gpu": 5, "aws.amazon.com/neuron": 11, "aws.amazon.com/neuroncore": 11,
		"vpc.amazonaws.com/efa": 285, "vpc.amazonaws.com/pod-eni": 1192}
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Errorf("types per resource (-want +got):\n%s", diff)
	}
	if a, b := Builtin().Hash(), c.Hash(); a != b {
		t.Error("two calls give different catalogues")
	}
}

func TestBuiltin_Type(t *testing.T) {
	c := Builtin()
	it, ok := c.ByName("g5.12xlarge")
	if !ok {
		t.Fatal("g5.12xlarge is missing")
	}
	wantLabels := `karpenter.k8s.aws/capacity-reservation-id DoesNotExist
karpenter.k8s.aws/capacity-reservation-interruptible DoesNotExist
karpenter.k8s.aws/capacity-reservation-type DoesNotExist
karpenter.k8s.aws/instance-accelerator-count DoesNotExist
karpenter.k8s.aws/instance-accelerator-manufacturer DoesNotExist
karpenter.k8s.aws/instance-accelerator-name DoesNotExist
karpenter.k8s.aws/instance-capability-flex In [false]
karpenter.k8s.aws/instance-category In [g]
karpenter.k8s.aws/instance-cpu In [48]
karpenter.k8s.aws/instance-cpu-manufacturer In [amd]
karpenter.k8s.aws/instance-cpu-sustained-clock-speed-mhz In [3300]
karpenter.k8s.aws/instance-ebs-bandwidth In [16000]
karpenter.k8s.aws/instance-encryption-in-transit-supported In [true]
karpenter.k8s.aws/instance-family In [g5]
karpenter.k8s.aws/instance-generation In [5]
karpenter.k8s.aws/instance-gpu-count In [4]
karpenter.k8s.aws/instance-gpu-manufacturer In [nvidia]
karpenter.k8s.aws/instance-gpu-memory In [22888]
karpenter.k8s.aws/instance-gpu-name In [a10g]
karpenter.k8s.aws/instance-hypervisor In [nitro]
karpenter.k8s.aws/instance-local-nvme In [3800]
karpenter.k8s.aws/instance-memory In [196608]
karpenter.k8s.aws/instance-network-bandwidth In [40000]
karpenter.k8s.aws/instance-size In [12xlarge]
karpenter.k8s.aws/instance-tenancy In [dedicated default]
kubernetes.io/arch In [amd64]
kubernetes.io/os In [linux]
node.kubernetes.io/instance-type In [g5.12xlarge]
node.kubernetes.io/windows-build DoesNotExist
topology.kubernetes.io/region In [us-east-1]
`
	var labels string
	for _, key := range it.Requirements.Keys() {
		labels += it.Requirements[key].String() + "\n"
	}
	if diff := cmp.Diff(wantLabels, labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	const mib = 1 << 20
	if diff := cmp.Diff(resources.List{"cpu": 48000, "memory": 181862 * mib, "ephemeral-storage": 20 << 30, "pods": 737,
		"nvidia.com/gpu": 4, "vpc.amazonaws.com/efa": 1, "vpc.amazonaws.com/pod-eni": 107}, it.Capacity); diff != "" {
		t.Errorf("capacity (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(resources.List{"cpu": 47810, "memory": 173400 * mib, "ephemeral-storage": 17 << 30, "pods": 737,
		"nvidia.com/gpu": 4, "vpc.amazonaws.com/efa": 1, "vpc.amazonaws.com/pod-eni": 107}, it.Allocatable); diff != "" {
		t.Errorf("allocatable (-want +got):\n%s", diff)
	}
	var offers []string
	for _, o := range it.Offerings {
		offers = append(offers, fmt.Sprintf("%s %s %d %s", o.Zone, o.CapacityType, o.Price, o.Requirements))
	}
	var wantOffers []string
	for i, spot := range []int{3233040, 3630080, 3516640, 3630080, 3686800, 3516640} {
		zone := fmt.Sprintf("us-east-1%c", 'a'+i)
		id := fmt.Sprintf("topology.k8s.aws/zone-id In [use1-az%d]", i+1)
		wantOffers = append(wantOffers, fmt.Sprintf("%s on-demand 5672000 %s", zone, id), fmt.Sprintf("%s spot %d %s", zone, spot, id))
	}
	if diff := cmp.Diff(wantOffers, offers); diff != "" {
		t.Errorf("offerings (-want +got):\n%s", diff)
	}
}

func TestBuiltin_Details(t *testing.T) {
	c := Builtin()
	label := func(name, key string) string {
		it, ok := c.ByName(name)
		if !ok {
			t.Fatalf("%s is missing", name)
		}
		return it.Requirements.Get("karpenter.k8s.aws/instance-" + key).Constraint()
	}
	for _, tc := range [][3]string{
		{"u7in-32tb.224xlarge", "category", "In [u]"},
		{"u7in-32tb.224xlarge", "generation", "In [7]"},
		{"u7in-32tb.224xlarge", "memory", "In [33554432]"},
		{"m7i-flex.large", "family", "In [m7i-flex]"},
		{"m7i-flex.large", "capability-flex", "In [true]"},
		{"m5.metal", "hypervisor", `In [""]`},
		{"inf1.24xlarge", "accelerator-name", "In [inferentia]"},
		{"inf1.24xlarge", "accelerator-count", "In [16]"},
		{"a1.medium", "local-nvme", "DoesNotExist"},
	} {
		if got := label(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%s instance-%s: %s, want %s", tc[0], tc[1], got, tc[2])
		}
	}
	// Spot prices by their rule, on-demand price less a discount of whole percents.
	for _, it := range c.Types() {
		base := uint32(50)
		if it.Requirements["karpenter.k8s.aws/instance-gpu-name"].Operator() == "In" || it.Requirements["karpenter.k8s.aws/instance-accelerator-name"].Operator() == "In" {
			base = 25
		}
		onDemand := it.Offerings[0].Price
		for _, o := range it.Offerings {
			if o.CapacityType != catalog.Spot {
				if o.Price != onDemand {
					t.Errorf("%s: on-demand price differs between zones", it.Name)
				}
				continue
			}
			d := base + crc32.ChecksumIEEE([]byte(it.Name))%31 + crc32.ChecksumIEEE([]byte(it.Name+"/"+o.Zone))%11 - 5
			want := float64(onDemand) * float64(100-d) / 100
			if diff := float64(o.Price) - want; diff > 0.501 || diff < -0.501 {
				t.Errorf("%s in %s: spot price %d, want about %.2f", it.Name, o.Zone, o.Price, want)
			}
		}
	}
}

func TestTable_RoundTrip(t *testing.T) {
	table, err := ec2.Read(bytes.NewReader(builtin))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	again, err := ec2.Read(&out)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(table, again); diff != "" {
		t.Errorf("write and read (-want +got):\n%s", diff)
	}
}

func TestTable_Damaged(t *testing.T) {
	pack := func(s string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	tests := map[string]struct {
		in   []byte
		want string
	}{
		"not compressed": {[]byte("ec2 1"), "unexpected EOF"},
		"cut short":      {builtin[:len(builtin)/2], "unexpected EOF"},
		"empty":          {pack(""), "unexpected EOF"},
		"another format": {pack("ec2 2\tx\ty=z\n"), "line 1: is \"ec2 2\\tx\\ty=z\", must be \"ec2 1\", a region and zones"},
		"columns":        {pack("ec2 1\tr\tz=i\na\tb\n"), "line 2: has 2 columns, must have 16"},
		"a bad number":   {pack("ec2 1\tr\tz=i\na\tb\tc\t1\tx\t1\t\t1\t\t\t\t\t\t1\t\t1\n"), `line 2: type a: "x": must be a number that is not negative`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ec2.Read(bytes.NewReader(tc.in))
			if err == nil || err.Error() != tc.want {
				t.Errorf("Read() error = %v, want %s", err, tc.want)
			}
		})
	}
}

func TestKWOK(t *testing.T) {
	c := KWOK()
	if c.Len() != 144 {
		t.Errorf("Len() = %d, want 144", c.Len())
	}
	it, ok := c.ByName("s-48x-arm64-windows")
	if !ok {
		t.Fatal("s-48x-arm64-windows is missing")
	}
	want := catalog.InstanceType{
		Name: "s-48x-arm64-windows",
		Requirements: requirements.NewSet(
			requirements.In("node.kubernetes.io/instance-type", "s-48x-arm64-windows"),
			requirements.In("kubernetes.io/arch", "arm64"), requirements.In("kubernetes.io/os", "windows"),
			requirements.In("karpenter.kwok.sh/instance-size", "48"), requirements.In("karpenter.kwok.sh/instance-family", "s"),
			requirements.In("karpenter.kwok.sh/instance-cpu", "48"), requirements.In("karpenter.kwok.sh/instance-memory", "192Gi")),
		Capacity:    resources.List{"cpu": 48000, "memory": 192 << 30, "pods": 768, "ephemeral-storage": 20 << 30},
		Allocatable: resources.List{"cpu": 47900, "memory": 192<<30 - 10<<20, "pods": 768, "ephemeral-storage": 20 << 30},
	}
	for _, zone := range []string{"test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"} {
		want.Offerings = append(want.Offerings,
			catalog.Offering{Zone: zone, CapacityType: "on-demand", Price: 1406158}, // 48 × 0.025 + 206.158 × 0.001
			catalog.Offering{Zone: zone, CapacityType: "spot", Price: 984311})
	}
	if diff := cmp.Diff(want, *it); diff != "" {
		t.Errorf("type (-want +got):\n%s", diff)
	}
	if it, _ := c.ByName("m-128x-amd64-linux"); !it.Requirements["karpenter.kwok.sh/instance-memory"].Has("1Ti") {
		t.Errorf("memory label of a large type = %s, want 1Ti", it.Requirements["karpenter.kwok.sh/instance-memory"])
	}
	if it, _ := c.ByName("c-128x-amd64-linux"); it.Capacity["pods"] != 1024 {
		t.Errorf("pods of a large type = %d, want 1024", it.Capacity["pods"])
	}
}

func BenchmarkBuiltin(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if Builtin().Len() == 0 {
			b.Fatal("empty")
		}
	}
}
