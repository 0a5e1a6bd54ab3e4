//! `vidtui sample`: samples videos from the weights of a run, a checkpoint or another model.

mod adapters;
mod follow;
mod prompt_files;
mod weights;

use crate::args::SampleArgs;
use crate::command_error::CommandError;
use crate::commands::{named_run, report_latest, waiting};
use crate::output::{self, note};
use crate::workspace::{Init, LaunchOptions, Needs, Subject, Workspace};
use ::plan::LaunchPlan;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Mesh, Recipe, Resolved, Task};
use rundir::{ErrorCode, Failure, RunDir, RunId, SampleClaim, SampleFolder, SampleSidecar};
use std::collections::{BTreeMap, BTreeSet};
use weights::SampledWeights;

/// The maximum number of existing files that a refusal names.
const SHOWN: usize = 4;

/// Builds a sampling recipe, launches it, waits for its end, and prints the paths of the videos.
pub fn run(workspace: &Workspace, args: &SampleArgs) -> Result<(), CommandError> {
    if args.now {
        return now(workspace, args);
    }
    if args.follow {
        return follow::run(workspace, args);
    }
    let weights = SampledWeights::find(workspace, &args.from)?;
    report_latest(&args.from, &weights.source.location.path, args.output.json);
    let Some((plan, dir)) = start(workspace, args, weights)? else { return Ok(()) };
    if args.no_wait {
        return super::launch::report(&plan, args.output.json, serde_json::Map::new());
    }
    waiting::until_finished(workspace, &dir)?;
    report(&dir, args.output.json)
}

/// Starts a run that samples. With `--dry-run`, prints its plan and returns `None`.
fn start(
    workspace: &Workspace,
    args: &SampleArgs,
    mut weights: SampledWeights,
) -> Result<Option<(LaunchPlan, RunDir)>, CommandError> {
    let (recipe, warnings) = prepare(workspace, args, &weights)?;
    refuse_existing(&recipe, args)?;
    for warning in warnings {
        note!("warning: {warning}");
    }
    if let Some(plan) = weights.conversion.as_ref().filter(|_| args.dry_run) {
        note!("the weights are converted first:");
        if args.output.json {
            output::json(&serde_json::json!({ "conversion": super::convert::document(plan, None) }))?;
        } else {
            output::text(&output::facts(&crate::workspace::conversions::facts(plan)))?;
        }
        return Ok(None);
    }
    if weights.conversion.is_some() && is_this_machine(workspace, args) {
        // The checks of the launch find a missing ffmpeg only after the conversion.
        video::check_installed()?;
    }
    weights.convert()?;
    let plan = plan(workspace, args, recipe, &weights)?;
    if args.dry_run {
        super::launch::show(&plan, args.output.json)?;
        return Ok(None);
    }
    for warning in &plan.warnings {
        note!("warning: {warning}");
    }
    let folder = plan.dir.sample_folder(&plan.run);
    claim(workspace, &folder, &plan.run.id, args)?;
    let launched = workspace.launch(&plan, &|step| note!("{step}"));
    let dir = launched.inspect_err(|_| folder.release(&plan.run.id))?;
    Ok(Some((plan, dir)))
}

/// Refuses to replace files in the folder of `--out`.
fn refuse_existing(recipe: &Recipe, args: &SampleArgs) -> Result<(), CommandError> {
    let Some(out) = args.out.as_ref().filter(|_| !args.force) else { return Ok(()) };
    let prompts = recipe.sample.prompts.len();
    let folder = SampleFolder::Named { folder: recipe.sample.out.clone(), prompts };
    let existing = folder.existing(0..prompts);
    if existing.is_empty() {
        return Ok(());
    }
    let mut names: Vec<&str> = existing.iter().take(SHOWN).filter_map(|path| path.file_name()).collect();
    if existing.len() > SHOWN {
        names.push("…");
    }
    Err(CommandError::from(Failure::new(
        ErrorCode::AlreadyExists,
        format!("cannot write samples to {out}"),
        format!("it has {}", names.join(", ")),
        "choose another folder, or replace these files with --force",
    )))
}

