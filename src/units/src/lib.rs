//! Formats numbers, sizes and times for display, and picks the ticks of axes. [`terminal`] makes text safe to print.

pub mod terminal;

/// Formats a size in up to three digits, for sentences: `512 bytes`, `12.5 MiB`, `300 MiB`, `1.2 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 99.95);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Reads a size: `24GiB`, `24G` (GiB), `80 GB` (decimal), `1.5TiB`, `512M`, or bytes.
///
/// # Errors
/// The text is not a number with one of these units, or the size is below 1 byte or above `i64::MAX` bytes.
pub fn parse_size(text: &str) -> Result<u64, &'static str> {
    const WANTED: &str = "expected a size such as 24GiB, 80GB, 512MiB or a number of bytes";
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| WANTED)?;
    let (base, power) = match unit.trim() {
        "" | "B" | "bytes" => (1.0, 0),
        "K" | "KiB" => (1024.0, 1),
        "M" | "MiB" => (1024.0, 2),
        "G" | "GiB" => (1024.0, 3),
        "T" | "TiB" => (1024.0, 4),
        "kB" | "KB" => (1000.0, 1),
        "MB" => (1000.0, 2),
        "GB" => (1000.0, 3),
        "TB" => (1000.0, 4),
        _ => return Err(WANTED),
    };
    let bytes = number * f64::powi(base, power);
    if (1.0..=i64::MAX as f64).contains(&bytes) { Ok(bytes as u64) } else { Err(WANTED) }
}

/// Formats a count with its noun: `1 rank`, `2 ranks`, `3 processes`, `4 batches`.
pub fn counted(n: usize, noun: &str) -> String {
    let plural = match n {
        1 => "",
        _ if noun.ends_with('s') || noun.ends_with("tch") => "es",
        _ => "s",
    };
    format!("{n} {noun}{plural}")
}

/// Lists the first `most` items and counts the rest: `a, b, 12 more`.
pub fn listed<T>(items: &[T], most: usize, name: impl Fn(&T) -> String) -> String {
    let mut names: Vec<String> = items.iter().take(most).map(name).collect();
    if items.len() > most {
        names.push(format!("{} more", grouped((items.len() - most) as u64)));
    }
    names.join(", ")
}

/// Formats an integer with spaces between thousands: `12 480`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    if digits.len() <= 4 {
        return digits;
    }
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Formats a duration in its two largest units: `45 s`, `2 min 40 s`, `3 h 05 min`, `2 d 4 h`. Omits seconds from 10 minutes on.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "0 s".to_owned();
    }
    let s = seconds.round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..600 if !s.is_multiple_of(60) => format!("{} min {:02} s", s / 60, s % 60),
        60..3600 => format!("{} min", s / 60),
        3600..86_400 if !(s / 60).is_multiple_of(60) => format!("{} h {:02} min", s / 3600, s / 60 % 60),
        3600..86_400 => format!("{} h", s / 3600),
        _ if !(s / 3600).is_multiple_of(24) => format!("{} d {} h", s / 86_400, s / 3600 % 24),
        _ => format!("{} d", s / 86_400),
    }
}

/// Formats a duration in its largest unit only: `45 s`, `2 min`, `3 h`, `2 d`.
pub fn short_duration(seconds: f64) -> String {
    let s = if seconds.is_finite() { seconds.max(0.0).round() as u64 } else { 0 };
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        3600..86_400 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

/// Formats how long ago a time was: `3 h ago`. A time in the future, because clocks differ, is `just now`.
pub fn ago(now: f64, then: f64) -> String {
    match now - then {
        seconds if seconds < 2.0 => "just now".to_owned(),
        seconds => format!("{} ago", short_duration(seconds)),
    }
}

/// Formats a size for narrow columns: `512 B`, `1.2 GiB`, `12 GiB`.
pub fn short_size(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// Formats a large count in a unit of thousands: `999`, `51.8 M`.
pub fn count(n: u64) -> String {
    const UNITS: [&str; 4] = ["k", "M", "B", "T"];
    if n < 10_000 {
        return n.to_string();
    }
    let mut value = n as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    if value < 100.0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// Formats a number with about four significant digits: `0.1123`, `12.35`, `1.1e-5`.
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        "not finite".to_owned()
    } else if magnitude == 0.0 {
        "0".to_owned()
    } else if !(1e-3..1e5).contains(&magnitude) {
        scientific(value, 2)
    } else {
        let decimals = (3 - magnitude.log10().floor() as i32).clamp(0, 6) as usize;
        format!("{value:.decimals$}")
    }
}

/// Formats a number as `1.25e-5`, with at most `decimals` digits after the point and without trailing zeros.
pub fn scientific(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) if mantissa.contains('.') => {
            format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// The unit of a quantity, for the labels of axes and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number without a unit.
    Plain,
    /// A small number without a unit, such as a learning rate.
    Rate,
    /// Watts.
    Watts,
    /// Seconds.
    Seconds,
    /// GiB.
    Gib,
    /// A share of 1, shown in percent.
    Share,
    /// Optimizer steps.
    Step,
    /// A number of things.
    Count,
    /// Seconds since the start of the run.
    Elapsed,
}

/// Formats a value with its unit.
pub fn value(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return "not finite".to_owned();
    }
    match unit {
        Unit::Plain => number(value),
        Unit::Rate if value == 0.0 => "0".to_owned(),
        Unit::Rate => scientific(value, 2),
        Unit::Seconds if value.abs() < 1.0 => format!("{:.0} ms", value * 1e3),
        Unit::Seconds if value.abs() < 100.0 => format!("{value:.2} s"),
        Unit::Seconds => duration(value),
        Unit::Share if value != 0.0 && value.abs() < 0.01 => format!("{:.2} %", value * 100.0),
        Unit::Share => format!("{:.1} %", value * 100.0),
        Unit::Watts if value.abs() < 10.0 => format!("{value:.1} W"),
        Unit::Watts => format!("{value:.0} W"),
        Unit::Gib if value.abs() < 1.0 => format!("{:.0} MiB", value * 1024.0),
        Unit::Gib if value.abs() < 10.0 => format!("{value:.2} GiB"),
        Unit::Gib => format!("{value:.1} GiB"),
        Unit::Step | Unit::Count => grouped(value.max(0.0).round() as u64),
        Unit::Elapsed => duration(value),
    }
}

