//! Selects the theme and the glyphs of the user's settings, as far as this terminal and locale can show them.

use crate::settings::{Glyphs, Settings, ThemeName};
use crate::terminal::Colours;
use ratatui::style::{Color, Style};
use ui::{Symbols, Theme};

/// The colours that a terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// No colours: `NO_COLOR` is set, or the terminal has none.
    None,
    /// At least 16 colours. Most of these terminals have 256.
    Indexed,
    /// Colours of 24 bits.
    True,
}

impl Depth {
    /// Reads `NO_COLOR`, `TERM` and `COLORTERM`.
    pub fn of_terminal() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_default();
        if Colours::from_env() == Colours::Off || variable("TERM") == "dumb" {
            Self::None
        } else if matches!(variable("COLORTERM").as_str(), "truecolor" | "24bit") {
            Self::True
        } else {
            Self::Indexed
        }
    }
}

/// Returns the theme of the settings, in colours that this terminal can show.
pub fn theme(settings: &Settings) -> Theme {
    theme_in(settings, Depth::of_terminal())
}

fn theme_in(settings: &Settings, depth: Depth) -> Theme {
    let mut theme = match (depth, settings.theme) {
        (Depth::None, _) => return Theme::no_color(),
        (_, ThemeName::None) => Theme::no_color(),
        (_, ThemeName::Sixteen) | (Depth::Indexed, ThemeName::Auto) => Theme::ansi16(),
        (Depth::True, ThemeName::Auto) => Theme::truecolor(),
        (_, ThemeName::Dark) => Theme::dark(),
        (_, ThemeName::Light) => Theme::light(),
        (_, ThemeName::ColourBlind) => Theme::colour_blind(),
    };
    for (role, colors) in &settings.colors {
        let paint =
            |styles: &mut [Style]| styles.iter_mut().zip(colors).for_each(|(style, color)| *style = style.fg(*color));
        match *role {
            "accent" => paint(std::slice::from_mut(&mut theme.accent)),
            "faint" => paint(std::slice::from_mut(&mut theme.faint)),
            "good" => paint(std::slice::from_mut(&mut theme.good)),
            "warn" => paint(std::slice::from_mut(&mut theme.warn)),
            "bad" => paint(std::slice::from_mut(&mut theme.bad)),
            "ramp" => paint(&mut theme.ramp),
            _ => paint(&mut theme.lines),
        }
    }
    if depth == Depth::True { theme } else { theme.map(|style| Style { fg: style.fg.map(indexed), ..style }) }
}

/// Returns the most similar of the terminal's 256 colours, from the cube of six levels or the 24 greys.
fn indexed(color: Color) -> Color {
    let Color::Rgb(red, green, blue) = color else { return color };
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let nearest = |value: u8| (0..6).min_by_key(|level| LEVELS[*level].abs_diff(value)).unwrap_or(0);
    let cube = [red, green, blue].map(nearest);
    let mean = (u16::from(red) + u16::from(green) + u16::from(blue)) / 3;
    let grey = mean.saturating_sub(3).div_euclid(10).min(23);
    let level = 8 + 10 * grey as u8;
    let distance = |other: [u8; 3]| -> u32 {
        [red, green, blue].iter().zip(other).map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum()
    };
    if distance([level; 3]) < distance(cube.map(|level| LEVELS[level])) {
        Color::Indexed(232 + grey as u8)
    } else {
        Color::Indexed((16 + 36 * cube[0] + 6 * cube[1] + cube[2]) as u8)
    }
}

/// Returns the glyphs of the settings. `auto` selects the glyphs that the locale can show.
pub fn symbols(settings: &Settings) -> Symbols {
    match settings.glyphs {
        Glyphs::Unicode => Symbols::unicode(),
        Glyphs::Ascii => Symbols::ascii(),
        Glyphs::Auto if is_unicode() => Symbols::unicode(),
        Glyphs::Auto => Symbols::ascii(),
    }
}

/// Returns whether this machine has a desktop that can show files. An SSH session has none.
pub fn has_desktop() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    (is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")) && !is_set("SSH_CONNECTION")
}

/// Returns whether the locale uses UTF-8. Reads the variables that the C library reads, in the same order.
pub fn is_unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    let locale = locale.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_theme_and_no_colour_of_the_user_is_shown_without_colours() {
        let colors = [("accent", vec![Color::Red])].into();
        let settings = Settings { theme: ThemeName::Dark, colors, ..Settings::default() };
        assert_eq!(theme_in(&settings, Depth::None), Theme::no_color());
        assert_eq!(theme_in(&settings, Depth::True).accent.fg, Some(Color::Red));
    }

    #[test]
    fn a_terminal_without_24_bit_colours_gets_none() {
        for (_, theme) in ThemeName::ALL {
            let settings = Settings { theme, ..Settings::default() };
            let theme = theme_in(&settings, Depth::Indexed);
            let styles = [theme.accent, theme.faint, theme.good, theme.warn, theme.bad].into_iter();
            let mut colors = styles.chain(theme.ramp).chain(theme.lines).filter_map(|style| style.fg);
            assert!(colors.all(|color| !matches!(color, Color::Rgb(..))), "{settings:?}");
        }
        assert_eq!(indexed(Color::Rgb(255, 0, 0)), Color::Indexed(196));
        assert_eq!(indexed(Color::Rgb(128, 128, 128)), Color::Indexed(244));
    }
}
