//! Colours and glyphs that this terminal and locale can show.

use crate::terminal::Colours;
use ui::{Symbols, Theme};

/// The colours of this terminal: none, sixteen or all.
pub fn theme() -> Theme {
    let variable = |name| std::env::var(name).unwrap_or_default();
    if Colours::from_env() == Colours::Off || variable("TERM") == "dumb" {
        Theme::no_color()
    } else if matches!(variable("COLORTERM").as_str(), "truecolor" | "24bit") {
        Theme::truecolor()
    } else {
        Theme::ansi16()
    }
}

/// The glyphs that the locale can show.
pub fn symbols() -> Symbols {
    if is_unicode() { Symbols::unicode() } else { Symbols::ascii() }
}

/// Whether this machine has a desktop that can show files: not over SSH.
pub fn has_desktop() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    (is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")) && !is_set("SSH_CONNECTION")
}

/// Whether the locale shows more than ASCII. Reads the variables that the C library reads, in the same order.
pub fn is_unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    let locale = locale.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}
