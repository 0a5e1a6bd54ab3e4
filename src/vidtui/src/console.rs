//! The console: one loop that handles every message, in one order, on one runtime.
//!
//! ```text
//! keys ───────┐                                        ┌─> screen (only when dirty; at most 30 times a second, at once after a key)
//! clock ──────┼─> queue ─> Msg ─> ui::update ──────────┼─> ui::watches ─> watches.rs starts and stops streams
//! streams ────┤                        │               └─> record.rs
//! effects ────┘ <──── effects.rs <─────┘ Effect
//! ```
//!
//! The loop runs on the main thread, streams and signals as tasks, and keys, effects and programs on blocking threads of the runtime.

use crate::appearance;
use crate::command_error::CommandError;
use crate::effects::Runner;
use crate::last_screen;
use crate::output;
use crate::queue::{self, Item, Reader, Sender};
use crate::record::{Header, RecordedMsg, Recorder};
use crate::settings::Settings;
use crate::signals;
use crate::terminal::{self, Colours, Screen};
use crate::watches::Watcher;
use crate::workspace::{Workspace, draft_of};
use alerts::{OscForm, Target};
use camino::Utf8Path;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers, MouseButton, MouseEventKind};
use rundir::{ErrorCode, Failure, RunId, now_s};
use signal_hook::consts::{SIGCONT, SIGWINCH};
use std::env;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime;
use tokio::task::{block_in_place, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use ui::{Effect, Model, Msg, Setup, Size};

/// The most keys and other urgent items that are handled before a frame.
const BATCH: usize = 8;
/// The shortest time between two frames, so that a burst of messages is drawn once.
const FRAME: Duration = Duration::from_millis(33);
/// The shortest time between two frames after a key or mouse event, so that the screen responds at once while runs are loading.
const ANSWER: Duration = Duration::from_millis(5);
/// How often the clock ticks.
const TICK: Duration = Duration::from_secs(1);
/// How often the free pages of the heap return to the system.
const TRIM: Duration = Duration::from_secs(60);
/// The number of threads that run tasks. A task that blocks hands over its thread, so two threads serve all streams.
const WORKERS: usize = 2;
/// The most blocking threads: several for every node of a large cluster (its session, its watch, and three for each program that runs
/// through OpenSSH), because each thread can wait for a node that does not answer. The runtime starts threads on demand, and only the
/// used part of their 2 MiB stacks takes memory.
const BLOCKING_THREADS: usize = 16_384;

/// How the console ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The user pressed quit.
    Quit,
    /// A signal ended the console. The process then exits by that signal, as its parent expects.
    Signal(i32),
    /// The terminal was closed.
    Gone,
}

/// Opens the console, at a run if `run` names one, and returns when the user closes it. Runs continue without the console.
///
/// # Errors
/// There is no terminal, the terminal cannot be used, there is no such run, or the recording cannot be written.
pub fn open(workspace: Workspace, run: Option<&str>, record: Option<&Utf8Path>) -> Result<End, CommandError> {
    if !Screen::available() {
        return Err(CommandError::request(Failure::new(
            ErrorCode::NoTerminal,
            "cannot open the console",
            "standard input or output is not a terminal",
            "use `vidtui runs` and `vidtui status RUN`",
        )));
    }
    if env::var("TERM").is_ok_and(|term| term == "dumb") {
        return Err(CommandError::request(Failure::new(
            ErrorCode::NoTerminal,
            "cannot open the console",
            "TERM is dumb: this terminal cannot draw a screen",
            "use `vidtui runs`, `vidtui status RUN` and the other commands, which print plain text",
        )));
    }
    let run = run.map(|run| Ok::<_, CommandError>(workspace.find(run)?.read_run()?.id)).transpose()?;
    let trash = workspace.trash();
    // Large checkpoints take seconds. The next console ends a removal that is interrupted.
    std::thread::spawn(move || trash.remove_expired(now_s()));
    on_runtime(open_on_runtime(Arc::new(workspace), run, record))
}

