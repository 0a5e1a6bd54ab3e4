//! Decodes the text files that users write: recipes, prompts, tables, indexes, hostfiles, captions and settings.
//!
//! UTF-8 is read without the byte order mark that editors of Windows write, and UTF-16 with its mark, as PowerShell and Notepad save it.
//! Every other encoding is refused by name: a guess could change a caption or a node name without notice.
//!
//! Files are opened with [`open_regular`], which refuses pipes and devices. Files of tensors, videos and pictures are opened with it too.

mod regular;

pub use regular::{open_regular, read_named, read_regular};

use std::fmt;

/// The largest text file that is read at once, unless its reader has a lower limit: 256 MiB. The manifest of a checkpoint of hundreds of
/// ranks is a tenth of that.
pub const MAX_TEXT: u64 = 256 << 20;

const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// Decodes a file.
///
/// # Errors
/// The file is neither UTF-8 nor UTF-16 with a byte order mark, or it contains a zero byte.
pub fn decode(bytes: Vec<u8>) -> Result<String, NotText> {
    // Checks the bytes without a copy, and converts them without a second check only if there is something to report.
    String::from_utf8(utf8(bytes)?).map_err(|error| not_utf8(error.as_bytes()))
}

/// Returns whether a file is UTF-16 with a byte order mark, which [`decode`] reads and most other programs do not.
pub fn is_utf16(bytes: &[u8]) -> bool {
    (bytes.starts_with(b"\xff\xfe") && !bytes.starts_with(b"\xff\xfe\0\0")) || bytes.starts_with(b"\xfe\xff")
}

/// Returns the command that converts a file to UTF-8.
pub fn conversion(encoding: &str, path: &str) -> String {
    let (from, to) = (quoted(path), quoted(&format!("{path}.utf8")));
    format!("iconv -f {encoding} -t UTF-8 {from} > {to} && mv {to} {from}")
}

/// Returns the bytes of a file as UTF-8 without a byte order mark. Single bytes that are not UTF-8 stay, so that a table can lose one row
/// and keep the others; [`check`] finds them.
///
/// # Errors
/// The whole file is of another kind: UTF-16 without a mark or cut off, UTF-32, compressed, or binary.
pub fn utf8(mut bytes: Vec<u8>) -> Result<Vec<u8>, NotText> {
    if bytes.starts_with(UTF8_MARK) {
        bytes.drain(..UTF8_MARK.len());
    } else if bytes.starts_with(b"\xff\xfe\0\0") || bytes.starts_with(b"\0\0\xfe\xff") {
        return Err(NotText { line: 1, fault: Fault::Encoding("UTF-32") });
    } else if let Some(units) = bytes.strip_prefix(b"\xff\xfe") {
        return utf16(units, u16::from_le_bytes);
    } else if let Some(units) = bytes.strip_prefix(b"\xfe\xff") {
        return utf16(units, u16::from_be_bytes);
    }
    if let Some(kind) = OTHER_FILES.iter().find(|kind| bytes.starts_with(kind.begins)) {
        return Err(NotText { line: 1, fault: Fault::Other(kind) });
    }
    match bytes.iter().position(|byte| *byte == 0) {
        None => Ok(with_newlines(bytes)),
        Some(at) => Err(NotText { line: line_of(&bytes, at), fault: zero_fault(&bytes) }),
    }
}

/// Checks bytes that [`utf8`] returned, or a part of them.
///
/// # Errors
/// The first byte that is not UTF-8.
pub fn check(bytes: &[u8]) -> Result<&str, NotText> {
    std::str::from_utf8(bytes).map_err(|_| not_utf8(bytes))
}

/// Why a file is not text that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotText {
    /// The line of the first fault, from 1.
    pub line: usize,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The whole file has another encoding.
    Encoding(&'static str),
    /// The file has UTF-16's byte order mark, and what follows is not UTF-16.
    BrokenUtf16,
    /// A byte is not UTF-8.
    Byte {
        /// Its place in the line, from 1.
        place: usize,
        value: u8,
        guess: Guess,
    },
    /// The file ends within a character.
    Cut,
    /// A byte is zero.
    Zero,
    /// The file is not text.
    Other(&'static OtherFile),
}

/// The encoding that a file probably has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guess {
    Latin1,
    Windows1252,
    /// Several bytes per character, or another alphabet than the Latin one.
    NotLatin,
    /// The rest of the file is UTF-8.
    Mixed,
}

