//! Creates the folder of an imported run.

use super::source::Source;
use camino::Utf8Path;
use cluster::Placement;
use interop::{Log, Mapped};
use recipe::{MOST_STEPS, Mesh, Recipe};
use rundir::{
    Attempt, AttemptWhy, Error, ErrorCode, Event, EventKind, Failure, Imported, Run, RunDir, RunId, SCHEMA, StartFrom,
    WholeFolder, write_atomic,
};
use std::fs;
use std::hash::{BuildHasher, RandomState};

/// Makes the content of `run.toml`.
///
/// * `id` — see [`new_id`].
/// * `steps` — the last step of the log.
pub fn new_run(source: &Source, log: &Log, id: RunId, name: &str, began_s: f64, steps: u64) -> Result<Run, Failure> {
    let recipe = recipe(&id, steps)?;
    Ok(Run {
        schema: SCHEMA,
        id,
        name: name.to_owned(),
        curriculum: None,
        stage: None,
        created_s: began_s,
        git_commit: None,
        trainer_sha256: None,
        trainer_version: String::new(),
        libtorch: String::new(),
        start: StartFrom::Random,
        lineage: None,
        imported: Some(Imported {
            from: source.path.clone(),
            tool: source.tool.name().into(),
            config: log.config.clone(),
        }),
        attached: None,
        launched_from: None,
        recipe,
    })
}

/// Makes the id of a run that has no folder in `runs` yet. Many imported runs have the same name and began in the same minute, so that
/// the random end of an id is not always enough.
pub fn new_id(runs: &Utf8Path, name: &str, began_s: f64) -> RunId {
    loop {
        let random = RandomState::new().hash_one(std::process::id()) as u32;
        let id = RunId::new(began_s, name, random);
        if !RunDir::of(runs, &id).root.exists() {
            return id;
        }
    }
}

/// Returns the recipe of an imported run. It has only the number of steps, so that no run can be started from it.
fn recipe(id: &RunId, steps: u64) -> Result<toml::Table, Failure> {
    let mut table = toml::Table::new();
    let mut section = |name: &str, key: &str, value: toml::Value| {
        let section = table.entry(name).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(section) = section.as_table_mut() {
            section.insert(key.into(), value);
        }
    };
    section("command", "run", toml::Value::Array(vec!["imported".into()]));
    section(
        "train",
        "steps",
        toml::Value::Integer(i64::try_from(steps.max(1)).map_or(MOST_STEPS, |steps| steps.min(MOST_STEPS))),
    );
    table.insert("name".into(), id.name().into());
    table.insert("trainer".into(), "command".into());
    let recipe = Recipe::from_table(&table).map_err(|error| {
        let why = format!("{}: {}", error.what, error.why);
        Failure::new(ErrorCode::InvalidRecipe, "cannot import the run", why, error.fix)
    })?;
    Ok(recipe.to_table())
}

/// Writes the folder of the run, which gets its name only when it is complete. After an error nothing of it is left.
pub fn write(dir: &RunDir, run: &Run, mapped: &Mapped, ended_s: f64, by: &str) -> Result<(), Failure> {
    let folder = WholeFolder::beside(&dir.root);
    folder.prepare()?;
    let part = RunDir::new(folder.dir());
    let written = fill(&part, run, mapped, ended_s, by).and_then(|()| Ok(folder.commit()?));
    if written.is_err() {
        // The first error is reported.
        let _ = folder.abandon();
    }
    written
}

fn fill(part: &RunDir, run: &Run, mapped: &Mapped, ended_s: f64, by: &str) -> Result<(), Failure> {
    let mut lines = Vec::new();
    for sample in &mapped.samples {
        serde_json::to_writer(&mut lines, sample).map_err(|error| Error::io("write", &part.metrics(), error.into()))?;
        lines.push(b'\n');
    }
    write_atomic(&part.metrics(), &lines)?;
    let attempt = Attempt {
        schema: SCHEMA,
        number: 1,
        why: AttemptWhy::Launch,
        by: by.into(),
        started_s: run.created_s,
        start_step: 0,
        start: StartFrom::Random,
        asked_step: None,
        steps: None,
        changed: Vec::new(),
        checkpoint: None,
        waived: Vec::new(),
        mesh: Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 },
        placement: Placement { ranks: Vec::new() },
        logins: Vec::new(),
        spares: Vec::new(),
        slurm: None,
    };
    let create = |path: &Utf8Path| fs::create_dir_all(path).map_err(|error| Error::io("create", path, error));
    create(&part.attempt_dir(1))?;
    part.write_attempt(&attempt)?;
    let mut events = Vec::new();
    let [first, last] = [mapped.samples.first(), mapped.samples.last()].map(|sample| sample.map(|sample| sample.step));
    for (t, step, kind) in
        [(run.created_s, first, EventKind::Started { world: 1 }), (ended_s, last, EventKind::Finished)]
    {
        let event = Event { step, ..Event::new(t, 1, Some(0), kind) };
        serde_json::to_writer(&mut events, &event).map_err(|error| Error::io("write", &part.events(), error.into()))?;
        events.push(b'\n');
    }
    write_atomic(&part.events(), &events)?;
    part.write_run(run)?;
    Ok(())
}
