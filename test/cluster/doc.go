// Package cluster runs a real Kubernetes control plane on loopback, for tests and for
// trying things out: etcd, kube-apiserver, kube-controller-manager and kube-scheduler as
// processes of this one, with RBAC, admission and webhooks on. It is ready in about 4
// seconds and needs about 0.9 GiB of memory.
//
// # What stands in for machines
//
// A control plane alone has no nodes. Package kubelet plays the kubelet of any Node
// object, package local runs the pods of one node as processes of this machine, and
// package proxy lets Services reach those.
//
// # In tests
//
// [Start] is for commands. A test calls [Test], or [Main] from TestMain to share one
// cluster among the tests of a package, which is what most want. Packages that start
// clusters are run one at a time (go test -p 1).
package cluster
