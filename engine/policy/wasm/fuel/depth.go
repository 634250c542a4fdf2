package fuel

import "github.com/dovetail-sh/dovetail/engine/policy/wasm/module"

// frameUnit is how many bytes of stack one unit of depth stands for.
const frameUnit = 64

// maxDepth is the depth at which a module is stopped: about 8 MiB of stack. The runtime
// has a limit of its own, but it is above 100 MiB, and growing a stack to that size takes
// a second in which nobody can stop it.
const maxDepth = 8 << 20 / frameUnit

// depth estimates the stack frame of a function, in frame units: its locals, and the
// values that may be alive across a call, which its length bounds.
func depth(locals, instructions int) int {
	return 2 + (locals+instructions/2)/8
}

// recursive finds the functions that can call themselves, directly or not: those in a
// cycle of the call graph. Only they need to count their depth; the others cannot make a
// chain that is longer than the module.
//
// An indirect call may reach each function of its type that is in an element segment or
// that code refers to. Nodes after those of the functions stand for such a set.
func (w *rewriter) recursive() ([]bool, error) {
	m := w.m
	sets := map[string]int{}
	var signatures []int // the set of each type
	for _, t := range m.Types {
		key := string(t.Key())
		if _, ok := sets[key]; !ok {
			sets[key] = len(sets)
		}
		signatures = append(signatures, sets[key])
	}
	edges := make([][]uint32, int(w.funcs)+len(sets))
	typeOf := make([]int, 0, w.funcs)
	for _, i := range m.Imports {
		if i.Kind == module.KindFunc {
			typeOf = append(typeOf, signatures[i.Type])
		}
	}
	for _, t := range m.Funcs {
		typeOf = append(typeOf, signatures[t])
	}
	taken := make([]bool, w.funcs)
	refer := func(f uint32) {
		if f < w.funcs && !taken[f] {
			taken[f] = true
			set := w.funcs + uint32(typeOf[f])
			edges[set] = append(edges[set], f)
		}
	}
	scan := func(code []byte, from *[]uint32) error {
		r := module.NewReader(code)
		last := module.NoIndex
		for !r.Done() {
			in, err := r.Next()
			if err != nil {
				return err
			}
			switch in.Op {
			case module.OpCall:
				if in.Index < w.funcs && in.Index != last && from != nil {
					*from = append(*from, in.Index)
					last = in.Index
				}
			case module.OpCallIndirect:
				if uint64(in.Index) < uint64(len(signatures)) && from != nil {
					*from = append(*from, w.funcs+uint32(signatures[in.Index]))
				}
			case module.OpRefFunc:
				refer(in.Index)
			}
		}
		return nil
	}
	for i := range m.Code {
		if err := scan(m.Code[i].Body, &edges[w.imports+uint32(i)]); err != nil {
			return nil, err
		}
	}
	for _, g := range m.Globals {
		if err := scan(g.Init, nil); err != nil {
			return nil, err
		}
	}
	for _, e := range m.Elements {
		for _, f := range e.Funcs {
			refer(f)
		}
		for _, x := range e.Exprs {
			if err := scan(x, nil); err != nil {
				return nil, err
			}
		}
	}
	return cyclic(edges), nil
}

// cyclic marks the nodes that lie on a cycle, by Tarjan's algorithm without recursion.
func cyclic(edges [][]uint32) []bool {
	n := len(edges)
	result := make([]bool, n)
	order, low := make([]int32, n), make([]int32, n) // 0 is not visited
	onStack := make([]bool, n)
	next := make([]int32, n) // the edge to look at next
	var stack, path []uint32
	count := int32(0)
	for root := range n {
		if order[root] != 0 {
			continue
		}
		path = append(path, uint32(root))
		for len(path) > 0 {
			v := path[len(path)-1]
			if order[v] == 0 {
				count++
				order[v], low[v] = count, count
				stack, onStack[v] = append(stack, v), true
			}
			if int(next[v]) < len(edges[v]) {
				u := edges[v][next[v]]
				next[v]++
				switch {
				case u == v:
					result[v] = true
				case order[u] == 0:
					path = append(path, u)
				case onStack[u]:
					low[v] = min(low[v], order[u])
				}
				continue
			}
			path = path[:len(path)-1]
			if len(path) > 0 {
				up := path[len(path)-1]
				low[up] = min(low[up], low[v])
			}
			if low[v] != order[v] {
				continue
			}
			size := 0
			for i := len(stack) - 1; ; i-- {
				size++
				onStack[stack[i]] = false
				if stack[i] == v {
					break
				}
			}
			if size > 1 {
				for _, u := range stack[len(stack)-size:] {
					result[u] = true
				}
			}
			stack = stack[:len(stack)-size]
		}
	}
	return result
}
