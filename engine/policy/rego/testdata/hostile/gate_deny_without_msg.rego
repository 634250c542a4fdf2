# hook: disrupt
# want: BadResult
# says: without a message
package dovetail.disrupt.hostile

deny contains {"code": "x"}
