// Package fact reads from Kubernetes objects what policies are told besides the snapshot:
// who owns the pods of a node, what disrupting them would meet, when budgets are open.
package fact
