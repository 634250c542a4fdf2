# hook: score
# want: Load
# says: hostile/denied_net_lookup.rego:6: undefined function net.lookup_ip_addr
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if net.lookup_ip_addr("localhost")
