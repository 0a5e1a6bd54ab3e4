//! The rules of a CogVideoX model: positions, noise, segments and TTT layers.

use crate::check::{Advice, Rules, around, division};
use crate::{ComputeDtype, Device, Layer, Model, Positions, Recipe, SEGMENT_FRAMES};

/// The rules, each with the keys that it compares.
pub(super) const RULES: Rules = &[
    (&["model.patch_size_t", "model.positions"], patches_in_time_have_rope),
    (&["model.head_dim", "model.num_heads", "model.positions"], positions_fit),
    (
        &["model.latent_height", "model.latent_width", "model.base_height", "model.base_width", "model.patch_size_t"],
        within_the_position_table,
    ),
    (
        &["model.positions", "model.latent_height", "model.latent_width", "model.base_height", "model.base_width"],
        learned_positions_have_one_size,
    ),
    (&["model.resize_positions", "model.latent_frames", "model.base_frames"], resized_positions_have_enough_frames),
    (&["model.beta_start", "model.beta_end"], noise_grows),
    (&["model.segments", "model.patch_size_t"], segments_share_a_frame),
    (&["model.segments", "model.latent_frames"], whole_segments),
    (&["model.layer", "model.ttt_mini_batch"], ttt_has_mini_batches),
    (
        &["model.text_len", "model.segments", "model.latent_frames", "model.layer", "model.ttt_mini_batch"],
        whole_mini_batches,
    ),
    (
        &["train.ttt_scan", "train.device", "train.dtype", "model.layer", "model.head_dim", "model.ttt_mini_batch"],
        kernel_fits_the_scan,
    ),
];

/// CogVideoX 1.5 has rotary positions only; a table of positions has one entry per latent frame.
fn patches_in_time_have_rope(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    if model.patch_size_t == 1 || model.cogvideox().positions == Positions::Rope {
        return Ok(());
    }
    Err(Advice {
        why: format!("model.patch_size_t {} needs rotary positions", model.patch_size_t),
        fix: "set model.positions = \"rope\", or model.patch_size_t = 1".into(),
    })
}

/// Adjacent segments share one latent frame, and a patch of several frames would merge it with others.
fn segments_share_a_frame(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    if model.cogvideox().segments == 1 || model.patch_size_t == 1 {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "each of model.segments {} shares one latent frame with its neighbour, and model.patch_size_t {} merges several frames into one token",
            model.cogvideox().segments,
            model.patch_size_t
        ),
        fix: "set model.segments = 1, or train a model with model.patch_size_t = 1".into(),
    })
}

/// Positions divide a head's width into pairs: a quarter for frames, three eighths each for rows and columns.
///
/// Tables of sines and cosines divide the width of the model in the same way.
fn positions_fit(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    let (what, width) = match model.cogvideox().positions {
        Positions::Rope | Positions::Learned => (format!("model.head_dim {}", model.head_dim), model.head_dim),
        Positions::SinCos => (
            format!("model.num_heads {} × model.head_dim {} = {}", model.num_heads, model.head_dim, model.dim()),
            model.dim(),
        ),
    };
    if width.is_multiple_of(16) {
        return Ok(());
    }
    let part = |eighths: f64| width as f64 * eighths / 8.0;
    Err(Advice {
        why: format!(
            "{what} cannot be divided among positions: frames take {}, rows and columns {} each, and each must be even",
            part(2.0),
            part(3.0)
        ),
        fix: format!("set model.head_dim = {}", around(model.head_dim, 16)),
    })
}

/// The positions of CogVideoX 1.5 are plain indices into a table of the base size.
fn within_the_position_table(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    let [_, rows, columns] = model.base();
    let (height, width) = (model.latent_height, model.latent_width);
    if model.patch_size_t == 1 || (height <= rows && width <= columns) {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "a latent of {height} × {width} is larger than {rows} × {columns}, the largest that the positions of CogVideoX 1.5 support"
        ),
        fix: format!(
            "set model.latent_height and model.latent_width to {rows} and {columns} or less, or model.base_height and model.base_width as in the config.json of the weights"
        ),
    })
}

/// A learned table has one entry per token. If the number of frames differs, the sine and cosine table replaces it, as in diffusers.
fn learned_positions_have_one_size(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    let [_, rows, columns] = model.base();
    let (height, width) = (model.latent_height, model.latent_width);
    if model.cogvideox().positions != Positions::Learned
        || model.cogvideox().ignore_learned_positions
        || (height, width) == (rows, columns)
    {
        return Ok(());
    }
    Err(Advice {
        why: format!("the learned positions are for a latent of {rows} × {columns}, not {height} × {width}"),
        fix: format!(
            "set model.latent_height = {rows} and model.latent_width = {columns}, or model.ignore_learned_positions = true to train with rotary positions alone"
        ),
    })
}

/// The frames of a resized table are those of its base size, or fewer.
fn resized_positions_have_enough_frames(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    let [base, ..] = model.base();
    if !model.cogvideox().resize_positions
        || model.cogvideox().positions != Positions::SinCos
        || model.latent_frames <= base
    {
        return Ok(());
    }
    let frames = model.latent_frames;
    Err(Advice {
        why: format!("the resized positions are for {base} latent frames, not {frames}"),
        fix: format!(
            "set model.latent_frames to {base} or less, or model.base_frames as in the config.json of the weights"
        ),
    })
}