/// A kind of file that users take for text.
#[derive(Debug, PartialEq, Eq)]
struct OtherFile {
    begins: &'static [u8],
    name: &'static str,
    fix: &'static str,
}

const DECOMPRESS: &str = "decompress it first";
const OTHER_FILES: [OtherFile; 5] = [
    OtherFile { begins: b"\x1f\x8b", name: "compressed by gzip", fix: DECOMPRESS },
    OtherFile { begins: b"\x28\xb5\x2f\xfd", name: "compressed by zstd", fix: DECOMPRESS },
    OtherFile {
        begins: b"PK\x03\x04",
        name: "a ZIP archive, for example a workbook of Excel",
        fix: "unpack it, or save the workbook as `CSV UTF-8`",
    },
    OtherFile { begins: b"PAR1", name: "a Parquet table", fix: "rename it to end in .parquet" },
    OtherFile {
        begins: b"version https://git-lfs.github.com/spec/",
        name: "a pointer of git-lfs",
        fix: "get the file itself: git lfs pull",
    },
];

impl fmt::Display for NotText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line;
        match self.fault {
            Fault::Encoding(name) => write!(f, "it is {name}, not UTF-8"),
            Fault::BrokenUtf16 => write!(f, "it begins as UTF-16, and line {line} is not UTF-16"),
            Fault::Byte { place, value, guess } => {
                write!(f, "line {line} is not UTF-8 at byte {place} (0x{value:02x}); {}", guess.text())
            }
            Fault::Cut => write!(f, "it ends in line {line} within a character of UTF-8"),
            Fault::Zero => write!(f, "line {line} has a zero byte, so it is not a text file"),
            Fault::Other(kind) => write!(f, "it is {}", kind.name),
        }
    }
}

impl std::error::Error for NotText {}

impl NotText {
    /// Returns the hint for a file: the command that converts it, if there is one.
    pub fn fix(&self, path: &str) -> String {
        let encoding = match self.fault {
            Fault::Encoding(name) => name.split(' ').next().unwrap_or(name),
            Fault::Byte { guess: Guess::Latin1, .. } => "LATIN1",
            Fault::Byte { guess: Guess::Windows1252, .. } => "CP1252",
            Fault::Byte { guess: Guess::NotLatin, .. } => "GB18030",
            Fault::Byte { guess: Guess::Mixed, .. } => return format!("write line {} in UTF-8", self.line),
            Fault::BrokenUtf16 | Fault::Cut => return "copy the file again, or correct its last line".into(),
            Fault::Zero => return "check the path, or save the file as UTF-8 text".into(),
            Fault::Other(kind) => return kind.fix.into(),
        };
        format!("convert it: {}", conversion(encoding, path))
    }
}

impl Guess {
    fn text(self) -> &'static str {
        match self {
            Self::Latin1 => "it is probably Latin-1 (ISO 8859-1)",
            Self::Windows1252 => "it is probably Windows-1252",
            Self::NotLatin => "it is probably GB18030, Shift_JIS, EUC-KR, Windows-1251 or the like",
            Self::Mixed => "other lines are UTF-8",
        }
    }

    /// Guesses the encoding of bytes that are not UTF-8. In Latin letters, accents stand alone between ASCII letters.
    fn of(bytes: &[u8]) -> Self {
        let (mut at, mut utf8, mut alone, mut together, mut controls) = (0, 0, 0, 0, 0);
        let is_high = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(|byte| *byte >= 0x80);
        for chunk in bytes.utf8_chunks() {
            utf8 += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
            let (begin, bad) = (at + chunk.valid().len(), chunk.invalid());
            at = begin + bad.len();
            if bad.is_empty() {
                continue;
            }
            controls += bad.iter().filter(|byte| (0x80..0xa0).contains(*byte)).count();
            match bad.len() == 1 && !is_high(begin.checked_sub(1)) && !is_high(Some(at)) {
                true => alone += 1,
                false => together += 1,
            }
        }
        match () {
            () if utf8 > alone + together => Self::Mixed,
            () if together > alone => Self::NotLatin,
            () if controls > 0 => Self::Windows1252,
            () => Self::Latin1,
        }
    }
}

