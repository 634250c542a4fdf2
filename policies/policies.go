// Package policies holds the policies that ship with Dovetail: Rego files in one folder
// per hook, the library they share, the schemas of their inputs, and the list of builtin
// functions that Rego policies may use.
package policies

import "embed"

// Files are the policies (score, disrupt, launch, admit), the library (lib), the schemas
// (schemas/<hook>/input.json) and capabilities.json.
//
//go:embed capabilities.json lib score disrupt launch admit schemas
var Files embed.FS