/// The ticks of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Ticks {
    /// The value and label of each tick, ascending.
    pub marks: Vec<(f64, String)>,
}

/// Picks about `wanted` round values in `low..=high`, with labels in a fitting unit. `log` is whether the axis is logarithmic.
pub fn ticks(low: f64, high: f64, wanted: usize, unit: Unit, log: bool) -> Ticks {
    if !(low.is_finite() && high.is_finite()) || high <= low || wanted == 0 {
        return Ticks { marks: Vec::new() };
    }
    if log && low > 0.0 {
        let marks = log_marks(low, high, wanted);
        if marks.len() >= 2 {
            return Ticks { marks: marks.into_iter().map(|v| (v, tick_label(v, v, unit, ""))).collect() };
        }
    }
    let (scale, suffix) = scale_of(high.abs().max(low.abs()), unit);
    let step = if matches!(unit, Unit::Step | Unit::Count) {
        nice_step((high - low) / wanted as f64).max(1.0)
    } else if unit == Unit::Elapsed && scale == 1.0 {
        [1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0]
            .into_iter()
            .find(|s| *s >= (high - low) / wanted as f64)
            .unwrap_or(60.0)
    } else {
        nice_step((high - low) * scale / wanted as f64)
    };
    let first = (low * scale / step - 1e-9).ceil() as i64;
    let last = (high * scale / step + 1e-9).floor() as i64;
    let marks = (first..=last.min(first.saturating_add(64)))
        .map(|k| k as f64 * step)
        .map(|scaled| (scaled / scale, tick_label(scaled, step, unit, suffix)))
        .collect();
    Ticks { marks }
}

/// Returns the factor and the suffix of the unit in which the labels of values up to `largest` are short.
fn scale_of(largest: f64, unit: Unit) -> (f64, &'static str) {
    match unit {
        Unit::Plain | Unit::Rate | Unit::Step | Unit::Count => (1.0, ""),
        Unit::Seconds if largest < 1.0 => (1e3, " ms"),
        Unit::Seconds => (1.0, " s"),
        Unit::Share => (100.0, " %"),
        Unit::Watts => (1.0, " W"),
        Unit::Gib if largest < 1.0 => (1024.0, " MiB"),
        Unit::Gib => (1.0, " GiB"),
        Unit::Elapsed if largest < 180.0 => (1.0, " s"),
        Unit::Elapsed if largest < 3.0 * 3600.0 => (1.0 / 60.0, " min"),
        Unit::Elapsed if largest < 3.0 * 86_400.0 => (1.0 / 3600.0, " h"),
        Unit::Elapsed => (1.0 / 86_400.0, " d"),
    }
}

fn tick_label(scaled: f64, step: f64, unit: Unit, suffix: &str) -> String {
    if scaled == 0.0 {
        return "0".to_owned();
    }
    match unit {
        Unit::Rate => scientific(scaled, 1),
        Unit::Step | Unit::Count => grouped(scaled.max(0.0).round() as u64),
        _ if suffix.is_empty() && (scaled.abs() >= 1e5 || step.abs() < 1e-3) => scientific(scaled, 2),
        _ => {
            let decimals = (-(step.abs().log10() + 1e-9).floor()).clamp(0.0, 4.0) as usize;
            format!("{scaled:.decimals$}{suffix}")
        }
    }
}

