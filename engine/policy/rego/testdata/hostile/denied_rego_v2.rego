# hook: score
# want: Load
# says: denied_rego_v2.rego:
package dovetail.score.hostile

import rego.v2

deny contains {"i": 0, "msg": "m"}
