# METADATA
# title: NodePool hygiene
# description: |
#   What a well-kept NodePool has: limits, an owner, an end of life for its nodes, a calm
#   consolidation in production, families from a list, and no other pool of the same weight
#   for the same pods. Problems are warnings, or denials with enforce.
# custom:
#   hook: admit
#   default: true
#   parameters:
#     enforce:
#       description: Deny instead of warning.
#       type: boolean
#       default: false
#     ownerLabel:
#       description: Label that a pool must have.
#       type: string
#       default: team
#     maxExpireSeconds:
#       description: Longest life of a node.
#       type: integer
#       minimum: 1
#       default: 2592000
#     production:
#       description: Value of label env that means production.
#       type: string
#       default: production
#     minConsolidateAfterSeconds:
#       description: Shortest consolidateAfter in production.
#       type: integer
#       minimum: 0
#       default: 300
#     families:
#       description: Allowed instance families; empty allows all.
#       type: array
#       items: {type: string}
#       default: []
package dovetail.admit.nodepool_hygiene

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

pool := input.nodePool

problems contains {"code": "limits", "msg": "spec.limits has neither cpu, memory nor nodes: the pool may grow without end"} if {
	not pool.limits.cpu
	not pool.limits.memory
	not pool.limits.nodes
}

problems contains {"code": "owner", "msg": sprintf("label %s is missing: nobody knows whose pool it is", [settings.ownerLabel])} if {
	object.get(pool.labels, settings.ownerLabel, "") == ""
}

problems contains {"code": "expiry", "msg": sprintf("expireAfter is Never; at most %d hours are allowed", [floor(settings.maxExpireSeconds / 3600)])} if {
	not pool.disruption.expireAfterSeconds
}

problems contains {"code": "expiry", "msg": sprintf("expireAfter is %d hours; at most %d are allowed", [floor(pool.disruption.expireAfterSeconds / 3600), floor(settings.maxExpireSeconds / 3600)])} if {
	pool.disruption.expireAfterSeconds > settings.maxExpireSeconds
}

problems contains {"code": "consolidation", "msg": sprintf("consolidateAfter is %d seconds; at least %d are required in production", [pool.disruption.consolidateAfterSeconds, settings.minConsolidateAfterSeconds])} if {
	pool.labels.env == settings.production
	pool.disruption.consolidateAfterSeconds < settings.minConsolidateAfterSeconds
}

problems contains {"code": "families", "msg": sprintf("instance families %s are not in the list of allowed ones", [concat(", ", sort(others))])} if {
	count(settings.families) > 0
	others := {t.family | some t in input.resolved.types} - {f | some f in settings.families}
	count(others) > 0
}

problems contains {"code": "overlap", "msg": sprintf("NodePool %s has the same weight (%d) and takes the same pods", [s.name, s.weight])} if {
	some s in input.siblings
	s.overlap
	s.weight == pool.weight
}

deny contains problem if {
	settings.enforce
	some problem in problems
}

warn contains problem if {
	not settings.enforce
	some problem in problems
}
