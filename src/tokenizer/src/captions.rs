//! Captions as Open-Sora 1.2 cleans them before they become tokens.
//!
//! Its text encoder was used with captions from which addresses, markup, file names, ids and CJK characters are removed. The rules and
//! their order are those of Open-Sora 1.2 (`opensora/models/text_encoder/t5.py`, which has them from DeepFloyd IF).

mod entities;
mod repair;

use crate::special::is_space;
use regex::{Captures, Regex};
use std::sync::LazyLock;

/// Open-Sora cleans a caption this many times: the result of one pass can have text that another pass removes.
const PASSES: usize = 2;

/// A cleaned caption.
#[derive(Debug, Clone, PartialEq)]
pub struct CleanedCaption {
    /// The caption that is encoded.
    pub text: String,
    /// The share of the letters and digits of the caption that is missing in `text`, from 0 to 1.
    pub lost: f64,
}

/// Cleans a caption. A caption of CJK characters alone becomes empty, so callers should report captions of which much is lost.
pub fn clean_caption(caption: &str) -> CleanedCaption {
    let text = (0..PASSES).fold(caption.to_owned(), |text, _| pass(&text));
    let count = |text: &str| text.chars().filter(|char| char.is_alphanumeric()).count();
    let (before, after) = (count(caption), count(&text));
    let lost = if before == 0 { 0.0 } else { 1.0 - (after.min(before) as f64) / before as f64 };
    CleanedCaption { text, lost }
}

