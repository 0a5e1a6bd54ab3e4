//! Frames the output of a script on a node: only the text between two marks is the answer of the script.
//!
//! A login shell may print text of its own, before and after the script, to standard output and to standard error: `~/.bashrc`,
//! `config.fish`, `~/.cshrc`, `~/.zshenv`, modules, banners, `~/.bash_logout`. It may also run no script at all: nologin, a forced command, a
//! start file that exits. Without the first mark there is no answer, and the text of the node shows why.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use cluster::NodeId;

use crate::RemoteError;
use crate::command::{Command, Output, Status, last_lines, printed};

/// The words of the marks. The text of the script does not contain the mark itself, because some shells print the commands that they run.
const NAME: &str = "vidtui";
const BEGIN: &str = "begin";
const END: &str = "end";
/// The marks of standard error differ, because a terminal on the node, as of a forced command, makes one stream of both.
const ERROR_BEGIN: &str = "error-begin";
const ERROR_END: &str = "error-end";

/// The marks around the output of one script. Their number is random, so that no other output contains them.
pub(crate) struct Frame {
    number: String,
}

/// The text between the marks.
struct Framed<'a> {
    text: Cow<'a, [u8]>,
    /// The exit code of the script; `None` if the second mark is missing.
    code: Option<i32>,
}

impl Frame {
    pub fn new() -> Self {
        Self { number: format!("{:016x}", RandomState::new().hash_one(std::process::id())) }
    }

    /// Returns the script with marks before and after its output, on both streams. The second mark has the exit code of the script, because
    /// the login shell may exit with another.
    pub fn script(&self, script: &str) -> String {
        let print = |word: &str| format!("printf '\\n%s-%s {word}\\n' {NAME} {}", self.number);
        let print_end = |word: &str| format!("printf '\\n%s-%s {word} %s\\n' {NAME} {} \"$1\"", self.number);
        // The EXIT trap runs in the shell of the script. A subshell for the script would be another process on the node.
        format!(
            "{} >&2\n{}\nend_frame() {{\nset -- $?\n{}\n{} >&2\nexit \"$1\"\n}}\ntrap end_frame EXIT\n{script}",
            print(ERROR_BEGIN),
            print(BEGIN),
            print_end(END),
            print_end(ERROR_END)
        )
    }

    /// Returns the shell line that prints the first mark, for a script that has no end.
    pub fn begin_script(&self) -> String {
        format!("printf '\\n%s-%s {BEGIN}\\n' {NAME} {}", self.number)
    }

    /// Returns whether a line is the first mark.
    pub fn begins_with(&self, line: &str) -> bool {
        line.trim_end_matches('\r') == self.mark(BEGIN)
    }

    pub fn mark(&self, word: &str) -> String {
        format!("{NAME}-{} {word}", self.number)
    }

    /// Returns whether the output contains the answer from its begin to its end.
    pub fn is_complete(&self, output: &Output) -> bool {
        self.framed(&output.stdout, BEGIN, END).is_some_and(|framed| framed.code.is_some())
    }

    /// Returns the answer of the script, from the output of the login shell.
    ///
    /// # Errors
    /// [`RemoteError::NotRun`] if the login shell did not run the script, [`RemoteError::CommandFailed`] if a part of the answer is missing.
    pub fn answer(&self, node: &NodeId, command: &Command, output: Output) -> Result<Output, RemoteError> {
        let Output { status, stdout, stderr } = output;
        let (node, action) = (node.clone(), command.action.clone());
        let Some(framed) = self.framed(&stdout, BEGIN, END) else {
            let printed = printed(&stdout, &stderr);
            return Err(RemoteError::NotRun { node, action, status: status.to_string(), printed });
        };
        let answer = framed.text.into_owned();
        let of_script = self.framed(&stderr, ERROR_BEGIN, ERROR_END).map(|framed| framed.text.into_owned());
        let stderr = of_script.unwrap_or(stderr);
        match framed.code {
            Some(code) => Ok(Output { status: Status::Code(code), stdout: answer, stderr }),
            None if status.is_success() => {
                let status = "a part of the answer is missing".to_owned();
                Err(RemoteError::CommandFailed { node, action, status, stderr: last_lines(&stderr) })
            }
            // A signal has ended the script.
            None => Ok(Output { status, stdout: answer, stderr }),
        }
    }

    /// Removes the marks from text that a node printed before its time was over.
    pub fn without_marks(&self, printed: &str) -> String {
        let mark = self.mark("");
        printed.lines().filter(|line| !line.starts_with(&mark)).collect::<Vec<_>>().join("\n")
    }

    /// Finds the text between the marks; `None` without the first mark.
    fn framed<'a>(&self, output: &'a [u8], begin: &str, end: &str) -> Option<Framed<'a>> {
        let begin = format!("\n{}", self.mark(begin));
        let rest = &output[find(output, begin.as_bytes())? + begin.len()..];
        // A terminal on the node, as of a forced command, ends lines with CR and LF.
        let (rest, is_terminal) = match rest {
            [b'\r', b'\n', rest @ ..] => (rest, true),
            [b'\n', rest @ ..] => (rest, false),
            _ => return None,
        };
        // The last one counts: other users can read the number on the command line of the script, and the answer may contain their text.
        let end = format!("\n{} ", self.mark(end));
        let (text, code) = match find_last(rest, end.as_bytes()) {
            Some(at) => (&rest[..at], read_code(&rest[at + end.len()..])),
            None => (rest, None),
        };
        let text = if is_terminal { Cow::Owned(without_returns(text)) } else { Cow::Borrowed(text) };
        Some(Framed { text, code })
    }
}

