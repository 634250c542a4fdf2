# hook: score
# want: Memory
# says: replace: 
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(replace(a, "", a))} if a := concat("", [sprintf("%0900d", [x]) | some x in numbers.range(1, 60)])
