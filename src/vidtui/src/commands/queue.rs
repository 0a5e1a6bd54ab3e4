//! `vidtui queue`: runs that start one after the other on the same nodes.

use crate::args::{LaunchArgs, MovePlace, NodesArgs, QueueAddArgs, QueueArgs, QueueCommand, QueueWorkArgs};
use crate::command_error::CommandError;
use crate::documents::{QueueEntryDocument, WaitDocument};
use crate::output::{self, Side, note};
use crate::workspace::{Turn, Wait, Workspace};
use camino::Utf8Path;
use nix::sys::statvfs::statvfs;
use rundir::{ErrorCode, Failure, QueueEntry, QueueState, RunId, SCHEMA, next_entry, now_s};
use serde_json::json;
use std::thread;
use std::time::Duration;
use ui::run_state::StateKind;

/// How often the queue worker reads the queue and the state of the runs.
const POLL: Duration = Duration::from_secs(2);
/// The seconds after which the start of another user's entry no longer delays other starts: its worker was killed.
const START_S: f64 = 900.0;

/// Lists or changes the queue, or runs the queue worker.
pub fn run(workspace: &Workspace, args: &QueueArgs) -> Result<(), CommandError> {
    match &args.command {
        None => list(workspace, args.json, Worker::AsItIs),
        Some(QueueCommand::Add(add)) => self::add(workspace, add, args.json),
        Some(QueueCommand::Hold(entries)) => {
            change(workspace, &entries.ids, |entry| set_pending(entry, QueueState::Held))?;
            list(workspace, args.json, Worker::AsItIs)
        }
        Some(QueueCommand::Release(entries)) => {
            change(workspace, &entries.ids, |entry| set_pending(entry, QueueState::Waiting))?;
            workspace.start_queue_worker()?;
            list(workspace, args.json, Worker::Started)
        }
        Some(QueueCommand::Move(to)) => {
            move_entry(workspace, to.id, &to.place, to.other)?;
            list(workspace, args.json, Worker::AsItIs)
        }
        Some(QueueCommand::Remove(removed)) => {
            match removed.ended {
                true => remove_ended(workspace)?,
                false => remove(workspace, &removed.ids)?,
            }
            list(workspace, args.json, Worker::AsItIs)
        }
        Some(QueueCommand::Work(args)) => work(workspace, args),
    }
}

fn add(workspace: &Workspace, args: &QueueAddArgs, json: bool) -> Result<(), CommandError> {
    let mut words = Vec::new();
    for word in &args.recipes {
        words.extend(workspace.queued_subjects(word, &args.how.sets())?);
    }
    let by = workspace.user();
    let added = workspace.queue().change(|entries, first_id| {
        let begin = entries.len();
        for (word, id) in words.into_iter().zip(first_id..) {
            let launch = LaunchArgs::of_queue(word, args);
            let checked = workspace.check_queued(&launch, entries)?;
            entries.push(QueueEntry {
                schema: SCHEMA,
                id,
                order: 0,
                added_s: now_s(),
                by: by.clone(),
                folder: workspace.here.clone(),
                launch: checked.words,
                after: checked.after,
                state: if args.hold { QueueState::Held } else { QueueState::Waiting },
                owner: None,
            });
        }
        Ok::<_, CommandError>(entries[begin..].to_vec())
    })?;
    if !args.hold {
        workspace.start_queue_worker()?;
    }
    if json {
        let entries: Vec<_> = added.iter().map(|entry| document(workspace, entry, None)).collect();
        return output::json(&json!({ "entries": entries }));
    }
    added.iter().try_for_each(|entry| output::line(&entry.id.to_string()))
}

/// Whether this command has just started a worker. A worker needs a moment to take its lock, so the queue seems to have none.
#[derive(PartialEq)]
enum Worker {
    Started,
    AsItIs,
}

