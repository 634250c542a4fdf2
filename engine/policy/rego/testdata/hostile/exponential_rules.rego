# hook: score
# want: Fuel Deadline Memory
# says: 
package dovetail.score.hostile

x0 := numbers.range(1, 4)

x1 := {[a, b] | some a in x0; some b in x0}

x2 := {[a, b] | some a in x1; some b in x1}

x3 := {[a, b] | some a in x2; some b in x2}

x4 := {[a, b] | some a in x3; some b in x3}

x5 := {[a, b] | some a in x4; some b in x4}

x6 := {[a, b] | some a in x5; some b in x5}

bias contains {"i": 0, "microUSD": count(x6)}