/// Describes the first fault of bytes that are not UTF-8.
fn not_utf8(bytes: &[u8]) -> NotText {
    let Err(error) = std::str::from_utf8(bytes) else { return NotText { line: 1, fault: Fault::Cut } };
    let at = error.valid_up_to();
    let begin = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let line = line_of(bytes, at);
    let guess = Guess::of(bytes);
    // A file that was cut off is UTF-8 up to its last character.
    let is_cut = error.error_len().is_none() && !bytes[..at].is_ascii();
    let fault = if is_cut { Fault::Cut } else { Fault::Byte { place: at - begin + 1, value: bytes[at], guess } };
    NotText { line, fault }
}

/// Converts UTF-16 to UTF-8.
fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<Vec<u8>, NotText> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut text = String::with_capacity(bytes.len());
    let broken = |text: &str| NotText { line: line_of(text.as_bytes(), text.len()), fault: Fault::BrokenUtf16 };
    for character in char::decode_utf16(pairs.iter().map(|pair| unit(*pair))) {
        match character {
            Ok('\0') => return Err(NotText { fault: Fault::Zero, ..broken(&text) }),
            Ok(character) => text.push(character),
            Err(_) => return Err(broken(&text)),
        }
    }
    if rest.is_empty() { Ok(with_newlines(text.into_bytes())) } else { Err(broken(&text)) }
}

/// Replaces carriage returns that end all lines, as in `CSV (Macintosh)` of Excel, by newlines.
fn with_newlines(mut bytes: Vec<u8>) -> Vec<u8> {
    if !bytes.contains(&b'\n') {
        bytes.iter_mut().filter(|byte| **byte == b'\r').for_each(|byte| *byte = b'\n');
    }
    bytes
}

/// Returns what a zero byte shows: in UTF-16 without a byte order mark, every second byte of a Latin letter is zero.
fn zero_fault(bytes: &[u8]) -> Fault {
    match bytes {
        [letter, 0, next, 0, ..] if *letter != 0 && *next != 0 => Fault::Encoding("UTF-16LE without a byte order mark"),
        [0, letter, 0, next, ..] if *letter != 0 && *next != 0 => Fault::Encoding("UTF-16BE without a byte order mark"),
        _ => Fault::Zero,
    }
}

fn line_of(bytes: &[u8], at: usize) -> usize {
    1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count()
}

