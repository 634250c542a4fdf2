# hook: score
# want: Load
# says: hostile/denied_http_send.rego:6: undefined function http.send
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"} if http.send({"method": "GET", "url": "http://127.0.0.1/"}).status_code == 200