async fn open_on_runtime(
    workspace: Arc<Workspace>,
    run: Option<RunId>,
    record: Option<&Utf8Path>,
) -> Result<End, CommandError> {
    let (runs, is_simulated) = (workspace.runs.clone(), workspace.simulate.is_some());
    // A mistake in the settings must not keep a user from the runs: it is shown, and the default settings apply.
    let (settings, problem) = match Settings::of_user() {
        Ok(settings) => (settings, None),
        Err(failure) => (Settings::default(), Some(failure)),
    };
    if settings.mouse {
        Screen::handle_mouse();
    }
    let (sender, reader) = queue::queue();
    let mut screen = take_terminal(&sender)?;
    let (width, height) = screen.size().map_err(cannot_open)?;
    let setup = Setup {
        size: Size { width, height },
        now: now_s(),
        theme: appearance::theme(&settings),
        symbols: appearance::symbols(&settings),
        keys: settings.keys.clone(),
        runs_dir: workspace.runs.clone(),
        export_dir: workspace.here.clone(),
        nodes_from: workspace.nodes_from(),
        launch: draft_of(&workspace.nodes, None),
        has_desktop: appearance::has_desktop(),
        // Simulated nodes are to be looked at, wherever the last session ended.
        session: match workspace.simulate {
            Some(_) => Some(ui::Session { screen: ui::Screen::Nodes, ..ui::Session::default() }),
            None => settings.restore.then(|| last_screen::read(&workspace.runs)).flatten(),
        },
        open: run,
        problem,
    };
    let recorder = record.map(|file| Recorder::create(file, &setup)).transpose()?;
    read_keys(sender.clone(), |event| message_of(event).map(Item::Msg));
    let runner = Runner::new(workspace.clone(), sender.clone());
    let live = Live { runner, watcher: Watcher::new(workspace, sender), recorder, osc: osc_form() };
    let mut console = Console { model: Model::new(setup), reader, live: Some(live) };
    let end = console.run(&mut screen).await;
    drop(screen);
    let Console { model, reader, live } = console;
    // From now on, a signal ends the console even if the home folder does not answer.
    drop(reader);
    if settings.restore && !is_simulated {
        last_screen::write(&runs, model.session());
    }
    if let Some(Live { runner, watcher, .. }) = live {
        drop(watcher);
        runner.finish().await;
    }
    if let Some(closing_message) = ui::closing_message(&model) {
        let _ = output::line(&closing_message);
    }
    end
}

/// Runs a console on its own runtime. Tasks that still run at the end only read, so they are abandoned: a node or a file system that
/// does not answer does not delay the exit.
fn on_runtime(console: impl Future<Output = Result<End, CommandError>>) -> Result<End, CommandError> {
    terminal::install_panic_hook();
    // Call this before the runtime starts threads: they inherit the blocked signals.
    terminal::hold_suspension().map_err(cannot_open)?;
    let mut threads = runtime::Builder::new_multi_thread();
    threads.worker_threads(WORKERS).max_blocking_threads(BLOCKING_THREADS).enable_all();
    let runtime = threads.build().map_err(cannot_open)?;
    let pool = runtime.handle().clone();
    // Sessions of SSH, watches of nodes and pipes of programs block threads of this runtime too.
    remote::run_blocking_work_with(move |work| drop(pool.spawn_blocking(work)));
    let end = runtime.block_on(console);
    runtime.shutdown_background();
    end
}

/// Returns the escape sequence for notifications that the user has set.
fn osc_form() -> OscForm {
    let settings = alerts::Settings::of_user().ok().flatten().unwrap_or_default();
    let mut forms = settings.channels.iter().filter_map(|channel| match channel.to {
        Target::Osc { form } => Some(form),
        _ => None,
    });
    forms.next_back().unwrap_or_default()
}

/// Plays a recorded session `speed` times faster, and returns when the user presses q.
///
/// # Errors
/// The terminal cannot be used.
pub fn replay(
    header: &Header,
    messages: impl Iterator<Item = RecordedMsg> + Send + 'static,
    speed: f64,
) -> Result<End, CommandError> {
    on_runtime(replay_on_runtime(header, messages, speed))
}

async fn replay_on_runtime(
    header: &Header,
    mut messages: impl Iterator<Item = RecordedMsg> + Send + 'static,
    speed: f64,
) -> Result<End, CommandError> {
    let (sender, reader) = queue::queue();
    let mut screen = take_terminal(&sender)?;
    let (width, height) = screen.size().map_err(cannot_open)?;
    let model = Model::new(header.setup(Size { width, height }));
    read_keys(sender.clone(), |event| match event {
        Event::Key(key) if matches!(key.code, KeyCode::Char('q' | 'c') | KeyCode::Esc) => Some(Item::Gone),
        _ => None,
    });
    let started = Instant::now();
    tokio::spawn(async move {
        while let Some(recorded) = block_in_place(|| messages.next()) {
            sleep_until(started + Duration::from_secs_f64((recorded.at_s / speed).clamp(0.0, 1e9))).await;
            // The replay uses the size of this terminal.
            if !matches!(recorded.msg, Msg::Resize(_)) && sender.stream(Item::Msg(recorded.msg)).await.is_err() {
                return;
            }
        }
    });
    Console { model, reader, live: None }.run(&mut screen).await
}

