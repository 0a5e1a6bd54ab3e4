//! Fuzzes a table of clips as CSV, TSV, JSON and JSON lines.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::table(input));
