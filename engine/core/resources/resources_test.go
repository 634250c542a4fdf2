package resources

import (
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAmount(t *testing.T) {
	tests := map[string]struct {
		name corev1.ResourceName
		q    string
		want int64
	}{
		"cores are counted in millicores":     {"cpu", "2", 2000},
		"a fraction of a millicore rounds up": {"cpu", "1100u", 2},
		"memory is counted in bytes":          {"memory", "1Ki", 1024},
		"a fraction of a byte rounds up":      {"memory", "1500m", 2},
		"a device is a whole":                 {"nvidia.com/gpu", "3", 3},
		"32 TiB of memory is not cut":         {"memory", "32Ti", 32 << 40},
		"more than a PiB saturates":           {"memory", "3Ei", MaxAmount},
		"more than 64 bits saturate":          {"memory", "1e40", MaxAmount},
		"negative amounts saturate":           {"memory", "-1e40", -MaxAmount},
		"ten billion cores are not cut":       {"cpu", "10G", 10_000_000_000_000},
		"five trillion cores saturate":        {"cpu", "5T", MaxAmount},
		"an exponent of millions saturates":   {"memory", "1e999999999", MaxAmount},
		"so does a negative amount of it":     {"cpu", "-1e999999999", -MaxAmount},
		"a tiny amount rounds up":             {"cpu", "1e-40", 1},
		"a tiny negative amount rounds up":    {"cpu", "-1e-40", 0},
		"negative cores are counted":          {"cpu", "-500m", -500},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Amount(tc.name, resource.MustParse(tc.q)); got != tc.want {
				t.Errorf("Amount(%s, %s) = %d, want %d", tc.name, tc.q, got, tc.want)
			}
		})
	}
	q := resource.MustParse("9223372036854775807")
	q.Add(q)
	if got := Amount("memory", q); got != MaxAmount {
		t.Errorf("Amount() of a sum beyond 64 bits = %d, want %d", got, MaxAmount)
	}
}

func FuzzAmount(f *testing.F) {
	for _, s := range []string{"0", "1500m", "-1", "9223372036854775807", "1e300", "-3Ei", "0.0000000001", "8796093022208", "1e-9", "1n"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		qa, err := resource.ParseQuantity(a)
		if err != nil || len(a) > 400 || qa.AsDec().Scale() < -1000 || qa.AsDec().Scale() > 1000 { // the check below is exact, so it is slow
			return
		}
		if qb, err := resource.ParseQuantity(b); err == nil && len(b) <= 400 {
			qa.Add(qb)
		}
		for name, unit := range map[corev1.ResourceName]int64{"cpu": 1000, "memory": 1, "x.io/y": 1} {
			got := Amount(name, qa)
			// exact = ceil(q × unit), by rationals
			r, ok := new(big.Rat).SetString(qa.AsDec().String())
			if !ok {
				t.Fatalf("quantity %s is no number", qa.String())
			}
			r.Mul(r, new(big.Rat).SetInt64(unit))
			exact := new(big.Int).Div(r.Num(), r.Denom())
			if new(big.Rat).SetInt(exact).Cmp(r) < 0 {
				exact.Add(exact, big.NewInt(1))
			}
			want := exact.Int64()
			if exact.CmpAbs(big.NewInt(MaxAmount)) > 0 {
				want = MaxAmount * int64(exact.Sign())
			}
			if got != want {
				t.Errorf("Amount(%s, %q + %q) = %d, want %d", name, a, b, got, want)
			}
			if back := Amount(name, Quantity(name, got)); back != got {
				t.Errorf("Amount(Quantity(%d)) = %d", got, back)
			}
		}
	})
}

func TestFromQuantities(t *testing.T) {
	l, err := FromQuantities(corev1.ResourceList{"cpu": resource.MustParse("-1"), "memory": resource.MustParse("1Gi"), "a.io/b": resource.MustParse("-2")})
	if want := "a.io/b: -2: must not be negative\ncpu: -1: must not be negative"; err == nil || err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
	if diff := cmp.Diff(List{"memory": 1 << 30}, l); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(List{"memory": 1 << 30, "cpu": 1500}, must(t, List{"memory": 1 << 30, "cpu": 1500}.Quantities())); diff != "" {
		t.Errorf("Quantities() and back (-want +got):\n%s", diff)
	}
}

func must(t *testing.T, l corev1.ResourceList) List {
	t.Helper()
	out, err := FromQuantities(l)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestList(t *testing.T) {
	l := List{"cpu": 100}
	l.AddTo(List{"cpu": MaxAmount, "memory": 5})
	l.SubFrom(List{"memory": 7, "pods": 1})
	if diff := cmp.Diff(List{"cpu": MaxAmount, "memory": -2, "pods": -1}, l); diff != "" {
		t.Errorf("sums (-want +got):\n%s", diff)
	}
	if !(List{"cpu": 0, "memory": -1}).FitsIn(List{"cpu": -5}) {
		t.Error("nothing does not fit into an overfull node")
	}
	if (List{"x.io/y": 1}).FitsIn(List{"cpu": 5}) {
		t.Error("a resource fits where there is none of it")
	}
	if (List{"a": 0}).Compare(List{}) != 0 || (List{"a": 1}).Compare(List{"b": 1}) != 1 {
		t.Error("Compare() does not order by name, then amount")
	}
}
