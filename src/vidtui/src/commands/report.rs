//! `vidtui report`: writes a self-contained HTML page about a run.
//!
//! [`Page`] escapes all text from the run.

use crate::args::ReportArgs;
use crate::chart_export;
use crate::command_error::CommandError;
use crate::commands::{named_run, refuse_existing, status};
use crate::curves::{self, Column, Group, Measured, View};
use crate::html::Page;
use crate::output;
use crate::workspace::{Needs, Workspace};
use camino::Utf8PathBuf;
use cluster::{NodeId, hostlist};
use rundir::{
    BadVideo, Chart, Error, ErrorCode, Event, Failure, GpuModel, METRICS, NodeEnvironment, SampleFolder, SampleSidecar,
    now_s, read_events,
};
use runstate::RunSummary;
use std::fs;
use std::io::Read;
use ui::series::Marks;

/// The most events on a page. A page with all events of a long run is slow to open.
const EVENTS: usize = 500;

/// Writes the page.
pub fn run(workspace: &Workspace, args: &ReportArgs) -> Result<(), CommandError> {
    let dir = named_run(workspace, &args.run, Needs::Nothing, false)?;
    let (summary, facts) = workspace.summary(&dir)?;
    let to = args.out.clone().unwrap_or_else(|| Utf8PathBuf::from(format!("{}.html", summary.run.id)));
    if to.extension() != Some("html") {
        let why = "the file name does not end in .html";
        let what = format!("cannot write the report to {to}");
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, "end it in .html")));
    }
    refuse_existing(&to, args.force)?;
    let findings = workspace.findings(&summary, &facts);
    let goodput = workspace.goodput(&summary)?;
    let shown = status::facts(&summary, &findings, goodput.as_ref(), now_s());
    let page = page(&summary, &shown, args.embed)?;
    rundir::write_atomic(&to, page.as_bytes())?;
    output::line(to.as_str())
}

fn page(summary: &RunSummary, facts: &[(String, String)], embed: u64) -> Result<String, Failure> {
    let run = &summary.run;
    let mut page = Page::new(&format!("{} ({})", run.name, run.id));
    page.table(&facts.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect::<Vec<_>>());
    charts(&mut page, summary)?;
    samples(&mut page, summary, embed)?;
    attempts(&mut page, summary)?;
    events(&mut page, &read_events(&summary.dir)?);
    page.heading("Environment");
    page.table(&environment(summary));
    nodes(&mut page, summary)?;
    if let Some(imported) = run.imported.as_ref().filter(|imported| !imported.config.is_empty()) {
        page.heading("Settings in the log");
        page.table(&imported.config.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect::<Vec<_>>());
    }
    if run.imported.is_none() {
        page.heading("Recipe");
        page.pre(&run.recipe.to_string());
    }
    Ok(page.finish())
}

/// Adds every chart of the console that has values, and the series of an imported run.
fn charts(page: &mut Page, summary: &RunSummary) -> Result<(), Failure> {
    let measured = curves::read(&summary.dir)?;
    let mut charts: Vec<Chart> = Vec::new();
    for chart in METRICS.iter().filter_map(|metric| metric.line.map(|line| line.chart)) {
        if !charts.contains(&chart) {
            charts.push(chart);
        }
    }
    let mut groups: Vec<Group> = charts.into_iter().map(|chart| Group::of_chart(chart, &measured)).collect();
    groups.extend(measured.others().into_iter().map(|name| Group::of_column(Column::Other(name))));
    groups.retain(|group| group.has_values(&measured));
    page.heading("Charts");
    if groups.is_empty() {
        page.paragraph("No step was logged.");
    }
    let marks = curves::read_marks(summary, &measured)?;
    groups.iter().try_for_each(|group| chart(page, group, summary, &measured, &marks))
}

fn chart(
    page: &mut Page,
    group: &Group,
    summary: &RunSummary,
    measured: &Measured,
    marks: &Marks,
) -> Result<(), Failure> {
    let drawn = curves::chart(std::slice::from_ref(group), View::default(), summary, measured, marks);
    let svg = chart_export::to_svg(&chart_export::Chart { title: String::new(), subtitle: String::new(), ..drawn })?;
    page.figure(&svg, group.label());
    Ok(())
}

