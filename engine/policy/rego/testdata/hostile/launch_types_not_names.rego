# hook: launch
# want: BadResult
# says: dropTypes has number 5
package dovetail.launch.hostile

restrict contains {"claim": "web/0", "dropTypes": [5]}
