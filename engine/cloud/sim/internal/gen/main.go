// Command gen makes the file behind the built-in catalogue from a description of EC2
// instance types in JSON (schema aws-catalog/v1), and checks that what the program
// derives from the file is what the description says.
//
//	go run ./engine/cloud/sim/internal/gen aws-catalog-us-east-1.json > engine/cloud/sim/zz_generated.ec2.gz
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim/internal/ec2"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

type source struct {
	Schema        string
	Region        string
	Zones         []struct{ Name, ID string }
	InstanceTypes []instanceType
}

type device struct {
	Name, Manufacturer string
	Count, MemoryMiB   int64
}

type instanceType struct {
	Name, Family, Category, Size, Arch, CPUManufacturer, Hypervisor string
	Generation, ClockMHz, VCPU, MemoryMiB                           int64
	Flex, EncryptionInTransit                                       bool
	EBSMbps, NetworkMbps, LocalNvmeGB                               int64
	GPU, Accelerator                                                *device
	Capacity, Allocatable                                           corev1.ResourceList
	OnDemandUSD                                                     *float64
	Zones                                                           []string
	SpotSynthetic                                                   []float64
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen SOURCE.json > zz_generated.ec2.gz")
		os.Exit(2)
	}
	data, err := os.ReadFile(os.Args[1])
	if err == nil {
		var out []byte
		if out, err = generate(data); err == nil {
			_, err = os.Stdout.Write(out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// generate leaves types without a price out: they cannot be bought.
func generate(data []byte) ([]byte, error) {
	var src source
	if err := json.Unmarshal(data, &src); err != nil {
		return nil, err
	}
	if src.Schema != "aws-catalog/v1" {
		return nil, fmt.Errorf("schema: is %q, must be aws-catalog/v1", src.Schema)
	}
	table := &ec2.Table{Region: src.Region}
	for _, z := range src.Zones {
		table.Zones = append(table.Zones, ec2.Zone{Name: z.Name, ID: z.ID})
	}
	want := make(map[string]instanceType)
	for _, t := range src.InstanceTypes {
		if t.OnDemandUSD == nil {
			continue
		}
		row, err := convert(t)
		if err != nil {
			return nil, fmt.Errorf("type %s: %w", t.Name, err)
		}
		table.Rows = append(table.Rows, row)
		want[t.Name] = t
	}
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		return nil, err
	}
	back, err := ec2.Read(bytes.NewReader(out.Bytes()))
	if err != nil {
		return nil, fmt.Errorf("reading back: %w", err)
	}
	c, errs := catalog.New(back.InstanceTypes())
	if c.Len() != len(want) {
		errs = append(errs, fmt.Errorf("read back %d types of %d", c.Len(), len(want)))
	}
	for _, got := range c.Types() {
		if err := compare(want[got.Name], got); err != nil {
			errs = append(errs, fmt.Errorf("type %s: %w", got.Name, err))
		}
	}
	return out.Bytes(), errors.Join(errs...)
}

func convert(t instanceType) (ec2.Row, error) {
	capacity, err := resources.FromQuantities(t.Capacity)
	if err != nil {
		return ec2.Row{}, err
	}
	r := ec2.Row{
		Name: t.Name, Arch: t.Arch, CPUManufacturer: t.CPUManufacturer, ClockMHz: t.ClockMHz, CPUs: t.VCPU, MemoryMiB: t.MemoryMiB,
		Hypervisor: t.Hypervisor, Encryption: t.EncryptionInTransit, EBSMbps: t.EBSMbps, NetworkMbps: t.NetworkMbps, LocalNVMeGB: t.LocalNvmeGB,
		GPU: (*ec2.Device)(t.GPU), Accelerator: (*ec2.Device)(t.Accelerator), Pods: capacity[corev1.ResourcePods], Price: catalog.FromDollars(*t.OnDemandUSD),
	}
	for name, n := range capacity {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
			continue
		}
		if r.Devices == nil {
			r.Devices = make(map[corev1.ResourceName]int64)
		}
		r.Devices[name] = n
	}
	return r, nil
}

// compare reports what the derived type has otherwise than the source.
func compare(want instanceType, got catalog.InstanceType) error {
	var errs []error
	for what, pair := range map[string]struct {
		want corev1.ResourceList
		got  resources.List
	}{"capacity": {want.Capacity, got.Capacity}, "allocatable": {want.Allocatable, got.Allocatable}} {
		l, err := resources.FromQuantities(pair.want)
		if err != nil || l.Compare(pair.got) != 0 {
			errs = append(errs, fmt.Errorf("%s: derived %v, source has %v", what, pair.got, pair.want))
		}
	}
	for key, value := range map[string]string{
		"category": want.Category, "generation": fmt.Sprint(want.Generation), "family": want.Family, "size": want.Size, "capability-flex": fmt.Sprint(want.Flex),
	} {
		if have, ok := got.Requirements.Get("karpenter.k8s.aws/instance-" + key).IsSingle(); !ok || have != value {
			errs = append(errs, fmt.Errorf("%s: derived %q, source has %q", key, have, value))
		}
	}
	spot := make(map[string]catalog.Price)
	for i, zone := range want.Zones {
		spot[zone] = catalog.FromDollars(want.SpotSynthetic[i])
	}
	if len(got.Offerings) != 2*len(spot) {
		errs = append(errs, fmt.Errorf("has %d offerings, source has %d zones", len(got.Offerings), len(spot)))
	}
	for _, o := range got.Offerings {
		wantPrice, ok := spot[o.Zone]
		if o.CapacityType == catalog.OnDemand {
			wantPrice = catalog.FromDollars(*want.OnDemandUSD)
		}
		if !ok || o.Price != wantPrice {
			errs = append(errs, fmt.Errorf("price of %s in %s: derived %d, source has %d", o.CapacityType, o.Zone, o.Price, wantPrice))
		}
	}
	return errors.Join(errs...)
}