/// Adds the sampled videos, newest first: embeds up to `embed` bytes of them, and links the others. The page is made to be sent, and the
/// run may be one of another user, so files outside of the run are left out, with the reason.
fn samples(page: &mut Page, summary: &RunSummary, embed: u64) -> Result<(), Failure> {
    let folder = summary.dir.sample_folder(&summary.run);
    let other_user = match &folder {
        SampleFolder::OfRun(_) => None,
        SampleFolder::Named { .. } => summary.dir.check_trusted("cannot add the samples").err(),
    };
    if let Some(untrusted) = other_user {
        page.heading("Samples");
        page.paragraph(&format!("The samples are outside of the run, and are left out: {}.", untrusted.why));
        return Ok(());
    }
    let samples = folder.list()?;
    if samples.is_empty() {
        return Ok(());
    }
    page.heading("Samples");
    let mut left = embed;
    for SampleSidecar { step, index, prompt, seed, .. } in samples.iter().rev() {
        let path = folder.video(*step, *index);
        let caption = format!("step {}, seed {seed}: {prompt}", units::grouped(*step));
        let video = folder.open_video(*step, *index).and_then(|file| {
            let size = file.metadata().map_err(|error| BadVideo::Io(path.clone(), error))?.len();
            Ok((file, size))
        });
        match video {
            Ok((file, size)) if size <= left => {
                let mut bytes = Vec::new();
                // The file may grow.
                let read = file.take(left).read_to_end(&mut bytes);
                left -= read.map_err(|error| Error::io("read", &path, error))? as u64;
                page.video(&bytes, &caption);
            }
            Ok(_) => page
                .link(&fs::canonicalize(&path).map_or(path.to_string(), |path| path.display().to_string()), &caption),
            Err(why) => page.paragraph(&format!("{caption} ({why})")),
        }
    }
    Ok(())
}

/// Adds a table of the attempts, with the failures that ended them.
fn attempts(page: &mut Page, summary: &RunSummary) -> Result<(), Failure> {
    if summary.run.imported.is_some() {
        return Ok(());
    }
    let dir = &summary.dir;
    let mut rows = vec![["attempt", "started", "from step", "ranks", "nodes", "end"].map(str::to_owned).to_vec()];
    for number in dir.attempt_numbers()? {
        let attempt = match dir.read_attempt(number) {
            Err(error) if error.is_not_found() => continue,
            read => read?,
        };
        let nodes: Vec<String> = attempt.placement.by_node().iter().map(|(node, _)| node.to_string()).collect();
        let mut ends = Vec::new();
        for (node, _) in attempt.placement.by_node() {
            match dir.read_exit(node, number)? {
                None => ends.push(format!("{node}: no end is recorded")),
                Some(exit) => {
                    let failure = exit.failure.as_ref().filter(|_| !exit.is_consequence());
                    ends.extend(failure.map(|failure| format!("{node}: {failure}")));
                }
            }
        }
        rows.push(vec![
            number.to_string(),
            time(attempt.started_s),
            units::grouped(attempt.start_step),
            attempt.mesh.world().to_string(),
            nodes.join(", "),
            if ends.is_empty() { "no failure".into() } else { ends.join("\n") },
        ]);
    }
    page.heading("Attempts and failures");
    page.table(&rows);
    Ok(())
}

fn events(page: &mut Page, events: &[Event]) {
    page.heading("Events");
    let events: Vec<&Event> = events.iter().filter(|event| ui::event_text::is_listed(event)).collect();
    let hidden = events.len().saturating_sub(EVENTS);
    if hidden > 0 {
        page.paragraph(&format!(
            "The newest {EVENTS}; {} before them are in events.jsonl.",
            units::grouped(hidden as u64)
        ));
    }
    let row = |event: &&Event| {
        let by = event.rank.map(|rank| format!("rank {rank}")).or(event.node.as_ref().map(ToString::to_string));
        let step = event.step.map(units::grouped).unwrap_or_default();
        vec![time(event.t), step, by.unwrap_or_default(), ui::event_text::describe(event).0]
    };
    page.table(&events[hidden..].iter().map(row).collect::<Vec<_>>());
}

