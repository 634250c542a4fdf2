# hook: score
# want: Load
# says: hostile/denied_jwt.rego:6: undefined function io.jwt.decode
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if io.jwt.decode("a.b.c")
