//! Sessions of a person at the console: stages, launch, watch, stop, resume, export, kill, quit, open again.

use crate::pty::{ENTER, ESC, Pty};
use crate::test_site::TestSite;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rundir::RunDir;
use runstate::Liveness;

const SIZE: (u16, u16) = (100, 30);

fn is_alive(run: &RunDir) -> bool {
    remote::pid_files(run).is_ok_and(|files| files.iter().any(|(_, live)| *live == Liveness::Alive))
}

#[test]
fn a_stage_is_launched_watched_stopped_resumed_with_one_key_and_exported() {
    let site = TestSite::new();
    let mut console = site.console((80, 24), &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small: short, then long", "short", "long"]);
    // What is shown before it is started.
    console.press(ENTER).shows(&["Start short?", "2 on"]);
    console.press(ENTER).shows(&["small-short", "running", "Gradient norm"]);
    let run = site.runs()[0].clone();
    console.meanwhile("step 25", || site.has_done(run.name(), 25));

    console.press("s").shows(&["resume from step"]);
    console.meanwhile("its processes to end", || !is_alive(&run));
    let saved = adapters::latest(&run).unwrap().step;

    console.press("r").shows(&["running"]);
    console.meanwhile("one more step", || site.has_done(run.name(), saved + 1));
    assert_eq!(run.latest_attempt().unwrap().unwrap().start_step, saved);

    console.press("e").shows(&[".svg"]);
    console.press("E").shows(&[".png"]);
    let files = || site.root.read_dir_utf8().unwrap().map(|entry| entry.unwrap().file_name().to_owned());
    console.meanwhile("both charts", || {
        files().any(|name| name.ends_with(".svg")) && files().any(|name| name.ends_with(".png"))
    });

    console.press("q");
    assert_eq!(console.ended(), 0);
    assert!(console.text().contains("small-short"), "the farewell names what goes on:\n{}", console.text());
    assert!(is_alive(&run), "quitting leaves the run alone");

    let before = site.json(&["status", "latest", "--json"])["step"].as_u64().unwrap();
    site.until_step("latest", before + 5);
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["small-short", "running"]).press(ENTER).shows(&["Loss", "resumed from step", "running"]);
    console.press("s").shows(&["stopped"]);
}

#[test]
fn the_console_and_the_export_command_write_the_same_chart() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.works(&["launch", "configs/small:short", "--set", "train.steps=30", "--wait"]);
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["finished"]).press(ENTER).shows(&["Gradient norm"]);
    console.press("L").press("S").press("e").shows(&["Wrote "]);
    let by_key = site.root.read_dir_utf8().unwrap().flatten().find(|entry| entry.file_name().ends_with("loss.svg"));
    let by_key = std::fs::read_to_string(by_key.unwrap().path()).unwrap();
    site.works(&["export", "latest", "--chart", "loss", "--log", "--smooth", "0.9", "--out", "by-command.svg"]);
    assert_eq!(by_key, std::fs::read_to_string(site.root.join("by-command.svg")).unwrap());
    assert!(by_key.contains("loss (raw)"));
}

#[test]
fn a_terminal_that_goes_away_ends_the_console_and_not_the_run() {
    let site = TestSite::new();
    // `script` holds the other end of the console's terminal, as a terminal window does.
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
fn kill_asks_first_and_shows_what_it_will_signal() {
    let site = TestSite::new();
    let run = site.works(&["launch", "configs/small:short"]);
    let run = RunDir::new(site.root.join("runs").join(run.trim()));
    let (file, _) = remote::pid_files(&run).unwrap().remove(0);
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["running"]).press("K").shows(&["Kill", &file.pid.to_string()]);
    for rank in &file.ranks {
        console.shows(&[&rank.pid.to_string()]);
    }
    // Enter presses the marked button, and that is No.
    console.press(ENTER).shows_no(&file.pid.to_string());
    assert!(is_alive(&run));
    console.press("K").shows(&[&file.pid.to_string()]).press("y");
    console.meanwhile("its processes to end", || !is_alive(&run));
    console.shows(&["stopped"]);
}

#[test]
fn stacks_of_all_ranks_are_written_into_the_run_by_a_key_and_by_its_command() {
    let site = TestSite::new().with("FAKE_STEP_MS", "400");
    let run = site.works(&["launch", "configs/small:short"]);
    let run = RunDir::new(site.root.join("runs").join(run.trim()));
    site.until_step("latest", 1);
    let told = site.json(&["stacks", "latest", "--json"]);
    assert_eq!(told["nodes"][0]["processes"], 3, "{told}");
    let text = std::fs::read_to_string(told["nodes"][0]["file"].as_str().unwrap()).unwrap();
    let (file, _) = remote::pid_files(&run).unwrap().remove(0);
    for rank in &file.ranks {
        assert!(text.contains(&format!("=== process {},", rank.pid)), "{text}");
    }
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["running"]).press("t").shows(&["stacks of 3 processes are in"]);
    assert!(is_alive(&run), "nothing was signalled");
    site.works(&["kill", "latest", "--yes"]);
    assert!(site.refuses(&["stacks", "latest"]).contains("cannot collect the stacks"));
}

