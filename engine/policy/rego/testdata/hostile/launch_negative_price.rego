# hook: launch
# want: BadResult
# says: maxMicroUSD -1
package dovetail.launch.hostile

restrict contains {"claim": "web/0", "maxMicroUSD": -1}
