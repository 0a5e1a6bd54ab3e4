//! Tests of console sessions: stages, launch, monitoring, stop, resume, export, kill, quit and reopen.

use crate::pty::{ENTER, ESC, Pty};
use crate::test_site::{TestSite, VIDTUI};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rundir::RunDir;
use runstate::Liveness;
use std::process::Command;

const SIZE: (u16, u16) = (100, 30);

fn is_alive(run: &RunDir) -> bool {
    remote::pid_files(run).is_ok_and(|files| files.iter().any(|(_, live)| *live == Liveness::Alive))
}

#[test]
fn a_stage_is_launched_watched_stopped_resumed_with_one_key_and_exported() {
    let site = TestSite::new();
    let mut console = site.console((80, 24), &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small: short, then long", "short", "long"]);
    // The form shows the plan before the launch.
    console.press(ENTER).shows(&["Start short?", "2 ranks"]);
    console.press(ENTER).shows(&["small-short", "running", "Gradient norm"]);
    let run = site.runs()[0].clone();
    console.meanwhile("step 25", || site.has_reached(run.name(), 25));

    console.press("s").shows(&["resume from step"]);
    console.meanwhile("its processes to end", || !is_alive(&run));
    let saved = other_trainers::latest(&run).unwrap().step;

    console.press("r").shows(&["running"]);
    console.meanwhile("one more step", || site.has_reached(run.name(), saved + 1));
    assert_eq!(run.latest_attempt().unwrap().unwrap().start_step, saved);

    console.press("e").shows(&["Export to:", ".svg"]).press(ENTER).shows(&["Wrote "]);
    console.press("e").press("\x15loss.png").press(ENTER).shows(&["Wrote ", "loss.png"]);
    console.press("e").press("\x15loss.png").press(ENTER).shows(&["It exists", "choose another name"]).press(ENTER);
    let files = || site.root.read_dir_utf8().unwrap().map(|entry| entry.unwrap().file_name().to_owned());
    console.meanwhile("both charts", || {
        files().any(|name| name.ends_with(".svg")) && files().any(|name| name.ends_with(".png"))
    });

    console.press("q");
    assert_eq!(console.ended(), 0);
    assert!(
        console.text().contains("small-short"),
        "the closing message lists the runs that continue:\n{}",
        console.text()
    );
    assert!(is_alive(&run), "quitting does not stop the run");

    let before = site.json(&["status", "latest", "--json"])["step"].as_u64().unwrap();
    site.until_step("latest", before + 5);
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["small-short", "running"]).press(ENTER).shows(&["Loss", "resumed from step", "running"]);
    console.press("s").shows(&["stopped"]);
}

#[test]
fn a_recipe_is_launched_with_typed_arguments() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small: short, then long"]);
    console.press("n").shows(&["vidtui launch"]).press("configs/small/short.toml --sett x").press(ENTER);
    console.shows(&["Hint"]).press(ENTER).press("n").press("\x17\x17--set train.steps=2").press(ENTER);
    console.shows(&["Start small-short?"]).press(ENTER).shows(&["finished"]);
    assert_eq!(site.runs()[0].read_run().unwrap().recipe().unwrap().train.steps(), 2);
}

#[test]
fn the_console_and_the_export_command_write_the_same_chart() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small:short", "--set", "train.steps=30", "--wait"]);
    let console = site.console(SIZE, &[], &[]);
    // The console draws the panels before it has the values.
    console.shows(&["finished"]).press(ENTER).shows(&["Gradient norm", "mean 1."]);
    console.press("L").press("S").press("e").press(ENTER).shows(&["Wrote "]);
    let by_key = site.root.read_dir_utf8().unwrap().flatten().find(|entry| entry.file_name().ends_with("loss.svg"));
    let by_key = std::fs::read_to_string(by_key.unwrap().path()).unwrap();
    site.succeeds(&["export", "latest", "--chart", "loss", "--log", "--smooth", "0.9", "--out", "by-command.svg"]);
    assert_eq!(by_key, std::fs::read_to_string(site.root.join("by-command.svg")).unwrap());
    assert!(by_key.contains("loss (raw)"));
}

#[test]
fn closing_the_terminal_ends_the_console_and_not_the_run() {
    let site = TestSite::new();
    // `script` has the other end of the terminal of the console, like a terminal window.
    let script = format!("exec {}", crate::test_site::VIDTUI);
    let window = Pty::start(SIZE, "script", &["-qc", &script, "/dev/null"], &site.env(), &site.root);
    window.shows(&["No runs yet"]).press("2").shows(&["Small"]).press(ENTER).shows(&["Start short?"]).press(ENTER);
    window.shows(&["small-short", "running"]);
    let run = site.runs()[0].clone();
    let console = window.children().remove(0);
    kill(Pid::from_raw(window.pid() as i32), Signal::SIGKILL).unwrap();
    site.until("the console to end", || !std::fs::exists(format!("/proc/{console}")).unwrap());
    let before = site.json(&["status", run.name(), "--json"])["step"].as_u64().unwrap();
    site.until_step(run.name(), before + 5);
}

