//! The terminal: taken for the console, and given back whatever happens.
//!
//! Everything is restored by [`restore`], which is called when the screen is dropped, by the panic hook, by the signal
//! thread and before suspending. It may be called twice.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use nix::sys::signal::{self, SigSet, Signal};
use nix::unistd::{self, Pid};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::style::ResetColor;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute, queue};
use ratatui::style::Color;
use ratatui::{Frame, Terminal};

/// Whether the terminal is ours at the moment, so that restoring twice does nothing the second time.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether the console may use colours; `NO_COLOR` with any text says no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// As the theme says.
    On,
    /// None at all: bold, reverse and glyphs carry the meaning.
    Off,
}

impl Colours {
    /// Reads the wish of the user: <https://no-color.org>.
    pub fn from_env() -> Self {
        if std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty()) { Self::Off } else { Self::On }
    }
}

/// The alternate screen in raw mode; dropping it gives the terminal back.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    colours: Colours,
}

impl Screen {
    /// Says whether both ends are a terminal, which the console needs.
    pub fn available() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Takes the terminal.
    pub fn open(colours: Colours) -> io::Result<Self> {
        let terminal = fresh_terminal()?;
        enter()?;
        Ok(Self { terminal, colours })
    }

    /// Draws one frame; only cells that changed are sent, and none while the terminal is given back.
    pub fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if !TAKEN.load(Ordering::SeqCst) {
            return Ok(());
        }
        let colours = self.colours;
        self.terminal.draw(|frame| {
            view(frame);
            if colours == Colours::Off {
                // Not left to the theme alone: crossterm under NO_COLOR turns a colour into a bare `CSI m`, which
                // would also undo bold and reverse.
                for cell in &mut frame.buffer_mut().content {
                    (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
                }
            }
        })?;
        Ok(())
    }

    /// The size in columns and rows.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        let size = self.terminal.size()?;
        Ok((size.width, size.height))
    }

    /// Asks the terminal to put `text` on the clipboard (OSC 52), which also works over SSH.
    pub fn copy(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        write!(out, "\x1b]52;c;{}\x07", BASE64.encode(text))?;
        out.flush()
    }

    /// Takes the terminal again and draws everything from nothing.
    pub fn retake(&mut self) -> io::Result<()> {
        enter()?;
        self.terminal = fresh_terminal()?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes SIGTSTP wait until [`suspend_if_requested`], in this thread and those that it starts from now on.
///
/// It is held back and not handled, so that the kernel itself withdraws it when the shell continues us before we have
/// stopped: nobody would continue us a second time.
pub fn hold_suspension() -> io::Result<()> {
    Ok(suspension().thread_block()?)
}

/// Asks for this process and its job to be suspended; [`suspend_if_requested`] is the answer.
///
/// The whole process group is signalled, because `cargo run` and `cargo xtask demo` wait in it and the shell only
/// comes back when they stop too. The terminal is given back first, because the shell may come back at once.
///
/// # Errors
/// `Unsupported` when there is no shell to come back to (the console is the first process of a terminal window).
pub fn request_suspend() -> io::Result<()> {
    if !shell_is_waiting() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "no shell is waiting behind the console"));
    }
    restore();
    Ok(signal::killpg(unistd::getpgrp(), Signal::SIGTSTP)?)
}

/// Stops this process when a SIGTSTP waits, with the terminal given back, and returns after `fg`, which also sends
/// SIGCONT: its handler takes the terminal again.
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

/// Reads the signals that wait for the whole process: a mask in base 16, whose lowest bit is signal 1.
fn suspension_is_pending() -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or_default();
    Ok(u64::from_str_radix(mask.trim(), 16).unwrap_or_default() >> (Signal::SIGTSTP as u32 - 1) & 1 == 1)
}

/// Gives the terminal back: main screen, cursor, line mode, no colours.
pub fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // A terminal that has gone away cannot be restored, and nobody is there to read why.
        let mut out = io::stdout();
        let _ = write_leave_sequences(&mut out);
        let _ = disable_raw_mode();
    }
}

/// Makes every panic, in any thread, restore the terminal before its message is printed, and end the console.
pub fn install_panic_hook() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        report(panic);
        eprintln!("vidtui: this is a bug in the console; runs go on without it, `vidtui` opens it again");
        std::process::exit(101);
    }));
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    let taken = execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, cursor::Hide, Clear(ClearType::All));
    taken.inspect_err(|_| restore())
}

fn write_leave_sequences(out: &mut impl Write) -> io::Result<()> {
    queue!(out, DisableBracketedPaste, ResetColor, LeaveAlternateScreen, cursor::Show)?;
    out.flush()
}

fn fresh_terminal() -> io::Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>> {
    Terminal::new(CrosstermBackend::new(BufWriter::with_capacity(1 << 16, io::stdout())))
}

/// Whether some process outside our group, in our session, would notice that we stopped: the kernel's rule for a group
/// that is not orphaned.
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
    // The command name stands in parentheses and may hold anything; the parent is the second field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_shows_the_cursor_and_the_main_screen_and_ends_bracketed_paste() {
        let mut out = Vec::new();
        write_leave_sequences(&mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        for sequence in ["\x1b[?2004l", "\x1b[?1049l", "\x1b[?25h"] {
            assert!(out.contains(sequence), "{sequence:?} is missing in {out:?}");
        }
    }
}