#[test]
fn the_second_stage_starts_from_the_first_ones_checkpoint() {
    let site = TestSite::new().with("FAKE_STEP_MS", "2");
    site.works(&["launch", "configs/small:short", "--set", "train.steps=40", "--wait"]);
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
fn logs_are_followed_rank_by_rank() {
    let site = TestSite::new();
    site.works(&["launch", "configs/small:short"]);
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["running"]).press("l").shows(&["rank 0 begins"]);
    console.press("]").shows(&["rank 1 begins"]);
    console.press(ESC).shows_no("rank 1 begins");
}

#[test]
fn of_two_consoles_that_resume_the_same_run_one_wins_and_the_other_shows_why_not() {
    let site = TestSite::new();
    let run = site.works(&["launch", "configs/small:short"]);
    let run = run.trim();
    site.until_step(run, 1);
    site.works(&["stop", run, "--wait"]);
    let consoles = [site.console(SIZE, &[], &[]), site.console(SIZE, &[], &[])];
    for console in &consoles {
        console.shows(&["stopped"]);
    }
    for console in &consoles {
        console.press("r");
    }
    // By the lock of the attempts, or already by the state that it sees: which comes first is chance.
    let by_the_lock = |console: &Pty| console.text().contains("annot resume");
    let refused = |console: &Pty| by_the_lock(console) || console.text().contains("there is nothing to resume");
    consoles[0]
        .meanwhile("one of them to be refused", || consoles.iter().filter(|console| refused(console)).count() == 1);
    let dir = &site.runs()[0];
    consoles[0].meanwhile("the other's attempt", || is_alive(dir));
    assert_eq!(dir.attempt_numbers().unwrap(), [1, 2]);
    // Both see the run of the one that won; a message is closed first.
    for console in &consoles {
        if by_the_lock(console) {
            console.press(ENTER);
        }
        console.shows(&["running"]);
    }
}

#[test]
fn a_failed_run_says_on_screen_why_and_what_to_do() {
    let site = TestSite::new().with("FAKE_DIES_AT", "22");
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]).press(ENTER).shows(&["Start short?"]).press(ENTER);
    console.shows(&["failed", "Rank 1 died", "r resume from step 20"]);
    console.press("r").shows(&["running"]);
}

#[test]
fn a_launch_that_cannot_work_says_why_in_a_dialog_and_starts_nothing() {
    let site = TestSite::new();
    std::fs::remove_file(site.root.join("data/short.latent.safetensors")).unwrap();
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]).press(ENTER).shows(&["Start short?"]).press(ENTER);
    console.shows(&["short.latent.safetensors"]);
    assert!(site.runs().is_empty());
    console.press(ENTER).shows(&["Small"]);
}

#[test]
fn a_broken_recipe_is_shown_where_its_stages_would_be() {
    let site = TestSite::new();
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]);
    site.write("configs/small/long.toml", "base = \"short.toml\"\n[model]\nframes = 3\n");
    console.shows(&["frames"]);
}

#[test]
fn a_recorded_session_replays_to_the_same_screen() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.works(&["launch", "configs/small:short", "--set", "train.steps=30", "--wait"]);
    let mut console = site.console((80, 24), &["--record", "session.jsonl"], &[]);
    console.shows(&["finished"]).press(ENTER).shows(&["Gradient norm"]).press("?").shows(&["Keys"]).press(ESC);
    console.shows_no("Keys").shows(&["Gradient norm"]);
    console.press("q");
    console.ended();
    // What happened between the last frame and the end is in the recording and was never seen.
    let seen = console.last_frame();
    assert!(seen.contains("Gradient norm"), "{seen}");
    let recorded = std::fs::read_to_string(site.root.join("session.jsonl")).unwrap();
    let lines: Vec<&str> = recorded.lines().collect();
    let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned();
    let replays = (1..=lines.len()).rev().map(|count| {
        site.write("until.jsonl", &lines[..count].join("\n"));
        trimmed(&site.works(&["replay", "until.jsonl", "--screen", "80x24"]))
    });
    let mut replays = replays.peekable();
    let end = replays.peek().unwrap().clone();
    assert!(replays.any(|replay| replay == trimmed(&seen)), "seen at the end:\n{seen}\nreplayed:\n{end}");
}
