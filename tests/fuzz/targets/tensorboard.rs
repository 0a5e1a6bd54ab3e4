//! Fuzzes a file of events of TensorBoard.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::tensorboard(input));