/// Reads the exit code, which is complete if a line end follows.
fn read_code(bytes: &[u8]) -> Option<i32> {
    let line = &bytes[..bytes.iter().position(|byte| *byte == b'\n')?];
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

fn without_returns(text: &[u8]) -> Vec<u8> {
    let is_kept = |(at, byte): (usize, &u8)| *byte != b'\r' || !matches!(text.get(at + 1), Some(b'\n') | None);
    text.iter().enumerate().filter(|(at, byte)| is_kept((*at, byte))).map(|(_, byte)| *byte).collect()
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn find_last(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).rposition(|window| window == part)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::process::{self, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::command::login_line;

    /// Shells with their start file, and with text of the file before and after the script, on both streams.
    const NOISY: [(&str, &str, &str); 5] = [
        ("bash", ".bashrc", "echo 'Loading cuda/12.4'\ntrap 'echo bye; echo bye >&2' EXIT\n"),
        (
            "bash",
            ".bashrc",
            "printf '\\033[32mActivating\\033[0m base\\r\\nno end'\nprintf 'warning: no end' >&2\ntrap 'printf bye' EXIT\n",
        ),
        ("tcsh", ".tcshrc", "echo 'Loading cuda/12.4'\nset echo verbose\nalias sh echo\n"),
        (
            "fish",
            ".config/fish/config.fish",
            "printf 'no end'\necho warning >&2\nfunction bye --on-event fish_exit\n    echo bye\nend\n",
        ),
        ("zsh", ".zshenv", "printf 'no end'\nsetopt xtrace verbose\nalias sh=echo\nTRAPEXIT() { echo bye }\n"),
    ];

    /// Runs a script as sshd does; `None` if the shell is not installed.
    fn run(shell: &str, (file, text): (&str, &str), script: &str) -> Option<Output> {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        let of_home = |name: &str| home.path().join(name);
        let mut command = process::Command::new(shell);
        command.args(["-c", &login_line(script)]).env("HOME", home.path()).env("ZDOTDIR", home.path());
        // bash reads ~/.bashrc for a command of sshd, and this file for others.
        command.env("XDG_CONFIG_HOME", of_home(".config")).env("BASH_ENV", of_home(".bashrc"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        // A shell that runs no script does not read it.
        let _ = child.stdin.take().unwrap().write_all(b"input\n");
        let process::Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        Some(Output { status: status.into(), stdout, stderr })
    }

    fn answer(frame: &Frame, output: Output) -> Result<Output, RemoteError> {
        let command = Command::new("run a test", "", Duration::from_secs(1));
        frame.answer(&NodeId::from_hostname("gpu01"), &command, output)
    }

    #[test]
    fn text_that_a_login_shell_prints_is_not_part_of_an_answer() {
        for (shell, file, text) in NOISY {
            let frame = Frame::new();
            let script = frame.script("cat; echo answer; printf 'its last line'; echo oops >&2; exit 7");
            let Some(output) = run(shell, (file, text), &script) else {
                println!("skipped: {shell} is not installed");
                continue;
            };
            let answer = answer(&frame, output).unwrap();
            assert_eq!(String::from_utf8_lossy(&answer.stdout), "input\nanswer\nits last line", "{shell}: {text}");
            assert_eq!(String::from_utf8_lossy(&answer.stderr), "oops\n", "{shell}: {text}");
            assert_eq!(answer.status, Status::Code(7), "{shell}: {text}");
        }
    }

    #[test]
    fn a_login_shell_that_runs_no_script_is_an_error_with_its_last_lines() {
        let starts = [
            "echo 'closed for \x1b[1mmaintenance\x1b[0m' >&2\nexit 0\n",
            "echo 'closed for maintenance'\nexit 1\n",
            "printf 'closed for maintenance'\nexec cat\n",
        ];
        for start in starts {
            let frame = Frame::new();
            let output = run("bash", (".bashrc", start), &frame.script("echo answer")).unwrap();
            let RemoteError::NotRun { printed, .. } = answer(&frame, output).unwrap_err() else { panic!("{start}") };
            assert!(printed.contains("closed for maintenance"), "{printed}");
        }
    }

    #[test]
    fn an_answer_without_its_end_is_an_error() {
        let frame = Frame::new();
        let whole = run("sh", ("none", ""), &frame.script("echo answer")).unwrap();
        assert_eq!(answer(&frame, whole.clone()).unwrap().stdout, b"answer\n");
        for cut in 0..whole.stdout.len() - 1 {
            let part = Output { stdout: whole.stdout[..cut].to_vec(), ..whole.clone() };
            assert!(answer(&frame, part).is_err(), "{:?}", String::from_utf8_lossy(&whole.stdout[..cut]));
        }
        let killed = run("sh", ("none", ""), &frame.script("echo answer; kill -KILL $$")).unwrap();
        // A shell reports the signal of its child as a code.
        assert_eq!(answer(&frame, killed).unwrap().status, Status::Code(137));
    }

    #[test]
    fn an_answer_may_contain_marks_and_may_come_from_a_terminal() {
        let frame = Frame::new();
        let forged = format!("printf '\\n{}\\n{} 0\\nreal\\n'; exit 3", frame.mark(BEGIN), frame.mark(END));
        let output = run("sh", ("none", ""), &frame.script(&forged)).unwrap();
        let read = answer(&frame, output.clone()).unwrap();
        assert!(read.stdout.ends_with(b" 0\nreal\n") && read.status == Status::Code(3), "{read:?}");
        let of_terminal = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\n', "\r\n").into_bytes();
        let terminal = Output { stdout: of_terminal(&[&output.stderr[..], &output.stdout].concat()), ..output };
        assert_eq!(answer(&frame, terminal).unwrap().stdout, read.stdout);
    }
}
