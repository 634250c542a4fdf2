// Package simulate plans a cluster from files, and reports the plan.
//
// [Run] builds the same Snapshot and calls the same Solve as the controller does. A
// [Report] is what people and programs read of the outcome; its JSON names are stable.
package simulate
