//! The processes of the ranks: starts, signals and reaps them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use camino::Utf8PathBuf;
use cluster::RankPlace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgrp};
use rundir::{ErrorCode, Failure, PidFile, RankPid, SCHEMA, log, now_s};
use signal_hook::consts::SIGKILL;

use crate::job::Job;

/// All ranks of this node.
#[derive(Default)]
pub struct Ranks {
    ranks: Vec<Rank>,
}

struct Rank {
    place: RankPlace,
    child: Child,
    log: Utf8PathBuf,
    /// The last signal that this supervisor sent.
    sent: Option<i32>,
    ended: Option<EndedRank>,
}

/// A rank that has ended.
#[derive(Debug, Clone)]
pub struct EndedRank {
    pub rank: usize,
    /// The exit code, if the rank exited.
    pub code: Option<i32>,
    /// The signal that ended the rank, if any.
    pub signal: Option<i32>,
    pub ended_s: f64,
    pub log: Utf8PathBuf,
    /// Whether this supervisor sent the signal that ended the rank.
    pub by_us: bool,
}

impl Ranks {
    /// Starts every rank. If a rank cannot be started, kills the ranks that were started before.
    pub fn start(job: &Job, command: impl Fn(&RankPlace) -> Command) -> Result<Self, Failure> {
        let mut all = Self { ranks: Vec::new() };
        for place in &job.places {
            let log = job.run.rank_log(&job.node, job.attempt.number, place.rank);
            let command = command(place);
            let program = command.get_program().to_string_lossy().into_owned();
            match spawn(command, job.environment(place), &log) {
                Ok(child) => all.ranks.push(Rank { place: place.clone(), child, log, sent: None, ended: None }),
                Err(error) => {
                    all.signal(SIGKILL);
                    all.wait_all();
                    let what = format!("cannot start rank {}", place.rank);
                    let (why, fix) = match job.is_command() {
                        true => (
                            format!("node {}: {program}: {error}", job.node),
                            "check command.run and command.folder; a program without '/' is searched in the PATH of the node"
                                .to_owned(),
                        ),
                        false => (
                            format!("node {}: {error}", job.node),
                            format!("check its log {log} and this program's file"),
                        ),
                    };
                    return Err(Failure::new(ErrorCode::StartFailed, what, why, fix));
                }
            }
        }
        Ok(all)
    }

    /// Returns the content of the process file, by which other programs identify the processes before they signal them.
    pub fn pid_file(&self, job: &Job) -> Result<PidFile, Failure> {
        let proc = |error: io::Error| {
            Failure::new(
                ErrorCode::Internal,
                "cannot record the processes of this node",
                format!("/proc: {error}"),
                "check that /proc is mounted",
            )
        };
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(proc)?;
        let mut ranks = Vec::new();
        for rank in &self.ranks {
            let pid = rank.child.id() as i32;
            ranks.push(RankPid { rank: rank.place.rank, pid, start_ticks: start_ticks(pid).map_err(proc)? });
        }
        let pid = std::process::id() as i32;
        Ok(PidFile {
            schema: SCHEMA,
            attempt: job.attempt.number,
            node: job.node.clone(),
            pid,
            pgid: getpgrp().as_raw(),
            boot_id: boot_id.trim().to_owned(),
            start_ticks: start_ticks(pid).map_err(proc)?,
            started_s: now_s(),
            ranks,
        })
    }

    pub fn any_alive(&self) -> bool {
        self.ranks.iter().any(|rank| rank.ended.is_none())
    }

    /// Signals every rank that has not been reaped. The kernel reuses the process id of a rank only after it is reaped.
    pub fn signal(&mut self, number: i32) {
        let Ok(signal) = Signal::try_from(number) else { return };
        for rank in self.ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
            rank.sent = Some(number);
            if let Err(error) = kill(Pid::from_raw(rank.child.id() as i32), signal) {
                log!("cannot send {signal} to rank {}: {error}", rank.place.rank);
            }
        }
    }

    /// Returns the ranks that have ended since the last call, in rank order.
    pub fn collect(&mut self) -> Vec<EndedRank> {
        let alive = self.ranks.iter_mut().filter(|rank| rank.ended.is_none());
        let ended = alive.filter_map(|rank| {
            let (code, signal) = match rank.child.try_wait() {
                Ok(None) => return None,
                Ok(Some(status)) => (status.code(), status.signal()),
                Err(error) => {
                    log!("cannot wait for rank {}: {error}", rank.place.rank);
                    (None, None)
                }
            };
            let by_us = signal.is_some() && signal == rank.sent;
            let log = rank.log.clone();
            rank.ended = Some(EndedRank { rank: rank.place.rank, code, signal, ended_s: now_s(), log, by_us });
            rank.ended.clone()
        });
        ended.collect()
    }

    /// Waits for the end of every rank.
    pub fn wait_all(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.child.wait();
        }
    }

    /// Returns the ranks that have ended, in rank order.
    pub fn ended(&self) -> Vec<EndedRank> {
        self.ranks.iter().filter_map(|rank| rank.ended.clone()).collect()
    }
}

/// Starts a process whose output goes directly to its log file, so that it can still write if the supervisor ends
/// first.
fn spawn(mut command: Command, environment: Vec<(String, String)>, log: &Utf8PathBuf) -> io::Result<Child> {
    let log: File = OpenOptions::new().append(true).create(true).open(log)?;
    command.envs(environment).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// Returns when a process started, in clock ticks since boot: field 22 of its `/proc/PID/stat`.
///
/// # Errors
/// The process does not exist, or its line cannot be read.
pub fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses, field 2, may contain spaces. The first field after it is number 3.
    let field = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(22 - 3));
    field
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("not a line of /proc/PID/stat: {stat:?}")))
}
