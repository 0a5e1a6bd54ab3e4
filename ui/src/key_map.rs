//! The keys that the user has chosen, and names of keys, actions and screens in files.

use crate::bindings::{Action, Binding, Context};
use crate::msg::{Key, KeyCode};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The keys of all actions: the tables of the contexts, with the changes of the user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyMap {
    changes: Vec<KeyChange>,
}

/// The keys of an action that replace its default keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyChange {
    /// The screen or dialog; `None` for all that have the action, except for those where text is typed.
    pub context: Option<Context>,
    /// The action.
    pub action: Action,
    /// The keys that replace the default keys.
    pub keys: Vec<Key>,
}

/// The reason why keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyError {
    /// An action has no key.
    NoKey,
    /// The key always closes the console.
    Reserved,
    /// A character without Ctrl or Alt where text is typed.
    Typed(Key),
    /// Two actions of a screen or dialog have the same key.
    Clash {
        /// The screen or dialog.
        context: Context,
        /// The key.
        key: Key,
        /// The two actions.
        actions: [Action; 2],
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey => f.write_str("the list of keys is empty"),
            Self::Reserved => f.write_str("Ctrl-C always closes the console"),
            Self::Typed(key) => {
                write!(f, "{} types a character there; use a key with Ctrl or Alt, or a named key", key.name())
            }
            Self::Clash { context, key, actions: [one, other] } => {
                let name = context.name();
                write!(f, "in {name}, {} is the key of {} and of {}", key.name(), one.name(), other.name())
            }
        }
    }
}

/// The key that always closes the console, so that a mistake in a key map cannot lock the user in.
const ALWAYS_QUITS: Key = Key::ctrl('c');

impl KeyMap {
    /// Changes the keys of an action. A change for one context takes precedence over a change for all contexts.
    ///
    /// # Errors
    /// Fails if there is no key, a key is reserved for closing the console, or a key types a character in this context.
    pub fn change(&mut self, change: KeyChange) -> Result<(), KeyError> {
        let KeyChange { context, action, mut keys } = change;
        if keys.is_empty() {
            return Err(KeyError::NoKey);
        }
        if action == Action::Quit {
            keys.retain(|key| *key != ALWAYS_QUITS);
            keys.push(ALWAYS_QUITS);
        } else if keys.contains(&ALWAYS_QUITS) {
            return Err(KeyError::Reserved);
        }
        let is_typed = |key: &&Key| matches!(key.code, KeyCode::Char(_)) && !key.ctrl && !key.alt;
        if let (true, Some(key)) = (context.is_some_and(Context::is_typed), keys.iter().find(is_typed)) {
            return Err(KeyError::Typed(*key));
        }
        self.changes.retain(|change| (change.context, change.action) != (context, action));
        self.changes.push(KeyChange { context, action, keys });
        Ok(())
    }

    /// Checks that no key has two actions on a screen or in a dialog.
    ///
    /// # Errors
    /// Returns the first key that has two actions.
    pub fn check(&self) -> Result<(), KeyError> {
        for context in Context::ALL {
            let mut seen: Vec<(Key, Action)> = Vec::new();
            for binding in context.all_bindings() {
                for key in self.keys(context, binding) {
                    if let Some((_, other)) =
                        seen.iter().find(|(other, action)| other == key && *action != binding.action)
                    {
                        return Err(KeyError::Clash { context, key: *key, actions: [*other, binding.action] });
                    }
                    seen.push((*key, binding.action));
                }
            }
        }
        Ok(())
    }

    /// Returns the keys of a binding in a context.
    pub fn keys<'a>(&'a self, context: Context, binding: &'a Binding) -> &'a [Key] {
        let of = |wanted: Option<Context>| {
            self.changes.iter().find(|change| change.context == wanted && change.action == binding.action)
        };
        let changed = of(Some(context)).or_else(|| of(None).filter(|_| !context.is_typed()));
        changed.map_or(binding.keys, |change| change.keys.as_slice())
    }

