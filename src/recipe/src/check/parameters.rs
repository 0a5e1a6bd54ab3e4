//! The rules about the parameters that are trained, and about adapters.

use super::Advice;
use crate::nearest::by_likeness;
use crate::{NoSuchLayer, ParamRole, ParamSpec, Pattern, Recipe, Trainable, param_specs};

/// Every pattern must match a parameter; a pattern that matches none is probably a typing mistake.
pub(super) fn patterns_match(recipe: &Recipe) -> Result<(), Advice> {
    let Trainable::Patterns(patterns) = &recipe.train.trainable else { return Ok(()) };
    match_one_each("train.trainable", patterns, &param_specs(&recipe.model), |spec| spec.role == ParamRole::Trained)
}

pub(super) fn frozen_patterns_match(recipe: &Recipe) -> Result<(), Advice> {
    let patterns = &recipe.train.frozen;
    match_one_each("train.frozen", patterns, &param_specs(&recipe.model), |spec| spec.role == ParamRole::Trained)
}

/// A group must match a trained parameter that no earlier group matches.
pub(super) fn groups_match(recipe: &Recipe) -> Result<(), Advice> {
    let specs = recipe.param_specs();
    let patterns: Vec<Pattern> = recipe.optimizer.groups.iter().map(|group| group.pattern.clone()).collect();
    let is_trained = |spec: &ParamSpec| recipe.train.trains(spec);
    match_one_each("optimizer.groups", &patterns, &specs, is_trained)?;
    let first = |spec: &&ParamSpec| patterns.iter().position(|pattern| pattern.matches(&spec.name));
    let reached: std::collections::BTreeSet<usize> =
        specs.iter().filter(|spec| is_trained(spec)).filter_map(|spec| first(&spec)).collect();
    let Some(unused) = (0..patterns.len()).find(|number| !reached.contains(number)) else { return Ok(()) };
    Err(Advice {
        why: format!(
            "the group \"{}\" of optimizer.groups has no parameters: groups before it match all of them",
            patterns[unused].as_str()
        ),
        fix: "move the group to the front, or remove it: the first group that matches applies".into(),
    })
}

/// Rejects a pattern that matches no parameter for which `may` returns true.
fn match_one_each(
    key: &str,
    patterns: &[Pattern],
    specs: &[ParamSpec],
    may: impl Fn(&ParamSpec) -> bool,
) -> Result<(), Advice> {
    let names: Vec<&str> = specs.iter().filter(|spec| may(spec)).map(|spec| spec.name.as_str()).collect();
    let has_no_match = |pattern: &&Pattern| !names.iter().any(|name| pattern.matches(name));
    let Some(unused) = patterns.iter().find(has_no_match) else { return Ok(()) };
    let wanted = unused.as_str().replace("\\.", ".");
    let near = by_likeness(wanted.trim_matches(['^', '$', '.']), names.iter().copied());
    let example = near.first().copied().unwrap_or_default();
    let which = if key == "optimizer.groups" { "trained parameter" } else { "parameter" };
    Err(Advice {
        why: format!("the pattern \"{}\" of {key} matches none of the {} {which} names", unused.as_str(), names.len()),
        fix: format!("correct or remove the pattern; a parameter is named {example}, for example"),
    })
}

pub(super) fn something_is_trained(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.train.frozen.is_empty() || recipe.param_specs().iter().any(|spec| recipe.train.trains(spec)) {
        return Ok(());
    }
    Err(Advice {
        why: "train.frozen freezes every parameter that train.trainable selects".into(),
        fix: "remove a pattern from train.frozen".into(),
    })
}

pub(super) fn adapters_have_layers(recipe: &Recipe) -> Result<(), Advice> {
    if !recipe.lora.is_used() {
        return Ok(());
    }
    let Err(NoSuchLayer { target, near, layers }) = recipe.lora.layers(&recipe.model) else { return Ok(()) };
    Err(Advice {
        why: format!("\"{target}\" of lora.targets selects none of the {layers} linear layers of blocks"),
        fix: format!("did you mean {}? A regular expression has to match a whole name", near.join(", ")),
    })
}

/// An adapter whose rank is above a side of its layer has more values than the layer itself.
pub(super) fn rank_fits(recipe: &Recipe) -> Result<(), Advice> {
    let rank = recipe.lora.rank;
    if rank == 0 {
        return Ok(());
    }
    let layers = recipe.lora.layers(&recipe.model).unwrap_or_default();
    let side = |spec: &ParamSpec| spec.shape.iter().copied().min().unwrap_or(0);
    let Some(small) = layers.iter().min_by_key(|spec| side(spec)).filter(|spec| rank > side(spec)) else {
        return Ok(());
    };
    Err(Advice {
        why: format!("lora.rank {rank} is above the smaller side of {}, of shape {:?}", small.name, small.shape),
        fix: format!("set lora.rank to {} or less, or leave this layer out of lora.targets", side(small)),
    })
}

pub(super) fn something_is_kept(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.lora.dropout < 1.0 {
        return Ok(());
    }
    Err(Advice {
        why: "lora.dropout is 1, which drops every input of the adapters".into(),
        fix: "set lora.dropout below 1, for example to 0.1, or to 0 for none".into(),
    })
}

pub(super) fn merged_adapters_have_absolute_paths(recipe: &Recipe) -> Result<(), Advice> {
    match recipe.sample.merged().into_iter().find(|lora| !lora.path.is_absolute()) {
        None => Ok(()),
        Some(lora) => Err(Advice {
            why: format!("the path {} is relative, and ranks run in other folders", lora.path),
            fix: "write the absolute path of the adapter".into(),
        }),
    }
}

pub(super) fn adapters_are_trained_alone(recipe: &Recipe) -> Result<(), Advice> {
    match (recipe.lora.is_used(), &recipe.train.trainable) {
        (true, Trainable::All) => Err(Advice {
            why: format!(
                "lora.rank is {}, and train.trainable \"all\" trains every weight beside the adapters",
                recipe.lora.rank
            ),
            fix: "set train.trainable = \"lora\" to train the adapters alone".into(),
        }),
        (false, Trainable::Lora) => Err(Advice {
            why: "train.trainable is \"lora\", and there are no adapters: lora.rank is 0".into(),
            fix: "set lora.rank, for example to 64".into(),
        }),
        _ => Ok(()),
    }
}
