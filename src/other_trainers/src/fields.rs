//! Names with numbers in a line of text: `step 10 | loss: 0.5 | lr=[1e-05] | elapsed time per iteration (ms): 86.5`.

/// A name and its number.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Field {
    /// Lower case, with `_` for spaces: `lm_loss`.
    pub name: String,
    /// Where the last word begins in the name.
    pub last_at: usize,
    /// May be NaN.
    pub value: f64,
    /// The unit after the name or the number: `ms`, `gib`, `%`; empty if none is written.
    pub unit: String,
    /// Whether the number has neither a decimal point nor an exponent.
    pub is_whole: bool,
    /// The number after a slash, as in `10/1000`.
    pub of: Option<u64>,
    /// Whether `:` or `=` is between the name and the number.
    pub is_separated: bool,
    /// Where the name begins in the line, in bytes.
    pub at: usize,
}

impl Field {
    /// Returns the last word of the name.
    pub fn last(&self) -> &str {
        &self.name[self.last_at..]
    }

    /// Returns a number that counts something; `None` for fractions. Lightning prints counts as `794.0`.
    pub fn count(&self) -> Option<u64> {
        let whole = self.value.fract() == 0.0 && (0.0..9e15).contains(&self.value);
        (whole && self.unit.is_empty()).then_some(self.value as u64)
    }
}

/// The units that may follow a number after a space.
const UNITS: [&str; 12] = ["ms", "s", "sec", "secs", "seconds", "us", "gib", "gb", "mib", "mb", "g", "m"];
/// The longest name, in words. A longer one is prose.
const MOST_WORDS: usize = 6;

/// Reads the names with numbers of a line. A number that is not certainly the value of a name is left out: dates, versions, addresses,
/// ranges and numbers without a name.
pub(crate) fn fields(line: &str) -> Vec<Field> {
    let mut scan =
        Scan { line, at: 0, words: Vec::new(), is_separated: false, unit: String::new(), fields: Vec::new() };
    while scan.at < line.len() {
        scan.step();
    }
    scan.fields
}

