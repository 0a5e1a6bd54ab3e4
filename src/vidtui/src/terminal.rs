//! Controls the terminal: raw mode and alternate screen for the console, restored on every exit.
//!
//! [`restore`] restores everything. Dropping the screen, the panic hook, the signal task and the suspension call it. A second
//! call does nothing.

use std::io::{self, IsTerminal, Stdout, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use alerts::{OscForm, Target};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use nix::sys::signal::{self, SigSet, Signal};
use nix::unistd::{self, Pid};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::style::{Print, ResetColor};
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute, queue};
use ratatui::style::Color;
use ratatui::{Frame, Terminal};
use rundir::{ErrorCode, Failure};

/// Whether the console handles the mouse. Otherwise the terminal does, and the mouse selects text.
static HANDLES_MOUSE: AtomicBool = AtomicBool::new(false);

/// Makes the terminal report button presses, releases and drags, and the wheel, in cells (SGR), but not motion without a button.
const MOUSE_ON: &str = "\x1b[?1000h\x1b[?1002h\x1b[?1006h";
/// Ends the reports of the mouse. Has no effect if they are off.
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1002l\x1b[?1000l";

/// Whether the console has the terminal now, so that a second call of [`restore`] does nothing.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether the console uses colours. A non-empty `NO_COLOR` disables them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// The colours of the theme.
    On,
    /// No colours: bold, reverse and glyphs show the differences instead.
    Off,
}

impl Colours {
    /// Reads `NO_COLOR`: <https://no-color.org>.
    pub fn from_env() -> Self {
        if std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty()) { Self::Off } else { Self::On }
    }
}

/// Returns whether a command may write escape sequences to this stream: to a terminal, unless the user wants plain text, for instance for a
/// screen reader.
pub fn takes_escapes(stream: &impl IsTerminal) -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && Colours::from_env() == Colours::On && !is_dumb
}

/// The alternate screen in raw mode. Dropping it restores the terminal.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<FrameWriter<Stdout>>>,
    colours: Colours,
}

impl Screen {
    /// Returns whether standard input and output are a terminal.
    pub fn available() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Makes the console handle the mouse, from the next time that it takes over the terminal.
    pub fn handle_mouse() {
        HANDLES_MOUSE.store(true, Ordering::SeqCst);
    }

    /// Enters the alternate screen and raw mode.
    pub fn open(colours: Colours) -> io::Result<Self> {
        let terminal = fresh_terminal()?;
        enter()?;
        Ok(Self { terminal, colours })
    }

    /// Draws one frame. Only changed cells are sent, and none while the terminal is restored.
    pub fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if !TAKEN.load(Ordering::SeqCst) {
            return Ok(());
        }
        let colours = self.colours;
        self.terminal.draw(|frame| {
            view(frame);
            if colours == Colours::Off {
                // The theme alone is not enough: under NO_COLOR, crossterm turns a colour into a bare `CSI m`, which
                // also resets bold and reverse.
                for cell in &mut frame.buffer_mut().content {
                    (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
                }
            }
        })?;
        Ok(())
    }

    /// Returns the size in columns and rows.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        let size = self.terminal.size()?;
        Ok((size.width, size.height))
    }

    /// Copies `text` to the clipboard of the terminal (OSC 52). This works over SSH too.
    pub fn copy(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        write!(out, "\x1b]52;c;{}\x07", BASE64.encode(text))?;
        out.flush()
    }

    /// Sends sequences that do not change the screen, such as the bell.
    pub fn send(&mut self, sequences: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(sequences.as_bytes())?;
        out.flush()
    }

    /// Enters the alternate screen again. The next frame draws every cell.
    pub fn retake(&mut self) -> io::Result<()> {
        enter()?;
        self.terminal = fresh_terminal()?;
        Ok(())
    }
}

/// The control character that rings the bell.
pub const BELL: &str = "\x07";

