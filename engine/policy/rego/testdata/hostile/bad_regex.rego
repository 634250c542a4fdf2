# hook: score
# want: Builtin Load
# says: 
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if regex.match("((", input.nodePool.name)
