//! Repairs characters as ftfy's `fix_text` does: UTF-8 that was read as Windows-1252, quotes, ligatures, wide forms and control
//! characters.
//!
//! Of texts in a wrong encoding, only those are repaired that are left when the caption is in lower case: sequences of three or four
//! characters, as of dashes, quotes and other scripts. ftfy also tries other encodings.

use unicode_normalization::UnicodeNormalization;

/// The characters of the bytes 0x80…0x9f in Windows-1252. A byte without one stands for the control character of its number.
const WINDOWS: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘', '’',
    '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

/// Ligatures, and the letters that they join.
const LIGATURES: [(char, &str); 12] = [
    ('ĳ', "ij"),
    ('ŉ', "ʼn"),
    ('ǳ', "dz"),
    ('ǆ', "dž"),
    ('ǉ', "lj"),
    ('ǌ', "nj"),
    ('ﬀ', "ff"),
    ('ﬁ', "fi"),
    ('ﬂ', "fl"),
    ('ﬃ', "ffi"),
    ('ﬄ', "ffl"),
    ('ﬆ', "st"),
];

/// Repairs a text in lower case.
pub fn repair(text: &str) -> String {
    let decoded = decode_again(&without_escapes(text));
    let mut out = String::with_capacity(decoded.len());
    for char in decoded.chars() {
        match char {
            '\u{80}'..='\u{9f}' => out.push(WINDOWS[char as usize - 0x80]),
            'ʼ' | '‘'..='‛' => out.push('\''),
            '“'..='‟' => out.push('"'),
            '\r' | '\u{2028}' | '\u{2029}' => out.push('\n'),
            '\u{3000}' => out.push(' '),
            '\u{ff01}'..='\u{ffef}' => out.extend(std::iter::once(char).nfkc()),
            '\0'..='\u{8}'
            | '\u{b}'
            | '\u{e}'..='\u{1f}'
            | '\u{7f}'
            | '\u{206a}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffc}' => {}
            _ => match LIGATURES.iter().find(|(ligature, _)| *ligature == char) {
                Some((_, letters)) => out.push_str(letters),
                None => out.push(char),
            },
        }
    }
    out.nfc().collect()
}

/// Removes the escape sequences of terminals, such as colours.
fn without_escapes(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|char: char| char.is_ascii_digit() || char == ';');
        match rest.chars().next() {
            Some(end) if end.is_ascii_alphabetic() => out.push_str(&rest[1..]),
            _ => out = out + "\u{1b}[" + part,
        }
    }
    out
}

/// Decodes sequences of characters whose bytes in Windows-1252 are one character of three or four bytes in UTF-8.
fn decode_again(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let length = match byte(chars[at]) {
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xf4) => 4,
            _ => 1,
        };
        let bytes: Option<Vec<u8>> = chars[at..].iter().take(length).map(|&char| byte(char)).collect();
        let decoded = bytes.filter(|bytes| bytes.len() > 2).and_then(|bytes| String::from_utf8(bytes).ok());
        match decoded {
            Some(decoded) => {
                out += &decoded;
                at += length;
            }
            None => {
                out.push(chars[at]);
                at += 1;
            }
        }
    }
    out
}

/// Returns the byte of a character in Windows-1252.
fn byte(char: char) -> Option<u8> {
    match WINDOWS.iter().position(|&known| known == char) {
        Some(place) => Some(0x80 + place as u8),
        None => u8::try_from(u32::from(char)).ok().filter(|byte| !(0x80..0xa0).contains(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf8_that_was_read_as_windows_1252_is_decoded() {
        assert_eq!(repair("â€œaâ€\u{9d} â€¦ ðŸ˜€"), "\"a\" … 😀");
        assert_eq!(repair("château â la carte, naïve"), "château â la carte, naïve");
    }

    #[test]
    fn wide_forms_ligatures_and_control_characters_are_repaired() {
        assert_eq!(repair("ｗｉｄｅ　ﬁn\u{feff} \u{1b}[31mred\u{1b}[0m ‘q’ e\u{301}"), "wide fin red 'q' é");
    }
}