struct Scan<'a> {
    line: &'a str,
    at: usize,
    /// The words before the next number, with their places.
    words: Vec<(usize, &'a str)>,
    is_separated: bool,
    /// The unit in parentheses after the name.
    unit: String,
    fields: Vec<Field>,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }

    fn forget(&mut self) {
        self.words.clear();
        self.is_separated = false;
        self.unit.clear();
    }

    fn step(&mut self) {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return };
        match first {
            _ if first.is_ascii_alphabetic() || first == '_' => self.word(),
            _ if first.is_ascii_digit() || (matches!(first, '-' | '+' | '.') && number_len(rest) > 0) => self.number(),
            ' ' if rest.starts_with("  ") && !self.is_separated && self.words.len() > 1 => {
                // Two spaces separate fields: only the word before them may be a name.
                let last = self.words.pop();
                self.forget();
                self.words.extend(last);
                self.at += 1;
            }
            ' ' | '#' | '\t' => self.at += 1,
            // `Step [10/100]` and `lr=[1e-05]`.
            '[' if !self.words.is_empty() => self.at += 1,
            ':' | '=' => {
                self.is_separated = !self.words.is_empty();
                self.at += 1;
            }
            '(' => self.parenthesis(),
            _ => {
                self.forget();
                self.at += first.len_utf8();
            }
        }
    }

    fn word(&mut self) {
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let is_inside = |at: usize| match bytes[at] {
            byte if byte.is_ascii_alphanumeric() => true,
            b'_' | b'@' => true,
            b'.' | b'/' | b'-' | b'%' => bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic),
            _ => false,
        };
        let end = (0..bytes.len()).find(|at| !is_inside(*at)).unwrap_or(bytes.len()).max(1);
        let word = &rest[..end];
        if !self.words.is_empty() && is_nan(word) {
            self.push(parse(word).unwrap_or(f64::NAN), String::new(), false, None);
        } else {
            if self.is_separated {
                self.forget();
            }
            self.words.push((self.at, word));
        }
        self.at += end;
    }

    /// Reads a unit such as `(ms)` after a name, and skips other parentheses after a number or a name.
    fn parenthesis(&mut self) {
        let rest = self.rest();
        let inside = rest[1..].split(')').next().unwrap_or_default();
        let is_unit = !inside.is_empty() && inside.chars().all(|c| c.is_ascii_alphabetic() || c == '/' || c == '%');
        if !self.words.is_empty() && !self.is_separated && is_unit {
            self.unit = inside.to_ascii_lowercase();
            self.at += inside.len() + 2;
        } else if self.words.is_empty() && inside.starts_with(|c: char| c.is_ascii_digit()) {
            // `memory: 9.46GiB(64.99%)`: a second form of the number before.
            self.at += 1 + inside.len();
        } else if self.is_separated && inside.starts_with(|c: char| c.is_ascii_digit()) {
            self.at += 1;
        } else {
            self.forget();
            self.at += 1;
        }
    }

    fn number(&mut self) {
        let rest = self.rest();
        let length = number_len(rest).max(1);
        let text = &rest[..length];
        let after = &rest[length..];
        let mut glued = after.find(|c: char| !c.is_ascii_alphanumeric() && !"%/".contains(c)).unwrap_or(after.len());
        let (suffix, then) = after.split_at(glued);
        let is_whole = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',');
        // Megatron-LM prints `122/  250000`.
        let (suffix, then) = match suffix {
            "/" => {
                let spaces = then.len() - then.trim_start_matches(' ').len();
                let digits = then[spaces..].find(|c: char| !c.is_ascii_digit()).unwrap_or(then.len() - spaces);
                glued += if digits > 0 { spaces + digits } else { 0 };
                after.split_at(glued)
            }
            _ => (suffix, then),
        };
        let total = suffix.strip_prefix('/').map(|total| total.trim_start_matches(' '));
        let total = total.filter(|total| !total.is_empty() && total.bytes().all(|b| b.is_ascii_digit()));
        let unit = if total.is_some() { Some(String::new()) } else { unit_of(suffix) };
        let next = then.chars().next();
        let goes_on = match next {
            Some('_' | '-' | '~') => true,
            Some(':' | '.' | ',') => then[1..].starts_with(|c: char| c.is_ascii_alphanumeric()),
            _ => false,
        };
        self.at += length + glued;
        if let (Some(value), Some(mut unit), false) = (parse(text), unit, goes_on || self.words.is_empty()) {
            if unit.is_empty() && total.is_none() {
                let word =
                    then.strip_prefix(' ').map(|then| then.split([' ', ',', '|', ')', ';']).next().unwrap_or(then));
                let is_unit = |word: &&str| UNITS.iter().any(|unit| word.eq_ignore_ascii_case(unit));
                if let Some(word) = word.filter(is_unit) {
                    unit = word.to_ascii_lowercase();
                    self.at += 1 + word.len();
                }
            }
            self.push(value, unit, is_whole, total.and_then(|total| total.parse().ok()));
        } else {
            self.forget();
            if goes_on {
                // The rest of a date, a version or an address.
                let rest = self.rest();
                self.at += rest.find([' ', '\t', ']', ')']).unwrap_or(rest.len());
            }
        }
    }

    fn push(&mut self, value: f64, unit: String, is_whole: bool, of: Option<u64>) {
        let words = &self.words[self.words.len().saturating_sub(MOST_WORDS)..];
        if let Some((at, _)) = words.first() {
            let unit = if unit.is_empty() { std::mem::take(&mut self.unit) } else { unit };
            let (at, is_separated) = (*at, self.is_separated);
            let mut name = String::new();
            let mut last_at = 0;
            for (_, word) in words {
                if !name.is_empty() {
                    name.push('_');
                }
                last_at = name.len();
                name.push_str(word);
            }
            name.make_ascii_lowercase();
            self.fields.push(Field { name, last_at, value, unit, is_whole, of, is_separated, at });
        }
        self.forget();
    }
}

fn is_nan(word: &str) -> bool {
    ["nan", "inf", "infinity"].iter().any(|nan| word.eq_ignore_ascii_case(nan))
}

/// Returns the length of the number at the start of a text; 0 if there is none. A comma belongs to a number if three digits follow it
/// and one to three stand before it.
fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from.min(bytes.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let sign = usize::from(matches!(bytes.first(), Some(b'-' | b'+')));
    let mut at = sign + digits(sign);
    let leading = at - sign;
    if (1..=3).contains(&leading) {
        while bytes.get(at) == Some(&b',') && digits(at + 1) == 3 {
            at += 4;
        }
    }
    let mut count = leading;
    if bytes.get(at) == Some(&b'.') && digits(at + 1) > 0 {
        count += digits(at + 1);
        at += 1 + digits(at + 1);
    } else if bytes.get(at) == Some(&b'.') && leading > 0 && !bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric) {
        // Python prints `2.` in arrays; a sentence may end with a number.
        at += 1;
    }
    if count == 0 {
        return if text[sign..].starts_with("inf") && sign > 0 { sign + 3 } else { 0 };
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'-' | b'+')));
        let exponent = digits(at + 1 + sign);
        at += if exponent > 0 { 1 + sign + exponent } else { 0 };
    }
    at
}

/// Reads a number as Python prints it: `1e-05`, `10,050`, `nan`, `-inf`.
pub(crate) fn parse(text: &str) -> Option<f64> {
    let text = text.trim_end_matches('.');
    if text.contains(',') { text.replace(',', "").parse().ok() } else { text.parse().ok() }
}

