// Package crds holds Dovetail's API types and CustomResourceDefinitions against those of
// Karpenter: what one accepts, keeps, defaults or refuses, the other does too. It is a
// module of its own, because nothing else may depend on Karpenter. All of it is tests.
package crds