#[test]
fn the_kill_dialog_shows_the_processes_and_needs_a_yes() {
    let site = TestSite::new();
    let run = site.succeeds(&["launch", "configs/small:short"]);
    let run = RunDir::new(site.root.join("runs").join(run.trim()));
    // On a busy machine, the launch may return before the supervisor has written its process file.
    site.until("the supervisor to start", || is_alive(&run));
    let (file, _) = remote::pid_files(&run).unwrap().remove(0);
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["running"]).press("K").shows(&["Kill", &file.pid.to_string()]);
    for rank in &file.ranks {
        console.shows(&[&rank.pid.to_string()]);
    }
    // Enter presses the selected button, No.
    console.press(ENTER).shows_no(&file.pid.to_string());
    assert!(is_alive(&run));
    console.press("K").shows(&[&file.pid.to_string()]).press("y");
    console.meanwhile("its processes to end", || !is_alive(&run));
    console.shows(&["stopped"]);
}

#[test]
fn a_key_and_a_command_write_the_stacks_of_all_ranks() {
    let site = TestSite::new().with("FAKE_STEP_MS", "400");
    let run = site.succeeds(&["launch", "configs/small:short"]);
    let run = RunDir::new(site.root.join("runs").join(run.trim()));
    site.until_step("latest", 1);
    let document = site.json(&["stacks", "latest", "--json"]);
    assert_eq!(document["nodes"][0]["processes"], 3, "{document}");
    let text = std::fs::read_to_string(document["nodes"][0]["file"].as_str().unwrap()).unwrap();
    let (file, _) = remote::pid_files(&run).unwrap().remove(0);
    for rank in &file.ranks {
        assert!(text.contains(&format!("=== process {},", rank.pid)), "{text}");
    }
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["running"]).press("t").shows(&["stacks of 3 processes are in"]);
    assert!(is_alive(&run), "no process was signalled");
    site.succeeds(&["kill", "latest", "--yes"]);
    assert_eq!(site.error(&["stacks", "latest"]).0, 1);
}

#[test]
fn the_next_stage_starts_from_the_checkpoint_of_the_first() {
    let site = TestSite::new().with("FAKE_STEP_MS", "2");
    site.succeeds(&["launch", "configs/small:short", "--set", "train.steps=40", "--wait"]);
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["finished"]).press(ENTER).shows(&["n start next stage long"]);
    console.press("n").shows(&["Start long?"]).press(ENTER).shows(&["small-long", "finished"]);
    console.meanwhile("the second run", || site.runs().len() == 2);
    let runs: Vec<_> = site.runs().iter().map(|dir| dir.read_run().unwrap()).collect();
    let of_stage = |stage: &str| runs.iter().find(|run| run.stage.as_deref() == Some(stage)).unwrap();
    let lineage = of_stage("long").lineage.clone().unwrap();
    assert_eq!((lineage.run, lineage.step), (of_stage("short").id.clone(), 40));
}

#[test]
fn the_log_screen_shows_all_ranks_or_one() {
    let site = TestSite::new();
    site.succeeds(&["launch", "configs/small:short"]);
    let console = site.console(SIZE, &[], &[]);
    // The lines of the ranks differ in the number of the rank only.
    console.shows(&["running"]).press("l").shows(&["all 2 ranks", "0-1 ×2", "begins"]);
    console.press("]").shows(&["rank 0 of 2", "rank 0 begins"]);
    console.press("]").shows(&["rank 1 of 2", "rank 1 begins"]);
    console.press("0").shows(&["all 2 ranks", "0-1 ×2"]);
}

#[test]
fn the_console_opens_on_the_last_screen_with_the_keys_of_the_user() {
    let site = TestSite::new();
    let state = site.root.join("state");
    let site = site.with("XDG_STATE_HOME", state.as_str());
    site.write("config/vidtui/config.toml", "[keys.everywhere]\nquit = \"B\"\nshow_stages = \"F2\"\n");
    let mut first = site.console(SIZE, &[], &[]);
    first.shows(&["No runs yet", "F2 Stages", "B quit"]).press("\x1bOQ").shows(&["Small: short, then long"]);
    first.press("B");
    assert_eq!(first.ended(), 0);
    site.write("config/vidtui/config.toml", "[keys.everywhere]\nquit = \"F2\"\nshow_stages = \"F2\"\n");
    let mut second = site.console(SIZE, &[], &[]);
    second.shows(&["Cannot use", "Line 3", "F2 is the key"]).press(ENTER);
    second.shows(&["Small: short, then long", "2 Stages"]).press("q");
    assert_eq!(second.ended(), 0);
    assert_eq!(site.vidtui(&["config"]).code, 1);
}

#[test]
fn the_mouse_is_handled_unless_the_user_turns_it_off() {
    let site = TestSite::new();
    let mut console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("\x1b[<0;22;1M\x1b[<0;22;1m").shows(&["Small: short, then long"]);
    console.until("the mouse", |screen| screen.mouse_protocol_mode() != vt100::MouseProtocolMode::None);
    console.press("q");
    assert_eq!(console.ended(), 0);
    console.until("no mouse", |screen| screen.mouse_protocol_mode() == vt100::MouseProtocolMode::None);
    site.write("config/vidtui/config.toml", "mouse = false\n");
    let mut console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]);
    console.until("no mouse", |screen| screen.mouse_protocol_mode() == vt100::MouseProtocolMode::None);
    console.press("q");
    assert_eq!(console.ended(), 0);
}