/// Returns the escape sequence of a desktop notification.
pub fn notification(form: OscForm, title: &str, text: &str) -> String {
    // A control character would end the sequence, and a ';' the title.
    let plain = |text: &str| text.replace(|c: char| c.is_control(), " ").chars().take(200).collect::<String>();
    match form {
        OscForm::Nine => format!("\x1b]9;{}: {}\x07", plain(title), plain(text)),
        OscForm::SevenSevenSeven => {
            format!("\x1b]777;notify;{};{}\x07", plain(title).replace(';', ","), plain(text))
        }
    }
}

/// Sends a test alert to a channel of this terminal: a notification or the bell.
///
/// # Errors
/// Standard error is not a terminal, or cannot be written to.
pub fn test_notification(to: &Target) -> Result<(), Failure> {
    let sequence = match to {
        Target::Osc { form } => notification(*form, "vidtui", "this is a test of vidtui"),
        _ => BELL.to_owned(),
    };
    let mut out = io::stderr();
    let sent =
        if out.is_terminal() { out.write_all(sequence.as_bytes()) } else { Err(io::ErrorKind::NotConnected.into()) };
    sent.map_err(|error| {
        let what = format!("the test alert did not reach {}", to.name());
        let fix = "run the command in a terminal; the console writes this channel while it is open";
        Failure::new(ErrorCode::NoTerminal, what, format!("standard error is not a terminal: {error}"), fix)
    })
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Blocks SIGTSTP until [`suspend_if_requested`], in this thread and in threads that it starts later.
///
/// The signal is blocked and has no handler, so that the kernel discards it if the shell continues this process before it
/// has stopped. Otherwise the process would stop, and the shell would not continue it again.
pub fn hold_suspension() -> io::Result<()> {
    Ok(suspension().thread_block()?)
}

/// Requests the suspension of this process and its job. [`suspend_if_requested`] carries it out.
///
/// Signals the whole process group, because `cargo run` and `cargo xtask demo` wait in it and the shell returns only when
/// they stop too. Restores the terminal first, because the shell can return at once.
///
/// # Errors
/// `Unsupported` when there is no shell to return to (the console is the first process of a terminal window).
pub fn request_suspend() -> io::Result<()> {
    if !shell_is_waiting() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "no shell waits for the console"));
    }
    restore();
    Ok(signal::killpg(unistd::getpgrp(), Signal::SIGTSTP)?)
}

/// Restores the terminal and stops this process if a SIGTSTP is pending. Returns after `fg`, which also sends SIGCONT: its
/// handler enters the alternate screen again.
pub fn suspend_if_requested() -> io::Result<()> {
    if suspension_is_pending()? {
        restore();
        suspension().thread_unblock()?;
        suspension().thread_block()?;
    }
    Ok(())
}

fn suspension() -> SigSet {
    SigSet::from(Signal::SIGTSTP)
}

/// Returns whether SIGTSTP is pending. `ShdPnd` is a hexadecimal mask of the pending signals whose lowest bit is signal 1.
fn suspension_is_pending() -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or_default();
    Ok(u64::from_str_radix(mask.trim(), 16).unwrap_or_default() >> (Signal::SIGTSTP as u32 - 1) & 1 == 1)
}

/// Restores the terminal: main screen, cursor, line mode, no colours.
pub fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // Errors are ignored: a closed terminal cannot be restored, and cannot show an error.
        let mut out = io::stdout();
        let _ = write_leave_sequences(&mut out);
        let _ = disable_raw_mode();
    }
}

/// Makes a panic in any thread restore the terminal, print its message and end the console.
pub fn install_panic_hook() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if rundir::is_panic_caught() {
            return;
        }
        restore();
        report(panic);
        let hint = "vidtui: this is a bug in the console. Runs continue without it. To open it again: vidtui";
        let _ = writeln!(io::stderr(), "{hint}");
        std::process::exit(101);
    }));
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    let mouse = if HANDLES_MOUSE.load(Ordering::SeqCst) { MOUSE_ON } else { "" };
    let taken = execute!(
        io::stdout(),
        EnterAlternateScreen,
        EnableBracketedPaste,
        Print(mouse),
        cursor::Hide,
        Clear(ClearType::All)
    );
    taken.inspect_err(|_| restore())
}

