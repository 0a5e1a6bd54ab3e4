//! Fuzzes a table of clips in Parquet.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::parquet(input));
