//! `vidtui data encode`: checks the videos, writes a recipe with `task = "encode"`, shows what it will do, and launches it.

use crate::args::DataEncodeArgs;
use crate::command_error::CommandError;
use crate::commands::data_check::{OnStep, Wanted, check_frames, check_source, rate, sizes_of};
use crate::commands::launch;
use crate::commands::transfer::{Step, Transfer};
use crate::commands::typed::typed;
use crate::output::{self, note};
use crate::workspace::{LaunchOptions, Subject, Workspace, recipe_failure};
use camino::{Utf8Path, Utf8PathBuf};
use dataset::check::{Checked, Report};
use dataset::store::Plan;
use dataset::{Assigner, ClipManifest, EncodeInputs};
use plan::LaunchPlan;
use recipe::{Encoders, Recipe, Task, Tiling, name_of};
use rundir::{ErrorCode, Failure};
use serde_json::{Map, Value as Json};
use std::fs::{File, TryLockError};
use std::ops::ControlFlow;
use toml::{Table, Value};
use video::FrameChoice;
use weights::{T5Config, VideoVaeConfig};

/// The file name of the encode's recipe, which is in the folder of the data set.
const RECIPE: &str = "encode.toml";
/// The file name of the manifest in the folder of the data set, if the source is not a manifest itself.
const MANIFEST: &str = "manifest.jsonl";

/// Encodes the clips of a folder, a table or a manifest.
pub fn encode(workspace: &Workspace, args: &DataEncodeArgs) -> Result<(), CommandError> {
    let mut transfer = Transfer::begin();
    let prepared = prepare(workspace, args, &mut |step| transfer.step(step));
    transfer.end();
    let Prepared { subject, plan, report, lock: _lock } = prepared?;
    if let Some(report) = report {
        // Print the report on standard error, because standard output has only the id of the run.
        note!("{}", report.text(None).trim_end());
    }
    note!("{}", plan.summary());
    for (item, failure) in &plan.quarantined {
        note!("left out: {}: {}; try it again with --retry-failed", item.name, failure.why);
    }
    let counts = [("reuse", plan.reuse), ("new", plan.new), ("stale", plan.stale.len())];
    let data = ("data".to_owned(), Json::from(args.out.as_str()));
    let more = counts.into_iter().map(|(name, count)| (name.to_owned(), Json::from(count))).chain([data]);
    if plan.is_done() {
        note!("nothing to encode; the data set is {}", args.out);
        let nothing = ["run", "dir", "attempt"].map(|name| (name.to_owned(), Json::Null));
        let document: Map<_, _> = nothing.into_iter().chain(more).collect();
        return if args.then.output.json { output::json(&document) } else { Ok(()) };
    }
    launch::execute(workspace, &plan_launch(workspace, args, &subject)?, &args.then, more.collect())
}

/// Plans an encode. `line` has the arguments of `vidtui data encode`.
///
/// # Errors
/// The arguments are invalid, or there is nothing to encode.
pub fn plan_typed(workspace: &Workspace, line: &str, progress: &dyn Fn(String)) -> Result<LaunchPlan, CommandError> {
    let args: DataEncodeArgs = typed(line, "data encode", "videos --model CogVideoX-5b --out data --fps 8")?;
    let mut step = |step: Step<'_>| {
        progress(format!("{} videos, {} of {}", step.phase, units::grouped(step.done), units::grouped(step.total)));
        ControlFlow::Continue(())
    };
    let Prepared { subject, plan, .. } = prepare(workspace, &args, &mut step)?;
    if plan.is_done() {
        let why = format!("every clip of {} is encoded in {}", args.source, args.out);
        let fix = format!("train on it: set data.index = \"{}\"", args.out);
        return Err(Failure::new(ErrorCode::RunFinished, "there is nothing to encode", why, fix).into());
    }
    plan_launch(workspace, &args, &subject)
}

/// An encode before its ranks are placed.
struct Prepared {
    subject: Subject,
    plan: Plan,
    /// The report of the check, if the source is not a manifest.
    report: Option<Report>,
    lock: FolderLock,
}

