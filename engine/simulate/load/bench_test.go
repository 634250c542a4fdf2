package load

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkRead reads what kubectl prints of many pods, and expands a Deployment to as
// many.
func BenchmarkRead(b *testing.B) {
	const pods = 10_000
	var jsonText, yamlText strings.Builder
	jsonText.WriteString(`{"apiVersion": "v1", "kind": "List", "items": [`)
	yamlText.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for i := range pods {
		pod := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p%d", "namespace": "n", "uid": "u%d", "labels": {"app": "a%d"}}, `+
			`"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}]}, "status": {"phase": "Pending"}}`, i, i, i%50)
		if i > 0 {
			jsonText.WriteString(",\n")
		}
		jsonText.WriteString(pod)
		yamlText.WriteString("- " + pod + "\n")
	}
	jsonText.WriteString("]}")
	for name, text := range map[string]string{"json": jsonText.String(), "yaml": yamlText.String(), "deployment": deployment("web", pods)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if r := read(text); len(r.Objects.Pods) != pods {
					b.Fatalf("%d pods, want %d", len(r.Objects.Pods), pods)
				}
			}
			b.ReportMetric(float64(b.N*pods)/b.Elapsed().Seconds(), "pods/s")
		})
	}
}
