//! Templates of captions: `{caption} motion score: {motion:.1f}, {fps} FPS`, as Open-Sora writes its captions.

use std::str::FromStr;

/// The field that is the caption of the clip.
const CAPTION: &str = "caption";

/// A text with fields in braces. `{{` and `}}` are braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptionTemplate {
    /// The text that was read.
    pub text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(String, Format),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// As the table has it.
    Written,
    /// A number with so many digits after the point.
    Decimals(usize),
}

/// A value of a clip in a column.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum FieldValue {
    /// There is none.
    #[default]
    Missing,
    /// A number.
    Number(f64),
    /// A text, or a number as the table has it.
    Text(String),
}

impl FieldValue {
    /// Returns the number, `None` if the value is missing or a text.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Missing => None,
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.trim().parse().ok(),
        }
        .filter(|number| number.is_finite())
    }
}

impl FromStr for CaptionTemplate {
    type Err = String;

    /// Reads a template. The error names the part that is wrong.
    fn from_str(text: &str) -> Result<Self, String> {
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            let Some(end) = rest.find('}').filter(|_| brace == "{") else {
                return Err(format!(
                    "a brace is not closed or not opened: '{brace}{rest}'; write {brace}{brace} for a brace"
                ));
            };
            let (field, format) = rest[..end].split_once(':').unwrap_or((&rest[..end], ""));
            if field.trim().is_empty() || field.contains('{') {
                return Err(format!("'{{{}}}' names no column; for example: {{caption}}", &rest[..end]));
            }
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Field(field.trim().to_owned(), read_format(format)?));
            rest = &rest[end + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        if !parts.iter().any(|part| matches!(part, Part::Field(..))) {
            return Err(
                "the template has no field, so that all captions would be equal; for example: \"{caption}, {fps} FPS\""
                    .into(),
            );
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

/// Reads the format of a number, as Python writes it: `.1f` or `d`.
fn read_format(format: &str) -> Result<Format, String> {
    let digits =
        format.strip_prefix('.').and_then(|rest| rest.strip_suffix('f')).and_then(|digits| digits.parse().ok());
    match (format, digits) {
        ("", _) => Ok(Format::Written),
        ("d", _) => Ok(Format::Decimals(0)),
        (_, Some(digits)) if digits <= 9 => Ok(Format::Decimals(digits)),
        _ => Err(format!(
            "the format ':{format}' is not known; use for example :.1f for one digit after the point, or :d"
        )),
    }
}

impl CaptionTemplate {
    /// Returns the names of the columns in the template, besides the caption.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Field(name, _) if name != CAPTION => Some(name.as_str()),
            _ => None,
        })
    }

    /// Returns the caption of a clip. `value` returns the value of a column.
    ///
    /// # Errors
    /// The name of a column whose value is missing, or is a text where the template formats a number.
    pub fn fill(&self, caption: &str, value: &dyn Fn(&str) -> FieldValue) -> Result<String, &str> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Field(name, Format::Written) if name == CAPTION => filled.push_str(caption),
                Part::Field(name, format) => {
                    let value = value(name);
                    filled += &match (format, value.number()) {
                        (Format::Decimals(decimals), Some(number)) => format!("{number:.decimals$}"),
                        (Format::Written, _) => written(&value).ok_or(name.as_str())?,
                        (Format::Decimals(_), None) => return Err(name),
                    };
                }
            }
        }
        Ok(filled.trim().to_owned())
    }
}

/// Returns a value as text: a number with at most seven significant digits, because single precision has no more.
fn written(value: &FieldValue) -> Option<String> {
    match value {
        FieldValue::Missing => None,
        FieldValue::Number(number) => {
            Some(format!("{number:.6e}").parse::<f64>().map_or_else(|_| number.to_string(), |short| short.to_string()))
        }
        // pandas writes the numbers of a column that has missing values as 24.0.
        FieldValue::Text(text) => Some(match text.strip_suffix(".0") {
            Some(whole) if whole.parse::<i64>().is_ok() => whole.to_owned(),
            _ => text.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str) -> FieldValue {
        match name {
            "fps" => FieldValue::Number(24.0),
            "rate" => FieldValue::Number(24_000.0 / 1001.0),
            "single" => FieldValue::Number(0.1_f32.into()),
            "motion" => FieldValue::Text("3.14159".into()),
            "count" => FieldValue::Text("16.0".into()),
            "tags" => FieldValue::Text("grey, cat".into()),
            _ => FieldValue::Missing,
        }
    }

    fn filled(template: &str) -> Result<String, String> {
        let template: CaptionTemplate = template.parse()?;
        template.fill("a cat sleeps", &value).map_err(|name| format!("missing {name}"))
    }

    #[test]
    fn fields_are_replaced_by_the_values_of_the_clip() {
        for (template, caption) in [
            ("{caption} motion score: {motion:.1f}, {fps} FPS", "a cat sleeps motion score: 3.1, 24 FPS"),
            ("sks {caption}", "sks a cat sleeps"),
            ("{ tags }: {caption}", "grey, cat: a cat sleeps"),
            ("{{{motion:d}}} {count} {rate} {single}", "{3} 16 23.97602 0.1"),
            ("{rate:.0f} {single:.2f} {{}}", "24 0.10 {}"),
        ] {
            assert_eq!(filled(template).as_deref(), Ok(caption), "{template}");
        }
        assert_eq!(filled("{caption} {aesthetic}"), Err("missing aesthetic".into()));
        assert_eq!(filled("{caption} {tags:.1f}"), Err("missing tags".into()));
        let template: CaptionTemplate = "{caption} {a} {b:d}".parse().unwrap();
        assert_eq!(template.columns().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_template_that_cannot_be_read_is_refused() {
        for template in
            ["", "a cat", "{caption", "caption}", "{}", "{:.1f}", "{motion:5.2f}", "{motion:.99f}", "{{a}", "{a{b}}"]
        {
            assert!(template.parse::<CaptionTemplate>().is_err(), "{template}");
        }
    }
}
