// Package kubelet plays the kubelets of any number of nodes of a cluster, without
// running anything: nodes become Ready and renew their leases, and the pods that are
// bound to them run, finish and stop.
//
// How a node or a pod behaves is told by annotations (see [NodeOf] and [PodOf]), or by
// functions in [Options]. Nodes are made by somebody else: a cloud provider, or a test.
//
// The API keeps times in whole seconds, and so a delay may take up to a second longer
// than it says, never less.
package kubelet