fn list(workspace: &Workspace, json: bool, started: Worker) -> Result<(), CommandError> {
    let queue = workspace.queue();
    let (entries, worker) = (queue.entries()?, queue.worker());
    let waits: Vec<_> = entries.iter().map(|entry| workspace.waits_for(entry, &entries)).collect();
    let documents: Vec<_> =
        entries.iter().zip(&waits).map(|(entry, wait)| document(workspace, entry, wait.as_ref())).collect();
    if json {
        return output::json(&json!({ "entries": documents, "worker": worker }));
    }
    if entries.is_empty() {
        return output::line("the queue is empty; add a run: vidtui queue add RECIPE");
    }
    const COLUMNS: [(&str, Side); 4] =
        [("id", Side::Right), ("state", Side::Left), ("run", Side::Left), ("launch", Side::Left)];
    let rows: Vec<_> = documents.iter().zip(&waits).map(row).collect();
    output::text(&output::table(&COLUMNS, &rows))?;
    for document in documents.iter().filter(|document| matches!(document.state, "waiting" | "held")) {
        if let Some(owner) = document.owner {
            output::line(&format!("entry {} belongs to {owner}; waits for a worker of {owner}", document.id))?;
        }
    }
    for document in &documents {
        if let Some(failure) = document.failure {
            output::text(&format!("\nentry {}: {failure}\n", document.id))?;
        }
    }
    if worker.is_none() && started == Worker::AsItIs && next_entry(&entries).is_some() {
        output::line("\nno process works on the queue; start it: vidtui queue work --detached")?;
    }
    Ok(())
}

fn row((document, wait): (&QueueEntryDocument<'_>, &Option<Wait>)) -> Vec<String> {
    let is_said = |id: &u32| *wait == Some(Wait::Weights(*id));
    let after = document.after.filter(|id| !is_said(id)).map_or(String::new(), |id| format!(" (after {id})"));
    let wait = wait.as_ref().map_or(String::new(), |wait| format!(" for {wait}"));
    vec![
        document.id.to_string(),
        format!("{}{wait}{after}", document.state),
        document.run.map_or(String::new(), ToString::to_string),
        plan::command_line(document.launch),
    ]
}

fn document<'a>(workspace: &Workspace, entry: &'a QueueEntry, wait: Option<&'a Wait>) -> QueueEntryDocument<'a> {
    let (state, run, failure) = match &entry.state {
        QueueState::Waiting => ("waiting", None, None),
        QueueState::Held => ("held", None, None),
        QueueState::Failed { failure, .. } => ("failed", None, Some(failure)),
        QueueState::Starting { run, .. } => ("starting", Some(run), None),
        QueueState::Started { run, .. } => (state_of_run(workspace, run), Some(run), None),
    };
    QueueEntryDocument {
        id: entry.id,
        state,
        run,
        failure,
        after: entry.after,
        waits_for: wait.map(WaitDocument::of),
        launch: &entry.launch,
        folder: &entry.folder,
        added_s: entry.added_s,
        by: &entry.by,
        owner: entry.owner.as_deref(),
    }
}

fn state_of_run(workspace: &Workspace, run: &RunId) -> &'static str {
    let dir = workspace.dir(run);
    if !dir.root.exists() {
        return "removed";
    }
    workspace.summary(&dir).map_or("unknown", |(summary, _)| StateKind::of(&summary.state).word())
}

fn change(
    workspace: &Workspace,
    ids: &[u32],
    change: impl Fn(&mut QueueEntry) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    workspace.queue().change(|entries, _| {
        ids.iter().try_for_each(|id| {
            let at = own_position(entries, *id)?;
            change(&mut entries[at])
        })
    })
}

fn set_pending(entry: &mut QueueEntry, state: QueueState) -> Result<(), CommandError> {
    match (&entry.state, &state) {
        (QueueState::Waiting | QueueState::Held, _) | (QueueState::Failed { .. }, QueueState::Waiting) => {
            entry.state = state;
            Ok(())
        }
        _ => Err(not_pending(entry)),
    }
}