/// Cleans a prompt as the pipelines of Wan do: entities of HTML become characters, twice, and runs of white space become one space. They also
/// repair text that was decoded with a wrong encoding (`ftfy`), which is not done here.
pub fn clean_prompt(prompt: &str) -> String {
    let text = entities::unescape(&entities::unescape(prompt));
    text.split(is_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A rule: every match of the pattern is replaced.
type Rule = (&'static str, &'static str);

/// Rules after the markup is removed.
const NAMES_AND_MARKS: [Rule; 16] = [
    // Names of users.
    (r"@\w+\b", ""),
    // CJK characters: strokes, Katakana extensions, enclosed and compatible forms, ideographs.
    (r"[\u{31c0}-\u{4dff}\u{4e00}-\u{9fff}]+", ""),
    // Dashes of all kinds.
    (
        concat!(
            r"[\-\u{58a}\u{5be}\u{1400}\u{1806}\u{2010}-\u{2015}\u{2e17}\u{2e1a}\u{2e3a}\u{2e3b}\u{2e40}",
            r"\u{301c}\u{3030}\u{30a0}\u{fe31}\u{fe32}\u{fe58}\u{fe63}\u{ff0d}]+"
        ),
        "-",
    ),
    (r"[`´«»“”¨]", "\""),
    (r"[‘’]", "'"),
    (r"&quot;?", ""),
    (r"&amp", ""),
    // Addresses of machines.
    (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),
    // Times at the end.
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    // Numbers of articles: of one to three digits, or of five and more.
    (r"#(?:\d{1,3}|\d{5,})\b", ""),
    (r"\b\d{6,}\b", ""),
    (r"\S+\.(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)", ""),
    (r#"["']{2,}"#, "\""),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~)(\]\[}{|\\/*]+", " "),
];

/// Rules after the characters are repaired.
const IDS_AND_PHRASES: [Rule; 13] = [
    // Ids of letters and digits.
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    // Phrases of shops and of pages with pictures.
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (r"\b(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    // Sizes, with the Latin x, the Cyrillic one, or a sign.
    (r"\b\d+\.?\d*[x\u{445}×]\d+\.?\d*\b", ""),
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", "$1 "),
    (r"\s+", " "),
];

/// Rules for the ends of a caption.
const ENDS: [Rule; 4] = [(r#"^["']((?s:.+))["']$"#, "$1"), (r"^['_,\-:;]", ""), (r"['_,\-:+]$", ""), (r"^\.\S+$", "")];

static RULES: LazyLock<[Vec<(Regex, &'static str)>; 3]> = LazyLock::new(|| {
    let compile = |rules: &[Rule]| {
        rules.iter().map(|&(pattern, by)| (Regex::new(pattern).expect("the pattern is valid"), by)).collect()
    };
    [compile(&NAMES_AND_MARKS), compile(&IDS_AND_PHRASES), compile(&ENDS)]
});

/// A lone full stop, and the separators of words in names.
static STOP: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\s+\.\s+").expect("the pattern is valid"));

/// The number of hyphens and underscores up to which a caption keeps them.
const HYPHENS: usize = 3;

fn pass(caption: &str) -> String {
    let decoded = unquote(caption);
    let mut text = decoded.trim_matches(is_space).to_lowercase().replace("<person>", "person");
    for start in [&HTTP, &WWW] {
        text = without_addresses(&text, start);
    }
    text = entities::text_of_html(&text);
    text = apply(&RULES[0], text);
    text = STOP.replace_all(&text, " ").into_owned();
    if text.chars().filter(|char| matches!(char, '-' | '_')).count() > HYPHENS {
        text = text.replace(['-', '_'], " ");
    }
    text = repair::repair(&text);
    text = entities::unescape(&entities::unescape(&text));
    text = apply(&RULES[1], text);
    text = apply(&RULES[2], text);
    text.trim_matches(is_space).to_owned()
}

fn apply(rules: &[(Regex, &str)], text: String) -> String {
    rules.iter().fold(text, |text, (pattern, by)| pattern.replace_all(&text, *by).into_owned())
}

/// Replaces `+` by spaces and `%XX` by the byte, as in the query of an address. Bytes that are not UTF-8 are replaced.
fn unquote(text: &str) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16)).map(|digit| digit as u8);
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push(high << 4 | low);
                at += 3;
                continue;
            }
            (b'+', _, _) => out.push(b' '),
            (byte, _, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Addresses: a scheme with what follows it directly, or a host of a common domain with its path.
static HTTP: LazyLock<Regex> = LazyLock::new(|| address(r"https?:"));
static WWW: LazyLock<Regex> = LazyLock::new(|| address(r"www:"));
/// A host and its path.
const HOST: &str = r"[a-zA-Z0-9.\-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/\-]*";
static WHOLE_HOST: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(&format!("^(?:{HOST})$")).expect("the pattern is valid"));

fn address(scheme: &str) -> Regex {
    Regex::new(&format!(r"\b(?:{scheme}(?:/{{1,3}}|[a-zA-Z0-9%])|({HOST}\b/?))")).expect("the pattern is valid")
}

/// Removes addresses, but no name that is followed by `@`.
fn without_addresses(text: &str, pattern: &Regex) -> String {
    let mut kept = String::with_capacity(text.len());
    let (mut copied, mut from) = (0, 0);
    while let Some(found) = pattern.captures_at(text, from) {
        let (start, end) = bounds(text, &found);
        let Some(end) = end else {
            // Continue behind the first character of the match.
            from = start + text[start..].chars().next().map_or(1, char::len_utf8);
            continue;
        };
        kept.push_str(&text[copied..start]);
        (copied, from) = (end, end);
    }
    kept.push_str(&text[copied..]);
    kept
}

/// Returns where a match begins, and its longest end that is not followed by `@`.
fn bounds(text: &str, found: &Captures<'_>) -> (usize, Option<usize>) {
    let whole = found.get_match();
    let is_word = |char: char| char.is_alphanumeric() || char == '_';
    let boundary = |at: usize| {
        text[..at].chars().next_back().is_some_and(is_word) != text[at..].chars().next().is_some_and(is_word)
    };
    if found.get(1).is_none() || !text[whole.end()..].starts_with('@') {
        return (whole.start(), Some(whole.end()));
    }
    let fits = |end: usize| boundary(end) && WHOLE_HOST.is_match(&text[whole.start()..end]);
    let ends = (whole.start()..whole.end()).rev().filter(|&end| text.is_char_boundary(end));
    let end = ends.into_iter().find(|&end| {
        let slash = text[..end].ends_with('/') && fits(end - 1);
        !text[end..].starts_with('@') && (fits(end) || slash)
    });
    (whole.start(), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(text: &str) -> String {
        clean_caption(text).text
    }

    #[test]
    fn the_share_of_lost_letters_is_reported() {
        assert_eq!(clean_caption("A Cat, running!").lost, 0.0);
        assert_eq!(clean_caption("漢字"), CleanedCaption { text: String::new(), lost: 1.0 });
        assert_eq!(clean_caption("cats 漢字漢字").lost, 0.5);
        assert_eq!(clean_caption("").lost, 0.0);
    }

    #[test]
    fn a_prompt_of_wan_keeps_its_words_and_loses_entities_and_white_space() {
        assert_eq!(clean_prompt("  a&amp;lt;b \n\t 漢字  @ann  "), "a<b 漢字 @ann");
        assert_eq!(clean_prompt(" \u{3000}"), "");
    }

    #[test]
    fn the_domain_of_a_mail_address_is_removed_and_its_user_stays() {
        assert_eq!(cleaned("ann@foo.org sings"), "ann sings");
        assert_eq!(cleaned("a.com@b sings"), "a. com sings");
        assert_eq!(cleaned("a.com/b@c sings"), "b sings");
    }

    #[test]
    fn percent_codes_that_are_not_utf8_are_replaced() {
        assert_eq!(unquote("%C3%A9+%ff %zz %4"), "é \u{fffd} %zz %4");
    }
}
