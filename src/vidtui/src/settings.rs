//! Reads the settings of the console from `config.toml`, and reports the line of a mistake.

use camino::{Utf8Path, Utf8PathBuf};
use ratatui::style::Color;
use recipe::nearest;
use rundir::{ErrorCode, Failure};
use std::collections::BTreeMap;
use std::io;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use ui::{Context, Key, KeyChange, KeyError, KeyMap};

/// The version of the file format that this program reads.
const VERSION: u32 = 1;

/// The top-level keys of the file.
pub const KEYS: [&str; 7] = ["version", "theme", "glyphs", "mouse", "restore", "colors", "keys"];

/// The name of the section of keys that applies to all screens and dialogs.
pub const EVERYWHERE: &str = "everywhere";

/// The settings of a user.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The colour theme.
    pub theme: ThemeName,
    /// Whether the screen uses Unicode or ASCII characters.
    pub glyphs: Glyphs,
    /// Whether the console handles the mouse.
    pub mouse: bool,
    /// Whether the console opens at the screen that was shown last.
    pub restore: bool,
    /// Colours that replace those of the theme, by the name of their role.
    pub colors: BTreeMap<&'static str, Vec<Color>>,
    /// The key bindings.
    pub keys: KeyMap,
    /// The line of each key that the file sets, by its dotted name.
    pub lines: BTreeMap<String, usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            theme: ThemeName::Auto,
            glyphs: Glyphs::Auto,
            mouse: true,
            restore: true,
            colors: BTreeMap::new(),
            keys: KeyMap::default(),
            lines: BTreeMap::new(),
        }
    }
}

/// The name of a theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "docs/console.md describes them")]
pub enum ThemeName {
    Auto,
    Dark,
    Light,
    ColourBlind,
    Sixteen,
    None,
}

impl ThemeName {
    /// The names in the file, the default first.
    pub const ALL: [(&str, Self); 6] = [
        ("auto", Self::Auto),
        ("dark", Self::Dark),
        ("light", Self::Light),
        ("colour-blind", Self::ColourBlind),
        ("16", Self::Sixteen),
        ("none", Self::None),
    ];
}

/// The glyphs of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "docs/console.md describes them")]
pub enum Glyphs {
    Auto,
    Unicode,
    Ascii,
}

impl Glyphs {
    /// The names in the file, the default first.
    pub const ALL: [(&str, Self); 3] = [("auto", Self::Auto), ("unicode", Self::Unicode), ("ascii", Self::Ascii)];
}

/// The roles of colours, and how many colours each has.
pub const ROLES: [(&str, usize); 7] =
    [("accent", 1), ("faint", 1), ("good", 1), ("warn", 1), ("bad", 1), ("ramp", 4), ("lines", 8)];

impl Settings {
    /// Returns the path of the settings of this user: in `XDG_CONFIG_HOME`, or in `~/.config`.
    pub fn user_file() -> Option<Utf8PathBuf> {
        Some(rundir::user_folder("XDG_CONFIG_HOME", ".config")?.join("vidtui/config.toml"))
    }

    /// Reads the settings of this user; the default settings if there is no file.
    ///
    /// # Errors
    /// The file cannot be read or is not valid.
    pub fn of_user() -> Result<Self, Failure> {
        let Some(path) = Self::user_file() else { return Ok(Self::default()) };
        match rundir::read_text(&path) {
            Ok(text) => Self::parse(&path, &text),
            Err(rundir::FileError::Io { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                Ok(Self::default())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn parse(path: &Utf8Path, text: &str) -> Result<Self, Failure> {
        let file = File { path, text };
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            file.bad(at, error.message(), "docs/console.md has an example")
        })?;
        let table = table.get_ref();
        // A newer version may have keys that are unknown here.
        if let Some(value) = table.get("version") {
            file.check_version(value)?;
        }
        let mut settings = Self::default();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            settings.lines.insert(name.to_owned(), file.line(key.span().start));
            match name {
                "version" => {}
                "theme" => settings.theme = file.one_of(name, value, &ThemeName::ALL)?,
                "glyphs" => settings.glyphs = file.one_of(name, value, &Glyphs::ALL)?,
                "mouse" => settings.mouse = file.switch(name, value)?,
                "restore" => settings.restore = file.switch(name, value)?,
                "colors" => file.colors(value, &mut settings)?,
                "keys" => file.keys(value, &mut settings)?,
                _ => return Err(file.unknown(key.span().start, "setting", name, KEYS)),
            }
        }
        Ok(settings)
    }
}

/// The path and the text of the file, for errors that name a line.
struct File<'a> {
    path: &'a Utf8Path,
    text: &'a str,
}

