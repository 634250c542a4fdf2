# hook: score
# want: Load
# says: no package dovetail.score.<name>
package dovetail.disrupt.hostile

deny contains "x"
