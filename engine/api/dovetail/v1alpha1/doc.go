// Package v1alpha1 holds the types of the API group dovetail.sh, version v1alpha1:
// NodePolicy, which puts a policy in force.
//
// +kubebuilder:object:generate=true
// +groupName=dovetail.sh
package v1alpha1
