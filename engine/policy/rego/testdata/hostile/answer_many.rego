# hook: score
# want: BadResult Fuel Deadline Memory
# says: 
package dovetail.score.hostile

deny contains {"i": 0, "msg": sprintf("%d", [n])} if some n in numbers.range(1, 90000)
