# hook: launch
# want: BadResult
# says: "web/7" is not one of the claims
package dovetail.launch.hostile

restrict contains {"claim": "web/7", "maxMicroUSD": 1}