/// The lock of the folder of a data set, which a command holds while it prepares, starts and waits for an encode. The operating system
/// releases it when the process ends. The lease of the queue protects the folder while ranks work.
struct FolderLock {
    folder: Utf8PathBuf,
    /// Whether this command created the folder.
    is_new: bool,
    _file: File,
}

impl FolderLock {
    /// Creates the folder if it does not exist, and locks it.
    ///
    /// # Errors
    /// `AlreadyExists` if another command has the lock.
    fn take(folder: &Utf8Path) -> Result<Self, CommandError> {
        let is_new = !folder.exists();
        create_folder(folder)?;
        let file = File::open(folder).map_err(|error| Failure::from(rundir::Error::io("open", folder, error)))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            // Each user who can read the folder can lock it, so the process is named.
            let holder = rundir::lock_holder(folder).map_or("another process".to_owned(), |holder| holder.in_words());
            return Err(CommandError::from(Failure::new(
                ErrorCode::AlreadyExists,
                format!("cannot encode into {folder}"),
                format!("{holder} has locked it, as another `vidtui data encode` in this folder does"),
                "wait until it ends, or give another folder with --out",
            )));
        }
        // Some network file systems cannot lock folders. The lease of the queue is enough for ranks.
        Ok(Self { folder: folder.to_owned(), is_new, _file: file })
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if self.is_new {
            // This fails unless the folder is empty, as after arguments that cannot be used.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

fn prepare(workspace: &Workspace, args: &DataEncodeArgs, progress: OnStep<'_>) -> Result<Prepared, CommandError> {
    let trained = args.recipe.as_deref().map(|recipe| trained(workspace, recipe)).transpose()?;
    let encoders = encoders(args, trained.as_ref())?;
    dataset::check_folder(&encoders.folder)?;
    // Refuse this before the manifest and the recipe of a running encode are replaced.
    workspace.check_no_encode(&args.out, None)?;
    if !ClipManifest::is_one(&args.source) {
        ClipManifest::refuse_to_replace(&args.out.join(MANIFEST))?;
    }
    let lock = FolderLock::take(&args.out)?;
    let text_len = match args.text_len.or(trained.as_ref().map(|trained| trained.model.text_len)) {
        Some(tokens) => tokens,
        None => T5Config::open(&encoders.folder.join("text_encoder"))?.0.text_len(),
    };
    if let Some(trained) = trained.as_ref().filter(|trained| trained.job().has_model()) {
        dataset::check_encoders(&encoders, &trained.model, Task::Encode)?;
    }
    match trained.as_ref().is_some_and(|trained| !trained.data.buckets.is_empty()) {
        true => refuse_sizes(args)?,
        false => check_frames(sizes(args, trained.as_ref())[0])?,
    }
    let is_manifest = ClipManifest::is_one(&args.source);
    if is_manifest {
        args.listed.refuse_with_manifest(&args.source)?;
    }
    let manifest = if is_manifest { args.source.clone() } else { args.out.join(MANIFEST) };
    let here = std::env::current_dir().ok().and_then(|here| Utf8PathBuf::try_from(here).ok()).unwrap_or_default();
    // The same arguments give the same recipe, which can also be launched directly.
    let (file, text) =
        (args.out.join(RECIPE), encode_recipe(args, &manifest, &encoders, trained.as_ref(), (&here, text_len)));
    let recipe = recipe::load_text(&file, &text, &args.how.sets()).map_err(recipe_failure)?.recipe;
    refuse_other_paths(&recipe, [&here.join(&manifest), &here.join(&args.out)])?;
    let report = if is_manifest { None } else { Some(check(args, &recipe, trained.as_ref(), progress)?) };
    rundir::write_atomic(&file, text.as_bytes()).map_err(Failure::from)?;
    let subject = workspace.subject(file.as_str(), &args.how.sets())?;
    let inputs = EncodeInputs::open(&subject.resolved().recipe)?;
    if let Some(trained) = &trained {
        inputs.manifest.check_segments(trained.model.segments())?;
    }
    let plan = inputs.plan()?;
    Ok(Prepared { subject, plan, report, lock })
}

/// Reads the recipe that will train. If its samples are invalid, reads it without them: an encode makes no samples.
fn trained(workspace: &Workspace, recipe: &str) -> Result<Recipe, CommandError> {
    let no_samples = ["sample.prompts=[]", "sample.every=0"].map(ToOwned::to_owned);
    let read = |sets: &[String]| workspace.subject(recipe, sets).map(|subject| subject.resolved().recipe.clone());
    read(&[]).or_else(|error| read(&no_samples).map_err(|_| error))
}

/// Returns the encoders: those of the arguments, or else those of the recipe that will train.
///
/// # Errors
/// Neither names a folder.
fn encoders(args: &DataEncodeArgs, trained: Option<&Recipe>) -> Result<Encoders, CommandError> {
    let mut encoders = trained.map(|trained| trained.encoders.clone()).unwrap_or_default();
    if let Some(folder) = &args.model {
        encoders.folder = folder.clone();
    }
    if trained.is_none()
        && let Ok((vae, _)) = VideoVaeConfig::open(&encoders.folder.join("vae"))
    {
        encoders.latent_pixels = vae.spatial_factor();
    }
    if encoders.folder.as_str().is_empty() {
        let why = match args.recipe {
            Some(_) => "--model is not given, and the recipe of --for has no encoders.folder",
            None => "--model is not given",
        };
        let fix = "name the diffusers folder with vae/, text_encoder/ and tokenizer/: --model FOLDER";
        let what = format!("cannot encode {}", args.source);
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)));
    }
    Ok(encoders)
}

