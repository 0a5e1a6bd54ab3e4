//! A program in a pseudo-terminal: types keys, waits for text on the screen, and records every byte.

use camino::Utf8Path;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a wait. Much longer than needed, because test machines are shared. A passing test never waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Polls a condition until it holds. Returns whether it did within [`PATIENCE`].
pub fn comes_true(is: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let began = Instant::now();
        if is() {
            return true;
        }
        // A check that starts programs must take little of a core.
        thread::sleep((6 * began.elapsed()).clamp(Duration::from_millis(20), Duration::from_secs(1)));
    }
    false
}

/// The bytes of keys.
pub const ENTER: &str = "\r";
pub const RIGHT: &str = "\x1b[C";
pub const ESC: &str = "\x1b";
pub const CTRL_C: &str = "\x03";
pub const CTRL_Z: &str = "\x1a";

type Writer = Arc<Mutex<Box<dyn Write + Send>>>;

/// A program running in a terminal.
pub struct Pty {
    master: Box<dyn MasterPty + Send>,
    child: Box<dyn Child + Send + Sync>,
    writer: Writer,
    seen: Arc<(Mutex<Output>, Condvar)>,
}

/// The output of the program so far.
struct Output {
    parser: vt100::Parser<Answers>,
    raw: Vec<u8>,
    ended: bool,
}

/// Answers terminal queries. vt100 answers none, and crossterm waits seconds for an answer.
struct Answers(Writer);

impl vt100::Callbacks for Answers {
    fn unhandled_csi(
        &mut self,
        screen: &mut vt100::Screen,
        prefix: Option<u8>,
        _: Option<u8>,
        params: &[&[u16]],
        kind: char,
    ) {
        let first = params.first().and_then(|param| param.first()).copied().unwrap_or(0);
        let answer = match (prefix, first, kind) {
            (None, 6, 'n') => {
                let (row, column) = screen.cursor_position();
                format!("\x1b[{};{}R", row + 1, column + 1)
            }
            (None, 5, 'n') => "\x1b[0n".into(),
            (None, 0, 'c') => "\x1b[?62;22c".into(),
            (Some(b'>'), 0, 'c') => "\x1b[>0;276;0c".into(),
            _ => return,
        };
        let _ = self.0.lock().unwrap().write_all(answer.as_bytes());
    }
}

