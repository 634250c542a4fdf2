# hook: score
# want: Fuel
# says: glob.match: pattern
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if glob.match("*a*a*a*a*a*a*a*a*a*a*a*a*a*b", [], "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
