//! The rules about encoding, sampling and commands.

use super::{Advice, around, division};
use crate::command::{OF_WEIGHTS, Placeholders};
use crate::nearest::nearest;
use crate::{
    CheckpointPreset, FrameMode, LATENT_FRAMES, OtherTrainer, Recipe, SampleScheduler, Task, VIDEO_FRAMES,
    nearest_clip_frames,
};

pub(super) fn whole_latent_frames(recipe: &Recipe) -> Result<(), Advice> {
    let frames = recipe.encode.frames;
    if frames == 0 {
        return Ok(());
    }
    let Some([below, above]) = nearest_clip_frames(frames) else { return Ok(()) };
    Err(Advice {
        why: format!("encode.frames {frames} is not {VIDEO_FRAMES}k + 1: {LATENT_FRAMES}"),
        fix: format!("set encode.frames = {below} or {above}"),
    })
}

pub(super) fn whole_latent_pixels(key: &str, size: usize, recipe: &Recipe) -> Result<(), Advice> {
    let pixels = recipe.encoders.latent_pixels;
    if size.is_multiple_of(pixels) {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "encode.{key} {size} is not a multiple of {pixels}, the pixels of the VAE per latent pixel: {}",
            division(size, pixels)
        ),
        fix: format!("set encode.{key} = {}", around(size, pixels)),
    })
}

pub(super) fn rate_fits_mode(recipe: &Recipe) -> Result<(), Advice> {
    let (mode, fps) = (recipe.encode.mode, recipe.encode.fps);
    let why = match mode {
        FrameMode::TimeFps if fps == 0.0 => "takes frames at the rate encode.fps, which is 0",
        FrameMode::Linspace if fps > 0.0 => "spreads the frames over the whole clip and ignores encode.fps",
        FrameMode::Stride if fps > 0.0 => "takes every n-th frame and ignores encode.fps",
        _ => return Ok(()),
    };
    Err(Advice {
        why: format!("encode.mode \"{}\" {why}", mode.name()),
        fix: match mode {
            FrameMode::TimeFps => "set encode.fps = 8 for CogVideoX, 16 for 1.5".into(),
            _ => "remove encode.fps, or set encode.mode = \"time@fps\"".into(),
        },
    })
}

pub(super) fn stride_has_effect(recipe: &Recipe) -> Result<(), Advice> {
    let (mode, stride) = (recipe.encode.mode, recipe.encode.stride);
    let (why, fix) = match recipe.encode.rate() {
        _ if stride == 1 => return Ok(()),
        _ if mode == FrameMode::Linspace => ("encode.mode \"linspace\"".to_owned(), "set encode.mode = \"stride\""),
        Some(fps) => (format!("encode.fps {fps}"), "remove encode.fps"),
        None => return Ok(()),
    };
    Err(Advice {
        why: format!("encode.stride {stride} has no effect with {why}"),
        fix: format!("{fix}, or remove encode.stride"),
    })
}

pub(super) fn samples_have_prompts(recipe: &Recipe) -> Result<(), Advice> {
    let sample = &recipe.sample;
    let has_some = !sample.prompts.is_empty() || (recipe.task == Task::Train && sample.validation_index().is_some());
    if has_some || (recipe.task == Task::Train && sample.every == 0) {
        return Ok(());
    }
    Err(Advice {
        why: match recipe.task {
            Task::Train => {
                format!("sample.every is {}, but sample.prompts and sample.validation_index are empty", sample.every)
            }
            _ => "there are no prompts to sample".into(),
        },
        fix: "set sample.prompts = [\"a rabbit on a meadow\"]".into(),
    })
}

pub(super) fn samples_have_encoders(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.sample.prompts.is_empty() || !recipe.encoders.folder.as_str().is_empty() {
        return Ok(());
    }
    Err(Advice {
        why: "sample.prompts needs a VAE, a text encoder and a tokenizer, and encoders.folder is not set".into(),
        fix: "set encoders.folder to a diffusers folder, such as one that `vidtui fetch zai-org/CogVideoX-5b` makes"
            .into(),
    })
}

pub(super) fn sampler_is_of_the_family(recipe: &Recipe) -> Result<(), Advice> {
    let (chosen, possible) = (recipe.sample.scheduler, recipe.model.family().samplers());
    if chosen == SampleScheduler::Auto || possible.contains(&chosen) {
        return Ok(());
    }
    let names: Vec<_> = possible.iter().map(|sampler| sampler.name()).collect();
    let (sampler, family) = (chosen.name(), recipe.model.family.name().name());
    Err(Advice {
        why: format!("sample.scheduler \"{sampler}\" is no sampler for models of {family}"),
        fix: format!("set it to auto or {}", names.join(" or ")),
    })
}

