package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim/internal/ec2"
)

const small = `{"schema": "aws-catalog/v1", "region": "r", "zones": [{"name": "ra", "id": "r1"}], "instanceTypes": [
{"name": "a1.large", "family": "a1", "category": "a", "generation": 1, "size": "large", "arch": "arm64", "os": ["linux"], "cpuManufacturer": "aws",
 "clockMHz": 2300, "vcpu": 2, "memoryMiB": 4096, "hypervisor": "nitro", "encryptionInTransit": false, "ebsMbps": 3500, "networkMbps": 750, "maxPods": 29,
 "capacity": {"cpu": "2", "memory": "3729Mi", "ephemeral-storage": "20Gi", "pods": "29", "vpc.amazonaws.com/pod-eni": "9"},
 "allocatable": {"cpu": "1930m", "ephemeral-storage": "17Gi", "memory": "3055Mi", "pods": "29", "vpc.amazonaws.com/pod-eni": "9"},
 "onDemandUSD": 0.051, "zones": ["ra"], "spotSynthetic": [0.00969]},
{"name": "trn2.48xlarge", "onDemandUSD": null}]}`

func TestGenerate(t *testing.T) {
	out, err := generate([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	table, err := ec2.Read(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 || table.Rows[0].Name != "a1.large" || table.Rows[0].Devices["vpc.amazonaws.com/pod-eni"] != 9 || table.Rows[0].Price != 51000 {
		t.Errorf("rows = %+v, want the one type with a price", table.Rows)
	}
	again, err := generate([]byte(small))
	if err != nil || !bytes.Equal(out, again) {
		t.Errorf("a second run gives other bytes, error %v", err)
	}
}

func TestGenerate_Disagreement(t *testing.T) {
	for name, tc := range map[string]struct{ old, new, want string }{
		"another schema":              {"aws-catalog/v1", "aws-catalog/v2", `schema: is "aws-catalog/v2", must be aws-catalog/v1`},
		"allocatable by another rule": {"1930m", "1900m", "type a1.large: allocatable: derived"},
		"capacity by another rule":    {"3729Mi", "3730Mi", "type a1.large: capacity: derived"},
		"spot price by another rule":  {"0.00969", "0.03", "type a1.large: price of spot in ra: derived 9690, source has 30000"},
		"a label by another rule":     {`"category": "a"`, `"category": "b"`, `type a1.large: category: derived "a", source has "b"`},
		"another number of zones":     {`"zones": ["ra"]`, `"zones": []`, "type a1.large: has 2 offerings, source has 0 zones"},
		"a negative quantity": {`"vpc.amazonaws.com/pod-eni": "9"},
 "allocatable"`, `"vpc.amazonaws.com/pod-eni": "-9"},
 "allocatable"`, "must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			in := strings.Replace(small, tc.old, tc.new, 1)
			if in == small {
				t.Fatal("the case changes nothing")
			}
			if _, err := generate([]byte(in)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("generate() error = %v, want %s", err, tc.want)
			}
		})
	}
}
