//! Fuzzes the file of an offline run of W&B.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::wandb(input));
