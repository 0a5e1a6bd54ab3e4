//! The rules about data sets, buckets and batches, and the division of work among ranks.

use super::{Advice, around, division};
use crate::buckets::BadBuckets;
use crate::{Buckets, Recipe, Shapes};

pub(super) fn buckets_are_sound(recipe: &Recipe) -> Result<(), Advice> {
    match Buckets::new(recipe.data.bucket_rule, &recipe.data.buckets, recipe.encoders.latent_pixels) {
        Ok(_) => Ok(()),
        Err(BadBuckets { why, fix }) => Err(Advice { why, fix }),
    }
}

/// The rules about the size of the model's latents must hold for each bucket.
pub(super) fn buckets_fit_the_model(recipe: &Recipe) -> Result<(), Advice> {
    for bucket in recipe.buckets().map_or_else(Vec::new, |buckets| buckets.all()) {
        let shape = recipe.latent_of(bucket);
        if let Err(why) = recipe.model_at(shape) {
            return Err(Advice {
                why: format!("latents of the bucket {bucket} do not fit the model: {why}"),
                fix: "give the bucket another size in data.buckets".into(),
            });
        }
    }
    Ok(())
}

/// An encode has either one size or buckets.
pub(super) fn one_size_or_buckets(recipe: &Recipe) -> Result<(), Advice> {
    let encode = &recipe.encode;
    let sizes = [("frames", encode.frames), ("height", encode.height), ("width", encode.width)];
    match (recipe.data.buckets.is_empty(), sizes.into_iter().find(|(_, size)| *size > 0)) {
        (false, Some((key, size))) => Err(Advice {
            why: format!("encode.{key} is {size}, and data.buckets gives each clip its own size"),
            fix: "remove encode.frames, encode.height and encode.width, or remove data.buckets".into(),
        }),
        _ => Ok(()),
    }
}

/// The shortest allowed timeout of a collective, because a busy node may pause a rank for seconds.
const SHORTEST_TIMEOUT_S: u64 = 5;

pub(super) fn collectives_have_time(recipe: &Recipe) -> Result<(), Advice> {
    let seconds = recipe.train.collective_timeout_s;
    if seconds == 0 || seconds >= SHORTEST_TIMEOUT_S {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "train.collective_timeout_s {seconds} is too short: a busy node can pause a rank for {SHORTEST_TIMEOUT_S} s"
        ),
        fix: "set train.collective_timeout_s to several times the longest step, or to 0 to derive it".into(),
    })
}

pub(super) fn equal_shares(recipe: &Recipe) -> Result<(), Advice> {
    let (train, mesh) = (&recipe.train, &recipe.mesh);
    let parts = mesh.data_ranks() * train.grad_accum;
    if train.global_batch.is_multiple_of(parts) {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "train.global_batch {} is not a multiple of mesh.dp_replicate {} × mesh.dp_shard {} × train.grad_accum {} = {parts}: {}",
            train.global_batch,
            mesh.dp_replicate,
            mesh.dp_shard,
            train.grad_accum,
            division(train.global_batch, parts)
        ),
        fix: format!("set train.global_batch = {}", around(train.global_batch, parts)),
    })
}

/// Each rank of a TP group has whole heads. The hidden units of CogVideoX, four times the width, are then divisible too.
pub(super) fn whole_heads(recipe: &Recipe) -> Result<(), Advice> {
    let (heads, tp) = (recipe.model.num_heads, recipe.mesh.tp);
    if heads.is_multiple_of(tp) {
        return Ok(());
    }
    let fits = (1..tp).rev().find(|&n| heads.is_multiple_of(n)).unwrap_or(1);
    Err(Advice {
        why: format!(
            "model.num_heads {heads} is not a multiple of mesh.tp {tp}, and a head cannot be split: {}",
            division(heads, tp)
        ),
        fix: format!("set mesh.tp = {fits}, the largest smaller size that fits"),
    })
}

pub(super) fn one_way_to_name_data(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.data.sets.is_empty() || recipe.data.index.as_str().is_empty() {
        return Ok(());
    }
    Err(Advice {
        why: "both data.index and [[data.sets]] name data sets".into(),
        fix: format!("write index = \"{}\" in one of the [[data.sets]], or remove data.index", recipe.data.index),
    })
}

pub(super) fn sets_agree(recipe: &Recipe) -> Result<(), Advice> {
    let sets = &recipe.data.sets;
    let Some(weighted) = sets.iter().find(|set| set.weight.is_some()) else { return Ok(()) };
    if let Some(repeated) = sets.iter().find(|set| set.repeats.is_some()) {
        return Err(Advice {
            why: format!(
                "the data set {} has a weight and {} has repeats: both set how often an item is used",
                weighted.index, repeated.index
            ),
            fix: "give all sets a weight, or none".into(),
        });
    }
    match sets.iter().find(|set| set.weight.is_none()) {
        None => Ok(()),
        Some(other) => Err(Advice {
            why: format!("the data set {} has a weight, and {} has none", weighted.index, other.index),
            fix: "give each of the [[data.sets]] a weight, or none of them".into(),
        }),
    }
}

pub(super) fn one_share_of_images(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.data.image_share == 0.0 || recipe.data.sets.iter().all(|set| set.weight.is_none()) {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "data.image_share {} and the weights of [[data.sets]] both set shares of the samples",
            recipe.data.image_share
        ),
        fix: "keep the images in a set of its own and give it a weight, or remove the weights".into(),
    })
}

pub(super) fn images_have_their_own_shape(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.data.image_share == 0.0 || recipe.shapes() != Shapes::One {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "data.image_share {} mixes images with videos, and with data.shapes = \"one\" all latents have {}",
            recipe.data.image_share,
            units::counted(recipe.model.latent_frames, "frame")
        ),
        fix: "set data.shapes = \"grouped\" or \"balanced\"".into(),
    })
}
