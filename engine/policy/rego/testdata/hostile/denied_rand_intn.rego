# hook: score
# want: Load
# says: hostile/denied_rand_intn.rego:6: undefined function rand.intn
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if rand.intn("x", 5) > 2