fn environment(summary: &RunSummary) -> Vec<Vec<String>> {
    let run = &summary.run;
    let mut rows = vec![("created", time(run.created_s))];
    rows.extend(run.git_commit.clone().map(|commit| ("git commit", commit)));
    let given = |name, value: &str| Some((name, value.to_owned())).filter(|(_, value)| !value.is_empty());
    rows.extend(given("trainer", &run.trainer_version));
    rows.extend(run.trainer_sha256.clone().map(|hash| ("SHA-256 of the trainer", hash)));
    rows.extend(given("libtorch", &run.libtorch));
    rows.push(("report by vidtui", env!("CARGO_PKG_VERSION").into()));
    rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
}

/// Adds a table of the nodes: GPUs, driver, CPUs and operating system. Nodes that are alike share a row.
fn nodes(page: &mut Page, summary: &RunSummary) -> Result<(), Failure> {
    let (dir, attempts) = (&summary.dir, summary.dir.attempt_numbers()?);
    let mut of_all = Vec::new();
    for node in dir.node_ids()? {
        let mut of_node = Vec::new();
        for number in &attempts {
            of_node.extend(dir.read_environment(&node, *number)?.map(|environment| (cells(environment), *number)));
        }
        of_all.extend(by_key(of_node).into_iter().map(|alike| (alike, node.clone())));
    }
    if of_all.is_empty() {
        return Ok(());
    }
    const COLUMNS: [&str; 8] = ["nodes", "attempts", "GPUs", "driver", "CPUs", "memory", "system", "vidtui"];
    let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
    for ((cells, attempts), nodes) in by_key(of_all) {
        let nodes = hostlist::compress(&nodes.iter().map(NodeId::as_str).collect::<Vec<_>>());
        let attempts = attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        rows.push([nodes, attempts].into_iter().chain(cells).collect());
    }
    page.table(&rows);
    Ok(())
}

/// Returns the cells of an environment. Nodes are compared by these, because the kernels of equal nodes report slightly different sizes
/// of memory.
fn cells(environment: NodeEnvironment) -> [String; 6] {
    let NodeEnvironment { supervisor, os, kernel, cpu, cpus, mem_total_mib, driver, gpus, .. } = environment;
    let cpus = cpus.map(|count| units::counted(count, "logical CPU"));
    let cells = [
        gpus_in_words(gpus),
        driver.unwrap_or_default(),
        cpu.into_iter().chain(cpus).collect::<Vec<_>>().join(", "),
        mem_total_mib.map(|mib| units::size(mib << 20)).unwrap_or_default(),
        os.into_iter().chain(kernel.map(|kernel| format!("Linux {kernel}"))).collect::<Vec<_>>().join(", "),
        supervisor,
    ];
    cells.map(|cell| if cell.is_empty() { "-".into() } else { cell })
}

/// Returns a line for each model of GPU: `8 × NVIDIA H100 80GB HBM3, 79.6 GiB each`.
fn gpus_in_words(gpus: Vec<GpuModel>) -> String {
    let line = |(GpuModel { name, mem_total_mib }, all): (GpuModel, Vec<()>)| {
        let memory = mem_total_mib.map(|mib| format!(", {} each", units::size(mib << 20))).unwrap_or_default();
        format!("{} × {}{memory}", all.len(), name.unwrap_or_else(|| "GPU".into()))
    };
    by_key(gpus.into_iter().map(|gpu| (gpu, ())).collect()).into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Collects the values that have equal keys.
fn by_key<K: PartialEq, V>(items: Vec<(K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in items {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Formats Unix seconds as a time in UTC.
fn time(t: f64) -> String {
    let time = jiff::Timestamp::from_second(t as i64).unwrap_or_default();
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}