fn plan_launch(workspace: &Workspace, args: &DataEncodeArgs, subject: &Subject) -> Result<LaunchPlan, CommandError> {
    let options = LaunchOptions {
        subject,
        ranks: args.how.local,
        nodes: &args.how.nodes,
        name: args.name.as_deref(),
        init: crate::workspace::Init::ByStage,
        fitted: None,
    };
    workspace.plan_launch(&options)
}

/// Checks a folder or a table with the settings of the encode, and writes the manifest of the encode.
///
/// # Errors
/// More clips would be dropped than the user accepts. The manifest is written nevertheless, because it lists the reasons.
fn check(
    args: &DataEncodeArgs,
    recipe: &Recipe,
    trained: Option<&Recipe>,
    progress: OnStep<'_>,
) -> Result<Report, CommandError> {
    let encode = &recipe.encode;
    let tokenizer = recipe.encoders.folder.join("tokenizer");
    let buckets = trained.and_then(|trained| Assigner::new(trained, FrameChoice::of(encode)));
    let has_one_size = buckets.is_none();
    let wanted = Wanted {
        frames: has_one_size.then(|| FrameChoice::of(encode)),
        size: has_one_size.then_some([encode.height, encode.width]),
        buckets,
        tokens: encode.text_len,
        tokenizer: Some(&tokenizer),
        keep_all: false,
    };
    let Checked { manifest, report, .. } = check_source(&args.source, &args.listed, &wanted, progress)?;
    manifest.write(&encode.manifest)?;
    manifest.refuse_if_dropped(encode.max_dropped)?;
    Ok(report)
}

/// Returns frames, height and width: those that are given, or else those of the recipe that will train.
fn sizes(args: &DataEncodeArgs, trained: Option<&Recipe>) -> [usize; 3] {
    let [frames, height, width] = trained.map_or([49, 480, 720], sizes_of);
    [args.frames.unwrap_or(frames), args.height.unwrap_or(height), args.width.unwrap_or(width)]
}

/// Refuses one size for all clips if the recipe has buckets.
fn refuse_sizes(args: &DataEncodeArgs) -> Result<(), CommandError> {
    let given = [("frames", args.frames), ("height", args.height), ("width", args.width)];
    let Some((flag, size)) = given.into_iter().find_map(|(flag, size)| Some((flag, size?))) else { return Ok(()) };
    Err(CommandError::request(Failure::new(
        ErrorCode::InvalidArgument,
        format!("cannot use --{flag} {size}"),
        "the recipe of --for has buckets, which give each clip its own size",
        format!("remove --{flag}, or remove data.buckets from the recipe"),
    )))
}

