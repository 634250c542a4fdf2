# hook: admit
# want: BadResult Fuel Deadline Memory
# says: 
package dovetail.admit.hostile

deny contains sprintf("%0900d", [n]) if some n in numbers.range(1, 5000)
