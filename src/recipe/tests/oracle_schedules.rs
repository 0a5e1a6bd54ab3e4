//! Learning rates and momentum equal the recorded values of diffusers, transformers and PyTorch.

#![expect(clippy::unwrap_used, reason = "a failed unwrap shows its line")]

#[path = "../../../tests/oracle/mod.rs"]
mod oracle;

use camino::Utf8Path;
use recipe::{Anneal, LrSchedule, Optimizer, Warmup};
use serde_json::Value;
use std::collections::BTreeMap;

/// Reads the configuration and the tensors of a file.
fn read(path: &Utf8Path) -> (Value, BTreeMap<String, Vec<f64>>) {
    let bytes = std::fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let table: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..header]).unwrap();
    let config = serde_json::from_str(table["__metadata__"]["config"].as_str().unwrap()).unwrap();
    let numbers = |info: &Value| {
        assert_eq!(info["dtype"], "F64");
        let at = |i: usize| header + info["data_offsets"][i].as_u64().unwrap() as usize;
        let values = bytes[at(0)..at(1)].chunks(8);
        values.map(|value| f64::from_le_bytes(value.try_into().unwrap())).collect()
    };
    let tensors = table.iter().filter(|(name, _)| *name != "__metadata__");
    (config, tensors.map(|(name, info)| (name.clone(), numbers(info))).collect())
}

/// The optimizer section of a recorded schedule, with its peak and its number of steps.
struct Recorded {
    optimizer: Optimizer,
    peak: f64,
    total: u64,
}

impl Recorded {
    fn of(config: &Value) -> Self {
        let float = |key: &str, default: f64| config[key].as_f64().unwrap_or(default);
        let count = |key: &str| config[key].as_u64().unwrap_or(0);
        if !config["torch"].is_null() {
            assert_eq!(config["torch"], "OneCycleLR");
            return Recorded::one_cycle(config);
        }
        // diffusers.get_scheduler does not pass on num_cycles for `cosine`, nor lr_end for `polynomial`.
        let through_get_scheduler = config["direct"].is_null();
        let name = ["name", "direct", "transformers"].iter().find_map(|key| config[*key].as_str()).unwrap();
        let (schedule, lr_end, cycles) = match name {
            "constant" | "constant_with_warmup" => (LrSchedule::Constant, 0.0, 0.0),
            "linear" => (LrSchedule::Linear, 0.0, 0.0),
            "cosine" if through_get_scheduler => (LrSchedule::Cosine, 0.0, 0.0),
            "cosine" => (LrSchedule::Cosine, 0.0, float("num_cycles", 0.0)),
            "cosine_with_restarts" => (LrSchedule::CosineWithRestarts, 0.0, float("num_cycles", 0.0)),
            "polynomial" if through_get_scheduler => (LrSchedule::Polynomial, 1e-7, 0.0),
            "polynomial" => (LrSchedule::Polynomial, float("lr_end", 1e-7), 0.0),
            "wsd" => (LrSchedule::Wsd, float("base_lr", 0.0) * float("min_lr_ratio", 0.0), 0.0),
            other => panic!("the schedule {other} has no counterpart"),
        };
        let anneal = match config["decay_type"].as_str() {
            Some("linear") => Anneal::Linear,
            Some("1-sqrt") => Anneal::Sqrt,
            _ => Anneal::Cosine,
        };
        let (warmup_steps, cooldown_steps) = (count("num_warmup_steps"), count("num_decay_steps"));
        let warmup_lr = if schedule == LrSchedule::Wsd { lr_end } else { 0.0 };
        let optimizer = Optimizer {
            warmup: Warmup::Diffusers,
            power: float("power", 1.0),
            ..Optimizer {
                schedule,
                lr_end,
                cycles,
                anneal,
                warmup_steps,
                cooldown_steps,
                warmup_lr,
                ..Optimizer::default()
            }
        };
        Recorded { optimizer, peak: float("base_lr", 0.0), total: count("num_training_steps") }
    }

    fn one_cycle(config: &Value) -> Self {
        let float = |key: &str, default: f64| config[key].as_f64().unwrap_or(default);
        let (peak, total) = (float("max_lr", 0.0), config["total_steps"].as_u64().unwrap());
        let three = config["three_phase"].as_bool().unwrap_or(false);
        let linear = config["anneal_strategy"].as_str() == Some("linear");
        let cycles_momentum = config["cycle_momentum"].as_bool().unwrap_or(true);
        let warmup_lr = peak / float("div_factor", 25.0);
        let optimizer = Optimizer {
            schedule: if three { LrSchedule::OneCycleThreePhase } else { LrSchedule::OneCycle },
            anneal: if linear { Anneal::Linear } else { Anneal::Cosine },
            warmup_steps: (float("pct_start", 0.3) * total as f64).round() as u64,
            warmup_lr,
            lr_end: warmup_lr / float("final_div_factor", 1e4),
            beta1: 0.95,
            beta1_low: if cycles_momentum { 0.85 } else { 0.0 },
            ..Optimizer::default()
        };
        Recorded { optimizer, peak, total }
    }

    /// Returns whether the recorded schedule rises again after its last step.
    fn rises_again(&self) -> bool {
        self.optimizer.schedule == LrSchedule::Cosine
    }
}

#[test]
fn oracle_learning_rates_and_momentum_of_every_recorded_schedule() {
    let wanted = |path: &Utf8Path| path.file_name().is_some_and(|name| name.starts_with("lr_"));
    for path in oracle::entries("schedules", "lr_*.safetensors", wanted) {
        let (config, tensors) = read(&path);
        let recorded = Recorded::of(&config);
        let Recorded { optimizer: o, peak, total } = &recorded;
        for (step, theirs) in tensors["out.lr"].iter().enumerate() {
            if recorded.rises_again() && step as u64 > *total {
                break;
            }
            let ours = o.lr_at(o.schedule, *peak, step as u64, *total);
            assert!((ours - theirs).abs() <= 1e-9 * peak, "{path}, step {step}: {ours:e} {theirs:e}");
        }
        for (step, theirs) in tensors.get("out.beta1").into_iter().flatten().enumerate() {
            let ours = o.beta1_at(step as u64, *total);
            assert!((ours - theirs).abs() <= 1e-9, "{path}, step {step}: {ours} {theirs}");
        }
    }
}
