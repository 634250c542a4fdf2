# METADATA
# title: Keep one replica alive
# description: |
#   Nodes stay if an owner would have no ready pod left while its pods move, unless they are
#   started elsewhere first.
# custom:
#   hook: disrupt
#   default: true
#   parameters:
#     kinds:
#       description: Kinds of owners that count.
#       type: array
#       items: {type: string}
#       default: [Deployment, ReplicaSet, StatefulSet]
#     singles:
#       description: Owners with one replica by wish count as well.
#       type: boolean
#       default: true
package dovetail.disrupt.keep_one_replica

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

deny contains {"code": "last-replica", "msg": sprintf("%s %s/%s would have %d of %d replicas ready", [o.kind, o.namespace, o.name, max([left, 0]), o.replicas])} if {
	input.command.reason in {"Underutilized", "Drifted", "Requested"}
	some o in input.owners
	o.kind in settings.kinds
	o.onThisNode > 0
	not o.surgeDrain
	left := o.ready - o.onThisNode
	left < 1
	counts(o)
}

counts(_) if settings.singles

counts(o) if o.replicas > 1