#[test]
fn the_mouse_works_in_tmux_whether_or_not_tmux_uses_the_mouse_itself() {
    if Command::new("tmux").arg("-V").output().is_err() {
        println!("skipped: no tmux on PATH");
        return;
    }
    for mouse in ["on", "off"] {
        let site = TestSite::new();
        site.write("tmux.conf", &format!("set -g mouse {mouse}\nset -g status off\nset -g escape-time 0\n"));
        let command = format!("{VIDTUI} --runs runs");
        // The test has its own tmux server, which ends with its only session.
        let args = ["-u", "-S", "tmux.socket", "-f", "tmux.conf", "new-session", &command];
        let mut tmux = Pty::start(SIZE, "tmux", &args, &site.env(), &site.root);
        tmux.shows(&["No runs yet"]).press("\x1b[<0;22;1M\x1b[<0;22;1m");
        tmux.shows(&["Small: short, then long"]).press("q");
        assert_eq!(tmux.ended(), 0);
        tmux.assert_restored();
    }
}

#[test]
fn when_two_consoles_resume_the_same_run_one_of_them_fails() {
    let site = TestSite::new();
    let run = site.succeeds(&["launch", "configs/small:short"]);
    let run = run.trim();
    site.until_step(run, 1);
    site.succeeds(&["stop", run, "--wait"]);
    let consoles = [site.console(SIZE, &[], &[]), site.console(SIZE, &[], &[])];
    for console in &consoles {
        console.shows(&["stopped"]);
    }
    for console in &consoles {
        console.press("r");
    }
    // Either the lock of the attempts or the state of the run refuses the resume, depending on timing.
    let by_the_lock = |console: &Pty| console.text().contains("annot resume");
    let refused = |console: &Pty| by_the_lock(console) || console.text().contains("there is nothing to resume");
    consoles[0]
        .meanwhile("one of them to be refused", || consoles.iter().filter(|console| refused(console)).count() == 1);
    let dir = &site.runs()[0];
    consoles[0].meanwhile("the other's attempt", || is_alive(dir));
    assert_eq!(dir.attempt_numbers().unwrap(), [1, 2]);
    // Both show the resumed run. A dialog is closed first.
    for console in &consoles {
        if by_the_lock(console) {
            console.press(ENTER);
        }
        console.shows(&["running"]);
    }
}

#[test]
fn a_failed_run_shows_the_cause_and_the_key_to_resume() {
    let site = TestSite::new().with("FAKE_DIES_AT", "22");
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]).press(ENTER).shows(&["Start short?"]).press(ENTER);
    console.shows(&["failed", "Rank 1 died", "r resume from step 20"]);
    console.press("r").shows(&["running"]);
}

#[test]
fn a_launch_with_a_missing_file_shows_the_cause_and_starts_nothing() {
    let site = TestSite::new();
    std::fs::remove_file(site.root.join("data/short.latent.safetensors")).unwrap();
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]).press(ENTER);
    console.shows(&["✗ data", "short.latent.safetensors"]).press(ENTER).shows(&["annot start"]);
    assert!(site.runs().is_empty());
    console.press(ESC).shows(&["Small"]);
}

#[test]
fn an_invalid_recipe_is_shown_in_place_of_its_stages() {
    let site = TestSite::new();
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]);
    site.write("configs/small/long.toml", "base = \"short.toml\"\n[model]\nframes = 3\n");
    console.shows(&["frames"]);
}

#[test]
fn a_recorded_session_replays_to_the_same_screen() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small:short", "--set", "train.steps=30", "--wait"]);
    let mut console = site.console((80, 24), &["--record", "session.jsonl"], &[]);
    console.shows(&["finished"]).press(ENTER).shows(&["Gradient norm"]).press("?").shows(&["Keys"]).press(ESC);
    console.shows_no("Keys").shows(&["Gradient norm"]);
    console.press("q");
    console.ended();
    // Messages between the last frame and the end are in the recording, but were not drawn.
    let last_frame = console.last_frame();
    assert!(last_frame.contains("Gradient norm"), "{last_frame}");
    let recorded = std::fs::read_to_string(site.root.join("session.jsonl")).unwrap();
    let lines: Vec<&str> = recorded.lines().collect();
    let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned();
    let replays = (1..=lines.len()).rev().map(|count| {
        site.write("until.jsonl", &lines[..count].join("\n"));
        trimmed(&site.succeeds(&["replay", "until.jsonl", "--screen", "80x24"]))
    });
    let mut replays = replays.peekable();
    let end = replays.peek().unwrap().clone();
    assert!(replays.any(|replay| replay == trimmed(&last_frame)), "last frame:\n{last_frame}\nreplayed:\n{end}");
}
