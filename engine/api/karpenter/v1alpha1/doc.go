// Package v1alpha1 holds the types of the API group karpenter.sh, version v1alpha1:
// NodeOverlay, which corrects the price and capacity of instance types.
//
// +kubebuilder:object:generate=true
// +groupName=karpenter.sh
package v1alpha1
