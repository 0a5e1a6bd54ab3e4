//! Text of HTML: removes markup and replaces references to characters.

/// The names of U+00A0…U+00FF in HTML, in order.
const LATIN: &str = "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 sup3 acute \
micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute \
Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN \
szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml eth ntilde ograve oacute \
ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml";

/// Other names that captions have.
const OTHERS: [(&str, char); 26] = [
    ("amp", '&'),
    ("lt", '<'),
    ("gt", '>'),
    ("quot", '"'),
    ("apos", '\''),
    ("ndash", '–'),
    ("mdash", '—'),
    ("lsquo", '‘'),
    ("rsquo", '’'),
    ("sbquo", '‚'),
    ("ldquo", '“'),
    ("rdquo", '”'),
    ("bdquo", '„'),
    ("lsaquo", '‹'),
    ("rsaquo", '›'),
    ("hellip", '…'),
    ("bull", '•'),
    ("prime", '′'),
    ("euro", '€'),
    ("trade", '™'),
    ("ensp", '\u{2002}'),
    ("emsp", '\u{2003}'),
    ("thinsp", '\u{2009}'),
    ("zwnj", '\u{200c}'),
    ("zwj", '\u{200d}'),
    ("hearts", '♥'),
];

/// Elements whose content is not text.
const NO_TEXT: [&str; 2] = ["script", "style"];

/// Returns the text of an HTML document, with its references replaced.
pub fn text_of_html(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        text += &unescape(&rest[..at]);
        rest = &rest[at..];
        let Some(length) = markup(rest) else {
            text.push('<');
            rest = &rest[1..];
            continue;
        };
        let tag = &rest[1..length];
        rest = &rest[length..];
        let name =
            tag.trim_end_matches('>').split(|char: char| !char.is_ascii_alphanumeric()).next().unwrap_or_default();
        if NO_TEXT.contains(&name) {
            rest = rest.find(&format!("</{name}")).map_or("", |end| &rest[end..]);
        }
    }
    text + &unescape(rest)
}

/// Returns the length of the tag, comment or declaration that a text begins with; `None` if its `<` is text.
fn markup(text: &str) -> Option<usize> {
    let length = |end: &str| text.find(end).map(|at| at + end.len());
    match text.as_bytes().get(1..)? {
        [b'!', b'-', b'-', ..] => length("-->"),
        [b'!' | b'?', ..] => length(">"),
        [b'/', b'a'..=b'z' | b'A'..=b'Z', ..] => length(">"),
        [b'a'..=b'z' | b'A'..=b'Z', ..] => {
            // A `>` in quotes does not end the tag.
            let mut quote = None;
            for (at, char) in text.char_indices() {
                match (quote, char) {
                    (None, '>') => return Some(at + 1),
                    (None, '"' | '\'') if text[..at].ends_with('=') => quote = Some(char),
                    (Some(open), char) if open == char => quote = None,
                    _ => {}
                }
            }
            length(">")
        }
        _ => None,
    }
}

/// Replaces references to characters: numbers, and the names of HTML 4 that captions have. Names need no semicolon before another
/// character than a letter or a digit.
pub fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (char, length) = reference(&rest[1..]).map_or(('&', 0), |(char, length)| (char, length));
        out.push(char);
        rest = &rest[1 + length..];
    }
    out + rest
}

/// Returns the character of the reference whose name or number a text begins with, and the length of the reference behind `&`.
fn reference(text: &str) -> Option<(char, usize)> {
    let (char, length) = match text.strip_prefix('#') {
        Some(number) => {
            let (digits, radix, skip) = match number.strip_prefix(['x', 'X']) {
                Some(hex) => (hex, 16, 2),
                None => (number, 10, 1),
            };
            let length = digits.find(|char: char| !char.is_digit(radix)).unwrap_or(digits.len());
            let code = u32::from_str_radix(&digits[..length], radix).ok()?;
            (char::from_u32(code).filter(|&char| char != '\0').unwrap_or(char::REPLACEMENT_CHARACTER), skip + length)
        }
        None => {
            let length = text.find(|char: char| !char.is_ascii_alphanumeric()).unwrap_or(text.len());
            (named(&text[..length])?, length)
        }
    };
    Some((char, length + usize::from(text[length..].starts_with(';'))))
}

fn named(name: &str) -> Option<char> {
    let other = OTHERS.iter().find(|(known, _)| *known == name).map(|(_, char)| *char);
    other.or_else(|| ('\u{a0}'..).zip(LATIN.split(' ')).find(|(_, known)| *known == name).map(|(char, _)| char))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latin_names_end_at_the_last_character_of_latin_1() {
        assert_eq!((named("nbsp"), named("times"), named("yuml")), (Some('\u{a0}'), Some('×'), Some('ÿ')));
        assert_eq!(LATIN.split(' ').count(), 96);
    }

    #[test]
    fn references_are_replaced_and_other_ampersands_stay() {
        assert_eq!(
            unescape("&lt;b&gt; &eacute; &#233; &#xE9; &amp &foo; a & b &#; &"),
            "<b> é é é & &foo; a & b &#; &"
        );
    }

    #[test]
    fn tags_comments_and_scripts_are_no_text_and_other_signs_are() {
        assert_eq!(text_of_html("a<br/>b<!-- > -->c <a href=\"x>y\">d</a> <script>e<f</script>g"), "abc d g");
        assert_eq!(text_of_html("1 < 2 <3 <open"), "1 < 2 <3 <open");
    }
}
