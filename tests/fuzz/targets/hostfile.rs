//! Fuzzes a hostfile, and the lists of nodes in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::hostfile(input));
