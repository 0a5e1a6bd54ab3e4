//! The console: one loop through which everything passes, in one order.
//!
//! ```text
//! keys ───────┐                                        ┌─> screen (at most 30 times a second, only when dirty)
//! clock ──────┼─> Queue ─> Msg ─> ui::update ──────────┼─> ui::watches ─> watches.rs starts and stops streams
//! streams ────┤                        │               └─> record.rs
//! effects ────┘ <──── effects.rs <─────┘ Effect
//! ```

use crate::effects::Runner;
use crate::queue::Queue;
use crate::record::{Header, Moment, Recorder};
use crate::refusal::Refusal;
use crate::terminal::{self, Colours, Screen};
use crate::watches::{Stop, Watcher};
use crate::workspace::Workspace;
use camino::Utf8Path;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rundir::{Failure, now_s};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use ui::{Effect, Model, Msg, Setup, Size, Symbols, Theme};

/// Messages handled before the screen is drawn again.
const BATCH: usize = 256;
/// The shortest time between two frames: a burst of messages is drawn once.
const FRAME: Duration = Duration::from_millis(33);
/// How often the clock ticks.
const TICK: Duration = Duration::from_secs(1);

/// What comes through the queue.
pub enum Item {
    /// From the keyboard or an effect.
    Msg(Msg),
    /// From a stream, to be dropped when the stream has been stopped since.
    Stream(Stop, Msg),
    /// A signal to this process.
    Signal(i32),
    /// The keyboard cannot be read any more.
    Gone,
}

/// How the console ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Somebody pressed quit.
    Quit,
    /// A signal asked for it; the process then dies of it, as its parent expects.
    Signal(i32),
    /// The terminal went away.
    Gone,
}

/// Opens the console, on a run if one is named, and returns when it has been closed; runs go on without it.
///
/// # Errors
/// A refusal in one line when there is no terminal; a failure when the terminal cannot be used.
pub fn open(workspace: Workspace, run: Option<&str>, record: Option<&Utf8Path>) -> Result<End, Refusal> {
    if !Screen::available() {
        let what = "vidtui: the console needs a terminal, and here is none";
        return Err(Refusal::request(Failure::new(
            rundir::ErrorCode::Unclassified,
            what,
            "use `vidtui runs` and `vidtui status RUN` instead",
            "",
        )));
    }
    let run = run.map(|run| Ok::<_, Refusal>(workspace.find(run)?.read_run()?.id)).transpose()?;
    let workspace = Arc::new(workspace);
    let queue = Arc::new(Queue::new());
    let mut screen = take_terminal(&queue)?;
    let (width, height) = screen.size().map_err(cannot_open)?;
    let setup = Setup {
        size: Size { width, height },
        now: now_s(),
        theme: theme(),
        symbols: symbols(),
        runs_dir: workspace.runs.clone(),
        export_dir: workspace.here.clone(),
        nodes_from: workspace.nodes_from(),
        open: run,
    };
    let recorder = record.map(|file| Recorder::create(file, &setup)).transpose()?;
    read_keys(queue.clone(), |event| message_of(event).map(Item::Msg));
    let runner = Runner::new(workspace.clone(), queue.clone());
    let live = Live { runner, watcher: Watcher::new(workspace, queue.clone()), recorder };
    let mut console = Console { model: Model::new(setup), queue, live: Some(live) };
    let end = console.run(&mut screen);
    drop(screen);
    console.queue.close();
    if let Some(live) = console.live {
        live.runner.finish();
    }
    if let Some(farewell) = ui::farewell(&console.model) {
        println!("{farewell}");
    }
    end
}