/// Returns whether a text contains one of these words of ASCII letters, in any case.
pub(crate) fn mentions(text: &str, words: &[&str]) -> bool {
    let bytes = text.as_bytes();
    let begins = |at: usize, word: &str| {
        bytes.get(at..at + word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word.as_bytes()))
    };
    let is_first = |byte: u8, word: &str| word.as_bytes().first() == Some(&byte.to_ascii_lowercase());
    (0..bytes.len()).any(|at| words.iter().any(|word| is_first(bytes[at], word) && begins(at, word)))
}

/// Returns the unit that is glued to a number; `None` if the letters are not a unit, so that the whole is not a number.
fn unit_of(suffix: &str) -> Option<String> {
    const GLUED: [&str; 21] = [
        "%", "s", "ms", "us", "sec", "gib", "gb", "mib", "mb", "g", "m", "kib", "kb", "s/it", "it/s", "s/step",
        "ms/step", "tflops", "tflop/s", "k", "tok/s",
    ];
    if suffix.is_empty() {
        return Some(String::new());
    }
    let unit = suffix.to_ascii_lowercase();
    GLUED.contains(&unit.as_str()).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> String {
        let shown = |field: Field| {
            let of = field.of.map_or(String::new(), |of| format!("/{of}"));
            format!("{}={}{of}{}", field.name, field.value, field.unit)
        };
        fields(line).into_iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn numbers_are_read_with_their_names_in_usual_spellings() {
        for (line, want) in [
            ("step 10 loss 0.5 lr 1e-5", "step=10 loss=0.5 lr=0.00001"),
            ("step: 10, loss: 0.5, lr: 1e-05", "step=10 loss=0.5 lr=0.00001"),
            ("step=10 loss=0.5 grad_norm=1.", "step=10 loss=0.5 grad_norm=1"),
            ("Epoch [1/10], Step [10/100], Loss: 0.5000", "epoch=1/10 step=10/100 loss=0.5"),
            ("iter 10: loss 2.5000, time 12.25ms, mfu 3.50%", "iter=10 loss=2.5 time=12.25ms mfu=3.5%"),
            (
                "step   10 | loss: 9.5 | norm: 1.2 | dt: 123.4ms | tok/sec: 4256.5",
                "step=10 loss=9.5 norm=1.2 dt=123.4ms tok/sec=4256.5",
            ),
            (
                "[step 10] train loss 0.5 grad norm 1.5 learning rate 1e-3",
                "step=10 train_loss=0.5 grad_norm=1.5 learning_rate=0.001",
            ),
            ("global_step#12: loss=nan mem 9.5 GiB", "global_step=12 loss=NaN mem=9.5gib"),
            ("step 3 loss -inf", "step=3 loss=-inf"),
            ("tps: 10,050  tflops: 1,314.71  mfu: 13.99%", "tps=10050 tflops=1314.71 mfu=13.99%"),
            ("memory: 66.91GiB(37.51%)  tps: 7", "memory=66.91gib tps=7"),
            ("step=1, skipped=0, lr=[1.5968e-07], mom=[0.0]", "step=1 skipped=0 lr=0.00000015968 mom=0"),
            (
                "elapsed time per iteration (ms): 86545.2 | lm loss: 2.504220E+00 |",
                "elapsed_time_per_iteration=86545.2ms lm_loss=2.50422",
            ),
            ("throughput per GPU (TFLOP/s/GPU): 123.4", "throughput_per_gpu=123.4tflop/s/gpu"),
            ("iteration      122/  250000 | x: 1/ 2", "iteration=122/250000 x=1/2"),
            ("lr: 1.0e-04 loss: 4.125e-01", "lr=0.0001 loss=0.4125"),
        ] {
            assert_eq!(read(line), want, "{line}");
        }
    }

    #[test]
    fn numbers_that_belong_to_no_name_are_left_out() {
        for line in [
            "[2026-11-20 03:40:01,250] [INFO] [logging.py:107:log_dist]",
            "torch 2.11.0+cu128 on 10.0.0.1:29500",
            "port 10.0.0.1",
            "saved to /out/step-10/model-00001-of-00002.safetensors",
            "version 1.2.3, sizes 10-20 and 3x4",
            "12 34 56",
            "",
        ] {
            assert_eq!(read(line), "", "{line}");
        }
    }

    #[test]
    fn any_text_is_read_without_a_panic() {
        for line in
            ["é: 1é loss=1é", "loss=", "=1", "((((", "a(", "a:(1", "-", "1,", "x 1,234,", "loss: 1e", "—1", "nan nan"]
        {
            fields(line);
        }
    }
}
