//! `vidtui config`: prints the settings of the console and their origins.

use crate::appearance::Depth;
use crate::args::ConfigArgs;
use crate::command_error::CommandError;
use crate::output::{self, Side};
use crate::settings::{EVERYWHERE, Glyphs, ROLES, Settings, ThemeName};
use serde::Serialize;
use ui::{Context, Key};

/// One setting.
#[derive(Debug, Serialize)]
struct Row {
    /// The dotted key in the file.
    key: String,
    /// The value as text. Spaces separate the values of a list.
    value: String,
    /// Where the value comes from: `default`, `file` or `environment`.
    origin: &'static str,
    /// The line of the file that sets it; `None` if the file does not.
    line: Option<usize>,
}

/// Prints the settings.
///
/// # Errors
/// The settings file is invalid.
pub fn run(args: &ConfigArgs) -> Result<(), CommandError> {
    let path = Settings::user_file();
    if args.all {
        // If the file is invalid, print the defaults, because the user needs them to correct the file.
        return output::text(&file_of(&Settings::of_user().unwrap_or_default()));
    }
    let settings = Settings::of_user()?;
    let exists = path.as_ref().is_some_and(|path| path.is_file());
    let rows = rows(&settings, Depth::of_terminal());
    if args.output.json {
        return output::json(&serde_json::json!({ "file": path, "exists": exists, "settings": rows }));
    }
    let place = path.map_or_else(|| "no file: set HOME or XDG_CONFIG_HOME".to_owned(), |path| path.into_string());
    output::line(&format!("{place}{}", if exists { "" } else { " (does not exist)" }))?;
    let columns = [("setting", Side::Left), ("value", Side::Left), ("origin", Side::Left)];
    let origin = |row: &Row| row.line.map_or_else(|| row.origin.to_owned(), |line| format!("line {line}"));
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| vec![row.key.clone(), row.value.clone(), origin(row)]).collect();
    output::text(&output::table(&columns, &cells))
}

fn rows(settings: &Settings, depth: Depth) -> Vec<Row> {
    let row = |key: &str, value: String| {
        let line = settings.lines.get(key).copied();
        Row { key: key.to_owned(), value, origin: if line.is_some() { "file" } else { "default" }, line }
    };
    let theme = match depth {
        Depth::None => Row { value: "none".into(), origin: "environment", line: None, ..row("theme", String::new()) },
        _ => row("theme", name_of(&ThemeName::ALL, settings.theme).into()),
    };
    let mut rows = vec![
        theme,
        row("glyphs", name_of(&Glyphs::ALL, settings.glyphs).into()),
        row("mouse", settings.mouse.to_string()),
        row("restore", settings.restore.to_string()),
    ];
    let colors = settings.colors.iter().map(|(role, colors)| {
        let colors: Vec<String> = colors.iter().map(ToString::to_string).collect();
        row(&format!("colors.{role}"), colors.join(" "))
    });
    rows.extend(colors);
    rows.extend(settings.keys.changes().iter().map(|change| {
        let section = change.context.map_or_else(|| EVERYWHERE.to_owned(), Context::name);
        let keys: Vec<String> = change.keys.iter().map(|key| key.name()).collect();
        row(&format!("keys.{section}.{}", change.action.name()), keys.join(" "))
    }));
    rows
}

