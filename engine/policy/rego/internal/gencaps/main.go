// Command gencaps writes the capabilities file: the builtin functions and language
// features that policies may use, as opa takes them with --capabilities.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// allowed are the builtin functions of a policy. It is an allow-list: a new version of OPA
// adds nothing by itself. Left out is what depends on the host, the network, the clock or
// chance; what can take time or memory out of proportion to its operands; and what a
// policy here has no use for (tokens, certificates, GraphQL, YAML).
const allowed = `
abs and array.concat array.flatten array.reverse array.slice assign base64.decode base64.encode
base64.is_valid base64url.decode base64url.encode base64url.encode_no_pad bits.and bits.negate
bits.or bits.rsh bits.xor ceil concat contains count crypto.md5 crypto.sha1 crypto.sha256 div
endswith eq equal floor format_int glob.match glob.quote_meta graph.reachable gt gte hex.decode
hex.encode indexof indexof_n internal.member_2 internal.member_3 internal.print
internal.test_case intersection is_array is_boolean is_null is_number is_object is_set is_string
json.filter json.is_valid json.marshal json.remove json.unmarshal lower lt lte max min minus mul
neq net.cidr_contains net.cidr_intersects net.cidr_is_valid net.cidr_merge numbers.range
numbers.range_step object.filter object.get object.keys object.remove object.subset object.union
object.union_n or plus print product regex.find_all_string_submatch_n regex.find_n
regex.is_valid regex.match regex.replace regex.split rego.metadata.chain rego.metadata.rule rem
replace round semver.compare semver.is_valid sort split sprintf startswith
strings.any_prefix_match strings.any_suffix_match strings.count strings.replace_n
strings.reverse strings.split_n substring sum time.add_date time.clock time.date time.diff
time.format time.parse_duration_ns time.parse_ns time.parse_rfc3339_ns time.weekday to_number
trim trim_left trim_prefix trim_right trim_space trim_suffix type_name union units.parse
units.parse_bytes upper uri.is_valid uri.parse urlquery.decode urlquery.decode_object
urlquery.encode urlquery.encode_object uuid.parse walk
`

// withoutNet is caps as JSON, with an empty list of hosts: a missing one allows all, and
// is what OPA writes for an empty one.
func withoutNet(caps *ast.Capabilities) ([]byte, error) {
	b, err := json.Marshal(caps)
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	doc["allow_net"] = []string{}
	return json.MarshalIndent(doc, "", "  ")
}

func main() {
	out := flag.String("out", "capabilities.json", "file to write")
	flag.Parse()
	caps := ast.CapabilitiesForThisVersion()
	want := strings.Fields(allowed)
	caps.Builtins = slices.DeleteFunc(caps.Builtins, func(b *ast.Builtin) bool { return !slices.Contains(want, b.Name) })
	if len(caps.Builtins) != len(want) {
		fmt.Fprintf(os.Stderr, "gencaps: this OPA has %d of the %d allowed builtin functions\n", len(caps.Builtins), len(want))
		os.Exit(1)
	}
	caps.Features = []string{ast.FeatureKeywordsInRefs, ast.FeatureRegoV1}
	caps.FutureKeywords = []string{}
	caps.WasmABIVersions = nil
	b, err := withoutNet(caps)
	if err == nil {
		err = os.WriteFile(*out, append(b, '\n'), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gencaps:", err)
		os.Exit(1)
	}
}