fn move_entry(workspace: &Workspace, id: u32, place: &MovePlace, other: Option<u32>) -> Result<(), CommandError> {
    workspace.queue().change(|entries, _| {
        let at = own_position(entries, id)?;
        if !entries[at].is_pending() {
            return Err(not_pending(&entries[at]));
        }
        let entry = entries.remove(at);
        let to = match (place, other) {
            (MovePlace::First, _) => 0,
            (MovePlace::Last, _) | (MovePlace::Before, None) => entries.len(),
            (MovePlace::Before, Some(other)) => position(entries, other)?,
        };
        entries.insert(to, entry);
        Ok(())
    })
}

fn remove(workspace: &Workspace, ids: &[u32]) -> Result<(), CommandError> {
    workspace.queue().change(|entries, _| {
        ids.iter().try_for_each(|id| {
            let at = position(entries, *id)?;
            entries.remove(at);
            Ok(())
        })
    })
}

/// Removes the entries of this user whose runs have ended. A stage that waits starts from the run of the entry before it, which stays.
fn remove_ended(workspace: &Workspace) -> Result<(), CommandError> {
    workspace.queue().change(|entries, _| {
        let waits = |entry: &&QueueEntry| !matches!(entry.state, QueueState::Started { .. });
        let needed: Vec<u32> = entries.iter().filter(waits).filter_map(|entry| entry.after).collect();
        let has_ended = |entry: &QueueEntry| match &entry.state {
            QueueState::Started { run, .. } if entry.owner.is_none() && !needed.contains(&entry.id) => {
                workspace.summary(&workspace.dir(run)).is_ok_and(|(run, _)| run.state.is_end())
            }
            _ => false,
        };
        entries.retain(|entry| !has_ended(entry));
        Ok(())
    })
}

fn position(entries: &[QueueEntry], id: u32) -> Result<usize, CommandError> {
    entries.iter().position(|entry| entry.id == id).ok_or_else(|| {
        let ids: Vec<String> = entries.iter().map(|entry| entry.id.to_string()).collect();
        let why =
            if ids.is_empty() { "the queue is empty".into() } else { format!("the entries are {}", ids.join(", ")) };
        let what = format!("there is no entry {id} in the queue");
        CommandError::request(Failure::new(ErrorCode::UnknownName, what, why, "list them: vidtui queue"))
    })
}

/// Returns the position of an entry of this user. A changed entry of another user would belong to this one, whose worker would start it.
fn own_position(entries: &[QueueEntry], id: u32) -> Result<usize, CommandError> {
    let at = position(entries, id)?;
    let Some(owner) = &entries[at].owner else { return Ok(at) };
    let what = format!("cannot change entry {id} of the queue");
    let fix = format!("ask {owner} to change it, or add an entry of your own: vidtui queue add RECIPE");
    Err(Failure::new(ErrorCode::UntrustedFile, what, format!("it belongs to {owner}"), fix).into())
}

fn not_pending(entry: &QueueEntry) -> CommandError {
    let what = format!("cannot change entry {} of the queue", entry.id);
    let (why, fix) = match &entry.state {
        QueueState::Starting { run, .. } | QueueState::Started { run, .. } => {
            (format!("its run {run} was started"), format!("stop it: vidtui stop {run}"))
        }
        _ => (
            "its run could not be started".to_owned(),
            format!("let it start again: vidtui queue release {}", entry.id),
        ),
    };
    Failure::new(ErrorCode::RunIsAlive, what, why, fix).into()
}

