//! A fast reader of metric lines as this version writes them.
//!
//! A run with 100,000 steps has 40 MB of metrics, and its first chart should be there at once. A general JSON parser
//! takes three times as long over them (130 ms instead of 45; `examples/open_speed.rs` measures). So this one knows the
//! keys and their order, and gives up at the first byte it does not expect: the caller then asks the general parser.

use crate::{MetricSample, SCHEMA};

/// Reads a line exactly as [`MetricSample`] is written; none if it is anything else.
pub(crate) fn parse(line: &[u8]) -> Option<MetricSample> {
    let mut at = Cursor { rest: line };
    at.skip(b"{\"v\":1,\"attempt\":")?;
    let attempt = u32::try_from(at.integer()?).ok()?;
    at.skip(b",\"step\":")?;
    let step = at.integer()?;
    at.skip(b",\"t\":")?;
    let t = at.number()?;
    at.skip(b",\"loss\":")?;
    let loss = at.number_or_null()?;
    at.skip(b",\"grad_norm\":")?;
    let grad_norm = at.number_or_null()?;
    at.skip(b",\"lr\":")?;
    let lr = at.number()?;
    let lr_ttt = at.maybe(b",\"lr_ttt\":")?;
    let sample = MetricSample {
        v: SCHEMA,
        attempt,
        step,
        t,
        loss,
        grad_norm,
        lr,
        lr_ttt,
        step_s: at.named(b",\"step_s\":")?,
        data_s: at.named(b",\"data_s\":")?,
        forward_s: at.named(b",\"forward_s\":")?,
        backward_s: at.named(b",\"backward_s\":")?,
        optimizer_s: at.named(b",\"optimizer_s\":")?,
        checkpoint_s: at.maybe(b",\"checkpoint_s\":")?.unwrap_or_default(),
        samples_per_s: at.named(b",\"samples_per_s\":")?,
        tokens_per_s: at.named(b",\"tokens_per_s\":")?,
        mem_gib_by_rank: at.numbers(b",\"mem_gib_by_rank\":[")?,
        mem_peak_gib_by_rank: at.numbers(b",\"mem_peak_gib_by_rank\":[")?,
        step_s_by_rank: at.numbers(b",\"step_s_by_rank\":[")?,
        busy_s_by_rank: match at.rest.starts_with(b",\"busy_s_by_rank\":[") {
            true => at.numbers(b",\"busy_s_by_rank\":[")?,
            false => Vec::new(),
        },
        reduce_s: at.maybe(b",\"reduce_s\":")?.unwrap_or_default(),
        weight_norm: at.maybe(b",\"weight_norm\":")?,
        tflops: at.maybe(b",\"tflops\":")?.unwrap_or_default(),
        mfu: at.maybe(b",\"mfu\":")?,
        adapted: at.skip(b",\"adapted\":true").is_some(),
    };
    (at.rest == b"}").then_some(sample)
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl Cursor<'_> {
    fn skip(&mut self, text: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    fn named(&mut self, key: &[u8]) -> Option<f64> {
        self.skip(key)?;
        self.number()
    }

    /// The number of a key that may be left out; none if there is something else than a number.
    fn maybe(&mut self, key: &[u8]) -> Option<Option<f64>> {
        match self.skip(key) {
            Some(()) => self.number().map(Some),
            None => Some(None),
        }
    }

    fn number_or_null(&mut self) -> Option<Option<f64>> {
        match self.skip(b"null") {
            Some(()) => Some(None),
            None => self.number().map(Some),
        }
    }

    fn numbers(&mut self, key: &[u8]) -> Option<Vec<f64>> {
        self.skip(key)?;
        if self.skip(b"]").is_some() {
            return Some(Vec::new());
        }
        let mut numbers = Vec::with_capacity(2);
        loop {
            numbers.push(self.number()?);
            if self.skip(b"]").is_some() {
                return Some(numbers);
            }
            self.skip(b",")?;
        }
    }

    fn integer(&mut self) -> Option<u64> {
        let (value, count) = self.digits(0, 0)?;
        (count > 0).then_some(value)
    }

    /// Appends the decimal digits that come next to `value`, which holds `before` digits; none if there are too many.
    fn digits(&mut self, mut value: u64, before: usize) -> Option<(u64, usize)> {
        let mut count = 0;
        while let Some(digit) = self.rest.get(count).map(|b| b.wrapping_sub(b'0')).filter(|d| *d < 10) {
            // Nothing overflows: 19 digits always fit, and more are refused below.
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            count += 1;
        }
        self.rest = &self.rest[count..];
        (before + count <= 19).then_some((value, count))
    }

    /// Reads a number exactly: short ones here, all others by the standard library.
    fn number(&mut self) -> Option<f64> {
        let start = self.rest;
        self.short_number().or_else(|| {
            let end = start.iter().position(|b| !matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))?;
            self.rest = &start[end..];
            str::from_utf8(&start[..end]).ok()?.parse().ok()
        })
    }

    /// Reads `123.456e-7`. Digits below 2^53 and powers of ten up to 22 are exact in f64, so one division rounds right
    /// (Clinger, How to Read Floating Point Numbers Accurately, 1990).
    fn short_number(&mut self) -> Option<f64> {
        let (value, digits) = self.digits(0, 0)?;
        if digits == 0 {
            return None;
        }
        let (value, mut decimals) = if self.skip(b".").is_some() { self.digits(value, digits)? } else { (value, 0) };
        if self.skip(b"e-").is_some() {
            decimals = decimals.checked_add(usize::try_from(self.integer()?).ok()?)?;
        }
        let exact = value < 1 << 53 && !matches!(self.rest.first(), Some(b'e' | b'E'));
        exact.then_some(value as f64 / EXACT_TENS.get(decimals)?)
    }
}