/// Refuses settings that change the manifest or the folder which the arguments name, because an encode would overwrite the files there.
fn refuse_other_paths(recipe: &Recipe, [manifest, out]: [&Utf8Path; 2]) -> Result<(), CommandError> {
    let keys = [
        ("encode.manifest", &recipe.encode.manifest, manifest, "give the manifest as SRC"),
        ("encode.out", &recipe.encode.out, out, "use --out"),
    ];
    let Some((key, set, _, fix)) = keys.into_iter().find(|(_, set, given, _)| set.as_path() != *given) else {
        return Ok(());
    };
    Err(CommandError::request(Failure::new(
        ErrorCode::InvalidArgument,
        format!("cannot set {key} to {set}"),
        "an argument of `vidtui data encode` names this path",
        fix,
    )))
}

fn create_folder(folder: &Utf8Path) -> Result<(), CommandError> {
    let made = std::fs::create_dir_all(folder);
    Ok(made.map_err(|error| Failure::from(rundir::Error::io("create", folder, error)))?)
}

/// Returns the recipe of the encode. Its paths are absolute, because relative paths would start at the folder of the data set.
fn encode_recipe(
    args: &DataEncodeArgs,
    manifest: &Utf8Path,
    of: &Encoders,
    trained: Option<&Recipe>,
    (here, text_len): (&Utf8Path, usize),
) -> String {
    let path = |path: &Utf8Path| Value::from(here.join(path).into_string());
    let size = |size: usize| Value::Integer(size as i64);
    let [frames, height, width] = sizes(args, trained);
    let mut encode = Table::from_iter([("manifest".to_owned(), path(manifest)), ("out".to_owned(), path(&args.out))]);
    let buckets = trained.map(|trained| &trained.data).filter(|data| !data.buckets.is_empty());
    if buckets.is_none() {
        let sizes = [("frames", frames), ("height", height), ("width", width)];
        encode.extend(sizes.map(|(key, pixels)| (key.to_owned(), size(pixels))));
    }
    let given = [
        ("fps", rate(args.fps, args.mode, args.stride, trained).map(Value::Float)),
        ("mode", args.mode.map(|mode| Value::String(mode.name().into()))),
        ("stride", args.stride.map(size)),
        ("crop", args.crop.clone().map(Value::String)),
        ("text_len", Some(size(text_len))),
        ("max_dropped", Some(Value::Float(args.max_dropped))),
        ("retry_failed", args.retry_failed.then_some(Value::Boolean(true))),
    ];
    encode.extend(given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    let mut encoders = Table::from_iter([("folder".to_owned(), path(&of.folder))]);
    let dtype = args.dtype.clone().or(trained.map(|_| of.dtype.name().to_owned()));
    encoders.extend(dtype.map(|dtype| ("dtype".to_owned(), Value::String(dtype))));
    if of.latent_pixels != recipe::PIXELS {
        encoders.insert("latent_pixels".into(), size(of.latent_pixels));
    }
    if of.scene_tokens {
        encoders.insert("scene_tokens".into(), Value::Boolean(true));
    }
    if of.tiling != Tiling::Auto {
        encoders.insert("tiling".into(), Value::String(of.tiling.name().into()));
    }
    let name = args.out.file_name().unwrap_or("data");
    let mut table = Table::from_iter([
        ("name".to_owned(), Value::String(name_of(&format!("encode-{name}")))),
        ("task".to_owned(), Value::String("encode".into())),
    ]);
    table.insert("encoders".into(), Value::Table(encoders));
    table.insert("encode".into(), Value::Table(encode));
    if let Some(data) = buckets {
        let value = |value: Result<Value, toml::ser::Error>| value.expect("buckets have a TOML form");
        let rule = ("bucket_rule".to_owned(), value(Value::try_from(data.bucket_rule)));
        let list = ("buckets".to_owned(), value(Value::try_from(&data.buckets)));
        table.insert("data".into(), Value::Table(Table::from_iter([rule, list])));
    }
    let condition = trained.map(|trained| &trained.condition).filter(|condition| condition.draws() > 0);
    if let Some(condition) = condition {
        let value = Value::try_from(condition).expect("a condition has a TOML form");
        table.insert("condition".into(), value);
    }
    toml::to_string(&table).expect("strings, numbers and tables have a TOML form")
}