pub(super) fn prompts_can_be_sampled(recipe: &Recipe) -> Result<(), Advice> {
    let Err(bad) = recipe.samples() else { return Ok(()) };
    let flag = bad.flag.map(|flag| format!(", {flag}")).unwrap_or_default();
    Err(Advice { why: format!("prompt {} of sample.prompts{flag}: {}", bad.index + 1, bad.why), fix: bad.fix })
}

pub(super) fn has_program(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.command.run.first().is_some_and(|program| !program.is_empty()) {
        return Ok(());
    }
    Err(Advice {
        why: "command.run names no program".into(),
        fix: "write the program and its arguments: run = [\"torchrun\", \"--nnodes={nnodes}\", \"train.py\"]".into(),
    })
}

pub(super) fn known_placeholders(key: &str, words: &[String], recipe: &Recipe) -> Result<(), Advice> {
    let known = Placeholders::of(key, recipe.command.per);
    let mut names = words.iter().flat_map(|word| crate::command::names(word));
    let Some(name) = names.find(|name| !known.contains(name)) else { return Ok(()) };
    let why = format!("{{{name}}} is not a placeholder of command.{key}");
    let fix = match (name, nearest(name, known.iter().copied())) {
        ("rank" | "local_rank", _) if key != "output" => {
            "a command that is started once per node has no rank; set command.per = \"rank\"".into()
        }
        ("weights" | "previous", _) => "move the arguments that pass weights to command.start".into(),
        ("checkpoint" | "checkpoint_step", _) => "move the arguments of a resume to command.resume".into(),
        (_, Some(meant)) => format!("did you mean {{{meant}}}? For the literal text {{{name}}}, write {{{{{name}}}}}"),
        (_, None) => {
            format!(
                "the placeholders are {{{}}}; for the literal text {{{name}}}, write {{{{{name}}}}}",
                known.join("}, {")
            )
        }
    };
    Err(Advice { why, fix })
}

pub(super) fn resume_finds_checkpoints(recipe: &Recipe) -> Result<(), Advice> {
    let command = &recipe.command;
    let finds = command.adapter != OtherTrainer::None || command.checkpoints != "auto";
    if command.resume.is_empty() || finds {
        return Ok(());
    }
    Err(Advice {
        why: "command.resume needs a checkpoint, and vidtui cannot find checkpoints with command.adapter \"none\""
            .into(),
        fix: "remove command.adapter, or set command.checkpoints to their names: \"step-{step}\"".into(),
    })
}

pub(super) fn checkpoints_have_names(recipe: &Recipe) -> Result<(), Advice> {
    let Err(why) = recipe.command.checkpoint_format() else { return Ok(()) };
    let presets = CheckpointPreset::ALL.map(CheckpointPreset::name).join(", ");
    Err(Advice {
        why: format!("command.checkpoints: {why}"),
        fix: format!("write a name below command.output, such as \"checkpoint-{{step}}\", or a preset: {presets}"),
    })
}

pub(super) fn complete_has_checkpoints(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.command.complete == "auto" || recipe.command.checkpoints != "auto" {
        return Ok(());
    }
    Err(Advice {
        why: "command.complete describes the checkpoints of command.checkpoints, which is \"auto\"".into(),
        fix: "set command.checkpoints, such as \"checkpoint-{step}\", or remove command.complete".into(),
    })
}

pub(super) fn patterns_are_read(recipe: &Recipe) -> Result<(), Advice> {
    let command = &recipe.command;
    if command.patterns.is_empty() || command.adapter == OtherTrainer::Auto {
        return Ok(());
    }
    Err(Advice {
        why: format!(
            "command.patterns is read only with command.adapter \"auto\", and it is \"{}\"",
            command.adapter.name()
        ),
        fix: "remove command.adapter, or remove the patterns".into(),
    })
}

pub(super) fn start_passes_weights(recipe: &Recipe) -> Result<(), Advice> {
    let command = &recipe.command;
    let mut names = command.start.iter().chain(&command.run).flat_map(|word| crate::command::names(word));
    if command.start.is_empty() || names.any(|name| OF_WEIGHTS.contains(&name)) {
        return Ok(());
    }
    Err(Advice {
        why: "command.start is added when a run starts from weights, and it does not contain {weights} or {previous}"
            .into(),
        fix: "pass their path: start = [\"--ckpt-path\", \"{weights}\"]".into(),
    })
}

pub(super) fn fresh_data_follows_a_resume(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.command.fresh_data.is_empty() || !recipe.command.resume.is_empty() {
        return Ok(());
    }
    Err(Advice {
        why: "command.fresh_data is added to the arguments of a resume, and command.resume is empty".into(),
        fix: "set command.resume, such as resume = [\"--load\", \"{checkpoint}\"]".into(),
    })
}
