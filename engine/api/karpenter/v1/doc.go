// Package v1 holds the types of the API group karpenter.sh, version v1: NodePool and
// NodeClaim.
//
// The types are compatible with Karpenter's: the same field names, defaults and
// validation, so that an existing object is read and written back unchanged. They
// carry no behaviour that needs a client or a clock.
//
// # Where a rule lives
//
// Rules that the API server can hold are markers on the types, from which the
// CustomResourceDefinitions in package crds are generated. What only a controller can
// judge is [NodePool.RuntimeValidate]. Both share the label rules of [LabelRules].
//
// +kubebuilder:object:generate=true
// +groupName=karpenter.sh
package v1
