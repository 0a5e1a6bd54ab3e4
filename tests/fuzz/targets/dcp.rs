//! Fuzzes the metadata of a distributed checkpoint of PyTorch.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::dcp(input));
