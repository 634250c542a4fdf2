// Package wasm runs policies that are WebAssembly modules: it loads them, evaluates
// them within a budget of time, work and memory, and turns whatever a guest does wrong
// into an error that names the policy. wasm-sdk/ABI.md is the contract with guests.
//
// # Loading
//
// [Host.Load] takes a module through these steps, of which the first that fails is the
// error: size and structure (package module), imports and exports against the ABI, the
// rewrite that makes it count its work (package fuel), compiling, in a child process with
// limits where the host is told how to start one, instantiation, self-description,
// settings, and a self-test that runs the hooks on fixtures, twice and in two instances,
// since a policy that answers differently each time cannot be replayed.
//
// # Evaluating
//
// [Module.Eval] takes an instance from the module's pool, hands it a frame and decodes
// the answer. A guest has no clock, no randomness, no files and no network; equal inputs
// give equal answers and equal fuel. An instance that trapped, ran out of fuel or time, or
// gave a bad answer is discarded, as its memory may be half-written.
package wasm