/// Rounds a step to 1, 2 or 5 times a power of ten. It rounds down by at most 30 %, so that there are never far too many ticks.
fn nice_step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * power >= raw * 0.7).unwrap_or(10.0);
    (step * power).max(f64::MIN_POSITIVE)
}

/// Returns the powers of ten in the range. If there are fewer than two, also returns their multiples by 2 and 5.
fn log_marks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let inside = |v: &f64| *v >= low * (1.0 - 1e-9) && *v <= high * (1.0 + 1e-9);
    let tens: Vec<f64> = (first..=last).map(|k| 10f64.powi(k)).filter(inside).collect();
    if tens.len() >= 2 {
        let stride = tens.len().div_ceil(wanted.max(2));
        return tens.into_iter().step_by(stride).collect();
    }
    (first..=last).flat_map(|k| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(k))).filter(inside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        let read = |text: &str| parse_size(text).ok();
        assert_eq!(read("24GiB"), Some(24 << 30));
        assert_eq!([read("24G"), read("24 GiB")], [read("24GiB"); 2]);
        assert_eq!([read("80GB"), read("1.5kB"), read("7")], [Some(80_000_000_000), Some(1500), Some(7)]);
        for wrong in ["", "GiB", "0", "-1G", "1..2G", "24 cats", "99999999TiB", "inf"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_list_names_the_first_items_and_counts_the_rest() {
        let list = |items: &[u32]| listed(items, 2, ToString::to_string);
        assert_eq!([list(&[]), list(&[1, 2]), list(&[1, 2, 3])], ["", "1, 2", "1, 2, 1 more"]);
    }

    #[test]
    fn durations_show_their_two_largest_units() {
        let texts = [0.4, 45.0, 60.0, 160.0, 3599.0, 3600.0, 11_100.0, 187_200.0, f64::NAN].map(duration);
        assert_eq!(texts, ["0 s", "45 s", "1 min", "2 min 40 s", "59 min", "1 h", "3 h 05 min", "2 d 4 h", "0 s"]);
    }

    #[test]
    fn numbers_keep_four_significant_digits() {
        let texts = [0.0, 0.11234, 12.3456, 1234.5, 1.1e-5, 1e9, f64::INFINITY].map(number);
        assert_eq!(texts, ["0", "0.1123", "12.35", "1234", "1.1e-5", "1e9", "not finite"]);
    }

    #[test]
    fn values_have_the_unit_that_fits() {
        assert_eq!(value(3.41, Unit::Seconds), "3.41 s");
        assert_eq!(value(0.0204, Unit::Seconds), "20 ms");
        assert_eq!(value(0.25, Unit::Gib), "256 MiB");
        assert_eq!(value(1.234, Unit::Gib), "1.23 GiB");
        assert_eq!(value(1e-4, Unit::Rate), "1e-4");
        assert_eq!(value(12_480.0, Unit::Step), "12 480");
        assert_eq!([0.3127, 0.02, 0.0005].map(|share| value(share, Unit::Share)), ["31.3 %", "2.0 %", "0.05 %"]);
    }

    #[test]
    fn ticks_are_round_and_inside_the_range() {
        let labels = |t: Ticks| t.marks.into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(ticks(0.11, 0.83, 4, Unit::Plain, false)), ["0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(labels(ticks(0.0, 1.1e-4, 3, Unit::Rate, false)), ["0", "5e-5", "1e-4"]);
        assert_eq!(labels(ticks(1.1, 1.4, 3, Unit::Seconds, false)), ["1.1 s", "1.2 s", "1.3 s", "1.4 s"]);
        assert_eq!(labels(ticks(0.2, 0.5, 3, Unit::Gib, false)), ["300 MiB", "400 MiB", "500 MiB"]);
        assert_eq!(labels(ticks(0.0, 400.0, 3, Unit::Elapsed, false)), ["0", "2 min", "4 min", "6 min"]);
        assert_eq!(labels(ticks(0.004, 20.0, 4, Unit::Plain, true)), ["0.01", "0.1", "1", "10"]);
    }

    #[test]
    fn degenerate_ranges_have_no_ticks() {
        for (low, high) in [(1.0, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY), (2.0, 1.0)] {
            assert!(ticks(low, high, 4, Unit::Plain, false).marks.is_empty());
        }
    }

    #[test]
    fn sizes_are_in_the_largest_unit_that_fits() {
        let sizes = [0, 1023, 1024, 300 << 20, 1_288_490_189, 5 << 50].map(size);
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "300 MiB", "1.2 GiB", "5120 TiB"]);
    }

    #[test]
    fn counts_agree_with_their_nouns() {
        assert_eq!(
            [counted(1, "rank"), counted(2, "rank"), counted(3, "process")],
            ["1 rank", "2 ranks", "3 processes"]
        );
    }
}