/// Plays a recorded session, so many times faster, and returns when somebody presses q.
///
/// # Errors
/// When the terminal cannot be used. A line that cannot be read ends the recording there.
pub fn replay(
    header: &Header,
    moments: impl Iterator<Item = Moment> + Send + 'static,
    speed: f64,
) -> Result<End, Refusal> {
    let queue = Arc::new(Queue::new());
    let mut screen = take_terminal(&queue)?;
    let (width, height) = screen.size().map_err(cannot_open)?;
    let model = Model::new(header.setup(Size { width, height }));
    read_keys(queue.clone(), |event| match event {
        Event::Key(key) if matches!(key.code, KeyCode::Char('q' | 'c') | KeyCode::Esc) => Some(Item::Gone),
        _ => None,
    });
    let (to, started) = (queue.clone(), Instant::now());
    thread::spawn(move || {
        for moment in moments {
            let due = Duration::from_secs_f64((moment.at_s / speed).clamp(0.0, 1e9));
            thread::sleep(due.saturating_sub(started.elapsed()));
            // The window has its own size, whatever the recorded one had.
            if !matches!(moment.msg, Msg::Resize(_)) && to.push(Item::Msg(moment.msg)).is_err() {
                return;
            }
        }
    });
    let end = Console { model, queue: queue.clone(), live: None }.run(&mut screen);
    queue.close();
    end
}

/// Takes the terminal, after making sure that it will be given back.
fn take_terminal(queue: &Arc<Queue<Item>>) -> Result<Screen, Refusal> {
    terminal::install_panic_hook();
    terminal::hold_suspension().map_err(cannot_open)?;
    watch_signals(queue.clone()).map_err(cannot_open)?;
    Screen::open(Colours::from_env()).map_err(cannot_open)
}

struct Console {
    model: Model,
    queue: Arc<Queue<Item>>,
    /// What connects the screen with the world; a replay has no world.
    live: Option<Live>,
}

struct Live {
    runner: Runner,
    watcher: Watcher,
    recorder: Option<Recorder>,
}

impl Console {
    fn run(&mut self, screen: &mut Screen) -> Result<End, Refusal> {
        self.tick(screen)?;
        self.draw(screen)?;
        let (mut drawn, mut ticked) = (Instant::now(), Instant::now());
        loop {
            // After the first frame, which does not wait for files.
            if let Some(live) = &mut self.live {
                live.watcher.reconcile(&ui::watches(&self.model));
            }
            let deadline = if self.model.dirty() { drawn + FRAME } else { ticked + TICK };
            for item in self.queue.take(BATCH, deadline.min(ticked + TICK)) {
                match item {
                    Item::Msg(msg) => self.handle(msg, screen)?,
                    Item::Stream(stop, msg) if !stop.requested() => self.handle(msg, screen)?,
                    Item::Stream(..) => {}
                    Item::Signal(SIGCONT) => {
                        screen.retake().map_err(cannot_draw)?;
                        self.redraw_all(screen)?;
                    }
                    Item::Signal(SIGWINCH) => self.redraw_all(screen)?,
                    Item::Signal(signal) => return Ok(End::Signal(signal)),
                    Item::Gone => return Ok(End::Gone),
                }
                // The last screen of a replay stays until somebody has seen it.
                if self.model.quitting() && self.live.is_some() {
                    return Ok(End::Quit);
                }
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.tick(screen)?;
                terminal::suspend_if_asked().map_err(cannot_draw)?;
            }
            if self.model.dirty() && drawn.elapsed() >= FRAME {
                self.draw(screen)?;
                drawn = Instant::now();
            }
        }
    }

    /// Tells the time; a recording has its own.
    fn tick(&mut self, screen: &mut Screen) -> Result<(), Refusal> {
        if self.live.is_some() { self.handle(Msg::Tick(now_s()), screen) } else { Ok(()) }
    }

    /// The one way into the model.
    fn handle(&mut self, msg: Msg, screen: &mut Screen) -> Result<(), Refusal> {
        if let Some(Live { recorder: Some(recorder), .. }) = &mut self.live {
            recorder.push(&msg)?;
        }
        let effects = ui::update(&mut self.model, msg);
        let Some(live) = &mut self.live else { return Ok(()) };
        for effect in effects {
            match effect {
                Effect::Copy(text) => screen.copy(&text).map_err(cannot_draw)?,
                // No shell to return to: nothing happens, as with any program that leads its terminal.
                Effect::Suspend => {
                    if terminal::request_suspend().is_ok() {
                        terminal::suspend_if_asked().map_err(cannot_draw)?;
                    }
                }
                Effect::Quit => {}
                other => live.runner.start(other),
            }
        }
        Ok(())
    }