    /// Returns the name of an action's first key; empty where the action has no key.
    pub fn name(&self, context: Context, action: Action) -> String {
        let binding = context.all_bindings().find(|binding| binding.action == action);
        let key = binding.and_then(|binding| self.keys(context, binding).first());
        key.map_or_else(String::new, |key| key.name())
    }

    /// Returns the action of a key in a context.
    pub fn action(&self, context: Context, key: Key) -> Option<Action> {
        let found = context.all_bindings().find(|binding| self.keys(context, binding).contains(&key));
        found.map(|binding| binding.action)
    }

    /// Returns the changes of the user, in the order of the file.
    pub fn changes(&self) -> &[KeyChange] {
        &self.changes
    }
}

impl Context {
    /// Returns the name of the context in files.
    pub fn name(self) -> String {
        snake_case(&format!("{self:?}"))
    }

    /// Returns the context with a name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|context| context.name() == name)
    }

    /// Returns whether the context takes typed text.
    pub fn is_typed(self) -> bool {
        matches!(self, Self::Input | Self::Palette)
    }

    /// Returns the action of this context with a name.
    pub fn find_action(self, name: &str) -> Option<Action> {
        self.all_bindings().map(|binding| binding.action).find(|action| action.name() == name)
    }
}

impl Action {
    /// Returns the name of the action in files.
    pub fn name(self) -> String {
        snake_case(&format!("{self:?}"))
    }
}

fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// The keys that are not characters, with their names.
const NAMED: [(KeyCode, &str); 15] = [
    (KeyCode::Char(' '), "Space"),
    (KeyCode::Enter, "Enter"),
    (KeyCode::Esc, "Esc"),
    (KeyCode::Tab, "Tab"),
    (KeyCode::BackTab, "Shift-Tab"),
    (KeyCode::Backspace, "Backspace"),
    (KeyCode::Delete, "Delete"),
    (KeyCode::Up, "Up"),
    (KeyCode::Down, "Down"),
    (KeyCode::Left, "Left"),
    (KeyCode::Right, "Right"),
    (KeyCode::Home, "Home"),
    (KeyCode::End, "End"),
    (KeyCode::PageUp, "PgUp"),
    (KeyCode::PageDown, "PgDn"),
];

impl Key {
    /// Returns the key's name on the screen and in files.
    pub fn name(self) -> String {
        let named = NAMED.iter().find(|(code, _)| *code == self.code).map(|(_, name)| (*name).to_owned());
        let name = named.unwrap_or_else(|| match self.code {
            KeyCode::Char(c) if self.ctrl => c.to_uppercase().to_string(),
            KeyCode::Char(c) => c.to_string(),
            KeyCode::F(number) => format!("F{number}"),
            other => format!("{other:?}"),
        });
        match (self.ctrl, self.alt) {
            (true, true) => format!("Ctrl-Alt-{name}"),
            (true, false) => format!("Ctrl-{name}"),
            (false, true) => format!("Alt-{name}"),
            (false, false) => name,
        }
    }

