# METADATA
# title: Fewest hosts
# description: |
#   Adds what agents cost that are billed per host, so that few large nodes beat many small
#   ones where that is cheaper. The fee may come from the document data.hostFee (micro-USD
#   per hour).
# custom:
#   hook: score
#   parameters:
#     microUSD:
#       description: Fee per host and hour in micro-USD; 20548 is $15 a month.
#       type: integer
#       minimum: 0
#       default: 20548
package dovetail.score.host_fee

import data.dovetail.lib

settings := lib.settings(rego.metadata.chain(), input.parameters)

fee := data.hostFee if {
	is_number(data.hostFee)
} else := settings.microUSD

adjust contains {"i": i, "addMicroUSD": amount} if {
	amount := fee
	amount > 0
	some i, _ in input.candidates
}
