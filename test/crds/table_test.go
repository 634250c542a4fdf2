package crds

import (
	"fmt"
	"strings"
)

// manifests are the cases of TestManifests by a sentence about each.
func manifests() map[string]manifest {
	cases := map[string]manifest{}
	add := func(name string, m manifest) {
		if _, ok := cases[name]; ok {
			panic("two manifests are called " + name)
		}
		cases[name] = m
	}

	// One place of each kind takes requirements; NodePools have theirs in the template.
	requirements := map[string]string{
		"nodepools":    "{spec: {template: {spec: {requirements: [%s]}}}}",
		"nodeclaims":   "{spec: {requirements: [%s]}}",
		"nodeoverlays": "{spec: {requirements: [%s]}}",
	}
	for _, kind := range plurals {
		for name, c := range map[string]struct{ item, wantError string }{
			"In with a value":                          {"{key: kubernetes.io/arch, operator: In, values: [amd64]}", ""},
			"In without values":                        {"{key: kubernetes.io/arch, operator: In, values: []}", "must have a value defined"},
			"In with values absent":                    {"{key: kubernetes.io/arch, operator: In}", "no such key: values"},
			"Exists without values":                    {"{key: example.com/team, operator: Exists}", ""},
			"Exists with values":                       {"{key: example.com/team, operator: Exists, values: [a]}", ""},
			"DoesNotExist":                             {"{key: example.com/team, operator: DoesNotExist}", ""},
			"NotIn with values":                        {"{key: example.com/team, operator: NotIn, values: [a, b]}", ""},
			"Gt with an integer":                       {"{key: example.com/cpu, operator: Gt, values: ['4']}", ""},
			"Gt with zero":                             {"{key: example.com/cpu, operator: Gt, values: ['0']}", ""},
			"Gt with a negative integer":               {"{key: example.com/cpu, operator: Gt, values: ['-1']}", "single positive integer"},
			"Gt with two integers":                     {"{key: example.com/cpu, operator: Gt, values: ['1', '2']}", "single positive integer"},
			"Gt with a word":                           {"{key: example.com/cpu, operator: Gt, values: [many]}", "type conversion error"},
			"Gt with a fraction":                       {"{key: example.com/cpu, operator: Gt, values: ['1.5']}", "type conversion error"},
			"Gt without values":                        {"{key: example.com/cpu, operator: Gt, values: []}", "single positive integer"},
			"Lt with an integer":                       {"{key: example.com/cpu, operator: Lt, values: ['4']}", ""},
			"Lt with two integers":                     {"{key: example.com/cpu, operator: Lt, values: ['1', '2']}", "single positive integer"},
			"Gte with an integer":                      {"{key: example.com/cpu, operator: Gte, values: ['4']}", ""},
			"Gte with a negative integer":              {"{key: example.com/cpu, operator: Gte, values: ['-4']}", "single positive integer"},
			"Lte with an integer":                      {"{key: example.com/cpu, operator: Lte, values: ['4']}", ""},
			"Lte without values":                       {"{key: example.com/cpu, operator: Lte, values: []}", "single positive integer"},
			"an unknown operator":                      {"{key: example.com/cpu, operator: Like, values: [a]}", "Unsupported value"},
			"an operator in lower case":                {"{key: example.com/cpu, operator: in, values: [a]}", "Unsupported value"},
			"no operator":                              {"{key: example.com/cpu}", "Required value"},
			"no key":                                   {"{operator: Exists}", "Required value"},
			"an empty key":                             {"{key: '', operator: Exists}", "should match"},
			"a key with a space":                       {"{key: 'my team', operator: Exists}", "should match"},
			"a key with two slashes":                   {"{key: a/b/c, operator: Exists}", "should match"},
			"a key with an upper-case domain":          {"{key: Example.com/team, operator: Exists}", "should match"},
			"a key with an upper-case name":            {"{key: example.com/Team, operator: Exists}", ""},
			"a key that ends in a dash":                {"{key: example.com/team-, operator: Exists}", "should match"},
			"a key of 316 characters":                  {"{key: " + strings.Repeat("a", 316) + ", operator: Exists}", ""},
			"a key of 317 characters":                  {"{key: " + strings.Repeat("a", 317) + ", operator: Exists}", "Too long"},
			"the capacity type":                        {"{key: karpenter.sh/capacity-type, operator: In, values: [spot]}", ""},
			"an unknown capacity type":                 {"{key: karpenter.sh/capacity-type, operator: In, values: [cheap]}", ""},
			"a label of the reserved domain":           {"{key: karpenter.sh/other, operator: Exists}", "is restricted"},
			"a label of a reserved subdomain":          {"{key: sub.karpenter.sh/other, operator: Exists}", "is restricted"},
			"a label of a domain that ends alike":      {"{key: notkarpenter.sh/other, operator: Exists}", "is restricted"},
			"a label of a domain that starts alike":    {"{key: karpenter.sh.example.com/other, operator: Exists}", ""},
			"a label that is called like the domain":   {"{key: karpenter.sh, operator: Exists}", "is restricted"},
			"the hostname":                             {"{key: kubernetes.io/hostname, operator: In, values: [a]}", "is restricted"},
			"another label of kubernetes.io":           {"{key: kubernetes.io/other, operator: Exists}", ""},
			"a malformed value, which only we can see": {"{key: example.com/team, operator: In, values: ['a b']}", ""},
			"a value that is a number":                 {"{key: example.com/team, operator: In, values: [1]}", "must be of type string"},
			"values that are a string":                 {"{key: example.com/team, operator: In, values: a}", "must be of type array"},
		} {
			add(fmt.Sprintf("a requirement of %s: %s", kind, name), manifest{kind: kind, set: fmt.Sprintf(requirements[kind], c.item), wantError: c.wantError})
		}
		item := "{key: example.com/team, operator: Exists}"
		add("100 requirements of "+kind, manifest{kind: kind, set: fmt.Sprintf(requirements[kind], item+strings.Repeat(", "+item, 99))})
		add("101 requirements of "+kind, manifest{kind: kind, set: fmt.Sprintf(requirements[kind], item+strings.Repeat(", "+item, 100)), wantError: "must have at most 100 items"})
		add("no list of requirements of "+kind, manifest{kind: kind, set: map[string]string{
			"nodepools": "{spec: {template: {spec: {requirements: null}}}}", "nodeclaims": "{spec: {requirements: null}}", "nodeoverlays": "{spec: {requirements: null}}",
		}[kind], wantError: "Required value"})
		add("no spec of "+kind, manifest{kind: kind, set: "{spec: null}", wantError: "Required value"})
		add("an unknown field of "+kind, manifest{kind: kind, set: "{spec: {flavour: sweet}}"})
		add("the status at the creation of "+kind, manifest{kind: kind, set: "{status: {conditions: []}}"})

		for name, c := range map[string]struct{ condition, wantError string }{
			"whole":                            {"{type: Ready, status: 'True', reason: Ready, message: '', lastTransitionTime: '2025-01-01T00:00:00Z'}", ""},
			"with an observed generation":      {"{type: Ready, status: 'True', reason: Ready, message: '', lastTransitionTime: '2025-01-01T00:00:00Z', observedGeneration: 3}", ""},
			"with a negative generation":       {"{type: Ready, status: 'True', reason: Ready, message: '', lastTransitionTime: '2025-01-01T00:00:00Z', observedGeneration: -3}", "greater than or equal to 0"},
			"with an unknown status":           {"{type: Ready, status: Maybe, reason: Ready, message: '', lastTransitionTime: '2025-01-01T00:00:00Z'}", "Unsupported value"},
			"with a reason that is a sentence": {"{type: Ready, status: 'True', reason: It is ready, message: '', lastTransitionTime: '2025-01-01T00:00:00Z'}", "should match"},
			"without a type":                   {"{status: 'True', reason: Ready, message: '', lastTransitionTime: '2025-01-01T00:00:00Z'}", "Required value"},
			"without a time":                   {"{type: Ready, status: 'True', reason: Ready, message: ''}", "Required value"},
			"with a time that is none":         {"{type: Ready, status: 'True', reason: Ready, message: '', lastTransitionTime: today}", "date-time"},
		} {
			add(fmt.Sprintf("a condition of %s %s", kind, name), manifest{kind: kind, old: "{}", status: true, set: "{status: {conditions: [" + c.condition + "]}}", wantError: c.wantError})
		}
		twice := "{type: Ready, status: 'True', reason: Ready, message: '', lastTransitionTime: '2025-01-01T00:00:00Z'}"
		add("the same condition twice on "+kind, manifest{kind: kind, old: "{}", status: true, set: "{status: {conditions: [" + twice + "," + twice + "]}}", wantError: "Duplicate value"})

		// NodeClaims tolerate conditions that older versions have written.
		wantReason, wantMessage := "should be at least 1 chars long", "Required value"
		if kind == "nodeclaims" {
			wantReason, wantMessage = "", ""
		}
		add("a condition of "+kind+" with an empty reason", manifest{kind: kind, old: "{}", status: true, wantError: wantReason,
			set: "{status: {conditions: [{type: Ready, status: 'True', reason: '', message: '', lastTransitionTime: '2025-01-01T00:00:00Z'}]}}"})
		add("a condition of "+kind+" without reason and message", manifest{kind: kind, old: "{}", status: true, wantError: wantMessage,
			set: "{status: {conditions: [{type: Ready, status: 'True', lastTransitionTime: '2025-01-01T00:00:00Z'}]}}"})
	}

	// What NodePools and NodeClaims have in common lies at different depths.
	for kind, spec := range map[string]string{"nodepools": "{spec: {template: {spec: %s}}}", "nodeclaims": "{spec: %s}"} {
		for name, c := range map[string]struct{ set, wantError string }{
			"a taint":                                  {"{taints: [{key: a, effect: NoSchedule}]}", ""},
			"a taint with a value":                     {"{taints: [{key: example.com/a, value: b, effect: NoExecute}]}", ""},
			"a taint with a value like a key":          {"{taints: [{key: example.com/a, value: example.com/b, effect: NoExecute}]}", ""},
			"a taint with a malformed value":           {"{taints: [{key: a, value: 'b c', effect: NoExecute}]}", "should match"},
			"a taint with an empty value":              {"{taints: [{key: a, value: '', effect: NoExecute}]}", "should match"},
			"a taint with an unknown effect":           {"{taints: [{key: a, effect: NoFun}]}", "Unsupported value"},
			"a taint with an empty effect":             {"{taints: [{key: a, effect: ''}]}", "Unsupported value"},
			"a taint without an effect":                {"{taints: [{key: a}]}", "Required value"},
			"a taint without a key":                    {"{taints: [{effect: NoSchedule}]}", "Required value"},
			"a taint with an empty key":                {"{taints: [{key: '', effect: NoSchedule}]}", "at least 1 chars"},
			"a taint with a malformed key":             {"{taints: [{key: 'a b', effect: NoSchedule}]}", "should match"},
			"a taint of the reserved domain":           {"{taints: [{key: karpenter.sh/disrupted, effect: NoSchedule}]}", ""},
			"a taint with a time":                      {"{taints: [{key: a, effect: NoSchedule, timeAdded: '2025-01-01T00:00:00Z'}]}", ""},
			"a taint with a time that is none":         {"{taints: [{key: a, effect: NoSchedule, timeAdded: now}]}", "date-time"},
			"the same taint twice":                     {"{taints: [{key: a, effect: NoSchedule}, {key: a, effect: NoSchedule}]}", ""},
			"a startup taint":                          {"{startupTaints: [{key: a, value: b, effect: PreferNoSchedule}]}", ""},
			"a startup taint with an unknown effect":   {"{startupTaints: [{key: a, effect: Maybe}]}", "Unsupported value"},
			"a startup taint with an empty key":        {"{startupTaints: [{key: '', effect: NoSchedule}]}", "at least 1 chars"},
			"a startup taint with a malformed value":   {"{startupTaints: [{key: a, value: -, effect: NoSchedule}]}", "should match"},
			"no NodeClass":                             {"{nodeClassRef: null}", "Required value"},
			"a NodeClass without a group":              {"{nodeClassRef: {group: null}}", "Required value"},
			"a NodeClass with an empty group":          {"{nodeClassRef: {group: ''}}", "group may not be empty"},
			"a NodeClass with a version":               {"{nodeClassRef: {group: karpenter.k8s.aws/v1}}", "should match"},
			"a NodeClass with an empty kind":           {"{nodeClassRef: {kind: ''}}", "kind may not be empty"},
			"a NodeClass without a kind":               {"{nodeClassRef: {kind: null}}", "Required value"},
			"a NodeClass with an empty name":           {"{nodeClassRef: {name: ''}}", "name may not be empty"},
			"a NodeClass without a name":               {"{nodeClassRef: {name: null}}", "Required value"},
			"expiry never":                             {"{expireAfter: Never}", ""},
			"expiry never in lower case":               {"{expireAfter: never}", "should match"},
			"expiry in hours, minutes and seconds":     {"{expireAfter: 1h30m15s}", ""},
			"expiry in seconds":                        {"{expireAfter: 30s}", ""},
			"expiry in days":                           {"{expireAfter: 30d}", "should match"},
			"expiry with a fraction":                   {"{expireAfter: 1.5h}", "should match"},
			"expiry with a sign":                       {"{expireAfter: -1h}", "should match"},
			"expiry without a unit":                    {"{expireAfter: '30'}", "should match"},
			"expiry as a number":                       {"{expireAfter: 30}", "must be of type string"},
			"empty expiry":                             {"{expireAfter: ''}", "should match"},
			"a termination grace period":               {"{terminationGracePeriod: 48h}", ""},
			"a termination grace period of zero":       {"{terminationGracePeriod: 0s}", ""},
			"a termination grace period of never":      {"{terminationGracePeriod: Never}", "should match"},
			"a termination grace period with a sign":   {"{terminationGracePeriod: -48h}", "should match"},
			"a termination grace period in ms":         {"{terminationGracePeriod: 100ms}", "should match"},
			"In with as many values as minValues":      {"{requirements: [{key: a, operator: In, values: [x, z], minValues: 2}]}", ""},
			"In with fewer values than minValues":      {"{requirements: [{key: a, operator: In, values: [x, z], minValues: 3}]}", "at least that many values"},
			"Exists with minValues":                    {"{requirements: [{key: a, operator: Exists, minValues: 50}]}", ""},
			"NotIn without values":                     {"{requirements: [{key: a, operator: NotIn, values: []}]}", ""},
			"minValues of zero":                        {"{requirements: [{key: a, operator: Exists, minValues: 0}]}", "greater than or equal to 1"},
			"minValues of 51":                          {"{requirements: [{key: a, operator: Exists, minValues: 51}]}", "less than or equal to 50"},
			"minValues as a string":                    {"{requirements: [{key: a, operator: Exists, minValues: '2'}]}", "must be of type integer"},
			"a kubelet section of an earlier version":  {"{kubelet: {maxPods: 10}}", ""},
			"a resource request, a NodeClaim's alone":  {"{resources: {requests: {cpu: '1'}}}", ""},
			"a resource request that is not a number":  {"{resources: {requests: {cpu: lots}}}", map[string]string{"nodeclaims": "should match"}[kind]},
			"a resource request given as a number":     {"{resources: {requests: {cpu: 2}}}", ""},
			"requirements that are a map, not a list":  {"{requirements: {key: a}}", "must be of type array"},
			"a NodeClass that is a name, not a struct": {"{nodeClassRef: default}", "must be of type object"},
		} {
			add(kind+" with "+name, manifest{kind: kind, set: fmt.Sprintf(spec, c.set), wantError: c.wantError})
		}
	}
	labels := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "l%d: a, ", i)
		}
		return "{spec: {template: {metadata: {labels: {" + b.String() + "}}}}}"
	}
	for name, m := range map[string]manifest{
		"nothing more":                                    {set: "{}"},
		"no template":                                     {set: "{spec: {template: null}}", wantError: "Required value"},
		"no spec in the template":                         {set: "{spec: {template: {spec: null}}}", wantError: "Required value"},
		"a requirement on the NodePool":                   {set: "{spec: {template: {spec: {requirements: [{key: karpenter.sh/nodepool, operator: In, values: [a]}]}}}}", wantError: `"karpenter.sh/nodepool" is restricted`},
		"a label":                                         {set: "{spec: {template: {metadata: {labels: {team: a}}}}}"},
		"a label with an empty value":                     {set: "{spec: {template: {metadata: {labels: {team: ''}}}}}"},
		"a label with a malformed value":                  {set: "{spec: {template: {metadata: {labels: {team: 'a b'}}}}}", wantError: "should match"},
		"a label value of 63 characters":                  {set: "{spec: {template: {metadata: {labels: {team: " + strings.Repeat("a", 63) + "}}}}}"},
		"a label value of 64 characters":                  {set: "{spec: {template: {metadata: {labels: {team: " + strings.Repeat("a", 64) + "}}}}}", wantError: "Too long"},
		"a malformed label key, which only we can see":    {set: "{spec: {template: {metadata: {labels: {'my team': a}}}}}"},
		"the label of the NodePool":                       {set: "{spec: {template: {metadata: {labels: {karpenter.sh/nodepool: a}}}}}", wantError: "is restricted"},
		"the label of the capacity type":                  {set: "{spec: {template: {metadata: {labels: {karpenter.sh/capacity-type: spot}}}}}"},
		"another label of the reserved domain":            {set: "{spec: {template: {metadata: {labels: {karpenter.sh/x: a}}}}}", wantError: "is restricted"},
		"the label of the hostname":                       {set: "{spec: {template: {metadata: {labels: {kubernetes.io/hostname: a}}}}}", wantError: "is restricted"},
		"a label of the cloud":                            {set: "{spec: {template: {metadata: {labels: {karpenter.k8s.aws/instance-family: m7g}}}}}"},
		"100 labels":                                      {set: labels(100)},
		"101 labels":                                      {set: labels(101), wantError: "must have at most 100 items"},
		"an annotation of any form":                       {set: "{spec: {template: {metadata: {annotations: {'any thing': 'a b c'}}}}}"},
		"an annotation that is a number":                  {set: "{spec: {template: {metadata: {annotations: {a: 1}}}}}", wantError: "must be of type string"},
		"a name in the template":                          {set: "{spec: {template: {metadata: {name: a}}}}"},
		"an empty disruption":                             {set: "{spec: {disruption: {}}}"},
		"consolidation never":                             {set: "{spec: {disruption: {consolidateAfter: Never}}}"},
		"consolidation after a while":                     {set: "{spec: {disruption: {consolidateAfter: 1h5m}}}"},
		"consolidation after days":                        {set: "{spec: {disruption: {consolidateAfter: 1d}}}", wantError: "should match"},
		"consolidation when empty":                        {set: "{spec: {disruption: {consolidationPolicy: WhenEmpty}}}"},
		"balanced consolidation":                          {set: "{spec: {disruption: {consolidationPolicy: Balanced}}}"},
		"consolidation by the name of an earlier version": {set: "{spec: {disruption: {consolidationPolicy: WhenUnderutilized}}}", wantError: "Unsupported value"},
		"no budgets":                                      {set: "{spec: {disruption: {budgets: []}}}"},
		"an empty budget":                                 {set: "{spec: {disruption: {budgets: [{}]}}}"},
		"a budget in nodes":                               {set: "{spec: {disruption: {budgets: [{nodes: '5'}]}}}"},
		"a budget in nodes as a number":                   {set: "{spec: {disruption: {budgets: [{nodes: 5}]}}}", wantError: "must be of type string"},
		"a budget of 100 percent":                         {set: "{spec: {disruption: {budgets: [{nodes: 100%}]}}}"},
		"a budget of 101 percent":                         {set: "{spec: {disruption: {budgets: [{nodes: 101%}]}}}", wantError: "should match"},
		"a budget with a sign":                            {set: "{spec: {disruption: {budgets: [{nodes: '-5'}]}}}", wantError: "should match"},
		"a budget with a fraction":                        {set: "{spec: {disruption: {budgets: [{nodes: 1.5%}]}}}", wantError: "should match"},
		"a budget with a schedule and a duration":         {set: "{spec: {disruption: {budgets: [{nodes: '0', schedule: '0 9 * * 1-5', duration: 8h}]}}}"},
		"a budget with a schedule alone":                  {set: "{spec: {disruption: {budgets: [{nodes: '0', schedule: '@daily'}]}}}", wantError: "'schedule' must be set with 'duration'"},
		"a budget with a duration alone":                  {set: "{spec: {disruption: {budgets: [{nodes: '0', duration: 8h}]}}}", wantError: "'schedule' must be set with 'duration'"},
		"a budget with a word for a schedule":             {set: "{spec: {disruption: {budgets: [{nodes: '0', schedule: '@yearly', duration: 8h}]}}}"},
		"a budget with an unknown word":                   {set: "{spec: {disruption: {budgets: [{nodes: '0', schedule: '@always', duration: 8h}]}}}", wantError: "should match"},
		"a budget with four cron fields":                  {set: "{spec: {disruption: {budgets: [{nodes: '0', schedule: '0 9 * *', duration: 8h}]}}}", wantError: "should match"},
		"a budget with five fields of nonsense":           {set: "{spec: {disruption: {budgets: [{nodes: '0', schedule: 'a b c d e', duration: 8h}]}}}"},
		"a budget of hours and minutes":                   {set: "{spec: {disruption: {budgets: [{nodes: '0', schedule: '@daily', duration: 8h30m}]}}}"},
		"a budget of hours, minutes and no seconds":       {set: "{spec: {disruption: {budgets: [{nodes: '0', schedule: '@daily', duration: 8h30m0s}]}}}"},
		"a budget of seconds":                             {set: "{spec: {disruption: {budgets: [{nodes: '0', schedule: '@daily', duration: 30s}]}}}", wantError: "should match"},
		"a budget for reasons":                            {set: "{spec: {disruption: {budgets: [{nodes: '1', reasons: [Empty, Drifted, Underutilized, Unhealthy]}]}}}"},
		"a budget for no reasons":                         {set: "{spec: {disruption: {budgets: [{nodes: '1', reasons: []}]}}}"},
		"a budget for an unknown reason":                  {set: "{spec: {disruption: {budgets: [{nodes: '1', reasons: [Expired]}]}}}", wantError: "Unsupported value"},
		"a budget for a reason twice":                     {set: "{spec: {disruption: {budgets: [{nodes: '1', reasons: [Empty, Empty]}]}}}", wantError: "Duplicate value"},
		"50 budgets":                                      {set: "{spec: {disruption: {budgets: [{}" + strings.Repeat(", {}", 49) + "]}}}"},
		"51 budgets":                                      {set: "{spec: {disruption: {budgets: [{}" + strings.Repeat(", {}", 50) + "]}}}", wantError: "must have at most 50 items"},
		"limits":                                          {set: "{spec: {limits: {cpu: 1000, memory: 1000Gi, nodes: '10', nvidia.com/gpu: 2}}}"},
		"a limit that is not a number":                    {set: "{spec: {limits: {cpu: lots}}}", wantError: "should match"},
		"a limit with a sign":                             {set: "{spec: {limits: {cpu: '-5'}}}"},
		"weight 1":                                        {set: "{spec: {weight: 1}}"},
		"weight 100":                                      {set: "{spec: {weight: 100}}"},
		"weight 0":                                        {set: "{spec: {weight: 0}}", wantError: "greater than or equal to 1"},
		"weight 101":                                      {set: "{spec: {weight: 101}}", wantError: "less than or equal to 100"},
		"replicas":                                        {set: "{spec: {replicas: 3}}"},
		"no replicas at all":                              {set: "{spec: {replicas: 0}}"},
		"negative replicas":                               {set: "{spec: {replicas: -1}}", wantError: "greater than or equal to 0"},
		"replicas and a weight":                           {set: "{spec: {replicas: 3, weight: 5}}", wantError: "weight"},
		"replicas and a limit of nodes":                   {set: "{spec: {replicas: 3, limits: {nodes: 5}}}"},
		"replicas and no limits":                          {set: "{spec: {replicas: 3, limits: {}}}"},
		"replicas and a limit of CPU":                     {set: "{spec: {replicas: 3, limits: {cpu: 5}}}", wantError: "limits.nodes"},
		"replicas and limits of CPU and nodes":            {set: "{spec: {replicas: 3, limits: {cpu: 5, nodes: 5}}}", wantError: "limits.nodes"},
		"replicas and a consolidation policy":             {set: "{spec: {replicas: 3, disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 1h}}}"},

		"replicas added later":                            {old: "{}", set: "{spec: {replicas: 3}}", wantError: "static"},
		"replicas taken away later":                       {old: "{spec: {replicas: 3}}", set: "{spec: {replicas: null}}", wantError: "static"},
		"replicas changed later":                          {old: "{spec: {replicas: 3}}", set: "{spec: {replicas: 5}}"},
		"another NodeClass group later":                   {old: "{}", set: "{spec: {template: {spec: {nodeClassRef: {group: example.com}}}}}", wantError: "nodeClassRef.group is immutable"},
		"another NodeClass kind later":                    {old: "{}", set: "{spec: {template: {spec: {nodeClassRef: {kind: Other}}}}}", wantError: "nodeClassRef.kind is immutable"},
		"another NodeClass name later":                    {old: "{}", set: "{spec: {template: {spec: {nodeClassRef: {name: other}}}}}"},
		"another requirement later":                       {old: "{}", set: "{spec: {template: {spec: {requirements: [{key: a, operator: Exists}]}}}}"},
		"an invalid weight later":                         {old: "{spec: {weight: 5}}", set: "{spec: {weight: 500}}", wantError: "less than or equal to 100"},
		"a weight that was invalid before and stays":      {old: "{spec: {weight: 500}}", set: "{spec: {limits: {cpu: 5}}}"},
		"a requirement that was invalid before and stays": {old: "{spec: {template: {spec: {requirements: [{key: kubernetes.io/hostname, operator: Exists}]}}}}", set: "{spec: {weight: 5}}"},
		"the NodePool's key in a list that was invalid before and changes": {old: "{spec: {template: {spec: {requirements: [{key: karpenter.sh/nodepool, operator: Exists}]}}}}",
			set: "{spec: {template: {spec: {requirements: [{key: karpenter.sh/nodepool, operator: DoesNotExist}]}}}}", wantError: "is restricted"},
		"a status with resources":               {old: "{}", status: true, set: "{status: {nodes: 3, nodeClassObservedGeneration: 2, resources: {cpu: '12', memory: 48Gi}}}"},
		"a status with a count that is a word":  {old: "{}", status: true, set: "{status: {nodes: three}}", wantError: "must be of type integer"},
		"a status with resources that are none": {old: "{}", status: true, set: "{status: {resources: {cpu: lots}}}", wantError: "should match"},
	} {
		m.kind = "nodepools"
		add("a NodePool with "+name, m)
	}
	for name, m := range map[string]manifest{
		"nothing more":                  {set: "{}"},
		"a requirement on the NodePool": {set: "{spec: {requirements: [{key: karpenter.sh/nodepool, operator: In, values: [a]}]}}"},
		"another requirement later":     {old: "{}", set: "{spec: {requirements: [{key: a, operator: Exists}]}}", wantError: "spec is immutable"},
		"another NodeClass name later":  {old: "{}", set: "{spec: {nodeClassRef: {name: other}}}", wantError: "spec is immutable"},
		"another expiry later":          {old: "{}", set: "{spec: {expireAfter: 1h}}", wantError: "spec is immutable"},
		"the same expiry in other words later": {old: "{spec: {expireAfter: 1h}}", set: "{spec: {expireAfter: 60m}}",
			wantError: "spec is immutable"},
		"the default expiry spelt out later": {old: "{}", set: "{spec: {expireAfter: 720h}}"},
		"a taint later":                      {old: "{}", set: "{spec: {taints: [{key: a, effect: NoSchedule}]}}", wantError: "spec is immutable"},
		"a request later":                    {old: "{}", set: "{spec: {resources: {requests: {cpu: '1'}}}}", wantError: "spec is immutable"},
		"a label later":                      {old: "{}", set: "{metadata: {labels: {a: b}}}"},
		"a finalizer later":                  {old: "{}", set: "{metadata: {finalizers: [karpenter.sh/termination]}}"},
		"a status": {old: "{}", status: true,
			set: "{status: {nodeName: node-a, providerID: 'aws:///z/i-1', imageID: ami-1, capacity: {cpu: '4'}, allocatable: {cpu: 3900m}, lastPodEventTime: '2025-01-01T00:00:00Z'}}"},
		"a status with a malformed time":     {old: "{}", status: true, set: "{status: {lastPodEventTime: today}}", wantError: "date-time"},
		"a status with a malformed capacity": {old: "{}", status: true, set: "{status: {capacity: {cpu: lots}}}", wantError: "should match"},
	} {
		m.kind = "nodeclaims"
		add("a NodeClaim with "+name, m)
	}
	for name, m := range map[string]manifest{
		"nothing more":                         {set: "{}"},
		"a requirement on the NodePool":        {set: "{spec: {requirements: [{key: karpenter.sh/nodepool, operator: In, values: [a]}]}}"},
		"NotIn without values":                 {set: "{spec: {requirements: [{key: a, operator: NotIn, values: []}]}}", wantError: "'NotIn' must have a value"},
		"minValues, which it does not have":    {set: "{spec: {requirements: [{key: a, operator: Exists, minValues: 99}]}}"},
		"a price":                              {set: "{spec: {price: '0.5'}}"},
		"a price of zero":                      {set: "{spec: {price: '0'}}"},
		"a price with a sign":                  {set: "{spec: {price: '-0.5'}}", wantError: "should match"},
		"a price without a leading digit":      {set: "{spec: {price: '.5'}}", wantError: "should match"},
		"a price with an exponent":             {set: "{spec: {price: '1e3'}}", wantError: "should match"},
		"a price as a number":                  {set: "{spec: {price: 0.5}}", wantError: "must be of type string"},
		"a price with a currency":              {set: "{spec: {price: $5}}", wantError: "should match"},
		"an adjustment up":                     {set: "{spec: {priceAdjustment: '+0.5'}}"},
		"an adjustment down":                   {set: "{spec: {priceAdjustment: '-0.5'}}"},
		"an adjustment without a leading zero": {set: "{spec: {priceAdjustment: '+.5'}}"},
		"an adjustment without a sign":         {set: "{spec: {priceAdjustment: '0.5'}}", wantError: "should match"},
		"an adjustment in percent up":          {set: "{spec: {priceAdjustment: '+250%'}}"},
		"an adjustment in percent down":        {set: "{spec: {priceAdjustment: '-15.5%'}}"},
		"an adjustment to nothing":             {set: "{spec: {priceAdjustment: '-100%'}}"},
		"an adjustment below nothing":          {set: "{spec: {priceAdjustment: '-101%'}}", wantError: "should match"},
		"an adjustment just below nothing":     {set: "{spec: {priceAdjustment: '-100.5%'}}", wantError: "should match"},
		"an adjustment in percent, unsigned":   {set: "{spec: {priceAdjustment: '10%'}}", wantError: "should match"},
		"an empty adjustment":                  {set: "{spec: {priceAdjustment: ''}}", wantError: "should match"},
		"a price and an adjustment":            {set: "{spec: {price: '1', priceAdjustment: '+1'}}", wantError: "cannot set both"},
		"a capacity":                           {set: "{spec: {capacity: {smarter-devices/fuse: 1}}}"},
		"a capacity of CPU":                    {set: "{spec: {capacity: {cpu: 1}}}", wantError: "cannot be changed"},
		"a capacity of memory":                 {set: "{spec: {capacity: {memory: 1Gi}}}", wantError: "cannot be changed"},
		"a capacity of storage":                {set: "{spec: {capacity: {ephemeral-storage: 1Gi}}}", wantError: "cannot be changed"},
		"a capacity of pods":                   {set: "{spec: {capacity: {pods: 1, x: 1}}}", wantError: "cannot be changed"},
		"a capacity that is not a number":      {set: "{spec: {capacity: {x: lots}}}", wantError: "should match"},
		"weight 1":                             {set: "{spec: {weight: 1}}"},
		"weight 10000":                         {set: "{spec: {weight: 10000}}"},
		"weight 0":                             {set: "{spec: {weight: 0}}", wantError: "greater than or equal to 1"},
		"weight 10001":                         {set: "{spec: {weight: 10001}}", wantError: "less than or equal to 10000"},
		"everything else later":                {old: "{spec: {price: '1'}}", set: "{spec: {price: null, priceAdjustment: '+1', weight: 7, requirements: [{key: a, operator: Exists}]}}"},
		"a price later":                        {old: "{spec: {priceAdjustment: '+1'}}", set: "{spec: {price: '1'}}", wantError: "cannot set both"},
	} {
		m.kind = "nodeoverlays"
		add("a NodeOverlay with "+name, m)
	}
	return cases
}
