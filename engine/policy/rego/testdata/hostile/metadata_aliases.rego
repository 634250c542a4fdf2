# hook: score
# want: Load
# says: excessive aliasing

# METADATA
# custom:
#   a: &a [x,x,x,x,x,x,x,x,x]
#   b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]
#   c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]
#   d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]
#   e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]
#   f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]
#   g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]
package dovetail.score.hostile

deny contains {"i": 0, "msg": "m"}
