//! Text of files, other programs and other users, made safe to print: it cannot control a terminal or disguise other text.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

/// Whether the colours of a program's output are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// Colours, bold and the like remain, and end with the line.
    Keep,
    /// The text is plain.
    Remove,
}

/// Returns whether a character controls a terminal, or reorders or hides the text around it.
///
/// These are the control characters (C0, DEL, C1), and the characters without a shape: marks of direction, spaces without width, tags,
/// separators of lines. The joiners U+200C and U+200D are not among them, because Persian, Hindi and emoji are written with them.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns a text in which each character of [`is_control`] is written as its number, such as `\u{1b}`. Line breaks and tabs remain.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| is_control(c) && c != '\n') {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' | '\t' => safe.push(c),
            // Windows' line break.
            '\r' if chars.peek() == Some(&'\n') => {}
            c if is_control(c) => safe.extend(c.escape_default()),
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Returns a text as [`printable`] does, in one line: line breaks and tabs are written as `\n` and `\t`.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    let text = printable(text);
    if text.contains(['\n', '\t']) { Cow::Owned(text.replace('\n', "\\n").replace('\t', "\\t")) } else { text }
}

/// Returns a JSON document in which each character of [`is_control`] is written as `\uXXXX`. A document has them only within its
/// strings, so that its content is the same. Line breaks remain.
pub fn printable_json(document: &str) -> Cow<'_, str> {
    if !document.contains(|c| is_control(c) && c != '\n') {
        return Cow::Borrowed(document);
    }
    let mut safe = String::with_capacity(document.len() + 16);
    for c in document.chars() {
        if is_control(c) && c != '\n' {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| safe += &format!("\\u{unit:04x}"));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Text that may be written to a terminal: text from anywhere is escaped, and its sequences are those that this program writes.
///
/// What prints takes this type, so that the compiler finds text of a file, another program or another user that was not escaped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Escaped(String);

impl Escaped {
    /// Escapes text as [`printable`].
    pub fn text(text: &str) -> Self {
        Self(printable(text).into_owned())
    }

    /// Escapes text as [`printable_line`].
    pub fn line(text: &str) -> Self {
        Self(printable_line(text).into_owned())
    }

    /// Escapes a document as [`printable_json`].
    pub fn json(document: &str) -> Self {
        Self(printable_json(document).into_owned())
    }

    /// Returns a line of a program's output as [`shown`].
    pub fn shown(line: &str, colours: Colours) -> Self {
        Self(shown(line, colours))
    }

    /// Makes text from the source of this program, which may contain control sequences.
    pub fn own(text: &'static str) -> Self {
        Self(text.to_owned())
    }

    /// Makes the sequence that selects colours by parameters (SGR, ECMA-48).
    pub fn colours(parameters: &[u8]) -> Self {
        let parameters: Vec<String> = parameters.iter().map(u8::to_string).collect();
        Self(format!("\x1b[{}m", parameters.join(";")))
    }

    /// Returns the text with another one after it.
    #[must_use]
    pub fn and(mut self, next: &Self) -> Self {
        self.0 += &next.0;
        self
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromIterator<Escaped> for Escaped {
    fn from_iter<I: IntoIterator<Item = Escaped>>(parts: I) -> Self {
        Self(parts.into_iter().map(|part| part.0).collect())
    }
}

/// Returns a line that a program printed as a terminal shows it in the end: without control sequences and control characters, and
/// without the text that a carriage return overwrites. Tabs remain.
pub fn shown(line: &str, colours: Colours) -> String {
    let line = line.trim_end_matches(['\r', '\n']);
    let line = line.rsplit('\r').next().unwrap_or_default();
    // Most lines have nothing to remove.
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\t');
    if line.bytes().all(is_plain) || !line.contains(|c| c != '\t' && is_control(c)) {
        return line.to_owned();
    }
    let mut out = String::with_capacity(line.len());
    let mut is_coloured = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let colour = match c {
            '\x1b' => skip_escape(&mut chars),
            // C1: sequences that begin with one character instead of ESC and another.
            '\u{9b}' => skip_csi(&mut chars),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => skip_string(&mut chars),
            '\t' => {
                out.push('\t');
                None
            }
            c if is_control(c) => None,
            c => {
                out.push(c);
                None
            }
        };
        if let Some(parameters) = colour.filter(|_| colours == Colours::Keep) {
            out += &format!("\x1b[{parameters}m");
            is_coloured = true;
        }
    }
    if is_coloured {
        out += "\x1b[0m";
    }
    out
}

/// Skips the rest of an escape sequence (ECMA-48). Returns the parameters of a sequence that selects colours.
fn skip_escape(chars: &mut Peekable<Chars<'_>>) -> Option<String> {
    match chars.next_if(|c| matches!(c, ' '..='~'))? {
        '[' => skip_csi(chars),
        // Device control, operating system command (titles, links, the clipboard), and other strings.
        'P' | 'X' | ']' | '^' | '_' => skip_string(chars),
        // `ESC ( B` of `tput sgr0`: intermediate bytes, then a final one.
        ' '..='/' => {
            while chars.next_if(|c| matches!(c, ' '..='/')).is_some() {}
            chars.next_if(|c| matches!(c, '0'..='~'));
            None
        }
        // Two characters.
        _ => None,
    }
}

/// Skips the rest of a control sequence: parameters, intermediate bytes, a final one. A character that belongs to none of them aborts it.
fn skip_csi(chars: &mut Peekable<Chars<'_>>) -> Option<String> {
    let mut parameters = String::new();
    while let Some(c) = chars.next_if(|c| matches!(c, ' '..='?')) {
        parameters.push(c);
    }
    let last = chars.next_if(|c| matches!(c, '@'..='~'))?;
    // `CSI > 4 m` and the like set modes of the keyboard.
    let is_colour = last == 'm' && parameters.chars().all(|c| c.is_ascii_digit() || matches!(c, ';' | ':'));
    Some(parameters).filter(|_| is_colour)
}

/// Skips the rest of a string: up to BEL, `ESC \` or its C1 form.
fn skip_string(chars: &mut Peekable<Chars<'_>>) -> Option<String> {
    while let Some(c) = chars.next() {
        if matches!(c, '\x07' | '\u{9c}') || (c == '\x1b' && chars.next_if_eq(&'\\').is_some()) {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sequences of the kinds that terminals know, each with text after it.
    const SEQUENCES: [&str; 14] = [
        "\x1b[2J\x1b[Hx",
        "\x1b]0;title\x07x",
        "\x1b]52;c;aGk=\x1b\\x",
        "\x1b[?1049hx",
        "\x1bPq#0\x1b\\x",
        "\x1b_Ga=T\x1b\\x",
        "\x1bcx",
        "\x1b#8x",
        "\x1b(0x",
        "\x1b[>4;2mx",
        "\u{9b}2Jx",
        "\u{9d}0;title\u{9c}x",
        "\u{8}\u{7f}\u{85}x",
        "\u{202e}\u{2066}\u{200b}\u{feff}\u{e0041}x",
    ];

    #[test]
    fn no_text_from_a_file_controls_the_terminal() {
        for text in SEQUENCES {
            let (text, line, json) = (printable(text), printable_line(text), printable_json(text));
            assert!(![text, line, json.clone()].iter().any(|safe| safe.contains(is_control)), "{json}");
        }
        assert_eq!(printable("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(printable("one\r\ntwo\tthree\rfour"), "one\ntwo\tthree\\rfour");
        assert_eq!(printable_line("one\ntwo\t"), "one\\ntwo\\t");
        assert_eq!(printable_json("{\n \"a\": \"\u{9b}\u{e0041}\"}"), "{\n \"a\": \"\\u009b\\udb40\\udc41\"}");
    }

    #[test]
    fn text_in_any_script_is_printed_as_it_is() {
        for text in ["实验一", "می‌خواهم", "हिन्दी", "Größe", "👩‍🔬", "e\u{301}"] {
            assert!(matches!(printable(text), Cow::Borrowed(_)), "{text}");
            assert_eq!(shown(text, Colours::Remove), text);
        }
    }

    #[test]
    fn of_the_output_of_a_program_only_the_text_is_shown() {
        for line in SEQUENCES {
            assert_eq!(shown(line, Colours::Remove), "x", "{line:?}");
            assert_eq!(shown(line, Colours::Keep), "x", "{line:?}");
        }
        assert_eq!(shown(" 10 %\r 20 %\r", Colours::Remove), " 20 %");
        assert_eq!(shown("torn \x1b[", Colours::Remove), "torn ");
        assert_eq!(shown("a\x1b[1长い", Colours::Remove), "a长い", "an aborted sequence hides nothing");
    }

    #[test]
    fn only_sequences_of_this_program_remain_in_escaped_text() {
        for text in SEQUENCES {
            for escaped in [Escaped::text(text), Escaped::line(text), Escaped::json(text)] {
                assert!(!escaped.as_str().contains(is_control), "{escaped:?}");
            }
            assert_eq!(Escaped::shown(text, Colours::Remove), Escaped::own("x"));
        }
        let parts = [Escaped::colours(&[38, 5, 9]), Escaped::text("\u{1b}c"), Escaped::own("\x1b[0m")];
        assert_eq!(
            parts.into_iter().collect::<Escaped>().and(&Escaped::own("\n")).as_str(),
            "\x1b[38;5;9m\\u{1b}c\x1b[0m\n"
        );
    }

    #[test]
    fn colours_end_with_the_line() {
        let line = "\x1b[1;31merror\x1b[2K: no";
        assert_eq!(shown(line, Colours::Keep), "\x1b[1;31merror: no\x1b[0m");
        assert_eq!(shown(line, Colours::Remove), "error: no");
    }
}
