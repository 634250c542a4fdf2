// Package rego runs policies written in Rego v1.
//
// A [Module] is compiled once, in strict mode, against the schema of its hook's input and
// with an allow-list of builtin functions (policies/capabilities.json, the same file that
// opa test takes with --capabilities). It is evaluated once for all rows of a question.
//
// # Limits
//
// Rego has no memory limit of its own and its builtin functions cannot be interrupted. So
// an evaluation counts its steps and stops at a budget, which is the same in every run;
// it looks at the wall clock and at what the process has allocated every few steps; the
// builtin functions whose result can be larger than their operands refuse large ones; and
// a caller gets its answer shortly after the deadline even if a single operation inside
// OPA does not come back, in which case the module refuses further questions until it
// does.
package rego

//go:generate go run ./internal/gencaps -out ../../../policies/capabilities.json
