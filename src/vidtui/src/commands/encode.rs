//! `vidtui data encode`: writes a recipe with `task = "encode"`, shows what it will do, and launches it.

use crate::args::DataEncodeArgs;
use crate::command_error::CommandError;
use crate::commands::launch;
use crate::output;
use crate::workspace::{LaunchOptions, Workspace};
use camino::{Utf8Path, Utf8PathBuf};
use dataset::EncodeInputs;
use recipe::Recipe;
use rundir::{ErrorCode, Failure};
use toml::{Table, Value};

/// The recipe in the folder of the data set.
const RECIPE: &str = "encode.toml";

/// Encodes the clips of a manifest.
pub fn encode(workspace: &Workspace, args: &DataEncodeArgs) -> Result<(), CommandError> {
    if args.manifest.is_dir() {
        return Err(CommandError::request(Failure::new(
            ErrorCode::InvalidArgument,
            format!("cannot encode {}", args.manifest),
            "it is a folder, and an encode reads a manifest",
            format!("make one first: vidtui data check {} --out manifest.jsonl", args.manifest),
        )));
    }
    let trained = args.recipe.as_deref().map(|recipe| workspace.subject(recipe, &[])).transpose()?;
    let trained = trained.map(|subject| subject.resolved().recipe.clone());
    let file = write_recipe(args, trained.as_ref())?;
    let subject = workspace.subject(file.as_str(), &args.how.sets())?;
    let recipe = &subject.resolved().recipe;
    let inputs = EncodeInputs::open(recipe)?;
    if let Some(trained) = &trained {
        inputs.manifest.check_segments(trained.model.segments)?;
    }
    eprintln!("reading {} to see what is there", recipe.encoders.folder);
    let plan = inputs.plan()?;
    eprintln!("{}", plan.summary());
    for (item, failure) in &plan.quarantined {
        eprintln!("left out: {}: {}; try it again with --retry-failed", item.name, failure.why);
    }
    if plan.is_done() {
        eprintln!("nothing to encode; the data set is {}", recipe.encode.out);
        return if args.then.output.json {
            output::json(&serde_json::json!({ "run": null, "reuse": plan.reuse, "data": recipe.encode.out }))
        } else {
            Ok(())
        };
    }
    let options = LaunchOptions {
        subject: &subject,
        ranks: args.how.local,
        nodes: &args.how.nodes,
        name: args.name.as_deref(),
        init: crate::workspace::Init::ByStage,
        fitted: None,
    };
    let plan = workspace.plan_launch(&options)?;
    launch::execute(workspace, &plan, &args.then)
}

/// Writes the recipe into the folder of the data set. The same arguments give the same recipe, which can also be
/// launched directly.
fn write_recipe(args: &DataEncodeArgs, trained: Option<&Recipe>) -> Result<Utf8PathBuf, CommandError> {
    let here = std::env::current_dir().ok().and_then(|here| Utf8PathBuf::try_from(here).ok()).unwrap_or_default();
    let text = encode_recipe(args, trained, &here);
    let path = args.out.join(RECIPE);
    let write = || {
        std::fs::create_dir_all(&args.out).map_err(|source| rundir::Error::Io {
            action: "create",
            path: args.out.clone(),
            source,
        })?;
        rundir::write_atomic(&path, text.as_bytes())
    };
    write().map_err(Failure::from)?;
    Ok(path)
}

fn encode_recipe(args: &DataEncodeArgs, trained: Option<&Recipe>, here: &Utf8Path) -> String {
    let path = |path: &Utf8Path| Value::from(here.join(path).into_string());
    let size = |size: usize| Value::Integer(size as i64);
    let model = trained.map(|trained| &trained.model);
    let [frames, height, width] = model.map_or([49, 480, 720], |model| {
        [(model.latent_frames - 1) * 4 + 1, model.latent_height * 8, model.latent_width * 8]
    });
    let mut encode = Table::from_iter([
        ("manifest".to_owned(), path(&args.manifest)),
        ("out".to_owned(), path(&args.out)),
        ("frames".to_owned(), size(args.frames.unwrap_or(frames))),
        ("height".to_owned(), size(args.height.unwrap_or(height))),
        ("width".to_owned(), size(args.width.unwrap_or(width))),
    ]);
    let given = [
        ("fps", args.fps.map(Value::Float)),
        ("mode", args.mode.clone().map(Value::String)),
        ("crop", args.crop.clone().map(Value::String)),
        ("text_len", args.text_len.or(model.map(|model| model.text_len)).map(size)),
        ("max_dropped", args.max_dropped.map(Value::Float)),
        ("retry_failed", args.retry_failed.then_some(Value::Boolean(true))),
    ];
    encode.extend(given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    let mut encoders = Table::from_iter([("folder".to_owned(), path(&args.model))]);
    encoders.extend(args.dtype.clone().map(|dtype| ("dtype".to_owned(), Value::String(dtype))));
    let name = args.out.file_name().unwrap_or("data");
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(32).collect();
    let mut table = Table::from_iter([
        ("name".to_owned(), Value::String(format!("encode-{name}"))),
        ("task".to_owned(), Value::String("encode".into())),
    ]);
    table.insert("encoders".into(), Value::Table(encoders));
    table.insert("encode".into(), Value::Table(encode));
    let condition = trained.map(|trained| &trained.condition).filter(|condition| condition.draws() > 0);
    if let Some(condition) = condition {
        let value = Value::try_from(condition).expect("a condition has a TOML form");
        table.insert("condition".into(), value);
    }
    toml::to_string(&table).expect("strings, numbers and tables have a TOML form")
}
