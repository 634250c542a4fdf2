package pack

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

type typ struct {
	name  string
	price float64
	a     []float64
}

func q(s string) float64 {
	for _, m := range []struct {
		s string
		f float64
	}{{"Ki", 1024}, {"Mi", 1 << 20}, {"Gi", 1 << 30}} {
		if strings.HasSuffix(s, m.s) {
			v, _ := strconv.ParseFloat(s[:len(s)-2], 64)
			return v * m.f
		}
	}
	if strings.HasSuffix(s, "m") {
		v, _ := strconv.ParseFloat(s[:len(s)-1], 64)
		return v
	}
	v, _ := strconv.ParseFloat(s, 64)
	return v
}
func cat(cats string, mingen int, arch string) []typ {
	f, _ := os.Open("/work/shared/data/aws-catalog-us-east-1.json")
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 1<<20), 1<<20)
	var out []typ
	for sc.Scan() {
		l := strings.TrimSuffix(strings.TrimSpace(sc.Text()), ",")
		if !strings.HasPrefix(l, "{\"name\"") {
			continue
		}
		var e struct {
			Name, Category, Arch string
			Generation           int
			OnDemandUSD          *float64
			Allocatable          map[string]any
		}
		if json.Unmarshal([]byte(l), &e) != nil || e.OnDemandUSD == nil {
			continue
		}
		if cats != "" && (len(e.Category) != 1 || !strings.Contains(cats, e.Category)) {
			continue
		}
		if mingen > 0 && e.Generation <= mingen || arch != "" && e.Arch != arch {
			continue
		}
		g := func(k string) float64 {
			v, ok := e.Allocatable[k]
			if !ok {
				return 0
			}
			s := fmt.Sprint(v)
			if k == "cpu" && !strings.HasSuffix(s, "m") {
				return q(s) * 1000
			}
			return q(s)
		}
		out = append(out, typ{e.Name, *e.OnDemandUSD, []float64{g("cpu"), g("memory"), g("nvidia.com/gpu"), g("pods")}})
	}
	slices.SortStableFunc(out, func(a, b typ) int {
		if a.price < b.price {
			return -1
		} else if a.price > b.price {
			return 1
		}
		return 0
	})
	var keep []typ
L:
	for _, t := range out {
		for _, k := range keep {
			ok := true
			for r := range t.a {
				ok = ok && k.a[r] >= t.a[r]
			}
			if ok {
				continue L
			}
		}
		keep = append(keep, t)
	}
	return keep
}
func items(which string, n int) []Item {
	m := map[[4]float64]int{}
	if which == "openb" {
		f, _ := os.Open("/work/shared/data/openb-pods.csv")
		rows, _ := csv.NewReader(f).ReadAll()
		for _, r := range rows[1:] {
			a, _ := strconv.ParseFloat(r[1], 64)
			b, _ := strconv.ParseFloat(r[2], 64)
			g, _ := strconv.ParseFloat(r[3], 64)
			m[[4]float64{a, b * (1 << 20), g, 1}]++
		}
	} else {
		rand.Seed(1)
		for range n {
			m[[4]float64{[]float64{100, 250, 500, 1000, 1500}[rand.Intn(5)], []float64{100, 256, 512, 1024, 2048, 4096}[rand.Intn(6)] * (1 << 20), 0, 1}]++
		}
	}
	var out []Item
	for k, c := range m {
		out = append(out, Item{Count: c, Req: []float64{k[0], k[1], k[2], k[3]}})
	}
	slices.SortFunc(out, func(a, b Item) int { return -slices.Compare(a.Req, b.Req) })
	return out
}

func TestReal(t *testing.T) {
	for _, w := range []struct {
		name, cats string
		gen        int
		arch       string
		n          int
		lp         float64
	}{{"openb", "cmrgp", 2, "amd64", 0, 7046}, {"uni", "cmr", 2, "amd64", 5000, 0}, {"uni", "cmr", 2, "amd64", 20000, 0}, {"uni", "", 0, "", 5000, 57.3}} {
		ts := cat(w.cats, w.gen, w.arch)
		p := &Problem{Dims: 4, Items: items(w.name, w.n)}
		for _, t := range ts {
			p.Columns = append(p.Columns, Column{Alloc: t.a, Price: t.price, Shadow: t.price, Class: int32(len(p.Columns))})
		}
		for i := range p.Items {
			var f []int32
			for k, t := range ts {
				ok := true
				for r := range t.a {
					ok = ok && p.Items[i].Req[r] <= t.a[r]
				}
				if ok {
					f = append(f, int32(k))
				}
			}
			p.Fits = append(p.Fits, f)
		}
		for _, o := range []Options{{800, 0}, {800, 200}, {800, 1000}} {
			s := time.Now()
			r := Solve(p, o)
			cost, left := 0.0, 0
			for _, n := range r.Nodes {
				cost += ts[n.Column].price
			}
			for _, l := range r.Left {
				left += l
			}
			t.Logf("%s %d %v: cost %.1f bound %.1f ratio %.4f (lp %.4f) nodes %d left %d %v", w.name, w.n, o, cost, r.Bound, cost/r.Bound, cost/w.lp, len(r.Nodes), left, time.Since(s))
		}
	}
}
