# hook: score
# want: Load
# says: hostile/denied_bits_lsh.rego:6: undefined function bits.lsh
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if bits.lsh(1, 4000000000) > 0
