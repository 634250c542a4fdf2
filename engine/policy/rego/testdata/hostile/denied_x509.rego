# hook: score
# want: Load
# says: hostile/denied_x509.rego:6: undefined function crypto.x509.parse_certificates
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if crypto.x509.parse_certificates("")