fn write_leave_sequences(out: &mut impl Write) -> io::Result<()> {
    queue!(out, Print(MOUSE_OFF), DisableBracketedPaste, ResetColor, LeaveAlternateScreen, cursor::Show)?;
    out.flush()
}

fn fresh_terminal() -> io::Result<Terminal<CrosstermBackend<FrameWriter<Stdout>>>> {
    Terminal::new(CrosstermBackend::new(FrameWriter::new(io::stdout())))
}

/// Writes each frame at once, and nothing for a frame without a changed cell.
struct FrameWriter<W> {
    out: W,
    frame: Vec<u8>,
}

impl<W> FrameWriter<W> {
    /// The bytes of a frame without a changed cell: ratatui resets colours and attributes and hides the cursor.
    const UNCHANGED: &[u8] = b"\x1b[39m\x1b[49m\x1b[59m\x1b[0m\x1b[?25l";
    /// The size of the buffer that is kept between frames.
    const KEPT: usize = 1 << 16;

    fn new(out: W) -> Self {
        Self { out, frame: Vec::new() }
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.frame.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = if self.frame == Self::UNCHANGED { Ok(()) } else { self.out.write_all(&self.frame) };
        self.frame.clear();
        self.frame.shrink_to(Self::KEPT);
        written.and_then(|()| self.out.flush())
    }
}

/// Returns whether an ancestor of this process is in this session but in another process group, so that a shell can continue this group.
/// The kernel does not stop a group without such an ancestor (an orphaned process group).
fn shell_is_waiting() -> bool {
    let (group, session) = (unistd::getpgrp(), unistd::getsid(None).ok());
    let mut parent = Some(unistd::getppid());
    while let Some(pid) = parent {
        if unistd::getpgid(Some(pid)) != Ok(group) {
            return session.is_some() && unistd::getsid(Some(pid)).ok() == session;
        }
        parent = parent_of(pid);
    }
    false
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name is in parentheses and can contain any character. The parent is the second field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_without_a_changed_cell_writes_nothing() {
        use ratatui::layout::Rect;
        use ratatui::{TerminalOptions, Viewport};
        let file = tempfile::tempfile().unwrap();
        let backend = CrosstermBackend::new(FrameWriter::new(&file));
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::new(0, 0, 20, 2)) };
        let mut terminal = Terminal::with_options(backend, options).unwrap();
        let written = ["one", "one", "two", "two"].map(|text| {
            terminal.draw(|frame| frame.render_widget(text, frame.area())).unwrap();
            file.metadata().unwrap().len()
        });
        let [first, same, other, same_again] = written;
        assert!(0 < first && first == same && same < other && other == same_again, "{written:?}");
    }

    #[test]
    fn a_notification_has_no_control_characters_of_its_own() {
        let sequences = [OscForm::Nine, OscForm::SevenSevenSeven].map(|form| notification(form, "a;b", "c\x07\nd"));
        assert_eq!(sequences, ["\x1b]9;a;b: c  d\x07", "\x1b]777;notify;a,b;c  d\x07"]);
    }

    #[test]
    fn leaving_restores_cursor_main_screen_mouse_and_plain_paste() {
        let mut out = Vec::new();
        write_leave_sequences(&mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        for sequence in ["\x1b[?1000l", "\x1b[?1002l", "\x1b[?1006l", "\x1b[?2004l", "\x1b[?1049l", "\x1b[?25h"] {
            assert!(out.contains(sequence), "{sequence:?} is missing in {out:?}");
        }
    }
}