fn noise_grows(recipe: &Recipe) -> Result<(), Advice> {
    let (start, end) = (recipe.model.cogvideox().beta_start, recipe.model.cogvideox().beta_end);
    if start < end {
        return Ok(());
    }
    Err(Advice {
        why: format!("model.beta_start {start} is not below model.beta_end {end}: later timesteps add more noise"),
        fix: "set model.beta_start = 0.00085 and model.beta_end = 0.012, as in CogVideoX".into(),
    })
}

fn whole_segments(recipe: &Recipe) -> Result<(), Advice> {
    let (n, frames) = (recipe.model.cogvideox().segments, recipe.model.latent_frames);
    let wanted = SEGMENT_FRAMES * n + 1;
    if n == 1 || frames == wanted {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "model.segments {n} needs {n} × {SEGMENT_FRAMES} + 1 = {wanted} latent frames, and model.latent_frames is {frames}"
        ),
        fix: format!(
            "set model.latent_frames = {wanted}, or model.segments = {}",
            (frames.saturating_sub(1) / SEGMENT_FRAMES).max(1)
        ),
    })
}

fn ttt_has_mini_batches(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.model.cogvideox().layer == Layer::None || recipe.model.cogvideox().ttt_mini_batch > 0 {
        return Ok(());
    }
    Err(Advice {
        why: "TTT layers need mini-batches of tokens, and model.ttt_mini_batch is 0".into(),
        fix: "set model.ttt_mini_batch = 64 for ttt_mlp, 16 for ttt_linear".into(),
    })
}

fn whole_mini_batches(recipe: &Recipe) -> Result<(), Advice> {
    let model = &recipe.model;
    let own = model.cogvideox();
    let (length, batch) = (model.seq_len(), own.ttt_mini_batch);
    // A model without TTT layers has no mini-batches.
    if own.layer == Layer::None || batch == 0 || length.is_multiple_of(batch) {
        return Ok(());
    }
    // The nearest text length that fits. With several segments, some multiples cannot be reached.
    let fits = |text_len: usize| (own.segments * text_len + model.video_tokens()).is_multiple_of(batch);
    let nearest = (1..=batch)
        .flat_map(|off| [model.text_len.checked_sub(off).filter(|&len| len > 0), model.text_len.checked_add(off)])
        .flatten()
        .find(|&text_len| fits(text_len));
    let text = match own.segments {
        1 => format!("{} text", model.text_len),
        n => format!("{n} × {} text", model.text_len),
    };
    Err(Advice {
        why: format!(
            "a sequence of {text} tokens + {} frames × {} = {length} tokens is not a multiple of model.ttt_mini_batch {batch}: {}",
            model.token_frames(),
            model.tokens_per_frame(),
            division(length, batch)
        ),
        fix: match nearest {
            Some(text_len) => {
                let length = own.segments * text_len + model.video_tokens();
                format!(
                    "set model.text_len = {text_len}, the nearest that fits ({length} = {} × {batch})",
                    length / batch
                )
            }
            None => "change model.latent_height or model.latent_width: no text length fits".into(),
        },
    })
}

/// Sizes of the CUDA kernel of the scan are multiples of this.
const TILE: usize = 16;

/// The largest size of the CUDA kernel of the scan.
const MOST: usize = 64;

/// Returns the key that the CUDA kernel of the scan does not support, its value, and the reason for the largest value; `None` if the
/// kernel supports the model.
///
/// The kernel works on tiles of 16 × 16 numbers in bfloat16. One multiprocessor has 65,536 registers for the float32 state of a head.
/// The state of TTT-MLP has 8 F² numbers: 32,768 at a width of 64; 51,200 at 80, which leave 44 registers per thread for everything
/// else; and at 96 more than fit. A mini-batch has at most one tile of 16 tokens for each of four warps.
pub(super) fn unfit_for_scan_kernel(model: &Model) -> Option<(&'static str, usize, &'static str)> {
    let limits = [
        (
            "model.head_dim",
            model.head_dim,
            "the registers of a GPU's multiprocessor do not hold the state of a wider head",
        ),
        (
            "model.ttt_mini_batch",
            model.cogvideox().ttt_mini_batch,
            "a block of the kernel has a warp for each 16 tokens, up to four",
        ),
    ];
    limits.into_iter().find(|(_, size, _)| !size.is_multiple_of(TILE) || *size > MOST)
}

fn kernel_fits_the_scan(recipe: &Recipe) -> Result<(), Advice> {
    let (train, model) = (&recipe.train, &recipe.model);
    if !recipe.requires_scan_kernel() {
        return Ok(());
    }
    let setting = train.ttt_scan.setting();
    let or_operators = "or train.ttt_scan = \"operators\"";
    let refuse = |why: String, fix: String| Err(Advice { why, fix: format!("{fix}, {or_operators}") });
    if train.device == Device::Cpu {
        let why = format!("{setting}, a CUDA kernel, and train.device is \"cpu\", which has a kernel of its own");
        return refuse(why, "set train.device = \"cuda\"".into());
    }
    if train.dtype != ComputeDtype::Bfloat16 {
        let why = format!("{setting}, which computes in bfloat16, and train.dtype is \"float32\"");
        return refuse(why, "set train.dtype = \"bfloat16\"".into());
    }
    match unfit_for_scan_kernel(model) {
        None => Ok(()),
        Some((key, size, reason)) => {
            let (reason, wanted) = match size > MOST {
                true => (format!(": {reason}"), MOST.to_string()),
                false => (String::new(), around(size, TILE)),
            };
            refuse(
                format!("{setting}, which needs multiples of {TILE} up to {MOST}, and {key} is {size}{reason}"),
                format!("set {key} = {wanted}"),
            )
        }
    }
}
