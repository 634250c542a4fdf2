# hook: score
# want: Memory
# says: strings.replace_n: 
package dovetail.score.hostile

bias contains {"i": 0, "microUSD": count(strings.replace_n({"0": a}, a))} if a := concat("", [sprintf("%0900d", [x]) | some x in numbers.range(1, 60)])
