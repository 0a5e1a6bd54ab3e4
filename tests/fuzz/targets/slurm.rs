//! Fuzzes answers of squeue, sacct, scontrol, sinfo and sbatch.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::slurm(input));
