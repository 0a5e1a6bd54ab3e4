//! The rules about the optimizer, its schedules and the average of weights.

use super::Advice;
use crate::{Length, LrSchedule, OptimizerKind, Recipe, Task, UseEma};

/// Returns the key of the number of steps of the schedules, and the number. `None` for a recipe whose length is in epochs, which is checked
/// again when its steps are known, and for schedules that a resume restarted: the steps after the restart are those of the attempt.
fn schedule_length(recipe: &Recipe) -> Option<(&'static str, u64)> {
    let o = &recipe.optimizer;
    match (o.schedule_steps, recipe.train.length) {
        (steps @ 1.., _) => Some(("optimizer.schedule_steps", steps)),
        (0, Length::Steps(steps)) if o.schedule_start == 0 => Some(("train.steps", steps)),
        _ => None,
    }
}

pub(super) fn warmup_ends(recipe: &Recipe) -> Result<(), Advice> {
    let (warmup, Some((key, steps))) = (recipe.optimizer.warmup_steps, schedule_length(recipe)) else { return Ok(()) };
    if warmup <= steps {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "optimizer.warmup_steps {warmup} is more than {key} {steps}, so the learning rate never reaches its peak"
        ),
        fix: format!("set optimizer.warmup_steps to {steps} or less, or {key} to {warmup} or more"),
    })
}

pub(super) fn falls(key: &str, schedule: LrSchedule, peak: f64, recipe: &Recipe) -> Result<(), Advice> {
    let end = recipe.optimizer.lr_end;
    if schedule == LrSchedule::Constant || end <= peak {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "optimizer.lr_end {end:e} is above the peak optimizer.{key} {peak:e}, and schedules never rise after the warm-up"
        ),
        fix: format!("set optimizer.lr_end to {peak:e} or less, or optimizer.{key} to {end:e} or more"),
    })
}

pub(super) fn warmup_rises(recipe: &Recipe) -> Result<(), Advice> {
    let o = &recipe.optimizer;
    let Some((key, peak)) = [("lr", o.lr), ("lr_ttt", o.lr_ttt)].into_iter().find(|(_, peak)| o.warmup_lr > *peak)
    else {
        return Ok(());
    };
    Err(Advice {
        why: format!("optimizer.warmup_lr {:e} is above the peak optimizer.{key} {peak:e}", o.warmup_lr),
        fix: format!("set optimizer.warmup_lr to {peak:e} or less"),
    })
}