/// Claims the folder of `--out` for the new run. A claim of a run that has ended is no obstacle.
fn claim(workspace: &Workspace, folder: &SampleFolder, run: &RunId, args: &SampleArgs) -> Result<(), CommandError> {
    let SampleClaim::Other(other) = folder.claim(run)? else { return Ok(()) };
    let summary = workspace.summary(&RunDir::new(workspace.runs.join(&other)));
    if args.force || summary.is_ok_and(|(summary, _)| summary.state.is_end()) {
        return Ok(folder.take_over(run)?);
    }
    let out = args.out.as_deref().unwrap_or(Utf8Path::new("the folder"));
    Err(CommandError::from(Failure::new(
        ErrorCode::AlreadyExists,
        format!("cannot write samples to {out}"),
        format!("the run {other} writes its samples there"),
        "wait until it ends, choose another folder, or take the folder over with --force",
    )))
}

/// Plans a run that samples one prompt, which may contain flags, from the newest checkpoint of a run.
pub fn plan_prompt(workspace: &Workspace, run: &RunId, prompt: String) -> Result<LaunchPlan, CommandError> {
    let args = SampleArgs { from: run.to_string(), prompt: vec![prompt], ..SampleArgs::default() };
    let weights = SampledWeights::find(workspace, &args.from)?;
    let (recipe, _) = prepare(workspace, &args, &weights)?;
    plan(workspace, &args, recipe, &weights)
}

/// Builds the sampling recipe and checks its prompts and encoders. Returns the recipe and warnings.
fn prepare(
    workspace: &Workspace,
    args: &SampleArgs,
    weights: &SampledWeights,
) -> Result<(Recipe, Vec<String>), CommandError> {
    let mut recipe = recipe_of(weights)?;
    let lines = fill(workspace, &mut recipe, args)?;
    let mut warnings = Vec::new();
    // Weights that no run trained do not record the pixels of a latent pixel.
    if let Ok((vae, _)) = ::weights::VideoVaeConfig::open(&recipe.encoders.folder.join("vae")) {
        recipe.encoders.latent_pixels = vae.spatial_factor();
    }
    if !weights.source.latent_scale_known && !recipe.encoders.folder.as_str().is_empty() {
        let vae = recipe.encoders.folder.join("vae");
        recipe.model.latent_scale = ::weights::VideoVaeConfig::open(&vae)?.0.scaling_factor();
        let scale = recipe.model.latent_scale;
        warnings
            .push(format!("the weights do not record their latent scale; using {scale}, the scaling_factor of {vae}"));
    }
    check_encoders(&recipe)?;
    if let Err(bad) = recipe.samples() {
        let place = &lines[bad.index];
        let line = &recipe.sample.prompts[bad.index];
        let flag = bad.flag.map(|flag| format!("{}: ", as_written(&flag, line, args))).unwrap_or_default();
        let what = format!("cannot sample {place}");
        return Err(CommandError::request(Failure::new(
            ErrorCode::InvalidArgument,
            what,
            format!("{flag}{}", bad.why),
            bad.fix,
        )));
    }
    recipe.mesh = mesh(workspace, &recipe, args)?;
    warnings.extend(check_inputs(&recipe, &lines)?);
    warnings.extend(adapters::add(workspace, &mut recipe, &weights.source, &args.lora)?);
    Ok((recipe, warnings))
}

fn plan(
    workspace: &Workspace,
    args: &SampleArgs,
    recipe: Recipe,
    weights: &SampledWeights,
) -> Result<LaunchPlan, CommandError> {
    let resolved = Resolved { table: recipe.to_table(), recipe, origins: BTreeMap::new() };
    let subject = Subject::Recipe(Box::new(resolved), None);
    let init = weights.source.location.weights.as_str();
    let options = LaunchOptions {
        subject: &subject,
        ranks: args.local,
        nodes: &args.nodes,
        name: args.name.as_deref(),
        init: Init::Given(init),
        fitted: None,
    };
    workspace.plan_launch(&options)
}

