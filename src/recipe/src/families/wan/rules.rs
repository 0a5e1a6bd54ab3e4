//! The rules of a model of Wan.

use crate::Recipe;
use crate::check::{Advice, Rules, around};

/// The rules, each with the keys that it compares.
pub(super) const RULES: Rules = &[
    (&["model.in_channels", "model.out_channels"], channels_are_equal),
    (&["model.head_dim"], positions_fit),
    (&["model.freq_dim"], time_has_pairs),
    (&["objective.min_level", "objective.max_level"], some_level_is_trained),
];

/// Text to video: the network receives the noised latent alone.
fn channels_are_equal(recipe: &Recipe) -> Result<(), Advice> {
    let (input, output) = (recipe.model.in_channels, recipe.model.out_channels);
    if input == output {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "text to video needs as many input as output channels, and model.in_channels is {input}, model.out_channels {output}"
        ),
        fix: format!("set model.in_channels = {output}; image to video of Wan cannot be trained yet"),
    })
}

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

/// The 1000 levels of `steps` are 0.001 apart before the shift, so a narrower range may contain none of them.
fn some_level_is_trained(recipe: &Recipe) -> Result<(), Advice> {
    const NARROWEST: f64 = 0.01;
    let (least, most) = (recipe.objective.min_level, recipe.objective.max_level);
    if most - least >= NARROWEST {
        return Ok(());
    }
    Err(Advice {
        why: format!("no noise levels lie between objective.min_level {least} and objective.max_level {most}"),
        fix: format!("set them at least {NARROWEST} apart, such as 0.875 and 1"),
    })
}
