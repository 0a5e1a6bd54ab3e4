//! Colours and glyphs of the console. Colour is never the only sign of a state: each state also has a glyph and a
//! word.

use ratatui_core::style::{Color, Modifier, Style};

/// The styles of the console. The shell selects a theme for the terminal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Theme {
    /// Style of keys, the focus and the selected line.
    pub accent: Style,
    /// Style of axes, rules and secondary text.
    pub faint: Style,
    /// Style of titles and important values.
    pub strong: Style,
    /// Style of good states, such as running and finished.
    pub good: Style,
    /// Style of warnings.
    pub warn: Style,
    /// Style of errors.
    pub bad: Style,
    /// Style of a search match.
    pub matched: Style,
    /// The colours of values from low to high. Green and red are reserved for states.
    pub ramp: [Style; 4],
    /// The colours of chart lines, in order.
    pub lines: [Style; 8],
}

impl Theme {
    /// Returns a theme without colours, with bold and dim text only: for `NO_COLOR` and terminals without colours.
    pub const fn no_color() -> Self {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        Self {
            accent: bold,
            faint: plain.add_modifier(Modifier::DIM),
            strong: bold,
            good: plain,
            warn: bold,
            bad: bold,
            matched: plain.add_modifier(Modifier::REVERSED),
            ramp: [plain; 4],
            lines: [plain; 8],
        }
    }

    /// Returns a theme of the sixteen colours in the palette of the terminal, for light and dark palettes.
    pub const fn ansi16() -> Self {
        Self::colored(
            [Color::Cyan, Color::DarkGray, Color::Green, Color::Yellow, Color::Red],
            [Color::Blue, Color::LightBlue, Color::Cyan, Color::LightCyan],
            [
                Color::Cyan,
                Color::Yellow,
                Color::Magenta,
                Color::Green,
                Color::LightBlue,
                Color::LightRed,
                Color::Blue,
                Color::LightMagenta,
            ],
        )
    }

    /// Returns a theme of 24-bit colours of medium lightness, legible on dark and light backgrounds. People with the
    /// common kinds of colour blindness can distinguish the line colours (after Okabe and Ito, 2008).
    pub const fn truecolor() -> Self {
        Self::colored(
            [
                Color::Rgb(64, 156, 220),
                Color::Rgb(128, 132, 142),
                Color::Rgb(38, 166, 120),
                Color::Rgb(214, 146, 22),
                Color::Rgb(222, 82, 74),
            ],
            [Color::Rgb(112, 96, 176), Color::Rgb(64, 124, 206), Color::Rgb(44, 160, 190), Color::Rgb(122, 190, 208)],
            [
                Color::Rgb(64, 156, 220),
                Color::Rgb(222, 146, 22),
                Color::Rgb(190, 112, 170),
                Color::Rgb(38, 166, 120),
                Color::Rgb(118, 196, 232),
                Color::Rgb(206, 96, 50),
                Color::Rgb(132, 124, 214),
                Color::Rgb(166, 156, 40),
            ],
        )
    }

    /// Returns a theme of 24-bit colours for a dark background.
    pub const fn dark() -> Self {
        Self::colored(
            [
                Color::Rgb(110, 190, 250),
                Color::Rgb(150, 156, 168),
                Color::Rgb(80, 210, 150),
                Color::Rgb(245, 190, 70),
                Color::Rgb(255, 120, 110),
            ],
            [Color::Rgb(150, 132, 224), Color::Rgb(96, 160, 240), Color::Rgb(80, 200, 225), Color::Rgb(170, 230, 240)],
            [
                Color::Rgb(110, 190, 250),
                Color::Rgb(250, 180, 70),
                Color::Rgb(230, 150, 210),
                Color::Rgb(80, 210, 150),
                Color::Rgb(160, 220, 255),
                Color::Rgb(245, 140, 90),
                Color::Rgb(175, 165, 250),
                Color::Rgb(215, 205, 90),
            ],
        )
    }

    /// Returns a theme of 24-bit colours for a light background.
    pub const fn light() -> Self {
        Self::colored(
            [
                Color::Rgb(0, 92, 160),
                Color::Rgb(96, 100, 110),
                Color::Rgb(0, 112, 72),
                Color::Rgb(150, 88, 0),
                Color::Rgb(184, 30, 30),
            ],
            [Color::Rgb(150, 140, 200), Color::Rgb(80, 120, 190), Color::Rgb(0, 100, 150), Color::Rgb(0, 60, 90)],
            [
                Color::Rgb(0, 92, 160),
                Color::Rgb(176, 96, 0),
                Color::Rgb(150, 60, 130),
                Color::Rgb(0, 112, 72),
                Color::Rgb(0, 128, 170),
                Color::Rgb(176, 64, 20),
                Color::Rgb(90, 80, 180),
                Color::Rgb(110, 100, 0),
            ],
        )
    }

    /// Returns a theme of the palette of Okabe and Ito (2008), whose colours people with the common kinds of colour
    /// blindness can distinguish: success is blue and an error is vermilion. Yellow and black are left out, because
    /// they are invisible on a light or a dark background.
    pub const fn colour_blind() -> Self {
        const SKY: Color = Color::Rgb(86, 180, 233);
        const ORANGE: Color = Color::Rgb(230, 159, 0);
        const GREEN: Color = Color::Rgb(0, 158, 115);
        const BLUE: Color = Color::Rgb(0, 114, 178);
        const VERMILION: Color = Color::Rgb(213, 94, 0);
        const PURPLE: Color = Color::Rgb(204, 121, 167);
        const GREY: Color = Color::Rgb(128, 132, 142);
        Self::colored(
            [SKY, GREY, BLUE, ORANGE, VERMILION],
            [PURPLE, BLUE, SKY, Color::Rgb(170, 215, 242)],
            [SKY, ORANGE, PURPLE, GREEN, BLUE, VERMILION, GREY, Color::Rgb(150, 150, 60)],
        )
    }