fn name_of<T: PartialEq>(all: &[(&'static str, T)], value: T) -> &'static str {
    all.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name)
}

/// Returns the text of a settings file with all settings: those of the user, and the defaults as comments.
fn file_of(settings: &Settings) -> String {
    let mut text = "version = 1\n".to_owned();
    let line = |name: &str, value: String, about: &str| {
        let mark = if settings.lines.contains_key(name) { "" } else { "# " };
        let key = name.rsplit('.').next().unwrap_or(name);
        format!("{:<48}# {about}\n", format!("{mark}{key} = {value}"))
    };
    let choices = |names: Vec<&str>| names.join(", ");
    let theme = name_of(&ThemeName::ALL, settings.theme);
    let themes = choices(ThemeName::ALL.iter().map(|(name, _)| *name).collect());
    text += &line("theme", format!("\"{theme}\""), &themes);
    let glyphs = name_of(&Glyphs::ALL, settings.glyphs);
    let all = choices(Glyphs::ALL.iter().map(|(name, _)| *name).collect());
    text += &line("glyphs", format!("\"{glyphs}\""), &all);
    text += &line("mouse", settings.mouse.to_string(), "click, wheel and drag; Shift selects text");
    text += &line("restore", settings.restore.to_string(), "open the screen that was shown last");
    text += "\n[colors]\n";
    for (role, count) in ROLES {
        let colors = settings.colors.get(role).map(|colors| colors.iter().map(ToString::to_string).collect::<Vec<_>>());
        let value = match (&colors, count) {
            (Some(colors), 1) => format!("\"{}\"", colors[0]),
            (Some(colors), _) => format!("{colors:?}"),
            (None, 1) => "\"#409cdc\"".to_owned(),
            (None, _) => "[\"#409cdc\", …]".to_owned(),
        };
        text += &line(&format!("colors.{role}"), value, &units::counted(count, "colour"));
    }
    let everywhere: Vec<_> = settings.keys.changes().iter().filter(|change| change.context.is_none()).collect();
    if !everywhere.is_empty() {
        text += &format!("\n[keys.{EVERYWHERE}]\n");
        for change in everywhere {
            text += &format!("{} = {}\n", change.action.name(), keys_in_words(&change.keys));
        }
    }
    for context in Context::ALL {
        text += &format!("\n[keys.{}]\n", context.name());
        for binding in context.all_bindings() {
            let name = format!("keys.{}.{}", context.name(), binding.action.name());
            text += &line(&name, keys_in_words(settings.keys.keys(context, binding)), binding.help);
        }
    }
    text
}

/// Returns keys as a TOML value.
fn keys_in_words(keys: &[Key]) -> String {
    let names: Vec<String> = keys.iter().map(|key| format!("{:?}", key.name())).collect();
    if let [name] = &names[..] { name.clone() } else { format!("[{}]", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8Path;

    fn parse(text: &str) -> Settings {
        Settings::parse(Utf8Path::new("config.toml"), text).unwrap()
    }

    #[test]
    fn the_file_with_all_settings_is_valid_with_and_without_its_comments() {
        let settings = parse(
            "theme = \"dark\"\n[keys.everywhere]\ndown = [\"Down\", \"J\"]\n[keys.run]\nstop = \"F9\"\n[colors]\ngood = \"red\"\n",
        );
        let file = file_of(&settings);
        let again = parse(&file);
        assert_eq!((again.theme, &again.colors, &again.keys), (settings.theme, &settings.colors, &settings.keys));
        let active: String = file
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|line| !line.contains('…')).unwrap_or(line).to_owned() + "\n")
            .collect();
        assert_eq!(parse(&active).theme, ThemeName::Dark);
    }

    #[test]
    fn each_setting_has_its_origin() {
        let settings = parse("mouse = false\n[keys.everywhere]\nhelp = [\"F1\", \"?\"]\n");
        let origins = |depth| -> Vec<(String, String, &str, Option<usize>)> {
            rows(&settings, depth).into_iter().map(|row| (row.key, row.value, row.origin, row.line)).collect()
        };
        let row = |key: &str, value: &str, origin, line| (key.to_owned(), value.to_owned(), origin, line);
        let rest = [
            row("glyphs", "auto", "default", None),
            row("mouse", "false", "file", Some(1)),
            row("restore", "true", "default", None),
            row("keys.everywhere.help", "F1 ?", "file", Some(3)),
        ];
        assert_eq!(origins(Depth::True), [&[row("theme", "auto", "default", None)], &rest[..]].concat());
        assert_eq!(origins(Depth::None), [&[row("theme", "none", "environment", None)], &rest[..]].concat());
    }
}
