// Package load reads Kubernetes manifests, as people keep them and as kubectl prints
// them, into [snapshot.Objects].
//
// # What it accepts
//
// YAML and JSON, many documents to a file, List objects, in any order. Workloads
// become the pods their controllers would make, less those that are already in the
// input. Pods get the defaults the API server gives them where a scheduler looks.
//
// # What it does about bad input
//
// It never fails as a whole. What cannot be used is left out and named in a
// [Problem] with file, line, object and field; everything else counts. Size, depth and
// alias expansion are bounded.
package load
