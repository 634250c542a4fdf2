# hook: score
# want: Load
# says: hostile/denied_sign_req.rego:6: undefined function providers.aws.sign_req
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if providers.aws.sign_req({}, {}, 1)
