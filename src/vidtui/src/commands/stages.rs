//! `vidtui stages`: lists the stages of a curriculum and their state.

use crate::args::StagesArgs;
use crate::command_error::CommandError;
use crate::documents::{GoodputDocument, usage_numbers};
use crate::output;
use crate::workspace::{self, Workspace};
use recipe::{Curriculum, StageSpec, StageStart};
use rundir::GpuUsage;
use runstate::{Goodput, RunState, RunSummary};
use serde::Serialize;
use std::fmt::Write;
use ui::StageView;
use ui::goodput_text;
use ui::run_state::StateKind;

/// A stage, and the run that determines its state.
struct Stage<'a> {
    spec: &'a StageSpec,
    view: StageView,
    run: Option<&'a RunSummary>,
}

/// Lists the stages of a curriculum.
pub fn run(workspace: &Workspace, args: &StagesArgs) -> Result<(), CommandError> {
    let curriculum = workspace::curriculum(&args.curriculum, &[])?;
    let (runs, _) = workspace.summaries();
    let stages: Vec<Stage<'_>> = curriculum
        .stages
        .iter()
        .map(|spec| Stage { spec, view: workspace::stage_view(spec), run: run_of(&curriculum, spec, &runs) })
        .collect();
    let goodput = goodput(workspace, &curriculum, &runs)?;
    let usage = of_curriculum(&curriculum, &runs)
        .filter_map(|summary| summary.dir.gpu_usage())
        .reduce(|sum, usage| sum + usage);
    if args.output.json {
        let documents: Vec<_> = stages.iter().map(document).collect();
        return output::json(&serde_json::json!({
            "curriculum": curriculum.path,
            "title": curriculum.title,
            "stages": documents,
            "goodput": goodput.as_ref().map(GoodputDocument::new),
            "gpu_hours": usage_numbers(usage).0,
            "energy_kwh": usage_numbers(usage).1,
        }));
    }
    output::text(&in_words(&curriculum, &stages, goodput.as_ref(), usage))
}

/// Returns the runs of a curriculum.
fn of_curriculum<'a>(curriculum: &Curriculum, runs: &'a [RunSummary]) -> impl Iterator<Item = &'a RunSummary> {
    runs.iter().filter(|summary| summary.run.curriculum.as_ref() == Some(&curriculum.path))
}

/// Returns the goodput of all runs of a curriculum; `None` if no run has one.
fn goodput(
    workspace: &Workspace,
    curriculum: &Curriculum,
    runs: &[RunSummary],
) -> Result<Option<Goodput>, CommandError> {
    let mut all: Option<Goodput> = None;
    for summary in of_curriculum(curriculum, runs) {
        if let Some(goodput) = workspace.goodput(summary)? {
            all.get_or_insert_default().add(&goodput);
        }
    }
    Ok(all)
}

/// Returns the run that determines the state of a stage: the newest active run, or else the newest finished one, or else the newest.
fn run_of<'a>(curriculum: &Curriculum, stage: &StageSpec, runs: &'a [RunSummary]) -> Option<&'a RunSummary> {
    let of_stage = |summary: &&RunSummary| {
        summary.run.curriculum.as_ref() == Some(&curriculum.path) && summary.run.stage.as_ref() == Some(&stage.name)
    };
    // Runs are sorted from oldest to newest, and max_by_key returns the last of equal ones.
    let is_active = |state: &RunState| StateKind::of(state).is_active();
    let rank = |summary: &&RunSummary| (is_active(&summary.state), summary.state == RunState::Finished);
    runs.iter().filter(of_stage).max_by_key(rank)
}

fn in_words(
    curriculum: &Curriculum,
    stages: &[Stage<'_>],
    goodput: Option<&Goodput>,
    usage: Option<GpuUsage>,
) -> String {
    let mut text = format!("{}  ({})\n", curriculum.title, curriculum.path);
    if let Some(goodput) = goodput {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "goodput of all runs: {}", goodput_text::of_runs(goodput));
        let losses = goodput_text::losses(goodput);
        if !losses.is_empty() {
            let _ = writeln!(text, "  lost: {losses}");
        }
    }
    if let Some(usage) = usage {
        let _ = writeln!(text, "GPUs of all runs: {}", usage.in_words());
    }
    for (number, stage) in stages.iter().enumerate() {
        let state = stage.run.map_or("not started".to_owned(), |run| {
            let word = StateKind::of(&run.state).word();
            format!("{word}, step {} of {}, run {}", run.step, run.steps_total, run.run.id)
        });
        let view = &stage.view;
        let _ = writeln!(text, "\n{}. {}: {state}", number + 1, view.name);
        if let Some(command) = &view.command {
            let (length, ranks) = (view.length_in_words(), units::counted(view.ranks, "rank"));
            let _ = writeln!(text, "   {length}, {ranks}\n   command: {command}");
        } else {
            let _ = writeln!(
                text,
                "   {} parameters, {} latent frames, {} tokens, {} of {}, {}",
                units::count(view.params),
                view.latent_frames,
                units::grouped(view.seq_len as u64),
                view.length_in_words(),
                units::counted(view.global_batch, "sample"),
                units::counted(view.ranks, "rank"),
            );
            let _ = writeln!(text, "   weights: {}", start_in_words(&stage.spec.start));
        }
        let width = view.changes.iter().map(|change| change.key.len()).max().unwrap_or(0);
        for change in view.changes.iter().filter(|_| number > 0) {
            let from = change.from.as_deref().unwrap_or("none");
            let _ = writeln!(text, "   {:<width$}  {from} -> {}", change.key, change.to);
        }
    }
    text
}

fn start_in_words(start: &StageStart) -> String {
    match start {
        StageStart::Random => "random".into(),
        StageStart::Previous => "newest checkpoint of the previous stage".into(),
        StageStart::Path(path) => path.to_string(),
    }
}

#[derive(Serialize)]
struct StageDocument<'a> {
    name: &'a str,
    state: &'static str,
    run: Option<String>,
    step: u64,
    steps_total: u64,
    /// The command, if the stage trains with one. The next four fields are then null.
    command: Option<&'a str>,
    params: Option<u64>,
    latent_frames: Option<usize>,
    seq_len: Option<usize>,
    global_batch: Option<usize>,
    ranks: usize,
    start: String,
    changes: Vec<ChangeDocument<'a>>,
}

#[derive(Serialize)]
struct ChangeDocument<'a> {
    key: &'a str,
    from: Option<&'a str>,
    to: &'a str,
}

fn document<'a>(stage: &'a Stage<'_>) -> StageDocument<'a> {
    let view = &stage.view;
    let own = view.command.is_none();
    StageDocument {
        name: &view.name,
        state: stage.run.map_or("not started", |run| StateKind::of(&run.state).word()),
        run: stage.run.map(|run| run.run.id.to_string()),
        step: stage.run.map_or(0, |run| run.step),
        steps_total: view.length.steps().unwrap_or(0),
        command: view.command.as_deref(),
        params: own.then_some(view.params),
        latent_frames: own.then_some(view.latent_frames),
        seq_len: own.then_some(view.seq_len),
        global_batch: own.then_some(view.global_batch),
        ranks: view.ranks,
        start: match &stage.spec.start {
            StageStart::Random => "random".into(),
            StageStart::Previous => "previous".into(),
            StageStart::Path(path) => path.to_string(),
        },
        changes: view
            .changes
            .iter()
            .map(|change| ChangeDocument { key: &change.key, from: change.from.as_deref(), to: &change.to })
            .collect(),
    }
}
