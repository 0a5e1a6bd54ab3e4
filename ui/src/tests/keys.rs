//! Tests of the key tables: they are complete and unambiguous, and the help lists all of them.

use crate::fixtures::*;
use crate::*;
use std::collections::BTreeSet;

#[test]
fn every_binding_appears_in_the_help() {
    let ui = Ui::with_runs(vec![running(83)]);
    for context in Context::ALL {
        let dialog = model::HelpDialog { context, scroll: 0 };
        let text: String = dialog.lines(&ui.model).iter().map(|line| line.to_string() + "\n").collect();
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for binding in context.all_bindings().chain(Context::ALL.iter().flat_map(|c| c.bindings())) {
            assert!(flat.contains(binding.help), "{context:?}: {} is missing", binding.help);
            assert!(text.contains(&binding.keys[0].name()), "{context:?}: {} has no key", binding.help);
        }
    }
}

#[test]
fn no_key_has_two_actions_on_one_screen() {
    for context in Context::ALL {
        let mut seen = BTreeSet::new();
        for key in context.bindings().iter().chain(context.global()).flat_map(|binding| binding.keys) {
            assert!(seen.insert(key.name()), "{context:?}: {} twice", key.name());
        }
    }
}

#[test]
fn no_action_is_bound_twice_on_one_screen() {
    for context in Context::ALL {
        let mut seen = BTreeSet::new();
        for binding in context.all_bindings() {
            assert!(seen.insert(format!("{:?}", binding.action)), "{context:?}: {:?} twice", binding.action);
        }
    }
}

#[test]
fn every_dialog_can_be_closed_and_every_screen_quit() {
    for context in Context::ALL {
        assert_eq!(KeyMap::default().action(context, Key::ctrl('c')), Some(Action::Quit), "{context:?}");
        assert_eq!(KeyMap::default().action(context, Key::ctrl('z')), Some(Action::Suspend), "{context:?}");
        assert!(KeyMap::default().action(context, Key::code(KeyCode::Esc)).is_some(), "{context:?}");
    }
}

#[test]
fn the_key_bar_shows_only_possible_actions() {
    let bar = |row: RunRow| Ui::with_runs(vec![row]).screen().lines().last().unwrap().to_owned();
    let running = bar(running(83));
    let stopped = bar(row(stage_1(), "2s", runstate::RunState::Stopped, 97));
    insta::assert_snapshot!("key_bars_of_a_running_and_a_stopped_run", format!("{running}\n{stopped}"));
}

/// Actions that have one meaning on different screens, so that they share a letter.
const SAME: &[&[Action]] = &[
    &[Action::NewRun, Action::NextStage, Action::LaunchRecipe],
    &[Action::Recipes, Action::Defaults],
    &[Action::RankMap, Action::Ranks, Action::LogRanks],
    &[Action::AllUsers, Action::Unfold, Action::AcknowledgeAll],
    &[Action::Weights, Action::WeightsOnly],
];
/// Actions with the letters that other programs use for them: matches of a search, and the answers to a question.
const USUAL: &[Action] =
    &[Action::SearchNext, Action::SearchPrevious, Action::Yes, Action::No, Action::Cancel, Action::Quit];

#[test]
fn a_letter_has_one_meaning_on_all_screens_and_the_table_of_the_documents_lists_it() {
    let page = include_str!("../../../docs/console.md");
    let mut letters: std::collections::BTreeMap<char, Vec<(&str, Action)>> = std::collections::BTreeMap::new();
    for context in Context::ALL {
        for binding in context.bindings().iter().filter(|binding| !USUAL.contains(&binding.action)) {
            for key in binding.keys.iter().filter(|key| !key.ctrl && !key.alt) {
                let KeyCode::Char(letter) = key.code else { continue };
                if letter.is_ascii_alphabetic() {
                    letters.entry(letter).or_default().push((context.title(), binding.action));
                }
            }
        }
    }
    for (letter, uses) in &letters {
        let meaning = |action: &Action| SAME.iter().position(|same| same.contains(action)).ok_or(*action);
        let first = meaning(&uses[0].1);
        assert!(uses.iter().all(|(_, action)| meaning(action) == first), "{letter}: {uses:?}");
        // Every list has the keys for moving.
        let places: Vec<&str> = uses.iter().map(|(title, _)| *title).collect();
        let places = if "jkgG".contains(*letter) { "every list".to_owned() } else { places.join(", ") };
        let row = page.lines().find(|line| line.starts_with(&format!("| `{letter}` |")));
        let listed = row.and_then(|row| row.trim_end_matches(" |").rsplit("| ").next());
        assert_eq!(listed, Some(places.as_str()), "{letter}");
    }
    let rows = page.lines().filter(|line| line.len() > 6 && line.starts_with("| `") && &line[4..6] == "` ").count();
    let global = Context::Runs.global().iter().flat_map(|binding| binding.keys);
    let global =
        global.filter(|key| !key.ctrl && matches!(key.code, KeyCode::Char(c) if c.is_ascii_alphabetic())).count();
    assert_eq!(rows, letters.len() + global, "a letter of the table has no action");
}