/// Takes over the terminal. Handles signals first, so that a signal restores the terminal.
fn take_terminal(queue: &Sender) -> Result<Screen, CommandError> {
    signals::watch(queue).map_err(cannot_open)?;
    Screen::open(Colours::from_env()).map_err(cannot_open)
}

struct Console {
    model: Model,
    reader: Reader,
    /// Effects, streams and recorder. None in a replay.
    live: Option<Live>,
}

struct Live {
    runner: Runner,
    watcher: Watcher,
    recorder: Option<Recorder>,
    /// The escape sequence for notifications.
    osc: OscForm,
}

impl Console {
    async fn run(&mut self, screen: &mut Screen) -> Result<End, CommandError> {
        self.tick(screen)?;
        self.draw(screen)?;
        let (mut drawn, mut ticked, mut trimmed, mut pause) = (Instant::now(), Instant::now(), Instant::now(), FRAME);
        loop {
            // Start streams only after the first frame, so that the frame does not wait for files.
            if let Some(live) = &mut self.live {
                live.watcher.reconcile(&ui::watches(&self.model));
            }
            let deadline = if self.model.dirty() { drawn + pause } else { ticked + TICK };
            for item in self.reader.take(BATCH, deadline.min(ticked + TICK)).await {
                match item {
                    Item::Msg(msg) => {
                        if matches!(msg, Msg::Key(_) | Msg::Mouse(_)) {
                            pause = ANSWER;
                        }
                        self.handle(msg, screen)?;
                    }
                    Item::Stream(stop, msg) if !stop.is_cancelled() => self.handle(msg, screen)?,
                    Item::Stream(..) => {}
                    Item::Signal(SIGCONT) => {
                        screen.retake().map_err(cannot_draw)?;
                        self.redraw_all(screen)?;
                    }
                    Item::Signal(SIGWINCH) => self.redraw_all(screen)?,
                    Item::Signal(signal) => return Ok(End::Signal(signal)),
                    Item::Gone => return Ok(End::Gone),
                }
                // The last screen of a replay stays until the user leaves it.
                if self.model.quitting() && self.live.is_some() {
                    return Ok(End::Quit);
                }
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.tick(screen)?;
                terminal::suspend_if_requested().map_err(cannot_draw)?;
            }
            if trimmed.elapsed() >= TRIM {
                trimmed = Instant::now();
                spawn_blocking(heap::trim);
            }
            if self.model.dirty() && drawn.elapsed() >= pause {
                self.draw(screen)?;
                (drawn, pause) = (Instant::now(), FRAME);
            }
        }
    }

    /// Sends the time to the model, except in a replay: a recording contains its ticks.
    fn tick(&mut self, screen: &mut Screen) -> Result<(), CommandError> {
        if self.live.is_some() { self.handle(Msg::Tick(now_s()), screen) } else { Ok(()) }
    }

    /// Updates the model with a message and starts the effects. Nothing else changes the model.
    fn handle(&mut self, msg: Msg, screen: &mut Screen) -> Result<(), CommandError> {
        if let Some(Live { recorder: Some(recorder), .. }) = &mut self.live {
            recorder.push(&msg)?;
        }
        let effects = ui::update(&mut self.model, msg);
        let Some(live) = &mut self.live else { return Ok(()) };
        for effect in effects {
            match effect {
                Effect::Notify { bell, text } => {
                    let text = text.map(|(title, text)| terminal::notification(live.osc, &title, &text));
                    let bell = if bell { terminal::BELL } else { "" };
                    screen.send(&format!("{bell}{}", text.unwrap_or_default())).map_err(cannot_draw)?;
                }
                Effect::Copy(text) => screen.copy(&text).map_err(cannot_draw)?,
                // Without a shell to return to, the request fails, and the console is not suspended.
                Effect::Suspend => {
                    if terminal::request_suspend().is_ok() {
                        terminal::suspend_if_requested().map_err(cannot_draw)?;
                    }
                }
                Effect::OpenFile(path) => open_file(path),
                Effect::Quit => {}
                Effect::Job { job, request } => live.runner.start(job, request),
                Effect::StopJob(job) => live.runner.stop(job),
            }
        }
        Ok(())
    }