    /// Returns the key with a name, such as `K`, `Ctrl-D`, `Alt-x`, `Shift-Tab` or `F5`. Only the case of a character without
    /// Ctrl matters.
    pub fn parse(name: &str) -> Option<Self> {
        let prefixed = |prefix: &str| {
            let (head, rest) = (name.get(..prefix.len())?, name.get(prefix.len()..)?);
            (head.eq_ignore_ascii_case(prefix) && !rest.is_empty()).then_some(rest)
        };
        if let Some(rest) = prefixed("ctrl-") {
            let key = Self::parse(rest).filter(|key| !key.ctrl)?;
            // Terminals send the same byte for Ctrl with both cases of a letter.
            let code = match key.code {
                KeyCode::Char(c) => KeyCode::Char(c.to_ascii_lowercase()),
                code => code,
            };
            return Some(Self { code, ctrl: true, ..key });
        }
        if let Some(rest) = prefixed("alt-") {
            return Self::parse(rest).filter(|key| !key.alt).map(|key| Self { alt: true, ..key });
        }
        if let Some((code, _)) = NAMED.iter().find(|(_, known)| known.eq_ignore_ascii_case(name)) {
            return Some(Self::code(*code));
        }
        if let Some(number) = prefixed("f").and_then(|number| number.parse().ok()) {
            return (1..=12).contains(&number).then_some(Self::code(KeyCode::F(number)));
        }
        let mut chars = name.chars();
        let c = chars.next().filter(|c| !c.is_control() && !c.is_whitespace())?;
        chars.next().is_none().then_some(Self::ch(c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn change(context: Option<Context>, action: Action, keys: &[&str]) -> KeyChange {
        KeyChange { context, action, keys: keys.iter().map(|key| Key::parse(key).unwrap()).collect() }
    }

    #[test]
    fn every_name_of_a_key_is_read_back() {
        for context in Context::ALL {
            for key in context.all_bindings().flat_map(|binding| binding.keys) {
                assert_eq!(Key::parse(&key.name()), Some(*key), "{}", key.name());
            }
        }
        assert_eq!(Key::parse("ctrl-D"), Some(Key::ctrl('d')));
        assert_eq!(Key::parse("f5"), Some(Key::code(KeyCode::F(5))));
        assert_eq!(Key::parse("f"), Some(Key::ch('f')));
        for wrong in ["", "ab", "F13", "Ctrl-", "Ctrl-Ctrl-a", "Hyper-x", "\u{7}"] {
            assert_eq!(Key::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn names_of_contexts_and_actions_are_unique() {
        let names: BTreeSet<String> = Context::ALL.into_iter().map(Context::name).collect();
        assert_eq!(names.len(), Context::ALL.len());
        for context in Context::ALL {
            assert_eq!(Context::find(&context.name()), Some(context));
            for binding in context.all_bindings() {
                assert_eq!(context.find_action(&binding.action.name()), Some(binding.action));
            }
        }
    }

    #[test]
    fn a_change_replaces_the_default_keys_of_one_or_all_screens() {
        let mut keys = KeyMap::default();
        keys.change(change(None, Action::Down, &["J"])).unwrap();
        keys.change(change(Some(Context::Run), Action::Stop, &["F9"])).unwrap();
        keys.check().unwrap();
        assert_eq!(keys.action(Context::Runs, Key::ch('J')), Some(Action::Down));
        assert_eq!(keys.action(Context::Runs, Key::ch('j')), None);
        assert_eq!(keys.action(Context::Palette, Key::ch('J')), None, "characters are typed there");
        assert_eq!(keys.name(Context::Run, Action::Stop), "F9");
        assert_eq!(keys.name(Context::Runs, Action::Stop), "s");
        keys.change(change(Some(Context::Runs), Action::Down, &["n"])).unwrap();
        let clash =
            KeyError::Clash { context: Context::Runs, key: Key::ch('n'), actions: [Action::NewRun, Action::Down] };
        assert_eq!(keys.check(), Err(clash));
    }

    #[test]
    fn no_key_map_locks_the_user_in() {
        let mut keys = KeyMap::default();
        let ctrl_c = Key::ctrl('c');
        assert_eq!(keys.change(change(None, Action::Help, &["Ctrl-C"])), Err(KeyError::Reserved));
        assert_eq!(keys.change(change(None, Action::Help, &[])), Err(KeyError::NoKey));
        let typed = change(Some(Context::Input), Action::Cancel, &["x"]);
        assert_eq!(keys.change(typed), Err(KeyError::Typed(Key::ch('x'))));
        keys.change(change(None, Action::Quit, &["F4"])).unwrap();
        keys.check().unwrap();
        for context in Context::ALL {
            assert_eq!(keys.action(context, ctrl_c), Some(Action::Quit), "{context:?}");
        }
    }
}