/// Requests that a training run makes its samples after the current step.
fn now(workspace: &Workspace, args: &SampleArgs) -> Result<(), CommandError> {
    let dir = named_run(workspace, &args.from, Needs::Training, args.output.json)?;
    let (summary, _) = workspace.summary(&dir)?;
    let refuse = |code, why: &str, fix: String| {
        Err(CommandError::from(Failure::new(code, format!("cannot sample {} now", summary.run.id), why, fix)))
    };
    if summary.state.is_end() {
        let fix = format!("sample its newest checkpoint: vidtui sample {} --prompt TEXT", summary.run.id);
        return refuse(ErrorCode::RunNotRunning, "the run has ended", fix);
    }
    if summary.run.recipe()?.sample.prompts.is_empty() {
        let fix = "launch with sample.prompts and encoders.folder".to_owned();
        return refuse(ErrorCode::InvalidArgument, "its recipe has no sample.prompts", fix);
    }
    rundir::write_atomic(&dir.sample_file(), b"")?;
    if args.output.json {
        return output::json(&serde_json::json!({ "run": summary.run.id, "dir": dir.root, "requested": true }));
    }
    output::line(&format!("{} makes samples after this step; see {}", summary.run.id, dir.samples()))
}

/// Returns a sampling recipe. It is derived from the recipe of the run that trained the weights. If no run did, it has the
/// defaults of the model.
fn recipe_of(weights: &SampledWeights) -> Result<Recipe, CommandError> {
    let model = weights.source.model()?;
    if let Some(pipeline) = &weights.pipeline {
        let mut recipe = Recipe::for_sampling(model, None).map_err(Failure::from)?;
        recipe.encoders.folder = pipeline.encoders.clone().unwrap_or_default();
        recipe.sample.scheduler = pipeline.scheduler;
        recipe.train.dtype = weights.dtype();
        recipe.condition.image_noise = pipeline.image_noise;
        return Ok(recipe);
    }
    let folder = &weights.source.location.weights;
    let real = folder.canonicalize_utf8().unwrap_or_else(|_| folder.clone());
    // The path of the weights is RUN or RUN/checkpoints/step-N.
    let run = real.ancestors().take(3).map(RunDir::new).find(|run| run.run_toml().exists());
    let Some(run) = run else {
        let mut recipe = Recipe::for_sampling(model, None).map_err(Failure::from)?;
        recipe.train.dtype = weights.dtype();
        return Ok(recipe);
    };
    let mut trained = run.read_run()?.recipe()?;
    // The weights of another user are only data. The recipe beside them also sets environment variables and files to write.
    if let Err(untrusted) = run.check_trusted("cannot use the whole recipe of the run") {
        note!("warning: the environment, log and memory settings of its recipe are not used: {}", untrusted.why);
        trained = only_data(trained, Recipe::for_sampling(model, None).map_err(Failure::from)?);
    }
    Ok(Recipe::for_sampling(model, Some(&trained)).map_err(Failure::from)?)
}

/// Returns a recipe without the settings that start programs, set their environment, or name files to write: these are those of
/// `defaults`.
fn only_data(recipe: Recipe, defaults: Recipe) -> Recipe {
    let Recipe { trainer, command, env, log, run, memory, .. } = defaults;
    Recipe { trainer, command, env, log, run, memory, ..recipe }
}

