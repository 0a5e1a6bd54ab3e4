//! Fuzzes the index of a data set.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::index(input));