    fn draw(&mut self, screen: &mut Screen) -> Result<(), CommandError> {
        screen.draw(|frame| ui::view(&self.model, frame)).map_err(cannot_draw)?;
        self.model.drawn();
        Ok(())
    }

    fn redraw_all(&mut self, screen: &mut Screen) -> Result<(), CommandError> {
        let (width, height) = screen.size().map_err(cannot_draw)?;
        self.handle(Msg::Resize(Size { width, height }), screen)?;
        self.draw(screen)
    }
}

/// Opens a file with the desktop's program for it. The console does not wait for that program.
fn open_file(path: camino::Utf8PathBuf) {
    spawn_blocking(move || {
        let mut program = Command::new("xdg-open");
        program.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // A failure is ignored: the path is on the screen.
        program.status().ok()
    });
}

/// Reads the keyboard on a blocking thread.
///
/// Crossterm's `EventStream` has such a thread too, but if the terminal is gone, it retries without a pause and never wakes
/// the task (crossterm 0.29, event/stream.rs).
fn read_keys(queue: Sender, item_of: fn(Event) -> Option<Item>) {
    spawn_blocking(move || {
        loop {
            match event::read() {
                Ok(event) => {
                    if let Some(item) = item_of(event)
                        && queue.urgent(item).is_err()
                    {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The loop may have ended already.
                    let _ = queue.urgent(Item::Gone);
                    return;
                }
            }
        }
    });
}

/// Converts a terminal event into a message. Drops keys that have no binding, and changes of the window's size: SIGWINCH
/// reports those, because crossterm can delay a resize event that arrives together with a key.
fn message_of(event: Event) -> Option<Msg> {
    match event {
        Event::Paste(text) => Some(Msg::Paste(text)),
        Event::Key(key) if key.kind != KeyEventKind::Release => {
            let code = match key.code {
                KeyCode::Char(c) => ui::KeyCode::Char(c),
                KeyCode::Enter => ui::KeyCode::Enter,
                KeyCode::Esc => ui::KeyCode::Esc,
                KeyCode::Tab => ui::KeyCode::Tab,
                KeyCode::BackTab => ui::KeyCode::BackTab,
                KeyCode::Backspace => ui::KeyCode::Backspace,
                KeyCode::Delete => ui::KeyCode::Delete,
                KeyCode::Up => ui::KeyCode::Up,
                KeyCode::Down => ui::KeyCode::Down,
                KeyCode::Left => ui::KeyCode::Left,
                KeyCode::Right => ui::KeyCode::Right,
                KeyCode::Home => ui::KeyCode::Home,
                KeyCode::End => ui::KeyCode::End,
                KeyCode::PageUp => ui::KeyCode::PageUp,
                KeyCode::PageDown => ui::KeyCode::PageDown,
                KeyCode::F(number) => ui::KeyCode::F(number),
                _ => return None,
            };
            let held = |modifier| key.modifiers.contains(modifier);
            Some(Msg::Key(ui::Key { code, ctrl: held(KeyModifiers::CONTROL), alt: held(KeyModifiers::ALT) }))
        }
        Event::Mouse(mouse) => {
            let kind = match mouse.kind {
                MouseEventKind::Down(MouseButton::Left) => ui::MouseKind::Press,
                MouseEventKind::Drag(MouseButton::Left) => ui::MouseKind::Drag,
                MouseEventKind::Up(MouseButton::Left) => ui::MouseKind::Release,
                MouseEventKind::ScrollUp => ui::MouseKind::WheelUp,
                MouseEventKind::ScrollDown => ui::MouseKind::WheelDown,
                _ => return None,
            };
            Some(Msg::Mouse(ui::Mouse { kind, column: mouse.column, row: mouse.row }))
        }
        _ => None,
    }
}

fn cannot_open(error: io::Error) -> CommandError {
    Failure::new(
        ErrorCode::NoTerminal,
        "cannot open the console",
        error.to_string(),
        "use `vidtui runs` and `vidtui status RUN`",
    )
    .into()
}

/// Returns the failure for a terminal that was closed or cannot be written to.
fn cannot_draw(error: io::Error) -> CommandError {
    let fix = "open the console again: vidtui (runs continue without it)";
    Failure::new(ErrorCode::NoTerminal, "the console lost its terminal", error.to_string(), fix).into()
}
