// Package sim is a cloud without machines: instance types from a catalogue, and in a
// cluster Nodes that nobody runs.
//
// # Catalogues
//
// [Builtin] has the instance types of EC2 in one region, [KWOK] those of Karpenter's
// KWOK provider, and [ReadFile] reads the user's own. README.md describes the file.
//
// # Machines
//
// [Provider] sells them under the rules of SimNodeClasses. It keeps records in a [Store],
// and what happens to a machine follows from its record and the time alone ([Advance]). So
// the same code runs in a cluster (package kube) and in virtual time ([Memory] and
// [Provider.Step]), and a stop at any point loses nothing.
package sim

import (
	"bytes"
	_ "embed"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim/internal/ec2"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

//go:generate sh -c "go run ./internal/gen \"$CATALOG_JSON\" > zz_generated.ec2.gz"

//go:embed zz_generated.ec2.gz
var builtin []byte

// Builtin is the catalogue of the EC2 instance types that have an on-demand price in
// us-east-1, with the labels and the sizes that the AWS provider gives Linux nodes.
//
// On-demand prices are list prices. What AWS does not publish is made up by fixed
// rules: each type is offered in each of six zones, as on-demand and as spot, and the
// spot price depends on nothing but the names of type and zone.
//
// Each call builds a new catalogue, which takes some milliseconds: keep it.
func Builtin() *catalog.Catalog {
	t, err := ec2.Read(bytes.NewReader(builtin))
	if err != nil {
		panic(fmt.Sprintf("built-in catalogue: %v", err)) // the tests read the same bytes
	}
	return must(t.InstanceTypes())
}

// must makes a catalogue of types that are known to be good.
func must(types []catalog.InstanceType) *catalog.Catalog {
	c, errs := catalog.New(types)
	if len(errs) > 0 {
		panic(fmt.Sprintf("built-in catalogue: %v", errs[0]))
	}
	return c
}

// Labels of Karpenter's KWOK provider.
const (
	kwokSize   = "karpenter.kwok.sh/instance-size"
	kwokFamily = "karpenter.kwok.sh/instance-family"
	kwokCPU    = "karpenter.kwok.sh/instance-cpu"
	kwokMemory = "karpenter.kwok.sh/instance-memory"
)

// kwokOverhead is what KWOK nodes keep for themselves.
var kwokOverhead = resources.List{corev1.ResourceCPU: 100, corev1.ResourceMemory: 10 << 20}

// KWOK is the catalogue of 144 made-up types that Karpenter's KWOK provider has by
// default: families c, s and m with 2, 4 and 8 GiB per CPU, in sizes of 1 to 256 CPUs,
// for each architecture and operating system, in four zones.
func KWOK() *catalog.Catalog {
	var types []catalog.InstanceType
	for _, cpus := range []int64{1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256} {
		for family, perCPU := range map[string]int64{"c": 2, "s": 4, "m": 8} {
			for _, arch := range []string{"amd64", "arm64"} {
				for _, os := range []string{"linux", "windows"} {
					memory := cpus * perCPU << 30
					shown := resources.Quantity(corev1.ResourceMemory, memory)
					t := catalog.InstanceType{
						Name: fmt.Sprintf("%s-%dx-%s-%s", family, cpus, arch, os),
						Requirements: requirements.NewSet(
							requirements.In(corev1.LabelArchStable, arch),
							requirements.In(corev1.LabelOSStable, os),
							requirements.In(kwokSize, strconv.FormatInt(cpus, 10)),
							requirements.In(kwokFamily, family),
							requirements.In(kwokCPU, strconv.FormatInt(cpus, 10)),
							requirements.In(kwokMemory, shown.String()), // 1024Gi is 1Ti
						),
						Capacity: resources.List{
							corev1.ResourceCPU:              cpus * 1000,
							corev1.ResourceMemory:           memory,
							corev1.ResourcePods:             min(cpus*16, 1024),
							corev1.ResourceEphemeralStorage: 20 << 30,
						},
					}
					t.Allocatable = t.Capacity.Clone()
					t.Allocatable.SubFrom(kwokOverhead)
					dollars := 0.025*float64(cpus) + 0.001*float64(memory)/1e9
					for _, zone := range []string{"test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"} {
						t.Offerings = append(t.Offerings,
							catalog.Offering{Zone: zone, CapacityType: catalog.OnDemand, Price: catalog.FromDollars(dollars)},
							catalog.Offering{Zone: zone, CapacityType: catalog.Spot, Price: catalog.FromDollars(dollars * 0.7)})
					}
					types = append(types, t)
				}
			}
		}
	}
	return must(types)
}
