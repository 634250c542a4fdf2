# hook: score
# want: Load
# says: no package
package dovetail.lib.mine

deny contains "x"
