// Package disrupt takes nodes away that a cluster can do without, can do cheaper, or has to
// replace.
//
// # Commands
//
// Every ten seconds a pass looks for moves on a snapshot, under budgets and policies, and makes
// a command of each. Commands go on by themselves, many at once, each a step at a time; no
// step waits for anything, so that one that is stuck holds up no other:
//
//	confirming  decided, nothing is written: a saving must still be one 15 s later
//	launching   its replacements are created, and not all are initialized
//	closing     the nodes are being tainted, now that there is somewhere to go
//	closed      tainted; pods that were being bound meanwhile have come to light
//	deleting    their NodeClaims are being deleted
//	draining    the nodes are emptied by the controller of their end
//	undoing     it is being taken back
//
// Before nodes are tainted, and again before they are deleted, it is looked at afresh whether
// they may go and their pods have a place on nodes that are ready. Until they are tainted they
// take pods as any other node does.
//
// The nodes of one command, what replaces them and the running nodes that take their pods are
// no part of another one.
//
// # After a restart
//
// A replacement says in an annotation which command it belongs to and which claims go. So a
// command with replacements is read back from them and goes on. One without leaves at most
// taints, which are taken away when no command is known that put them there; it is decided
// anew.
package disrupt
