// Package v1alpha1 holds the types of the API group dovetail.sh, version v1alpha1:
// NodePolicy, which puts a policy in force; SimNodeClass, a simulated cloud, and
// SimInstance, its record of a machine.
//
// +kubebuilder:object:generate=true
// +groupName=dovetail.sh
package v1alpha1
