// Package fuel makes WebAssembly modules count what they do, so that a host can
// stop a runaway guest after an exact amount of work and, meanwhile, gets the
// processor back about each millisecond.
//
// Compiled guest code cannot be preempted by the Go scheduler: while it spins,
// every garbage collection of the process waits, and with it everything else.
// [Rewrite] therefore changes a module before it is compiled. It adds a counter,
// takes units from it at each function's entry and each loop's header, and calls
// the host when the counter falls below zero; [Meter] is the host's side.
//
// # Units
//
// One unit stands for up to 64 plain instructions, or for 16 bytes moved by a bulk
// memory instruction, and takes a few nanoseconds. Straight code pays for itself
// as well, or a long body could do much between two loop headers: see the comment
// at place. Units depend on the module and its input only, never on time, so equal
// calls use equal units.
//
// Functions that can call themselves also count the depth of their stack, so that
// recursion ends at about 8 MiB.
//
// Results are those of the unmodified module: the rewrite adds no memory access, no
// value on the stack, and keeps every index that the guest can observe.
package fuel
