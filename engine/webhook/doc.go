// Package webhook answers the API server before it stores a NodePool or a NodePolicy.
//
// A NodePool is refused if it is invalid or policies of hook admit deny it; what else is
// worth knowing, such as how many nodes a change would drift, is said in warnings, which
// kubectl shows. A NodePolicy is refused if it cannot be used, with the file and line.
//
// # What it never does
//
// The webhook is a courtesy: the controller looks at each stored object again, and says in
// its status what the webhook would have said. So whatever goes wrong here (no caches yet, no
// time left, a fault of ours) lets the request pass with a warning. It also never stands in
// the way of what would repair a cluster: requests of the controller's own namespace, objects
// that are being deleted, changes that leave alone what it judges, and kinds that it was not
// made for.
//
// # Certificates
//
// [Certificates] keeps the serving certificate, which each replica serves from memory, in a
// Secret, and its authority in the webhook configuration.
package webhook
