//! Tests that the console restores the terminal on every exit.

use crate::pty::{CTRL_C, CTRL_Z, ENTER, ESC, Pty, colour_codes};
use crate::test_site::TestSite;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SIZE: (u16, u16) = (100, 30);

fn open(site: &TestSite) -> Pty {
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]);
    console.until("the alternate screen", |screen| screen.alternate_screen() && screen.hide_cursor());
    console
}

#[test]
fn quitting_restores_the_terminal() {
    for key in ["q", CTRL_C] {
        let site = TestSite::new();
        let mut console = open(&site);
        console.press(key);
        assert_eq!(console.ended(), 0);
        console.assert_restored();
    }
}

#[test]
fn a_terminating_signal_restores_the_terminal_and_reaches_the_parent() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let site = TestSite::new();
        let mut console = open(&site);
        kill(Pid::from_raw(console.pid() as i32), signal).unwrap();
        assert_ne!(console.ended(), 0, "the exit status must show that {signal} ended it");
        console.assert_restored();
    }
}

#[test]
fn ctrl_z_suspends_the_console_and_fg_redraws_it() {
    let site = TestSite::new();
    let mut shell = site.shell(SIZE);
    shell.prompts();
    shell.press(&format!("{} --runs runs\r", crate::test_site::VIDTUI)).shows(&["No runs yet"]);
    shell.press(CTRL_Z).shows(&["Stopped"]).prompts();
    shell.until("the main screen and the cursor", |screen| !screen.alternate_screen() && !screen.hide_cursor());
    shell.press("echo at the shell\r").shows(&["at the shell\n"]).prompts();
    shell.press("fg\r").shows(&["No runs yet"]);
    shell.until("the alternate screen", |screen| screen.alternate_screen());
    shell.press("?").shows(&["Keys"]);
    shell.press(ESC).press("q").prompts();
    shell.until("the main screen", |screen| !screen.alternate_screen() && !screen.hide_cursor());
    shell.press("exit 0\r");
    assert_eq!(shell.ended(), 0);
}

#[test]
fn ctrl_z_also_suspends_the_programs_that_wait_for_the_console() {
    // Like `cargo run`: the shell waits for a program that waits for the console.
    let site = TestSite::new();
    let shell = site.shell(SIZE);
    shell.prompts();
    shell
        .press(&format!("sh -c '{} --runs runs; echo it has ended'\r", crate::test_site::VIDTUI))
        .shows(&["No runs yet"]);
    shell.press(CTRL_Z).shows(&["Stopped"]).prompts();
    shell.press("fg\r").shows(&["No runs yet"]);
    shell.press("q").shows(&["it has ended"]);
}

#[test]
fn without_a_shell_to_return_to_ctrl_z_does_nothing() {
    let site = TestSite::new();
    let mut console = open(&site);
    console.press(CTRL_Z).press("?").shows(&["Keys"]);
    console.press(ESC).press("q");
    assert_eq!(console.ended(), 0);
}

#[test]
fn a_stop_signal_suspends_the_console() {
    let site = TestSite::new();
    let shell = site.shell(SIZE);
    shell.prompts();
    shell.press(&format!("{} --runs runs\r", crate::test_site::VIDTUI)).shows(&["No runs yet"]);
    kill(Pid::from_raw(shell.children()[0]), Signal::SIGTSTP).unwrap();
    shell.shows(&["Stopped"]).prompts();
    shell.press("fg\r").shows(&["No runs yet"]).press("q").prompts();
}

#[test]
fn with_no_color_there_is_no_colour_code() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small:short", "--set", "train.steps=30", "--wait"]);
    let tour = |env: &[(&str, &str)]| {
        let mut console = site.console(SIZE, &[], env);
        console.shows(&["small-short"]).press(ENTER).shows(&["Gradient norm"]).press("?").shows(&["Keys"]);
        console.press(ESC).press("2").shows(&["Small"]).press("q");
        console.ended();
        console.raw()
    };
    assert_eq!(colour_codes(&tour(&[("NO_COLOR", "1")])), [""; 0]);
    assert!(!colour_codes(&tour(&[])).is_empty(), "there are colour codes without NO_COLOR");
}

#[test]
fn the_theme_of_16_colours_writes_no_other_colour() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small:short", "--set", "train.steps=30", "--wait"]);
    site.write("config/vidtui/config.toml", "theme = \"16\"\n");
    let mut console = site.console(SIZE, &[], &[]);
    console.shows(&["small-short"]).press(ENTER).shows(&["Gradient norm"]).press("?").shows(&["Keys"]).press(ESC);
    for (key, text) in [("2", "Small"), ("3", "1 up"), ("a", "No alerts")] {
        console.press(key).shows(&[text]);
    }
    console.press("q");
    console.ended();
    let codes = colour_codes(&console.raw());
    let mut colours = codes.iter().flat_map(|code| colours_of(code));
    assert!(!codes.is_empty() && colours.all(|colour| colour.is_some_and(|colour| colour < 16)), "{codes:?}");
}