/// Applies the flags to the recipe. Returns the origin of each prompt, such as `line 3 of prompts.txt`, for errors.
fn fill(workspace: &Workspace, recipe: &mut Recipe, args: &SampleArgs) -> Result<Vec<String>, CommandError> {
    let absolute = |path: &Utf8PathBuf| workspace.here.join(path);
    let mut places = Vec::new();
    let sample = &mut recipe.sample;
    sample.prompts.clear();
    for (number, prompt) in args.prompt.iter().enumerate() {
        places.push(format!("prompt {}", number + 1));
        sample.prompts.push(prompt.clone());
    }
    if let Some(file) = &args.prompts {
        for (place, prompt) in prompt_files::read(file)? {
            places.push(place);
            sample.prompts.push(prompt);
        }
    }
    if sample.prompts.is_empty() {
        let fix = "give --prompt TEXT, or --prompts FILE with a prompt on each line";
        let failure = Failure::new(ErrorCode::InvalidArgument, "cannot sample", "there is no prompt", fix);
        return Err(CommandError::request(failure));
    }
    // Make image paths absolute: they are relative to this folder, and ranks run in another.
    for (line, place) in sample.prompts.iter_mut().zip(&places) {
        let mut prompt = recipe::Prompt::parse(line).map_err(|wrong| {
            let why = format!("{}: {}", wrong.flag, wrong.why);
            CommandError::request(Failure::new(
                ErrorCode::InvalidArgument,
                format!("cannot use {place}"),
                why,
                wrong.fix,
            ))
        })?;
        for path in [&mut prompt.image, &mut prompt.image_end, &mut prompt.video, &mut prompt.mask] {
            *path = path.as_ref().map(absolute);
        }
        *line = prompt.to_line();
    }
    let set = |to: &mut usize, from: Option<usize>| *to = from.unwrap_or(*to);
    set(&mut sample.steps, args.steps);
    set(&mut sample.frames, args.frames);
    set(&mut sample.height, args.height);
    set(&mut sample.width, args.width);
    sample.seed = args.seed.unwrap_or(sample.seed);
    sample.guidance = args.guidance.unwrap_or(sample.guidance);
    sample.shift = args.shift.unwrap_or(sample.shift);
    sample.fps = args.fps.unwrap_or(sample.fps);
    sample.png |= args.png;
    if let Some(ema) = args.ema {
        sample.ema = ema.into();
    }
    if let Some(scheduler) = args.scheduler {
        sample.scheduler = scheduler.into();
    }
    sample.image = args.image.as_ref().map(absolute).unwrap_or_default();
    sample.image_end = args.image_end.as_ref().map(absolute).unwrap_or_default();
    sample.video = args.video.as_ref().map(absolute).unwrap_or_default();
    sample.mask = args.mask.as_ref().map(absolute).unwrap_or_default();
    sample.out = args.out.as_ref().map(absolute).unwrap_or_default();
    if let Some(dtype) = args.dtype {
        recipe.train.dtype = dtype.into();
    }
    if let Some(folder) = &args.encoders {
        recipe.encoders.folder = absolute(folder);
    }
    Ok(places)
}

/// Returns the option of the command that gave the value of a flag, or the flag if the prompt has it itself.
fn as_written<'a>(flag: &'a str, line: &str, args: &SampleArgs) -> &'a str {
    let own = recipe::Prompt::parse(line).unwrap_or_default();
    let options = [
        ("--w", own.width.is_some(), "--width", args.width.is_some()),
        ("--h", own.height.is_some(), "--height", args.height.is_some()),
        ("--f", own.frames.is_some(), "--frames", args.frames.is_some()),
        ("--s", own.steps.is_some(), "--steps", args.steps.is_some()),
        ("--i", own.image.is_some(), "--image", args.image.is_some()),
        ("--e", own.image_end.is_some(), "--image-end", args.image_end.is_some()),
        ("--v", own.video.is_some(), "--video", args.video.is_some()),
        ("--m", own.mask.is_some(), "--mask", args.mask.is_some()),
    ];
    let given = options.into_iter().find(|(name, in_prompt, _, is_given)| *name == flag && !in_prompt && *is_given);
    given.map_or(flag, |(_, _, option, _)| option)
}

/// Checks that the images can be read, and returns a warning for each prompt that has more tokens than the model reads.
fn check_inputs(recipe: &Recipe, lines: &[String]) -> Result<Vec<String>, CommandError> {
    let specs = recipe.samples().unwrap_or_default();
    let files: BTreeSet<&Utf8PathBuf> = specs.iter().flat_map(|spec| spec.files()).collect();
    let videos: BTreeSet<&Utf8PathBuf> =
        specs.iter().filter_map(|spec| spec.masked.as_ref()).map(|masked| &masked.video).collect();
    files.difference(&videos).try_for_each(|image| video::read_image(image).map(drop))?;
    for spec in &specs {
        let Some(masked) = &spec.masked else { continue };
        let source = video::Programs::default().open(&masked.video)?.at_rate(Some(spec.fps));
        source.choose(&video::FrameChoice::of(&spec.known_frames()))?;
    }
    let tokenizer = dataset::open_tokenizer(&recipe.encoders)?;
    let longest = specs.iter().map(|spec| spec.texts.iter().map(|text| tokenizer.count(text)).max().unwrap_or(0));
    let limit = recipe.model.text_len;
    let cut = longest.zip(lines).filter(|(tokens, _)| *tokens > limit);
    Ok(cut
        .map(|(tokens, line)| format!("{line} has {tokens} tokens; the model reads {limit}, the rest is cut"))
        .collect())
}

