// Package frame reads and writes the frames of the Wasm policy ABI, version 1: flat
// columnar tables with a string table and a key/value context. wasm-sdk/ABI.md is the
// contract, byte by byte.
//
// [Encode] writes the question to a guest: rows of a [Table], and context. Equal tables
// give equal bytes, whatever the order in which they were put together, since a frame's
// digest identifies an input. [Decode] checks a frame of unknown origin, and
// [DecodeAnswer] makes a guest's answer out of one, or an error that names the column,
// row and value.
package frame
