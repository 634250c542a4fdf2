# METADATA
# title: Do-not-disrupt with an end
# description: |
#   The annotation karpenter.sh/do-not-disrupt keeps a node until the pod has reached an
#   age, which may differ by namespace. After that it is ignored here; the warning names
#   pods whose time is over and that have blocked their node for long.
# custom:
#   hook: disrupt
#   parameters:
#     seconds:
#       description: Age until which the annotation is honoured.
#       type: integer
#       minimum: 0
#       default: 86400
#     byNamespace:
#       description: The same for single namespaces.
#       type: object
#       additionalProperties: {type: integer, minimum: 0}
#       default: {}
#     warnBlockedSeconds:
#       description: How long a node may be blocked before a warning.
#       type: integer
#       minimum: 0
#       default: 14400
package dovetail.disrupt.pod_grace

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

limit(namespace) := object.get(settings.byNamespace, namespace, settings.seconds)

# A value other than true, such as 4h, is the pod's own time, if that is shorter.
honoured(pod) := settings_limit if {
	pod.annotations["karpenter.sh/do-not-disrupt"] == "true"
	settings_limit := limit(pod.namespace)
}

honoured(pod) := min([limit(pod.namespace), own]) if {
	value := pod.annotations["karpenter.sh/do-not-disrupt"]
	regex.match(`^([0-9]+(h|m|s))+$`, value)
	own := lib.duration_seconds(value)
}

keep contains {"code": "do-not-disrupt", "nodes": [pod.node], "msg": sprintf("pod %s/%s must not be disrupted for %d seconds more", [pod.namespace, pod.name, until - pod.ageSeconds])} if {
	not input.command.reason in {"Repair", "Interruption"}
	some pod in input.pods
	until := honoured(pod)
	pod.ageSeconds < until
}

warn contains {"code": "blocked", "nodes": [c.node], "msg": sprintf("node %s has been blocked for %d seconds by pod %s/%s, whose time is over", [c.node, c.blockedSeconds, pod.namespace, pod.name])} if {
	some c in input.command.candidates
	c.blockedSeconds > settings.warnBlockedSeconds
	some pod in input.pods
	pod.node == c.node
	pod.ageSeconds >= honoured(pod)
}