/// Returns the schedules of a recipe with their keys.
fn schedules(recipe: &Recipe) -> [(&'static str, LrSchedule); 2] {
    let o = &recipe.optimizer;
    [("optimizer.schedule", o.schedule), ("optimizer.schedule_ttt", o.schedule_ttt)]
}

pub(super) fn cycles_rise(recipe: &Recipe) -> Result<(), Advice> {
    let rises = |schedule: LrSchedule| schedule.is_one_cycle() || schedule == LrSchedule::Bump;
    let Some((key, _)) = schedules(recipe).into_iter().find(|(_, schedule)| rises(*schedule)) else { return Ok(()) };
    if recipe.optimizer.warmup_steps > 0 {
        return Ok(());
    }
    Err(Advice {
        why: format!("the {key} begins with a rise to the peak, and optimizer.warmup_steps is 0"),
        fix: format!("set optimizer.warmup_steps{}: PyTorch's pct_start is 0.3", example(recipe, 3)),
    })
}

/// Proposes a number of tenths of the steps of the run, if they are known.
fn example(recipe: &Recipe, tenths: u64) -> String {
    let steps = recipe.train.length.steps();
    steps.map_or_else(String::new, |steps| format!(", for example to {}", (steps * tenths).div_ceil(10)))
}

/// The schedules wsd and bump need `cooldown_steps`; no other schedule uses them.
pub(super) fn cooldown_fits(recipe: &Recipe) -> Result<(), Advice> {
    let (cooldown, warmup) = (recipe.optimizer.cooldown_steps, recipe.optimizer.warmup_steps);
    let schedule = schedules(recipe).into_iter().find(|(_, schedule)| schedule.has_cooldown());
    match (schedule, schedule_length(recipe)) {
        (None, _) if cooldown > 0 => Err(Advice {
            why: format!("optimizer.cooldown_steps {cooldown} has no effect: no schedule is wsd or bump"),
            fix: "set optimizer.schedule = \"wsd\", or remove optimizer.cooldown_steps".into(),
        }),
        (Some((key, _)), _) if cooldown == 0 => Err(Advice {
            why: format!("the {key} falls in optimizer.cooldown_steps, which is 0"),
            fix: format!("set optimizer.cooldown_steps{}", example(recipe, 1)),
        }),
        (Some((key, _)), Some((length, steps))) if warmup + cooldown > steps => Err(Advice {
            why: format!(
                "the {key} has optimizer.warmup_steps {warmup} + optimizer.cooldown_steps {cooldown} = {} steps, and {length} is {steps}",
                warmup + cooldown
            ),
            fix: format!("set optimizer.cooldown_steps to {} or less", steps.saturating_sub(warmup)),
        }),
        _ => Ok(()),
    }
}

pub(super) fn momentum_cycles(recipe: &Recipe) -> Result<(), Advice> {
    let o = &recipe.optimizer;
    if o.beta1_low > 0.0 && !o.schedule.is_one_cycle() {
        return Err(Advice {
            why: format!("optimizer.beta1_low {} has an effect on one-cycle schedules only", o.beta1_low),
            fix: "set optimizer.schedule = \"one_cycle\", or remove optimizer.beta1_low".into(),
        });
    }
    if o.beta1_low > o.beta1 {
        return Err(Advice {
            why: format!("optimizer.beta1_low {} is above optimizer.beta1 {}", o.beta1_low, o.beta1),
            fix: "set optimizer.beta1 = 0.95 and optimizer.beta1_low = 0.85, as in PyTorch".into(),
        });
    }
    Ok(())
}

pub(super) fn average_decays(recipe: &Recipe) -> Result<(), Advice> {
    let ema = &recipe.ema;
    if !ema.is_used() || ema.min_decay <= ema.decay {
        return Ok(());
    }
    Err(Advice {
        why: format!("ema.min_decay {} is above ema.decay {}, the largest", ema.min_decay, ema.decay),
        fix: format!("set ema.min_decay to {} or less", ema.decay),
    })
}

/// Applies to training only: the task `sample` reads a checkpoint, which may have an average whatever
/// the recipe's `[ema]` is.
pub(super) fn samples_have_an_average(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.task != Task::Train || recipe.sample.ema != UseEma::On || recipe.ema.is_used() {
        return Ok(());
    }
    Err(Advice {
        why: "sample.ema is \"on\", and there is no average of the weights: ema.decay is 0".into(),
        fix: "set ema.decay, for example to 0.9999, or sample.ema = \"auto\"".into(),
    })
}

/// Prodigy estimates one distance to the solution, which scales the learning rate of all parameters.
pub(super) fn prodigy_has_one_rate(recipe: &Recipe) -> Result<(), Advice> {
    let o = &recipe.optimizer;
    if o.kind != OptimizerKind::Prodigy {
        return Ok(());
    }
    let why = "Prodigy estimates one distance, so all parameters have one learning rate";
    if recipe.model.has_ttt() && (o.lr_ttt, o.schedule_ttt) != (o.lr, o.schedule) {
        return Err(Advice {
            why: format!("{why}, and optimizer.lr_ttt or schedule_ttt differs from optimizer.lr or schedule"),
            fix: format!("set optimizer.lr_ttt = {} and the same schedules", o.lr),
        });
    }
    match o.groups.iter().find(|group| group.lr.is_some()) {
        None => Ok(()),
        Some(group) => Err(Advice {
            why: format!("{why}, and the group \"{}\" sets lr", group.pattern.as_str()),
            fix: "remove lr from the group, or set optimizer.kind = \"adamw\"".into(),
        }),
    }
}

pub(super) fn only_adamw_cycles_momentum(recipe: &Recipe) -> Result<(), Advice> {
    let o = &recipe.optimizer;
    if o.beta1_low == 0.0 || o.kind != OptimizerKind::Adafactor {
        return Ok(());
    }
    Err(Advice {
        why: "Adafactor has no first moment, so optimizer.beta1_low has no effect".into(),
        fix: "remove optimizer.beta1_low".into(),
    })
}