    /// Returns the colour of a value from low (0) to high (1). 24-bit colours are interpolated, so that close values
    /// have close colours.
    pub fn ramp_at(&self, share: f64) -> Style {
        let last = self.ramp.len() - 1;
        let position = share.clamp(0.0, 1.0) * last as f64;
        let low = (position as usize).min(last - 1);
        let (from, to, part) = (self.ramp[low], self.ramp[low + 1], position - low as f64);
        match (from.fg, to.fg) {
            (Some(Color::Rgb(r0, g0, b0)), Some(Color::Rgb(r1, g1, b1))) => {
                let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part).round() as u8;
                from.fg(Color::Rgb(mix(r0, r1), mix(g0, g1), mix(b0, b1)))
            }
            _ => self.ramp[((share * self.ramp.len() as f64) as usize).min(last)],
        }
    }

    /// Returns the theme with `change` applied to each style.
    pub fn map(self, change: impl Fn(Style) -> Style) -> Self {
        Self {
            accent: change(self.accent),
            faint: change(self.faint),
            strong: change(self.strong),
            good: change(self.good),
            warn: change(self.warn),
            bad: change(self.bad),
            matched: change(self.matched),
            ramp: self.ramp.map(&change),
            lines: self.lines.map(&change),
        }
    }

    const fn colored([accent, faint, good, warn, bad]: [Color; 5], ramp: [Color; 4], lines: [Color; 8]) -> Self {
        let plain = Style::new();
        Self {
            accent: plain.fg(accent).add_modifier(Modifier::BOLD),
            faint: plain.fg(faint),
            strong: plain.add_modifier(Modifier::BOLD),
            good: plain.fg(good),
            warn: plain.fg(warn),
            bad: plain.fg(bad).add_modifier(Modifier::BOLD),
            matched: plain.add_modifier(Modifier::REVERSED),
            ramp: [plain.fg(ramp[0]), plain.fg(ramp[1]), plain.fg(ramp[2]), plain.fg(ramp[3])],
            lines: [
                plain.fg(lines[0]),
                plain.fg(lines[1]),
                plain.fg(lines[2]),
                plain.fg(lines[3]),
                plain.fg(lines[4]),
                plain.fg(lines[5]),
                plain.fg(lines[6]),
                plain.fg(lines[7]),
            ],
        }
    }
}

/// The glyphs of the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbols {
    /// Whether the terminal can show UTF-8; charts then use braille dots.
    pub braille: bool,
    /// The end of a text that was cut.
    pub ellipsis: &'static str,
    /// The mark of the selected line.
    pub pointer: &'static str,
    /// The mark of the lines that the user has marked.
    pub mark: &'static str,
    /// Horizontal rule.
    pub rule: &'static str,
    /// Vertical axis.
    pub axis: &'static str,
    /// The vertical axis at a tick.
    pub tick: &'static str,
    /// The vertical line of the cursor.
    pub cursor: &'static str,
    /// The finished part of a progress bar.
    pub bar_done: &'static str,
    /// The remaining part of a progress bar.
    pub bar_open: &'static str,
    /// Vertical bars, lowest first.
    pub levels: [&'static str; 8],
    /// Mark of a value that is not finite.
    pub not_finite: &'static str,
    /// Separator between facts.
    pub separator: &'static str,
    /// The arrow between an old and a new value.
    pub arrow: &'static str,
    /// Placeholder for a missing value.
    pub none: &'static str,
    /// Corners and sides of a dialog: top left, top right, bottom left, bottom right, horizontal, vertical.
    pub frame: [&'static str; 6],
    /// The shade of a rank that is not slow, then one for each of [`crate::rank_times::LEVELS`].
    pub shades: [&'static str; 5],
    /// The glyphs of run states, in the order of [`crate::run_state::StateKind`].
    pub states: [&'static str; 12],
}

impl Symbols {
    /// Returns the glyphs for UTF-8 terminals.
    pub const fn unicode() -> Self {
        Self {
            braille: true,
            ellipsis: "…",
            pointer: "▸",
            mark: "◆",
            rule: "─",
            axis: "│",
            tick: "┤",
            cursor: "│",
            bar_done: "━",
            bar_open: "─",
            levels: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
            not_finite: "×",
            separator: "·",
            arrow: "→",
            none: "–",
            frame: ["╭", "╮", "╰", "╯", "─", "│"],
            shades: ["·", "░", "▒", "▓", "█"],
            states: ["○", "◇", "◌", "●", "↓", "□", "▲", "✓", "■", "✗", "✗", "?"],
        }
    }

    /// Returns the glyphs for all other terminals.
    pub const fn ascii() -> Self {
        Self {
            braille: false,
            ellipsis: "~",
            pointer: ">",
            mark: "*",
            rule: "-",
            axis: "|",
            tick: "+",
            cursor: "|",
            bar_done: "#",
            bar_open: "-",
            levels: ["_", ".", ":", "-", "=", "+", "*", "#"],
            not_finite: "x",
            separator: "-",
            arrow: "->",
            none: "-",
            frame: ["+", "+", "+", "+", "-", "|"],
            shades: [".", "-", "=", "%", "#"],
            states: [".", ",", "~", "*", "v", "-", "!", "=", "#", "x", "x", "?"],
        }
    }
}
