//! tqdm's progress bar: `Steps:  12%|█▏   | 120/1000 [02:00<14:40, 1.00s/it, loss=0.21, lr=1e-5]`.

/// One drawing of a progress bar.
#[derive(Debug, PartialEq)]
pub(crate) struct Bar<'a> {
    /// The text before the percentage.
    pub name: &'a str,
    /// The number of steps done.
    pub done: u64,
    /// The number of steps in all; `None` if the bar does not show it.
    pub total: Option<u64>,
    /// Seconds of one step; `None` before the first step.
    pub step_s: Option<f64>,
    /// The fields after the speed, such as `loss=0.21`.
    fields: Vec<(&'a str, &'a str)>,
    /// The text after the speed, with the fields.
    pub tail: &'a str,
}

impl<'a> Bar<'a> {
    /// Reads a bar; `None` if the line is not a complete bar.
    pub fn read(line: &'a str) -> Option<Self> {
        let inside = line.strip_suffix(']')?;
        let (before, inside) = inside.rsplit_once(" [")?;
        let (clock, rest) = inside.split_once(", ").unwrap_or((inside, ""));
        // `02:00<14:40`, or `02:00` if the total is not known.
        let is_clock = |text: &str| text.chars().all(|c| c.is_ascii_digit() || ":?days, ".contains(c));
        if !clock.split('<').all(is_clock) || !clock.contains([':', '?']) {
            return None;
        }
        let (name, count, total) = match before.rsplit_once('|') {
            // With a total, a name, a percentage and the bar come before the count.
            Some((drawn, count)) => {
                let (name, _) = drawn.split_once('|')?;
                let (name, percent) = name.rsplit_once(':').unwrap_or(("", name));
                percent.trim().strip_suffix('%')?;
                let (count, total) = count.split_once('/')?;
                (name, count, total.trim().parse().ok())
            }
            None => before.rsplit_once(": ").map_or(("", before, None), |(name, count)| (name, count, None)),
        };
        let tail = rest.split_once(", ").map_or("", |(_, tail)| tail);
        let mut rest = rest.split(", ");
        let step_s = rest.next().and_then(step_s);
        let done = count.trim().trim_end_matches("it").parse().ok().filter(|done| *done <= MOST_COUNT)?;
        Some(Self {
            name: name.trim(),
            done,
            total: total.filter(|total| *total <= MOST_COUNT),
            step_s,
            tail,
            fields: rest.filter_map(|field| field.split_once('=')).collect(),
        })
    }

    /// Returns the text of a field.
    pub fn field(&self, name: &str) -> Option<&'a str> {
        self.fields.iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    }

    /// Returns a field that is a whole number.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }
}

/// The largest count of a bar. A larger number is no number of steps, and sums of counts must not overflow.
const MOST_COUNT: u64 = 1 << 50;
/// The brackets in a line that may end a bar. A printed list has many more.
const MOST_TRIES: usize = 64;

/// Splits a line into a bar and the text that a logger printed after it without a line break.
pub(crate) fn apart(line: &str) -> Vec<&str> {
    let mut ends = line.match_indices(']').map(|(at, _)| at + 1).filter(|at| *at < line.len()).peekable();
    let has_speed = ends.peek().is_some() && (line.contains("it/s") || line.contains("s/it"));
    let end = ends.take(if has_speed { MOST_TRIES } else { 0 }).find(|at| Bar::read(&line[..*at]).is_some());
    end.map_or(vec![line], |end| vec![&line[..end], line[end..].trim()])
}

/// Reads `2.00s/it`, `4.10it/s` or `1.5step/s`; `None` for the `?it/s` before the first step.
fn step_s(speed: &str) -> Option<f64> {
    let speed = speed.trim();
    let end = speed.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = speed.split_at(end);
    let number = number.parse::<f64>().ok()?;
    let seconds = match unit.strip_prefix("s/") {
        Some(_) => number,
        // A rate in thousands, such as `1.2kit/s`, belongs to a count in thousands.
        None if unit.ends_with("/s") && !unit.starts_with(['k', 'M', 'G']) => 1.0 / number,
        None => return None,
    };
    Some(seconds).filter(|seconds| seconds.is_finite())
}

/// Reads a number as Python prints it, or the number in a printed tensor: `0.21`, `nan`, `tensor(0.21, device='cuda:0')`.
pub(crate) fn number(text: &str) -> Option<f64> {
    let text = text.strip_prefix("tensor(").map_or(text, |rest| rest.split([',', ')']).next().unwrap_or(rest));
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_with_and_without_total_name_and_speed_are_read() {
        let read = |line| Bar::read(line).map(|bar| (bar.name, bar.done, bar.step_s));
        let drawn = "Steps:  12%|█▏        | 120/1000 [02:00<14:40,  2.50s/it, loss=0.21, lr=1e-5]";
        assert_eq!(read(drawn), Some(("Steps", 120, Some(2.5))));
        assert_eq!(read("100%|##########| 5/5 [00:01<00:00,  4.00it/s]"), Some(("", 5, Some(0.25))));
        assert_eq!(read("Epoch 0:   0%|          | 0/25 [00:00<?, ?it/s]"), Some(("Epoch 0", 0, None)));
        assert_eq!(read("Epoch 0: 12it [00:03,  4.00it/s, loss=1]"), Some(("Epoch 0", 12, Some(0.25))));
        assert_eq!(
            read("a: b:  1%|1| 1/90 [1 day, 2:03:04<9 days, 1:00:00, 97384.00s/it]"),
            None,
            "a duration of days contains the separator of fields"
        );
        assert_eq!(Bar::read(drawn).unwrap().field("lr"), Some("1e-5"));
    }

    #[test]
    fn a_cut_bar_or_another_line_is_not_a_bar() {
        let drawn = "Steps:  12%|█▏        | 120/1000 [02:00<14:40,  2.50s/it, loss=0.21, lr=1e-5]";
        for half in drawn.char_indices().map(|(at, _)| &drawn[..at]) {
            assert_eq!(Bar::read(half), None, "{half}");
        }
        for other in ["", "[2026-11-20 03:40:01] Beginning epoch 0...", "shape [1, 2]", "a | b [c]", "50% | 3/4 [x]"] {
            assert_eq!(Bar::read(other), None, "{other}");
        }
    }

    #[test]
    fn numbers_are_read_as_python_prints_them() {
        assert_eq!(number("1e-05"), Some(1e-5));
        assert_eq!(number("tensor(0.25, device='cuda:0')"), Some(0.25));
        assert!(number("nan").is_some_and(f64::is_nan));
        assert_eq!(number("none"), None);
    }
}
