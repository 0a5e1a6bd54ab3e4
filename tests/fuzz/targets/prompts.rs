//! Fuzzes a file of prompts with flags.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::prompts(input));
