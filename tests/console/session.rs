//! Sessions of a person at the console: stages, launch, watch, stop, resume, export, kill, quit, open again.

use crate::place::Place;
use crate::pty::{ENTER, ESC, Pty};
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
    let place = Place::new();
    let mut console = place.console((80, 24), &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small: short, then long", "short", "long"]);
    // What is shown before it is started.
    console.press(ENTER).shows(&["Start short?", "2 on"]);
    console.press(ENTER).shows(&["small-short", "running", "Gradient norm"]);
    let run = place.runs()[0].clone();
    console.meanwhile("step 25", || place.has_done(run.name(), 25));

    console.press("s").shows(&["resume from step"]);
    console.meanwhile("its processes to end", || !is_alive(&run));
    let saved = rundir::latest(&run).unwrap().step;

    console.press("r").shows(&["running"]);
    console.meanwhile("one more step", || place.has_done(run.name(), saved + 1));
    assert_eq!(run.latest_attempt().unwrap().unwrap().start_step, saved);

    console.press("e").shows(&[".svg"]);
    console.press("E").shows(&[".png"]);
    let files = || place.root.read_dir_utf8().unwrap().map(|entry| entry.unwrap().file_name().to_owned());
    console.meanwhile("both charts", || {
        files().any(|name| name.ends_with(".svg")) && files().any(|name| name.ends_with(".png"))
    });

    console.press("q");
    assert_eq!(console.ended(), 0);
    assert!(console.text().contains("small-short"), "the farewell names what goes on:\n{}", console.text());
    assert!(is_alive(&run), "quitting leaves the run alone");

    let before = place.json(&["status", "latest", "--json"])["step"].as_u64().unwrap();
    place.until_step("latest", before + 5);
    let console = place.console(SIZE, &[], &[]);
    console.shows(&["small-short", "running"]).press(ENTER).shows(&["Loss", "resumed from step", "running"]);
    console.press("s").shows(&["stopped"]);
}

#[test]
fn a_terminal_that_goes_away_ends_the_console_and_not_the_run() {
    let place = Place::new();
    // `script` holds the other end of the console's terminal, as a terminal window does.
    let script = format!("exec {}", crate::place::VIDTUI);
    let window = Pty::start(SIZE, "script", &["-qc", &script, "/dev/null"], &place.env(), &place.root);
    window.shows(&["No runs yet"]).press("2").shows(&["Small"]).press(ENTER).shows(&["Start short?"]).press(ENTER);
    window.shows(&["small-short", "running"]);
    let run = place.runs()[0].clone();
    let console = window.children().remove(0);
    kill(Pid::from_raw(window.pid() as i32), Signal::SIGKILL).unwrap();
    place.until("the console to end", || !std::fs::exists(format!("/proc/{console}")).unwrap());
    let before = place.json(&["status", run.name(), "--json"])["step"].as_u64().unwrap();
    place.until_step(run.name(), before + 5);
}

#[test]
fn kill_asks_first_and_shows_what_it_will_signal() {
    let place = Place::new();
    let run = place.works(&["launch", "configs/small:short"]);
    let run = RunDir::new(place.root.join("runs").join(run.trim()));
    let (file, _) = remote::pid_files(&run).unwrap().remove(0);
    let console = place.console(SIZE, &[], &[]);
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
    let place = Place::new().with("FAKE_STEP_MS", "400");
    let run = place.works(&["launch", "configs/small:short"]);
    let run = RunDir::new(place.root.join("runs").join(run.trim()));
    place.until_step("latest", 1);
    let told = place.json(&["stacks", "latest", "--json"]);
    assert_eq!(told["nodes"][0]["processes"], 3, "{told}");
    let text = std::fs::read_to_string(told["nodes"][0]["file"].as_str().unwrap()).unwrap();
    let (file, _) = remote::pid_files(&run).unwrap().remove(0);
    for rank in &file.ranks {
        assert!(text.contains(&format!("=== process {},", rank.pid)), "{text}");
    }
    let console = place.console(SIZE, &[], &[]);
    console.shows(&["running"]).press("t").shows(&["stacks of 3 processes are in"]);
    assert!(is_alive(&run), "nothing was signalled");
    place.works(&["kill", "latest", "--yes"]);
    assert!(place.refuses(&["stacks", "latest"]).contains("cannot collect the stacks"));
}