/// Checks that the VAE, the text encoder and the tokenizer exist and match the model.
fn check_encoders(recipe: &Recipe) -> Result<(), CommandError> {
    if recipe.encoders.folder.as_str().is_empty() {
        let why = "neither --encoders nor the recipe of the run names the VAE and the text encoder";
        let model = recipe.model.family.name().example();
        let fix = format!(
            "get them with `vidtui fetch {model}`, and give their folder: vidtui sample … --encoders DIR, or encoders.folder in the \
             recipe of the next run"
        );
        return Err(CommandError::request(Failure::new(ErrorCode::NoWeights, "cannot sample", why, fix)));
    }
    Ok(dataset::check_encoders(&recipe.encoders, &recipe.model, Task::Sample)?)
}

/// Returns a mesh for the ranks of the target: the mesh of the training run if it fits, otherwise one that shards the
/// model over all ranks.
fn mesh(workspace: &Workspace, recipe: &Recipe, args: &SampleArgs) -> Result<Mesh, CommandError> {
    let own = recipe.mesh;
    if args.local.is_none() && is_this_machine(workspace, args) {
        return Ok(own);
    }
    let slots = workspace.target(args.local, &args.nodes, own.world(), 0)?.slots();
    if slots == 0 || slots == own.world() {
        return Ok(own);
    }
    let tp = if slots.is_multiple_of(own.tp) { own.tp } else { 1 };
    Ok(Mesh { dp_replicate: 1, dp_shard: slots / tp, tp })
}

/// Returns whether the ranks run on this machine.
fn is_this_machine(workspace: &Workspace, args: &SampleArgs) -> bool {
    let nodes = workspace.wanted(&args.nodes);
    args.local.is_some() || (nodes.hostfile.is_none() && nodes.slurm.is_none())
}

/// Prints the paths of the videos.
fn report(dir: &RunDir, json: bool) -> Result<(), CommandError> {
    let folder = dir.sample_folder(&dir.read_run()?);
    let samples = folder.list()?.into_iter();
    let made: Vec<(Utf8PathBuf, SampleSidecar)> =
        samples.map(|sample| (folder.video(sample.step, sample.index), sample)).collect();
    if json {
        let videos: Vec<_> =
            made.iter().map(|(path, sample)| serde_json::json!({ "path": path, "sample": sample })).collect();
        return output::json(&serde_json::json!({ "run": dir.name(), "dir": dir.root, "videos": videos }));
    }
    made.iter().try_for_each(|(path, _)| output::line(path.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_option_or_the_flag_of_the_prompt_that_gave_the_value() {
        let args = SampleArgs { frames: Some(100), image: Some("a.png".into()), ..SampleArgs::default() };
        assert_eq!(as_written("--f", "a hare", &args), "--frames");
        assert_eq!(as_written("--f", "a hare --f 100", &args), "--f");
        assert_eq!(as_written("--i", "a hare --f 100", &args), "--image");
        assert_eq!(as_written("--w", "a hare", &args), "--w");
    }

    #[test]
    fn the_recipe_of_another_user_sets_no_environment_and_names_no_files_to_write() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
        let sets = ["env.variables={LD_PRELOAD=\"/tmp/theirs.so\"}", "log.prometheus=/tmp/theirs", "sample.seed=7"];
        let theirs = recipe::load(path.into(), &sets.map(str::to_owned)).unwrap().recipe;
        assert!(!theirs.env.variables.is_empty());
        let defaults = Recipe::for_sampling(&theirs.model, None).unwrap();
        let used = only_data(theirs, defaults.clone());
        assert_eq!((used.env, used.log, used.command), (defaults.env, defaults.log, defaults.command));
        assert_eq!(used.sample.seed, 7);
    }
}