/// Returns the numbers of the colours in the parameters of an SGR sequence; `None` for a 24-bit colour.
fn colours_of(code: &str) -> Vec<Option<u32>> {
    let parameters: Vec<u32> = code.split([';', ':']).map(|number| number.parse().unwrap_or(0)).collect();
    let (mut colours, mut at) = (Vec::new(), 0);
    while let Some(number) = parameters.get(at) {
        at += 1;
        match number {
            30..=37 | 40..=47 => colours.push(Some(number % 10)),
            90..=97 | 100..=107 => colours.push(Some(8 + number % 10)),
            38 | 48 | 58 if parameters.get(at) == Some(&5) => {
                colours.push(parameters.get(at + 1).copied());
                at += 2;
            }
            38 | 48 | 58 => {
                colours.push(None);
                at += 4;
            }
            _ => {}
        }
    }
    colours
}

#[test]
fn every_size_down_to_one_cell_works() {
    let site = TestSite::new();
    let console = open(&site);
    for size in [(1, 1), (7, 2), (300, 3), (2, 100), (40, 10)] {
        // Opens and closes the help. A tiny window may show nothing to wait for, so the test waits a fixed time.
        console.resize(size).press("?").press(ESC);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    // The last tab does not fit into 40 columns.
    console.resize((80, 24)).shows(&["4 Convert", "No runs yet"]);
}

#[test]
fn a_key_is_read_at_once_when_the_window_is_resized_with_it() {
    let site = TestSite::new();
    let mut console = open(&site);
    console.press("/").shows(&["Filter runs:"]);
    for n in 0..200 {
        let size = if n % 2 == 0 { (90, 30) } else { SIZE };
        // A character is typed and deleted in turn, before and after the change.
        let key = if n % 4 < 2 { "x" } else { "\x7f" };
        if n % 8 < 4 {
            console.resize(size).press(key)
        } else {
            console.press(key).resize(size)
        };
        console.meanwhile("the key to be read", || console.has_read_everything());
    }
    console.press("y").shows(&["Filter runs: y"]).press(ESC).shows_no("Filter runs:").press("q");
    assert_eq!(console.ended(), 0);
}

#[test]
fn pasted_text_is_not_handled_as_keys() {
    let site = TestSite::new();
    let mut console = open(&site);
    console.press("\x1b[200~q2?\x1b[201~").press("?").shows(&["Keys"]);
    console.press(ESC).shows(&["No runs yet"]).press("q");
    assert_eq!(console.ended(), 0);
}

#[test]
fn a_panic_restores_the_terminal_before_its_message() {
    let site = TestSite::new();
    let me = std::env::current_exe().unwrap();
    let args = ["--exact", "terminal::panic_with_the_terminal_taken", "--nocapture"];
    let mut child = Pty::start(SIZE, me.to_str().unwrap(), &args, &[(PANIC, "1")], &site.root);
    assert_eq!(child.ended(), 101);
    child.assert_restored();
    let raw = child.raw();
    let (left, message) = (raw.find("\x1b[?1049l").unwrap(), raw.find("on purpose").unwrap());
    assert!(left < message, "the message would be lost with the alternate screen: {raw:?}");
}

#[test]
fn a_replay_restores_the_terminal() {
    let site = TestSite::new();
    let mut console = site.console(SIZE, &["--record", "session.jsonl"], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]).press("q");
    console.ended();
    let mut replay = site.console(SIZE, &["replay", "session.jsonl", "--speed", "4"], &[]);
    replay.shows(&["Small"]);
    kill(Pid::from_raw(replay.pid() as i32), Signal::SIGTERM).unwrap();
    assert_ne!(replay.ended(), 0);
    replay.assert_restored();
}

#[test]
fn kill_on_a_terminal_asks_and_only_a_yes_kills() {
    let site = TestSite::new();
    let run = site.succeeds(&["launch", "configs/small:short"]);
    let run = run.trim();
    for (answer, state) in [("\r", "running"), ("no\r", "running"), ("y\r", "stopped")] {
        site.until_step(run, 1);
        let mut shell = site.console(SIZE, &["kill", run], &[]);
        shell.shows(&["supervisor", "Kill? [y/N]"]).press(answer);
        assert_eq!(shell.ended() == 0, state == "stopped");
        assert_eq!(site.json(&["status", run, "--json"])["state"], state);
    }
}

/// The module of the console, so that the test uses the real code.
#[path = "../../src/vidtui/src/terminal.rs"]
#[allow(dead_code, reason = "the console uses the rest")]
mod of_the_console;

/// The environment variable with which [`panic_with_the_terminal_taken`] panics.
const PANIC: &str = "VIDTUI_TEST_PANIC";

/// Not a test: the program that panics. The test above runs it in a terminal.
#[test]
fn panic_with_the_terminal_taken() {
    if std::env::var_os(PANIC).is_none() {
        return;
    }
    of_the_console::install_panic_hook();
    let screen = of_the_console::Screen::open(of_the_console::Colours::On).unwrap();
    // A panic in a thread does not end the program without the hook.
    let _ = std::thread::spawn(|| panic!("on purpose")).join();
    drop(screen);
}