#[test]
fn the_second_stage_starts_from_the_first_ones_checkpoint() {
    let place = Place::new().with("FAKE_STEP_MS", "2");
    place.works(&["launch", "configs/small:short", "--set", "train.steps=40", "--wait"]);
    let console = place.console(SIZE, &[], &[]);
    console.shows(&["finished"]).press(ENTER).shows(&["n start next stage long"]);
    console.press("n").shows(&["Start long?"]).press(ENTER).shows(&["small-long", "finished"]);
    console.meanwhile("the second run", || place.runs().len() == 2);
    let runs: Vec<_> = place.runs().iter().map(|dir| dir.read_run().unwrap()).collect();
    let of_stage = |stage: &str| runs.iter().find(|run| run.stage.as_deref() == Some(stage)).unwrap();
    let lineage = of_stage("long").lineage.clone().unwrap();
    assert_eq!((lineage.run, lineage.step), (of_stage("short").id.clone(), 40));
}

#[test]
fn logs_are_followed_rank_by_rank() {
    let place = Place::new();
    place.works(&["launch", "configs/small:short"]);
    let console = place.console(SIZE, &[], &[]);
    console.shows(&["running"]).press("l").shows(&["rank 0 begins"]);
    console.press("]").shows(&["rank 1 begins"]);
    console.press(ESC).shows_no("rank 1 begins");
}

#[test]
fn of_two_consoles_that_resume_the_same_run_one_wins_and_the_other_shows_why_not() {
    let place = Place::new();
    let run = place.works(&["launch", "configs/small:short"]);
    let run = run.trim();
    place.until_step(run, 1);
    place.works(&["stop", run, "--wait"]);
    let consoles = [place.console(SIZE, &[], &[]), place.console(SIZE, &[], &[])];
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
    let dir = &place.runs()[0];
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
    let place = Place::new().with("FAKE_DIES_AT", "22");
    let console = place.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]).press(ENTER).shows(&["Start short?"]).press(ENTER);
    console.shows(&["failed", "Rank 1 died", "r resume from step 20"]);
    console.press("r").shows(&["running"]);
}

#[test]
fn a_launch_that_cannot_work_says_why_in_a_dialog_and_starts_nothing() {
    let place = Place::new();
    std::fs::remove_file(place.root.join("data/short.latent.safetensors")).unwrap();
    let console = place.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]).press(ENTER).shows(&["Start short?"]).press(ENTER);
    console.shows(&["short.latent.safetensors"]);
    assert!(place.runs().is_empty());
    console.press(ENTER).shows(&["Small"]);
}

#[test]
fn a_broken_recipe_is_shown_where_its_stages_would_be() {
    let place = Place::new();
    let console = place.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]);
    place.write("configs/small/long.toml", "base = \"short.toml\"\n[model]\nframes = 3\n");
    console.shows(&["frames"]);
}

#[test]
fn a_recorded_session_replays_to_the_same_screen() {
    let place = Place::new().with("FAKE_STEP_MS", "1");
    place.works(&["launch", "configs/small:short", "--set", "train.steps=30", "--wait"]);
    let mut console = place.console((80, 24), &["--record", "session.jsonl"], &[]);
    console.shows(&["finished"]).press(ENTER).shows(&["Gradient norm"]).press("?").shows(&["Keys"]).press(ESC);
    console.shows_no("Keys").shows(&["Gradient norm"]);
    console.press("q");
    console.ended();
    // What happened between the last frame and the end is in the recording and was never seen.
    let seen = console.last_frame();
    assert!(seen.contains("Gradient norm"), "{seen}");
    let recorded = std::fs::read_to_string(place.root.join("session.jsonl")).unwrap();
    let lines: Vec<&str> = recorded.lines().collect();
    let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned();
    let replays = (1..=lines.len()).rev().map(|count| {
        place.write("until.jsonl", &lines[..count].join("\n"));
        trimmed(&place.works(&["replay", "until.jsonl", "--screen", "80x24"]))
    });
    let mut replays = replays.peekable();
    let end = replays.peek().unwrap().clone();
    assert!(replays.any(|replay| replay == trimmed(&seen)), "seen at the end:\n{seen}\nreplayed:\n{end}");
}
