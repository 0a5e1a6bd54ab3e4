//! Fuzzes a file of `torch.save`: its archive, its pickle and its tensors.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::pickle(input));