impl Pty {
    /// Starts `program` with `args` in a folder, in a terminal of `(columns, rows)`.
    pub fn start(size: (u16, u16), program: &str, args: &[&str], env: &[(&str, &str)], folder: &Utf8Path) -> Self {
        let pair = native_pty_system().openpty(pty_size(size)).unwrap();
        let mut command = CommandBuilder::new(program);
        command.args(args);
        command.cwd(folder);
        for name in ["NO_COLOR", "VIDTUI_TRAIN", "VIDTUI_RUN"] {
            command.env_remove(name);
        }
        for (name, value) in [("TERM", "xterm-256color"), ("COLORTERM", "truecolor"), ("LC_ALL", "C.UTF-8")] {
            command.env(name, value);
        }
        // Each console has the default settings, and opens on the list of runs.
        for (name, folder) in [("XDG_CONFIG_HOME", "/nonexistent"), ("XDG_STATE_HOME", "/dev/null")] {
            command.env(name, folder);
        }
        for (name, value) in env {
            command.env(name, value);
        }
        let child = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave); // While a slave handle is open here, the reader does not see the end of the program.
        let mut reader = pair.master.try_clone_reader().unwrap();
        let writer: Writer = Arc::new(Mutex::new(pair.master.take_writer().unwrap()));
        let parser = vt100::Parser::new_with_callbacks(cells(size.1), cells(size.0), 200, Answers(writer.clone()));
        let seen = Arc::new((Mutex::new(Output { parser, raw: Vec::new(), ended: false }), Condvar::new()));
        let shared = seen.clone();
        thread::spawn(move || {
            let mut chunk = [0; 1 << 16];
            loop {
                let length = reader.read(&mut chunk).unwrap_or(0);
                let mut seen = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
                seen.parser.process(&chunk[..length]);
                seen.raw.extend_from_slice(&chunk[..length]);
                seen.ended |= length == 0;
                shared.1.notify_all();
                if length == 0 {
                    return;
                }
            }
        });
        Self { master: pair.master, child, writer, seen }
    }

    /// Types `keys`.
    pub fn press(&self, keys: &str) -> &Self {
        let mut writer = self.writer.lock().unwrap();
        writer.write_all(keys.as_bytes()).unwrap();
        writer.flush().unwrap();
        drop(writer);
        if keys == ESC {
            // If the program reads Escape together with the next key, it takes them for Alt and that key.
            self.meanwhile("Escape to be read", || self.has_read_everything());
        }
        self
    }

    /// Returns whether the program has read every key.
    pub fn has_read_everything(&self) -> bool {
        let mut open = std::fs::File::options();
        let terminal =
            open.read(true).custom_flags(OFlag::O_NOCTTY.bits()).open(self.master.tty_name().unwrap()).unwrap();
        let mut waiting = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
        poll(&mut waiting, PollTimeout::ZERO).unwrap() == 0
    }

    /// Waits until the screen shows all of `texts`.
    pub fn shows(&self, texts: &[&str]) -> &Self {
        self.until(&format!("{texts:?} on the screen"), |screen| {
            let contents = screen.contents();
            texts.iter().all(|text| contents.contains(text))
        })
    }

    /// Waits until the screen no longer shows `text`.
    pub fn shows_no(&self, text: &str) -> &Self {
        self.until(&format!("no {text:?} on the screen"), |screen| !screen.contents().contains(text))
    }

    /// Waits for the prompt of the shell.
    pub fn prompts(&self) -> &Self {
        self.until("the prompt of the shell", |screen| {
            let (row, column) = screen.cursor_position();
            let line = screen.rows(0, screen.size().1.get()).nth(usize::from(row)).unwrap_or_default();
            !screen.alternate_screen() && column == 2 && line.trim_end() == "$"
        })
    }

    /// Waits until `wanted` accepts the screen. The screen is checked after every output.
    pub fn until(&self, what: &str, wanted: impl Fn(&vt100::Screen) -> bool) -> &Self {
        self.wait(what, |seen| wanted(seen.parser.screen()));
        self
    }

    /// Waits for a condition outside the terminal by polling.
    pub fn meanwhile(&self, what: &str, is: impl Fn() -> bool) -> &Self {
        assert!(comes_true(is), "timed out waiting for {what}; the screen was:\n{}", self.text());
        self
    }

    /// Waits until the program has ended and all its output is read. Returns the exit code.
    pub fn ended(&mut self) -> u32 {
        self.wait("the program to end", |seen| seen.ended);
        self.child.wait().unwrap().exit_code()
    }

    /// Resizes the window.
    pub fn resize(&self, size: (u16, u16)) -> &Self {
        self.lock().parser.screen_mut().set_size(cells(size.1), cells(size.0));
        self.master.resize(pty_size(size)).unwrap();
        self
    }

    /// Returns the screen as text.
    pub fn text(&self) -> String {
        self.lock().parser.screen().contents()
    }

    /// Returns the alternate screen at the moment when the program left it.
    pub fn last_frame(&self) -> String {
        let (raw, (rows, columns)) = (self.raw(), self.lock().parser.screen().size());
        let mut parser = vt100::Parser::new(rows, columns, 0);
        parser.process(&raw.as_bytes()[..raw.rfind("\x1b[?1049l").unwrap()]);
        parser.screen().contents()
    }

    /// Returns all output so far.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.lock().raw).into_owned()
    }

    /// Returns the process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.process_id().unwrap()
    }

    /// Returns the running child processes of the program.
    pub fn children(&self) -> Vec<i32> {
        let pid = self.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().map(|child| child.parse().unwrap()).collect()
    }

    /// Asserts that the terminal is restored: main screen, cursor, echo, line mode, plain paste.
    pub fn assert_restored(&self) {
        let termios = self.master.get_termios().unwrap();
        let (echo, whole_lines) = (0o10, 0o2);
        assert_eq!(termios.local_flags.bits() & echo, echo, "the terminal does not echo");
        assert_eq!(termios.local_flags.bits() & whole_lines, whole_lines, "the terminal is still in raw mode");
        let seen = self.lock();
        let screen = seen.parser.screen();
        assert!(!screen.alternate_screen(), "the alternate screen is still shown");
        assert!(!screen.hide_cursor(), "the cursor is still hidden");
        assert!(!screen.bracketed_paste(), "bracketed paste is still on");
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "the mouse is still reported");
    }

    fn wait(&self, what: &str, wanted: impl Fn(&Output) -> bool) {
        let started = Instant::now();
        let mut seen = self.lock();
        while !wanted(&seen) {
            let left = PATIENCE.saturating_sub(started.elapsed());
            if left.is_zero() || (seen.ended && !wanted(&seen)) {
                let how = if seen.ended { "the program ended" } else { "timed out" };
                panic!("{how} while waiting for {what}; the screen was:\n{}", seen.parser.screen().contents());
            }
            seen = self.seen.1.wait_timeout(seen, left).unwrap().0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Output> {
        self.seen.0.lock().unwrap()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the parameters of every SGR sequence (`CSI … m`) in `raw` that sets a colour.
pub fn colour_codes(raw: &str) -> Vec<String> {
    let sets_colour = |code: &str| {
        let number: u32 = code.split(':').next().and_then(|code| code.parse().ok()).unwrap_or(0);
        matches!(number, 30..=38 | 40..=48 | 58 | 90..=97 | 100..=107)
    };
    let mut found = Vec::new();
    for after in raw.split("\x1b[").skip(1) {
        let end = after.find(|c: char| !c.is_ascii_digit() && !";:".contains(c)).unwrap_or(after.len());
        if after[end..].starts_with('m') && after[..end].split(';').any(sets_colour) {
            found.push(after[..end].to_owned());
        }
    }
    found
}

fn cells(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n).unwrap()
}

fn pty_size((cols, rows): (u16, u16)) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}
