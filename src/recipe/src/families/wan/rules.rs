//! The rules of a model of Wan.

use crate::check::{Advice, Rules, around, division};
use crate::{Flow, NoiseLevels, Recipe};

/// The rules, each with the keys that it compares.
pub(super) const RULES: Rules = &[
    (&["model.head_dim"], positions_fit),
    (&["model.freq_dim"], time_has_pairs),
    (&["model.ffn_dim", "mesh.tp"], whole_hidden_units),
    (&["objective.min_level", "objective.max_level", "objective.levels", "objective.shift"], some_level_is_trained),
];

/// Rotary positions divide a head into pairs for frames, rows and columns: a third of the pairs, rounded down, for rows and for columns.
fn positions_fit(recipe: &Recipe) -> Result<(), Advice> {
    let width = recipe.model.head_dim;
    if width.is_multiple_of(2) && width >= 6 {
        return Ok(());
    }
    Err(Advice {
        why: format!("model.head_dim {width} cannot be divided into pairs for frames, rows and columns"),
        fix: format!("set model.head_dim = {}", if width < 6 { "6".to_owned() } else { around(width, 2) }),
    })
}

fn time_has_pairs(recipe: &Recipe) -> Result<(), Advice> {
    let crate::Family::Wan(keys) = &recipe.model.family else { return Ok(()) };
    if keys.freq_dim.is_multiple_of(2) {
        return Ok(());
    }
    Err(Advice {
        why: format!("model.freq_dim {} is odd: half of the features are sines, half cosines", keys.freq_dim),
        fix: format!("set model.freq_dim = {}", around(keys.freq_dim, 2)),
    })
}

/// Each rank of a TP group has as many hidden units. [`whole_heads`](crate::check) checks the heads.
fn whole_hidden_units(recipe: &Recipe) -> Result<(), Advice> {
    let crate::Family::Wan(keys) = &recipe.model.family else { return Ok(()) };
    let (units, heads, tp) = (keys.ffn_dim, recipe.model.num_heads, recipe.mesh.tp);
    if units.is_multiple_of(tp) {
        return Ok(());
    }
    let fits = (1..tp).rev().find(|n| units.is_multiple_of(*n) && heads.is_multiple_of(*n)).unwrap_or(1);
    Err(Advice {
        why: format!("model.ffn_dim {units} is not a multiple of mesh.tp {tp}: {}", division(units, tp)),
        fix: format!("set mesh.tp = {fits}, the largest smaller size that fits"),
    })
}

/// A continuous distribution needs a range, and that of `steps` one of its 1000 levels.
fn some_level_is_trained(recipe: &Recipe) -> Result<(), Advice> {
    const NARROWEST: f64 = 0.01;
    let (least, most) = (recipe.objective.min_level, recipe.objective.max_level);
    let Flow { levels, shift, .. } = recipe.objective;
    let shifted = |x: f64| shift * x / (1.0 + (shift - 1.0) * x);
    let mut steps = (1..=1000).map(|step| shifted(f64::from(step) / 1000.0));
    let has_step = levels != NoiseLevels::Steps || steps.any(|level| (least..=most).contains(&level));
    if most - least >= NARROWEST && has_step {
        return Ok(());
    }
    Err(Advice {
        why: format!("no noise levels lie between objective.min_level {least} and objective.max_level {most}"),
        fix: format!("set them further apart, at least by {NARROWEST}, such as 0.875 and 1"),
    })
}
