//! Fuzzes the rows and messages of nvidia-smi.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::nvidia_smi(input));
