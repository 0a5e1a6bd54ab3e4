//! Tests of the launch form, which launches any recipe from the console and shows its settings, target and checks.

use crate::pty::{ENTER, ESC, Pty};
use crate::test_site::TestSite;

const SIZE: (u16, u16) = (110, 34);
const TAB: &str = "\t";
/// Ctrl-U, which deletes the text of an input.
const CLEAR: &str = "\x15";

/// Opens the form of the recipe `short` from the list of recipes.
fn form(site: &TestSite) -> Pty {
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("5").shows(&["small", "long", "short"]).press("j").press(ENTER);
    console.shows(&["Start small-short?", "On this machine", "passed"]);
    console
}

/// Types a text into the field that a key opens.
fn enter(console: &Pty, key: &str, text: &str) {
    console.press(key).shows(&["▏"]).press(CLEAR).press(text).press(ENTER);
}

#[test]
fn a_plain_recipe_is_launched_with_an_override_from_the_list_of_recipes() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let console = form(&site);
    console.press("+").press("train.st").press(TAB).shows(&["train.steps="]).press("2").press(ENTER);
    console.shows(&["override", "Start small-short?"]).press(ENTER).shows(&["finished"]);
    let run = site.runs()[0].read_run().unwrap();
    assert_eq!(run.recipe().unwrap().train.steps(), 2);
    assert_eq!(run.stage, None);
    let from = run.launched_from.unwrap();
    assert!(from.recipe.is_absolute() && from.recipe.ends_with("configs/small/short.toml"), "{from:?}");
    assert_eq!(from.sets, ["train.steps=2"]);
    // The run can be launched again with its override.
    console.shows(&["n new run"]).press("n").shows(&["Start small-short?", "override", "passed"]);
}

#[test]
fn a_finished_run_trains_longer_with_the_proposed_steps() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    site.succeeds(&["launch", "configs/small/short.toml", "--set", "train.steps=2", "--wait"]);
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["finished"]).press("r").shows(&["--set train.steps=4"]).press(ENTER);
    console.shows(&["steps", "3 to 4"]).press(ENTER);
    site.until("the second attempt", || site.runs()[0].attempt_numbers().unwrap() == [1, 2]);
    assert_eq!(site.runs()[0].read_attempt(2).unwrap().steps, Some(4));
}

#[test]
fn wrong_input_is_refused_in_place_and_starts_nothing() {
    let site = TestSite::new();
    let console = form(&site);
    // A mistyped key, a value of the wrong type, and a number of ranks that is not a number.
    for (key, text, shown) in
        [("+", "train.step=3", "did you mean"), ("+", "train.steps=ten", "hint"), ("R", "two", "hint")]
    {
        enter(&console, key, text);
        console.shows(&[shown, "▏"]).press(ESC).shows_no("▏");
    }
    // Only the checks can find that these weights do not exist.
    enter(&console, "i", "no/such/weights");
    console.shows(&["✗ weights", "no/such/weights"]).press(ENTER).shows(&["annot start"]);
    enter(&console, "i", "");
    console.shows(&["Start small-short?"]);
    // More ranks than the mesh has.
    enter(&console, "R", "3");
    console.shows(&["✗ mesh"]).press(ENTER).shows(&["annot start"]);
    console.press(ESC).shows(&["configs/small"]);
    enter(&console, "n", "none.toml");
    console.shows(&["Launch none", "No such file"]).press(ENTER);
    enter_is_refused(&site, &console);
}

/// Waits until the console has handled Enter, which started nothing.
fn enter_is_refused(site: &TestSite, console: &Pty) {
    console.press("?").shows(&["Keys"]).press(ESC).shows_no("Keys");
    assert!(site.runs().is_empty());
}

#[test]
fn an_override_that_contradicts_the_mesh_is_explained_and_can_be_removed() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let console = form(&site);
    console.press("+").press("mesh.dp_shard=3").shows(&["hint: "]).press(ENTER).shows_no("▏");
    console.shows(&["global_batch", "hint: "]).press(ENTER);
    enter_is_refused(&site, &console);
    console.press("\x7f").shows(&["Start small-short?"]);
    enter(&console, "+", "train.steps=1");
    console.shows(&["override"]).press(ENTER).shows(&["finished"]);
}

#[test]
fn a_hostfile_that_changes_while_the_form_is_open_is_planned_again() {
    let site = TestSite::new();
    // No server listens on this port.
    let hostfile = |slots: usize| site.write("hostfiles/nodes.txt", &format!("127.0.0.1:port=1 slots={slots}\n"));
    hostfile(2);
    let console = form(&site);
    console.press("T").shows(&["Where to run", "hostfiles/nodes.txt"]).press("j").press(ENTER);
    console.shows(&["On hostfile hostfiles/nodes.txt", "[x] 127.0.0.1", "2 slots", "✗ node"]);
    console.press(ENTER).shows(&["annot start"]);
    hostfile(1);
    console.shows(&["nodes.txt changed", "1 slot ", "✗ mesh"]);
    console.press("M").shows(&["fitted to the ranks", "✗ node"]);
    site.write("hostfiles/nodes.txt", "gpu01 slots=many\n");
    console.shows(&["line 1", "many"]).press(ENTER);
    enter_is_refused(&site, &console);
    // The form also reads a changed recipe again.
    console.press("T").press("g").press(ENTER).shows(&["On this machine", "Start small-short?"]);
    let recipe = std::fs::read_to_string(site.root.join("configs/small/short.toml")).unwrap();
    site.write("configs/small/short.toml", &recipe.replace("steps = 6000", "steps = 41"));
    console.shows(&["short.toml changed", "41"]);
}

#[test]
fn the_typed_arguments_of_a_launch_fill_in_the_form() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["No runs yet"]).press("2").shows(&["Small"]);
    let line = "configs/small:short --set train.steps=2 --local 2 --name mine";
    enter(&console, "n", line);
    console.shows(&["Start short?", "override", "2 ranks"]).press(TAB).press(TAB).press(TAB).press("G");
    console.shows(&["vidtui launch configs/small:short", "'train.steps=2'", "--name mine"]);
    console.press(ENTER).shows(&["finished"]);
    let run = site.runs()[0].read_run().unwrap();
    assert_eq!((run.name.as_str(), run.stage.as_deref()), ("mine", Some("short")));
}
