# hook: score
# want: Load
# says: comprehensions nested in each other

package dovetail.score.hostile

ok if {
every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { every x in [1] { x == 1}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}
}

deny contains {"i": 0, "msg": "m"} if ok
