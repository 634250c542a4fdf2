# METADATA
# title: Pools named dear are not admitted
# custom:
#   hook: admit
package dovetail.admit.no_dear_pool

deny contains {"code": "dear", "msg": "dear pools are closed"} if input.nodePool.name == "dear"