/// Runs the queue worker: starts the queued runs of this user one after the other, until no entry is left that can start.
///
/// # Errors
/// [`ErrorCode::AlreadyExists`] if another process is the queue worker of this user.
fn work(workspace: &Workspace, args: &QueueWorkArgs) -> Result<(), CommandError> {
    let queue = workspace.queue();
    if args.detached {
        workspace.start_queue_worker()?;
        return Ok(());
    }
    if args.own_session {
        // In its own session, the worker does not receive SIGHUP when the terminal closes.
        let _ = nix::unistd::setsid();
    }
    let Some(mut lock) = queue.lock_worker(&workspace.as_queue_worker())? else {
        let by = queue.worker().map_or("another process".into(), |by| format!("process {} on {}", by.pid, by.node));
        let (what, fix) = ("cannot work on the queue", "list the queue: vidtui queue");
        return Err(Failure::new(ErrorCode::AlreadyExists, what, format!("{by} works on it already"), fix).into());
    };
    patiently(|| {
        queue.change(|entries, _| {
            settle(workspace, entries);
            Ok::<_, Failure>(())
        })
    })?;
    let (mut here, mut disk) = (None, FullDisk::default());
    loop {
        let entries = match queue.entries() {
            Ok(entries) => entries,
            // A network file system may be unavailable for a while.
            Err(error) => {
                note!("{}", Failure::from(error));
                thread::sleep(POLL);
                continue;
            }
        };
        let Some(entry) = next_entry(&entries) else {
            match queue.end_worker(lock)? {
                Some(kept) => lock = kept,
                None => return Ok(()),
            }
            continue;
        };
        match advance(workspace, &mut here, entry, &entries) {
            Ok(true) => {}
            Ok(false) => thread::sleep(POLL),
            Err(failure) if failure.code == ErrorCode::DiskFull && disk.is_full(&workspace.runs, entry.id) => {
                note!("entry {} waits: {failure}", entry.id);
                thread::sleep(POLL);
            }
            Err(failure) => {
                note!("entry {}: {failure}", entry.id);
                let failed = QueueState::Failed { at_s: now_s(), failure };
                if let Err(error) = set_state(workspace, entry.id, &QueueState::Waiting, failed) {
                    note!("{error}");
                    disk.failed_before = None;
                    thread::sleep(POLL);
                }
            }
        }
    }
}

/// Tells a full disk, on which an entry waits, from a disk that is too small for the run of an entry, which fails.
#[derive(Default)]
struct FullDisk {
    /// The entry that failed last because of its disk.
    failed_before: Option<u32>,
}

impl FullDisk {
    /// The free space that the files of a start need.
    const ROOM: u64 = 1 << 20;

    /// Returns whether an entry that failed because of its disk should be tried again: the disk has no room for the files of a start, or
    /// it may have got some since the failure.
    fn is_full(&mut self, runs: &Utf8Path, id: u32) -> bool {
        let free = statvfs(runs.as_std_path()).map(|disk| disk.blocks_available() * disk.fragment_size());
        self.failed_before.replace(id) != Some(id) || free.is_ok_and(|free| free < Self::ROOM)
    }
}

/// Repairs entries that the previous worker left in [`QueueState::Starting`]: they wait again if their run has no attempt, and count
/// as started otherwise.
fn settle(workspace: &Workspace, entries: &mut [QueueEntry]) {
    for entry in entries.iter_mut().filter(|entry| entry.owner.is_none()) {
        if let QueueState::Starting { run, at_s } = entry.state.clone() {
            entry.state = match workspace.dir(&run).latest_attempt() {
                Ok(None) => QueueState::Waiting,
                Ok(Some(_)) | Err(_) => QueueState::Started { run, at_s },
            };
        }
    }
}

