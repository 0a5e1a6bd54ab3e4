//! The names that other programs give to the metrics of [`MetricSample`].

use crate::MetricSample;

/// A metric that another program may log, with the names that programs give it.
#[derive(Debug)]
pub struct NamedSeries {
    /// The name in [`crate::METRICS`].
    pub metric: &'static str,
    /// The names in other programs by descending preference. The name of the metric itself is preferred to all of them.
    pub aliases: &'static [&'static str],
    /// Sets the field of a sample.
    pub set: fn(&mut MetricSample, f64),
}

const fn named(metric: &'static str, aliases: &'static [&'static str], set: fn(&mut MetricSample, f64)) -> NamedSeries {
    NamedSeries { metric, aliases, set }
}

/// The metrics that other programs log.
pub const NAMED_SERIES: [NamedSeries; 17] = [
    named("loss", &["train/loss", "train_loss", "training/loss", "loss/train", "train/train_loss"], |s, v| {
        s.loss = Some(v);
    }),
    named("grad_norm", &["train/grad_norm", "train/grad-norm", "gradient_norm", "optim/grad_norm"], |s, v| {
        s.grad_norm = Some(v);
    }),
    named("weight_norm", &[], |s, v| s.weight_norm = Some(v)),
    named("lr", &["train/lr", "learning_rate", "train/learning_rate", "train_lr", "optim/lr"], |s, v| s.lr = v),
    named("lr_ttt", &[], |s, v| s.lr_ttt = Some(v)),
    named("step_s", &["step_time", "train/step_time"], |s, v| s.step_s = v),
    named("data_s", &[], |s, v| s.data_s = v),
    named("forward_s", &[], |s, v| s.forward_s = v),
    named("backward_s", &[], |s, v| s.backward_s = v),
    named("optimizer_s", &[], |s, v| s.optimizer_s = v),
    named("checkpoint_s", &[], |s, v| s.checkpoint_s = v),
    named("samples_per_s", &[], |s, v| s.samples_per_s = v),
    named("tokens_per_s", &[], |s, v| s.tokens_per_s = v),
    named("epoch", &["train/epoch"], |s, v| s.epoch = Some(v)),
    named("tflops", &[], |s, v| s.tflops = v),
    // A fraction. Values above 1 are percentages, which nanoGPT logs.
    named("mfu", &[], |s, v| s.mfu = Some(if v > 1.0 { v / 100.0 } else { v })),
    named(
        "validation_loss",
        &["val/loss", "val_loss", "eval/loss", "eval_loss", "valid/loss", "validation/loss"],
        |s, v| s.validation_loss = Some(v),
    ),
];

/// Finds a metric by its name or by one of its names in other programs.
pub fn find_series(name: &str) -> Option<&'static NamedSeries> {
    NAMED_SERIES.iter().find(|series| series.metric == name || series.aliases.contains(&name))
}