    fn draw(&mut self, screen: &mut Screen) -> Result<(), Refusal> {
        screen.draw(|frame| ui::view(&self.model, frame)).map_err(cannot_draw)?;
        self.model.drawn();
        Ok(())
    }

    fn redraw_all(&mut self, screen: &mut Screen) -> Result<(), Refusal> {
        let (width, height) = screen.size().map_err(cannot_draw)?;
        self.handle(Msg::Resize(Size { width, height }), screen)?;
        self.draw(screen)
    }
}

/// Turns signals into items of the queue. One that is to end the program is obeyed here when the loop does not: it has
/// ended, or this is the second time of asking.
fn watch_signals(queue: Arc<Queue<Item>>) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGHUP, SIGINT, SIGCONT, SIGWINCH])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut asked_to_end = false;
        for signal in signals.forever() {
            let ends = !matches!(signal, SIGCONT | SIGWINCH);
            let heard = queue.push_urgent(Item::Signal(signal)).is_ok();
            if ends && (asked_to_end || !heard) {
                terminal::restore();
                die_of(signal);
            }
            asked_to_end |= ends;
        }
    })?;
    Ok(())
}

/// Ends this process as `signal` would have, so that a waiting shell sees why.
pub fn die_of(signal: i32) -> ! {
    // It returns only for signals whose default is to do nothing, which are not asked for here.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}

fn read_keys(queue: Arc<Queue<Item>>, item_of: fn(Event) -> Option<Item>) {
    thread::spawn(move || {
        loop {
            match event::read() {
                Ok(event) => {
                    if let Some(item) = item_of(event)
                        && queue.push_urgent(item).is_err()
                    {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // Whether anybody hears it any more does not matter.
                    let _ = queue.push_urgent(Item::Gone);
                    return;
                }
            }
        }
    });
}

/// The message that a terminal event stands for; keys that the console does not know are dropped. That the size has changed,
/// a signal says: when a key comes with it, crossterm may keep it for itself.
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
                _ => return None,
            };
            let held = |modifier| key.modifiers.contains(modifier);
            Some(Msg::Key(ui::Key { code, ctrl: held(KeyModifiers::CONTROL), alt: held(KeyModifiers::ALT) }))
        }
        _ => None,
    }
}

/// The colours of this terminal: none, sixteen or all.
pub fn theme() -> Theme {
    let variable = |name| std::env::var(name).unwrap_or_default();
    if Colours::from_env() == Colours::Off || variable("TERM") == "dumb" {
        Theme::no_color()
    } else if matches!(variable("COLORTERM").as_str(), "truecolor" | "24bit") {
        Theme::truecolor()
    } else {
        Theme::ansi16()
    }
}

/// The glyphs that the locale can show, by the same three variables that the C library reads, in its order.
pub fn symbols() -> Symbols {
    if symbols_are_unicode() { Symbols::unicode() } else { Symbols::ascii() }
}

/// Whether the locale shows more than ASCII.
pub fn symbols_are_unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    let locale = locale.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

fn cannot_open(error: io::Error) -> Refusal {
    Failure::new(
        rundir::ErrorCode::Unclassified,
        "cannot open the console",
        error.to_string(),
        "use `vidtui runs` and `vidtui status RUN` instead",
    )
    .into()
}

/// The terminal went away, or cannot be written to.
fn cannot_draw(error: io::Error) -> Refusal {
    let fix = "open it again with `vidtui`; runs go on meanwhile";
    Failure::new(rundir::ErrorCode::Unclassified, "the console lost its terminal", error.to_string(), fix).into()
}
