// Package policy asks the policies of a cluster what they think and makes one verdict
// of their answers.
//
// # Hooks
//
// There are four hooks. [Score] says what offerings really cost, [Disrupt] whether
// nodes may go, [Launch] whether capacity may be bought, [Admit] whether a NodePool is
// acceptable. Each has a typed input ([ScoreInput], [DisruptInput], [LaunchInput],
// [AdmitInput]), whose JSON form is what a policy sees and whose JSON Schema is
// generated into policies/schemas.
//
// # Runtimes
//
// An [Evaluator] is one loaded policy. Packages rego and wasm make them; this package
// knows neither. An [Engine] holds the policies in force, chains their answers, applies
// failure policies, caches what did not change, and keeps a [Record] of each decision.
//
// # Units
//
// All numbers are integers: money in micro-US-dollars per hour, CPU in millicores,
// memory in MiB, ratios in permille, times in seconds.
package policy

//go:generate go run ./internal/genschema -src . -out ../../policies/schemas
