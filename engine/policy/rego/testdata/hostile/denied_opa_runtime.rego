# hook: score
# want: Load
# says: hostile/denied_opa_runtime.rego:6: undefined function opa.runtime
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if opa.runtime().env.HOME
