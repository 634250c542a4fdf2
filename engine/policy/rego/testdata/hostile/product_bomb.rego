# hook: score
# want: Memory
# says: to_number: 
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": product([to_number(x), 2])} if x := "1e9999"
