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
