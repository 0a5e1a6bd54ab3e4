//! Fuzzes a recipe.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::recipe(input));
