//! Fuzzes the header and values of a safetensors file.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::safetensors(input));