/// Starts the run of an entry if its turn has come. Returns whether the queue has changed.
///
/// * `here` — the workspace of the previous entry. Entries that were added in the same folder reuse its connections.
///
/// # Errors
/// The folder of the entry cannot be used, the launch cannot be planned, or the run cannot be started.
fn advance(
    workspace: &Workspace,
    here: &mut Option<Workspace>,
    entry: &QueueEntry,
    entries: &[QueueEntry],
) -> Result<bool, Failure> {
    let here = match here {
        Some(here) if here.here == entry.folder => here,
        _ => here.insert(enter(workspace, entry)?),
    };
    let Turn::Start(plan) = here.turn(entry, entries)? else { return Ok(false) };
    let run = plan.run.id.clone();
    let starting = QueueState::Starting { run: run.clone(), at_s: now_s() };
    match begin(workspace, entry.id, &starting)? {
        Begin::Start => {}
        Begin::Changed => return Ok(true),
        Begin::Wait => return Ok(false),
    }
    // The worker of another user may have started a run since this one was planned.
    let nodes: Vec<_> = plan.attempt.placement.by_node().iter().map(|(node, _)| (*node).clone()).collect();
    if here.run_on(&nodes).is_some() {
        set_state(workspace, entry.id, &starting, QueueState::Waiting)?;
        return Ok(false);
    }
    note!("entry {}: starts {run}", entry.id);
    plan.warnings.iter().for_each(|warning| note!("warning: {warning}"));
    match here.launch(&plan, &|step| note!("{step}")) {
        Ok(_) => set_state(workspace, entry.id, &starting, QueueState::Started { run, at_s: now_s() }),
        Err(failure) => {
            set_state(workspace, entry.id, &starting, QueueState::Waiting)?;
            Err(failure)
        }
    }
}

/// Changes to the folder of an entry, because the paths of its launch are relative to this folder.
fn enter(workspace: &Workspace, entry: &QueueEntry) -> Result<Workspace, Failure> {
    std::env::set_current_dir(&entry.folder).map_err(|error| {
        let why = format!("its folder {} cannot be used: {error}", entry.folder);
        Failure::new(ErrorCode::of_io(&error), "the run cannot start", why, "add the run again from another folder")
    })?;
    Workspace::new(&workspace.runs, &workspace.configs, NodesArgs::default(), workspace.patience)
        .map_err(CommandError::into_failure)
}

/// Whether the start of an entry can begin.
enum Begin {
    /// The entry is now [`QueueState::Starting`].
    Start,
    /// A user has changed the entry in the meantime.
    Changed,
    /// The worker of another user starts a run, perhaps on the same nodes.
    Wait,
}

/// Marks a waiting entry as starting, unless the worker of another user starts one.
fn begin(workspace: &Workspace, id: u32, starting: &QueueState) -> Result<Begin, Failure> {
    patiently(|| {
        workspace.queue().change(|entries, _| {
            if entries.iter().any(is_started_by_other_user) {
                return Ok(Begin::Wait);
            }
            let is_it = |entry: &&mut QueueEntry| entry.id == id && entry.state == QueueState::Waiting;
            let entry = entries.iter_mut().find(is_it).filter(|entry| entry.owner.is_none());
            Ok(entry.map_or(Begin::Changed, |entry| {
                entry.state = starting.clone();
                Begin::Start
            }))
        })
    })
}

/// Returns whether the worker of another user starts the run of an entry. If that worker was killed, its next worker repairs the entry.
fn is_started_by_other_user(entry: &QueueEntry) -> bool {
    let is_recent = |at_s: f64| (0.0..START_S).contains(&(now_s() - at_s));
    entry.owner.is_some() && matches!(entry.state, QueueState::Starting { at_s, .. } if is_recent(at_s))
}

/// Changes the state of an entry of this user if the state still is `from`. Returns whether the state was changed.
fn set_state(workspace: &Workspace, id: u32, from: &QueueState, to: QueueState) -> Result<bool, Failure> {
    patiently(|| {
        workspace.queue().change(|entries, _| {
            let is_it = |entry: &&mut QueueEntry| entry.id == id && entry.state == *from && entry.owner.is_none();
            Ok(entries.iter_mut().find(is_it).map(|entry| entry.state = to.clone()).is_some())
        })
    })
}

/// Repeats a change of the queue until another process releases the lock of the queue. Logs which process has it.
fn patiently<T>(mut change: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    loop {
        match change() {
            Err(failure) if failure.code == ErrorCode::Locked => note!("{failure}"),
            changed => return changed,
        }
    }
}