type Value<'a> = Spanned<DeValue<'a>>;

impl File<'_> {
    fn line(&self, at: usize) -> usize {
        self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn bad(&self, at: usize, why: impl std::fmt::Display, fix: impl Into<String>) -> Failure {
        let why = format!("line {}: {why}", self.line(at));
        Failure::new(ErrorCode::InvalidConfig, format!("cannot use {}", self.path), why, fix)
    }

    /// Makes the error for an unknown word. The hint is the most similar known word, or all of them.
    fn unknown<'b>(&self, at: usize, of: &str, word: &str, known: impl IntoIterator<Item = &'b str>) -> Failure {
        let known: Vec<&str> = known.into_iter().collect();
        let fix = match nearest(word, known.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("use one of: {}", known.join(", ")),
        };
        self.bad(at, format!("unknown {of} '{word}'"), fix)
    }

    fn check_version(&self, value: &Value<'_>) -> Result<(), Failure> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => number.as_str().parse::<u32>().ok().filter(|_| number.radix() == 10),
            _ => None,
        };
        match number {
            Some(VERSION) => Ok(()),
            Some(newer) if newer > VERSION => {
                let why = format!("it has version {newer}, and this vidtui reads version {VERSION}");
                Err(self.bad(value.span().start, why, "update vidtui, or write the file for this version"))
            }
            Some(_) => {
                Err(self.bad(value.span().start, "there is no such version", format!("write version = {VERSION}")))
            }
            None => Err(self.bad(value.span().start, "version is not a number", format!("write version = {VERSION}"))),
        }
    }

    fn one_of<T: Copy>(&self, name: &str, value: &Value<'_>, all: &[(&str, T)]) -> Result<T, Failure> {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        let DeValue::String(word) = value.get_ref() else {
            let fix = format!("write {name} = \"{}\"", names[0]);
            return Err(self.bad(value.span().start, format!("{name} is not a string in quotes"), fix));
        };
        let found = all.iter().find(|(known, _)| known == word).map(|(_, value)| *value);
        found.ok_or_else(|| {
            let fix = match nearest(word, names.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("use one of: {}", names.join(", ")),
            };
            self.bad(value.span().start, format!("{name} cannot be \"{word}\""), fix)
        })
    }

    fn switch(&self, name: &str, value: &Value<'_>) -> Result<bool, Failure> {
        match value.get_ref() {
            DeValue::Boolean(switch) => Ok(*switch),
            _ => {
                let fix = format!("write {name} = true or {name} = false");
                Err(self.bad(value.span().start, format!("{name} is neither true nor false"), fix))
            }
        }
    }

    fn table<'a, 'b>(&self, name: &str, value: &'b Value<'a>) -> Result<&'b DeTable<'a>, Failure> {
        match value.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(self.bad(value.span().start, format!("{name} is not a section"), format!("write [{name}]"))),
        }
    }

    /// Returns a string, or the strings of a list, with their byte offsets in the file.
    fn texts<'b>(&self, name: &str, value: &'b Value<'_>) -> Result<Vec<(&'b str, usize)>, Failure> {
        let text = |value: &'b Value<'_>| match value.get_ref() {
            DeValue::String(text) => Ok((text.as_ref(), value.span().start)),
            _ => {
                let fix = format!("write {name} = \"…\" or {name} = [\"…\", \"…\"]");
                Err(self.bad(value.span().start, format!("{name} is not a string in quotes"), fix))
            }
        };
        match value.get_ref() {
            DeValue::Array(list) => list.iter().map(text).collect(),
            _ => Ok(vec![text(value)?]),
        }
    }

    fn colors(&self, value: &Value<'_>, settings: &mut Settings) -> Result<(), Failure> {
        for (key, value) in self.table("colors", value)? {
            let name = key.get_ref().as_ref();
            let Some((role, count)) = ROLES.iter().find(|(role, _)| *role == name) else {
                let roles = ROLES.iter().map(|(role, _)| *role);
                return Err(self.unknown(key.span().start, "colour", name, roles));
            };
            let texts = self.texts(name, value)?;
            if texts.len() != *count {
                let why = format!("{name} has {}", units::counted(texts.len(), "colour"));
                let fix = format!("give it {}", units::counted(*count, "colour"));
                return Err(self.bad(value.span().start, why, fix));
            }
            let color = |(text, at): (&str, usize)| {
                let known = text.parse::<Color>();
                known.map_err(|_| {
                    let fix = "write \"#rrggbb\", a number from 0 to 255, or a name: red, light-blue, gray…";
                    self.bad(at, format!("\"{text}\" is not a colour"), fix)
                })
            };
            let colors = texts.into_iter().map(color).collect::<Result<_, _>>()?;
            settings.colors.insert(role, colors);
            settings.lines.insert(format!("colors.{name}"), self.line(key.span().start));
        }
        Ok(())
    }

    fn keys(&self, value: &Value<'_>, settings: &mut Settings) -> Result<(), Failure> {
        let mut last = value.span().start;
        for (section, value) in self.table("keys", value)? {
            let name = section.get_ref().as_ref();
            let context = Context::find(name);
            if context.is_none() && name != EVERYWHERE {
                let names: Vec<String> = Context::ALL.into_iter().map(Context::name).collect();
                let known = names.iter().map(String::as_str).chain([EVERYWHERE]);
                return Err(self.unknown(section.span().start, "screen", name, known));
            }
            for (key, value) in self.table(&format!("keys.{name}"), value)? {
                let action = key.get_ref().as_ref();
                last = key.span().start;
                self.change(context, action, last, value, settings)?;
                settings.lines.insert(format!("keys.{name}.{action}"), self.line(last));
            }
        }
        settings.keys.check().map_err(|error| {
            let at = self.line_of_clash(&error, settings).unwrap_or_else(|| self.line(last));
            let why = format!("line {at}: {error}");
            let fix = "choose another key for one of them; vidtui config --all lists all keys";
            Failure::new(ErrorCode::InvalidConfig, format!("cannot use {}", self.path), why, fix)
        })
    }

    fn change(
        &self,
        context: Option<Context>,
        name: &str,
        at: usize,
        value: &Value<'_>,
        settings: &mut Settings,
    ) -> Result<(), Failure> {
        let of = |context: Context| context.find_action(name);
        let action = match context {
            Some(context) => of(context),
            None => Context::ALL.into_iter().filter(|context| !context.is_typed()).find_map(of),
        };
        let Some(action) = action else {
            let everywhere = || Context::ALL.into_iter().filter(|context| !context.is_typed()).collect();
            let contexts = context.map_or_else(everywhere, |context| vec![context]);
            let all = contexts.iter().flat_map(|context| context.all_bindings()).map(|binding| binding.action.name());
            let mut known: Vec<String> = all.collect();
            known.sort();
            known.dedup();
            return Err(self.unknown(at, "action", name, known.iter().map(String::as_str)));
        };
        let keys = self.texts(name, value)?.into_iter().map(|(text, at)| {
            Key::parse(text).ok_or_else(|| {
                let fix = "write one character, Ctrl-x, Alt-x, F1 to F12, or Enter, Esc, Tab, Space, Up, PgDn…";
                self.bad(at, format!("\"{text}\" is not a key"), fix)
            })
        });
        let keys = keys.collect::<Result<_, _>>()?;
        settings
            .keys
            .change(KeyChange { context, action, keys })
            .map_err(|error| self.bad(value.span().start, format!("{name}: {error}"), "choose another key for it"))
    }

    /// Returns the last line that changes the keys of one of the two clashing actions.
    fn line_of_clash(&self, error: &KeyError, settings: &Settings) -> Option<usize> {
        let KeyError::Clash { context, actions, .. } = error else { return None };
        let sections = [context.name(), EVERYWHERE.to_owned()];
        let names =
            sections.iter().flat_map(|section| actions.iter().map(move |a| format!("keys.{section}.{}", a.name())));
        names.filter_map(|name| settings.lines.get(&name).copied()).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ui::Action;

    fn parse(text: &str) -> Result<Settings, Failure> {
        Settings::parse(Utf8Path::new("/home/ada/.config/vidtui/config.toml"), text)
    }

    #[test]
    fn an_empty_file_has_the_default_settings() {
        assert_eq!(parse("").unwrap(), Settings::default());
        assert_eq!(parse("# nothing\n").unwrap(), Settings::default());
    }

    #[test]
    fn every_setting_is_read() {
        let settings = parse(
            "version = 1\ntheme = \"colour-blind\"\nglyphs = \"ascii\"\nmouse = false\nrestore = false\n\
             [colors]\naccent = \"#102030\"\nramp = [\"1\", \"2\", \"red\", \"light-blue\"]\n\
             [keys.everywhere]\ndown = [\"J\", \"Ctrl-N\"]\n[keys.run]\nstop = \"F9\"\n",
        )
        .unwrap();
        let Settings { theme, glyphs, mouse, restore, .. } = settings;
        assert_eq!((theme, glyphs, mouse, restore), (ThemeName::ColourBlind, Glyphs::Ascii, false, false));
        assert_eq!(settings.colors["accent"], [Color::Rgb(16, 32, 48)]);
        assert_eq!(settings.colors["ramp"][3], Color::LightBlue);
        assert_eq!(settings.keys.name(Context::Run, Action::Stop), "F9");
        assert_eq!(settings.keys.action(Context::Runs, Key::ctrl('n')), Some(Action::Down));
        assert_eq!(settings.lines["keys.run.stop"], 12);
    }

    #[test]
    fn each_mistake_is_refused_with_its_line() {
        let cases = [
            ("a newer version", "\nversion = 2\nnew = 1", 2),
            ("no version", "version = \"one\"", 1),
            ("a typo of a key", "mouse = true\nthem = \"dark\"", 2),
            ("a typo of a value", "theme = \"drak\"", 1),
            ("a value of another type", "\n\nmouse = \"no\"", 3),
            ("not TOML", "theme = \n", 1),
            ("a bad colour", "[colors]\naccent = \"#12345\"", 2),
            ("too few colours", "[colors]\nlines = [\"red\"]", 2),
            ("an unknown role", "[colors]\naccents = \"red\"", 2),
            ("an unknown screen", "[keys.runn]\nstop = \"x\"", 1),
            ("an unknown action", "[keys.run]\nhalt = \"x\"", 2),
            ("an unknown key", "[keys.run]\nstop = \"Hyper-x\"", 2),
            ("a reserved key", "[keys.run]\nstop = \"Ctrl-C\"", 2),
            ("a typed key", "[keys.input]\ncancel = \"x\"", 2),
            ("no key", "[keys.run]\nstop = []", 2),
            ("a clash with a default key", "[keys.run]\nkill = \"x\"\nstop = \"l\"", 3),
            ("a clash of two changes", "[keys.everywhere]\nhelp = \"F1\"\nquit = \"F1\"", 3),
            ("keys without a section", "keys = 1", 1),
        ];
        let text: Vec<String> = cases
            .iter()
            .map(|(case, text, line)| {
                let failure = parse(text).unwrap_err();
                assert_eq!(failure.code, ErrorCode::InvalidConfig, "{case}");
                assert!(failure.why.starts_with(&format!("line {line}: ")), "{case}: {failure}");
                format!("{case}\n  {}\n  hint: {}\n", failure.why, failure.fix)
            })
            .collect();
        insta::assert_snapshot!("mistakes_in_the_settings", text.concat());
    }
}
