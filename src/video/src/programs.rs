//! The programs ffmpeg and ffprobe: their paths, capabilities and time limits.

use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use failure::{ErrorCode, Failure};

use crate::cancel::Cancel;
use crate::child::{self, Run};
use crate::failures::{self, Complaints};
use crate::install::VARIABLES;

/// The limit on the time without progress. A network file system may need almost this long to recover.
const SILENT_LIMIT: Duration = Duration::from_secs(60);

/// The maximum number of bytes of the output of `-version` and `-filters`. A program that writes more is not ffmpeg.
const MAX_ANSWER: usize = 1 << 20;

/// The programs and their limits. Clones share the detected capabilities and the cancellation.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The path or name of ffmpeg.
    pub ffmpeg: Utf8PathBuf,
    /// The path or name of ffprobe.
    pub ffprobe: Utf8PathBuf,
    /// A program that neither reads nor writes a byte of its pipes for this long is killed.
    pub silent_limit: Duration,
    /// Threads of each ffmpeg; 0 lets ffmpeg choose.
    pub threads: usize,
    /// Cancels all work of these programs.
    pub cancel: Cancel,
    abilities: Arc<OnceLock<Abilities>>,
}

/// The capabilities of an ffmpeg.
#[derive(Debug, Clone)]
struct Abilities {
    /// The first line of `ffmpeg -version`.
    version: String,
    /// The filters for high dynamic range that this ffmpeg has: `zscale`, `tonemap`.
    filters: Vec<String>,
}

impl Default for Programs {
    /// Returns the programs that `VIDTUI_FFMPEG` and `VIDTUI_FFPROBE` name, or those on `PATH`.
    fn default() -> Self {
        let set = |variable: &str| std::env::var(variable).ok().filter(|program| !program.is_empty());
        let named = |variable: &str, name: &str| set(variable).unwrap_or_else(|| name.to_owned());
        Self::at(named(VARIABLES[0], "ffmpeg"), named(VARIABLES[1], "ffprobe"))
    }
}

impl Programs {
    /// Returns the programs at these paths.
    pub fn at(ffmpeg: impl Into<Utf8PathBuf>, ffprobe: impl Into<Utf8PathBuf>) -> Self {
        Self {
            ffmpeg: ffmpeg.into(),
            ffprobe: ffprobe.into(),
            silent_limit: SILENT_LIMIT,
            threads: 0,
            cancel: Cancel::default(),
            abilities: Arc::default(),
        }
    }

    /// Returns the first line of `ffmpeg -version` after checking that both programs start.
    ///
    /// # Errors
    /// `ProgramMissing` with the command that installs them.
    pub fn check(&self) -> Result<String, Failure> {
        self.check_ffprobe()?;
        Ok(self.abilities()?.version.clone())
    }

    /// Checks that ffprobe starts.
    ///
    /// # Errors
    /// `ProgramMissing` with the command that installs it.
    pub fn check_ffprobe(&self) -> Result<(), Failure> {
        self.answer(&self.ffprobe, &["-version"]).map(drop)
    }

    /// Returns whether ffmpeg can convert high dynamic range.
    ///
    /// # Errors
    /// `ProgramMissing` with the command that installs ffmpeg.
    pub fn can_tone_map(&self) -> Result<bool, Failure> {
        let filters = &self.abilities()?.filters;
        Ok(["zscale", "tonemap"].iter().all(|wanted| filters.iter().any(|have| have == wanted)))
    }

    /// Returns the options that pass every frame through. `-fps_mode` exists from ffmpeg 5.1 on.
    pub(crate) fn passthrough(&self) -> Result<[&'static str; 2], Failure> {
        let is_old = release(&self.abilities()?.version).is_some_and(|release| release < (5, 1));
        Ok(if is_old { ["-vsync", "0"] } else { ["-fps_mode", "passthrough"] })
    }

    /// Returns a command that runs ffmpeg and logs errors only.
    pub(crate) fn ffmpeg_command(&self) -> Command {
        let mut command = command(&self.ffmpeg);
        command.args(["-nostdin", "-hide_banner", "-v", "error"]);
        command
    }

    /// Limits the threads of an ffmpeg that decodes. Without a limit, filters too start one thread per core, and scaling in 64 parts
    /// takes twice the CPU time of scaling in one.
    pub(crate) fn limit_threads(&self, command: &mut Command) {
        if self.threads > 0 {
            let threads = self.threads.to_string();
            command.args(["-filter_threads", &threads, "-threads", &threads]);
        }
    }

    /// Returns a command that runs ffprobe and logs errors only.
    pub(crate) fn ffprobe_command(&self) -> Command {
        let mut command = command(&self.ffprobe);
        command.args(["-hide_banner", "-v", "error"]);
        command
    }

    fn abilities(&self) -> Result<&Abilities, Failure> {
        if let Some(known) = self.abilities.get() {
            return Ok(known);
        }
        let version = self.answer(&self.ffmpeg, &["-version"])?;
        let version = version.lines().next().unwrap_or_default().to_owned();
        let filters = self.answer(&self.ffmpeg, &["-hide_banner", "-filters"])?;
        // Each line has flags, a name, inputs and outputs, and a description.
        let names = filters.lines().filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned);
        let filters = names.filter(|name| matches!(name.as_str(), "zscale" | "tonemap")).collect();
        Ok(self.abilities.get_or_init(|| Abilities { version, filters }))
    }

    fn answer(&self, program: &Utf8Path, args: &[&str]) -> Result<String, Failure> {
        let mut command = command(program);
        command.args(args);
        let run = Run { limit: self.silent_limit, cancel: &self.cancel, max_bytes: MAX_ANSWER, capacity: 0 };
        let mut complaints = Complaints::default();
        let done = child::run(command, &run, None, &mut |line| complaints.add(line))
            .map_err(|stop| failures::stopped(program, stop))?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.bytes).into_owned());
        }
        if let Some(failure) = failures::not_started(program, done.status, &complaints) {
            return Err(failure);
        }
        let why = format!("`{program} {}` ended with {}: {}", args.join(" "), done.status, complaints.shown());
        let name = program.file_name().unwrap_or(program.as_str());
        let fix = failures::repair_hint(program);
        Err(Failure::new(ErrorCode::ProgramMissing, format!("cannot use {name}"), why, fix))
    }
}

/// Checks that ffmpeg and ffprobe are installed, and returns the first line of `ffmpeg -version`.
///
/// # Errors
/// `ProgramMissing` with the command that installs them.
pub fn check_installed() -> Result<String, Failure> {
    Programs::default().check()
}

fn command(program: &Utf8Path) -> Command {
    let mut command = Command::new(program);
    // This crate parses the program's messages, so they must be English and without colours.
    command.env("LC_ALL", "C").env_remove("FFREPORT").env("AV_LOG_FORCE_NOCOLOR", "1");
    command
}

/// Returns the release in the line `ffmpeg version 5.1.9-0+deb12u1 …`, or `None` for builds from git, which count as
/// new.
fn release(version: &str) -> Option<(u32, u32)> {
    let number = version.strip_prefix("ffmpeg version ")?.trim_start_matches('n');
    let mut parts = number.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next().and_then(|part| part.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_from_the_first_line() {
        assert_eq!(release("ffmpeg version 5.1.9-0+deb12u1 Copyright (c) 2000-2026"), Some((5, 1)));
        assert_eq!(release("ffmpeg version n6.0 Copyright"), Some((6, 0)));
        assert_eq!(release("ffmpeg version 8 Copyright"), Some((8, 0)));
        assert_eq!(release("ffmpeg version N-112-gabc Copyright"), None);
    }
}
