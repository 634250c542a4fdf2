# hook: score
# want: Load
# says: hostile/denied_uuid.rego:6: undefined function uuid.rfc4122
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if uuid.rfc4122("x")