const EXACT_TENS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = concat!(
        r#"{"v":1,"attempt":2,"step":120,"t":1763612345.125,"loss":0.1123,"grad_norm":null,"lr":0.00001,"#,
        r#""step_s":3.41,"data_s":0.02,"forward_s":1.0,"backward_s":2.0,"optimizer_s":0.3,"samples_per_s":4.7,"#,
        r#""tokens_per_s":8000.0,"mem_gib_by_rank":[61.2,60.0],"mem_peak_gib_by_rank":[],"step_s_by_rank":[3.41,3.4]}"#
    );

    fn general(line: &str) -> MetricSample {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn a_line_as_this_version_writes_it_is_read_as_the_general_parser_reads_it() {
        assert_eq!(parse(LINE.as_bytes()), Some(general(LINE)));
        let with_ttt = LINE.replace(r#""lr":0.00001,"#, r#""lr":1e-5,"lr_ttt":1.25e-4,"#);
        assert_eq!(parse(with_ttt.as_bytes()), Some(general(&with_ttt)));
        assert_eq!(general(&with_ttt).lr_ttt, Some(1.25e-4));
    }

    #[test]
    fn anything_else_is_left_to_the_general_parser() {
        let other = LINE.replace("\"v\":1", "\"v\":2");
        let spaced = LINE.replace(':', ": ");
        let longer = LINE.replace(r#"]}"#, r#"],"eggs":0.4}"#);
        let cut = &LINE[..LINE.len() - 1];
        for line in [&other, &spaced, &longer, cut, "", "{", "{\"v\":1,\"attempt\":", "{\"v\":1,\"attempt\":-1"] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn every_sample_that_can_be_written_is_read_fast_and_right(
            numbers in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::ZERO | prop::num::f64::SUBNORMAL, 8),
            usual in prop::collection::vec(-1e6..2e9f64, 8),
            ranks in prop::collection::vec(0.0..500.0f64, 0..9),
            step in 0..1u64 << 60, attempt: u32, finite: bool, ttt: bool,
        ) {
            let single = |x: f64| f64::from(x.clamp(f32::MIN.into(), f32::MAX.into()) as f32);
            let sample = MetricSample {
                v: 1, attempt, step, t: usual[0],
                loss: finite.then_some(single(numbers[0])),
                grad_norm: finite.then_some(single(usual[7])),
                lr: single(numbers[1]),
                lr_ttt: ttt.then_some(single(numbers[2])),
                step_s: usual[1], data_s: usual[2], forward_s: numbers[3].clamp(-1e200, 1e200), backward_s: usual[3],
                optimizer_s: usual[4], checkpoint_s: if ttt { usual[5] } else { 0.0 }, samples_per_s: usual[5], tokens_per_s: usual[6],
                mem_gib_by_rank: ranks.clone(), mem_peak_gib_by_rank: vec![], step_s_by_rank: ranks.clone(),
                busy_s_by_rank: if finite { ranks } else { vec![] },
                reduce_s: if ttt { usual[2].abs() } else { 0.0 },
                weight_norm: finite.then_some(single(numbers[4])),
                tflops: if finite { usual[6].abs() } else { 0.0 },
                mfu: ttt.then_some(single(numbers[5])),
                adapted: !finite,
            };
            let line = serde_json::to_string(&sample).unwrap();
            let read = parse(line.as_bytes());
            prop_assert!(read.is_some(), "{line}");
            let read = read.unwrap();
            // What was read is written as the same text, so nothing was lost.
            prop_assert_eq!(serde_json::to_string(&read).unwrap(), line);
            prop_assert_eq!(read.loss.map(|x| x as f32), sample.loss.map(|x| x as f32));
            prop_assert!((read.step_s - sample.step_s).abs() <= 1e-6);
        }

        #[test]
        fn no_line_makes_it_panic(line: Vec<u8>, cut in 0..LINE.len(), byte: u8) {
            parse(&line);
            let mut broken = LINE.as_bytes().to_vec();
            broken[cut] = byte;
            if let (Some(sample), Ok(general)) = (parse(&broken), serde_json::from_slice(&broken)) {
                prop_assert_eq!(sample, general);
            }
        }
    }
}