/// Quotes a path for a shell, if it needs that.
fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_./+=:@%,-".contains(c);
    let dot = if path.starts_with('-') { "./" } else { "" };
    if !path.is_empty() && path.chars().all(is_plain) {
        return format!("{dot}{path}");
    }
    format!("'{dot}{}'", path.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn utf16_le(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    fn utf16_be(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_be_bytes).collect()
    }

    /// Returns the sentence and the hint of a file that is refused.
    fn refused(bytes: &[u8]) -> (String, String) {
        let not = decode(bytes.to_vec()).unwrap_err();
        (not.to_string(), not.fix("a.csv"))
    }

    #[test]
    fn a_byte_order_mark_is_removed_once_and_utf_16_and_lines_of_macintosh_are_converted() {
        assert_eq!(decode(b"\xef\xbb\xbf# caf\xc3\xa9\r\n".to_vec()).unwrap(), "# café\r\n");
        assert_eq!(decode("\u{feff}\u{feff}a".into()).unwrap(), "\u{feff}a");
        let text = "node1\r\n\u{732b}\u{1f407}\n";
        assert_eq!(decode([b"\xff\xfe".to_vec(), utf16_le(text)].concat()).unwrap(), text);
        assert_eq!(decode([b"\xfe\xff".to_vec(), utf16_be(text)].concat()).unwrap(), text);
        assert_eq!(decode(b"a\rb\r".to_vec()).unwrap(), "a\nb\n");
        assert_eq!(decode(b"a\rb\r\n".to_vec()).unwrap(), "a\rb\r\n");
        assert!(is_utf16(b"\xff\xfea\0") && is_utf16(b"\xfe\xff\0a"));
        assert!(!is_utf16(b"\xff\xfe\0\0") && !is_utf16(b"\xef\xbb\xbfa"));
        for empty in [&b""[..], b"\xef\xbb\xbf", b"\xff\xfe"] {
            assert_eq!(decode(empty.to_vec()).unwrap(), "");
        }
    }

    #[test]
    fn the_line_the_byte_and_the_probable_encoding_are_named() {
        let (why, fix) = refused(b"a\n# caf\xe9\n");
        assert!(why.contains("line 2") && why.contains("byte 6 (0xe9)") && why.contains("Latin-1"), "{why}");
        assert!(fix.contains("iconv -f LATIN1 -t UTF-8 a.csv > a.csv.utf8 && mv a.csv.utf8 a.csv"), "{fix}");
        for (bytes, encoding) in [
            (&b"it\x92s \x93late\x94"[..], "CP1252"),
            // Two characters of GB18030, of Shift_JIS, and a word of Windows-1251.
            (b"a \xc3\xa8\xb0\xae cat", "GB18030"),
            (b"\x94\x4c\x82\xc6\x8c\xa2", "GB18030"),
            (b"\xea\xee\xf2", "GB18030"),
            (&utf16_le("video,caption")[..], "UTF-16LE"),
            (&utf16_be("video,caption"), "UTF-16BE"),
            (b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
        ] {
            let (why, fix) = refused(bytes);
            assert!(fix.contains(&format!("iconv -f {encoding} ")), "{why}: {fix}");
        }
    }

    #[test]
    fn iconv_is_not_advised_for_what_it_would_damage() {
        // One line of another encoding in a file that is UTF-8.
        let (why, fix) =
            refused("première\ndeuxième\nno\u{eb}l\n".bytes().chain(*b"caf\xe9\n").collect::<Vec<_>>().as_slice());
        assert!(why.contains("line 4") && fix == "write line 4 in UTF-8", "{why}: {fix}");
        // A copy that was interrupted.
        assert!(refused("a\nchaînes de caract\u{e8}".as_bytes().split_last().unwrap().1).0.contains("ends in line 2"));
        for bytes in
            [&b"\x1f\x8b\x08\0"[..], b"PK\x03\x04\x14", b"PAR1\x15", b"a\nb\0c", b"\xff\xfea", b"\xff\xfe\0\xd8a\0"]
        {
            let (why, fix) = refused(bytes);
            assert!(!fix.contains("iconv"), "{why}: {fix}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf_8_stay_in_a_table() {
        assert_eq!(utf8(b"\xef\xbb\xbfcaf\xe9\nb\n".to_vec()).unwrap(), b"caf\xe9\nb\n");
        assert_eq!(check(b"caf\xe9").unwrap_err().line, 1);
        assert!(utf8(b"a\0".to_vec()).is_err());
    }

    #[test]
    fn a_path_is_quoted_for_a_shell() {
        let paths = ["videos/a-1.csv", "my videos/it's.csv", "-f", "数据.csv"];
        assert_eq!(paths.map(quoted), ["videos/a-1.csv", r"'my videos/it'\''s.csv'", "./-f", "数据.csv"]);
    }

    proptest! {
        #[test]
        fn every_text_without_zeros_is_read_in_each_encoding(text in "[^\0\r\u{feff}][^\0\r]{0,60}") {
            prop_assume!(!OTHER_FILES.iter().any(|kind| text.as_bytes().starts_with(kind.begins)));
            prop_assert_eq!(decode(text.clone().into_bytes()), Ok(text.clone()));
            prop_assert_eq!(decode([b"\xff\xfe".to_vec(), utf16_le(&text)].concat()), Ok(text.clone()));
            prop_assert_eq!(decode([b"\xfe\xff".to_vec(), utf16_be(&text)].concat()), Ok(text));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(bytes.clone()).map_err(|not| (not.to_string(), not.fix("a")));
            let _ = utf8(bytes).map(|bytes| check(&bytes).map(str::len));
        }
    }
}
