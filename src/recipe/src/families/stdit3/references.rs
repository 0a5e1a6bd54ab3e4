//! References of sampling: latents of images and clips that a sample contains, as Open-Sora's mask strings name them.

use std::str::FromStr;

/// The latent frames of a whole piece of the VAE: references and samples are joined at multiples of it.
pub const ALIGNMENT: usize = 5;

/// A part of a reference that is placed into a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reference {
    /// The number of the loop, of samples that continue each other, from 0.
    pub in_loop: usize,
    /// The number of the reference.
    pub number: usize,
    /// The first latent frame of the reference; negative numbers count from its end.
    pub from: i64,
    /// The first latent frame of the sample; negative numbers count from its end.
    pub to: i64,
    /// The number of latent frames, as far as both have them.
    pub frames: usize,
    /// How much the frames may change: the share of the steps in which they are noised and sampled. 0: never; 1: all.
    pub edit: f32,
}

impl Default for Reference {
    /// Returns the first frame of the first reference as the first frame of the sample.
    fn default() -> Self {
        Reference { in_loop: 0, number: 0, from: 0, to: 0, frames: 1, edit: 0.0 }
    }
}

/// A place in a mask string that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{group}' is not LOOP,REFERENCE,FROM,TO,FRAMES,EDIT: {why}")]
pub struct BadReference {
    /// The part of the string for one reference.
    pub group: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// The latent frames of a reference and of a sample that are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first frame of the reference.
    pub from: usize,
    /// The first frame of the sample.
    pub to: usize,
    /// The number of frames.
    pub frames: usize,
}

impl Reference {
    /// Reads a mask string: groups of up to six numbers, joined by semicolons. Missing numbers have the values of [`Reference::default`].
    /// An empty string has no groups.
    ///
    /// # Errors
    /// The first group that cannot be read.
    ///
    /// Source: Open-Sora v1.2.0 `opensora/utils/inference_utils.py`.
    pub fn list(text: &str) -> Result<Vec<Reference>, BadReference> {
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        text.split(';').map(str::parse).collect()
    }

    /// Returns the frames that are the same in a reference and a sample of these lengths. With `alignment`, both starts move to the nearest
    /// multiple of it, but not up to the last multiple.
    pub fn span(&self, reference_frames: usize, frames: usize, alignment: Option<usize>) -> Span {
        let start = |start: i64, len: usize| {
            let start = if start < 0 { len.saturating_sub(start.unsigned_abs() as usize) } else { start as usize };
            let start = match alignment {
                Some(step) => {
                    let part = start / step;
                    let is_nearer = 2 * (start % step) > step && part + 1 < len / step;
                    (part + usize::from(is_nearer)) * step
                }
                None => start,
            };
            start.min(len)
        };
        let (from, to) = (start(self.from, reference_frames), start(self.to, frames));
        Span { from, to, frames: self.frames.min(frames - to).min(reference_frames - from) }
    }
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(group: &str) -> Result<Self, BadReference> {
        let bad = |why| BadReference { group: group.to_owned(), why };
        let mut reference = Reference::default();
        for (place, number) in group.split(',').enumerate() {
            let number = number.trim();
            let whole = || number.parse::<usize>().map_err(|_| bad("loop, reference and frames are whole numbers"));
            let start = || number.parse::<i64>().map_err(|_| bad("starts are whole numbers"));
            match place {
                0 => reference.in_loop = whole()?,
                1 => reference.number = whole()?,
                2 => reference.from = start()?,
                3 => reference.to = start()?,
                4 => reference.frames = whole()?,
                5 => {
                    let edit = number.parse().ok().filter(|edit| (0.0..=1.0).contains(edit));
                    reference.edit = edit.ok_or_else(|| bad("the edit ratio is a number from 0 to 1"))?;
                }
                _ => return Err(bad("there are more than six numbers")),
            }
        }
        Ok(reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_numbers_have_their_defaults() {
        assert_eq!(Reference::list(""), Ok(Vec::new()));
        assert_eq!(Reference::list("0"), Ok(vec![Reference::default()]));
        let both = Reference::list("0,0,0,0,5,0.6; 1,2,-5,3").unwrap();
        assert_eq!(both[0], Reference { frames: 5, edit: 0.6, ..Reference::default() });
        assert_eq!(both[1], Reference { in_loop: 1, number: 2, from: -5, to: 3, ..Reference::default() });
        for wrong in ["x", "0;", "0,-1", "0,0,0,0,1,2", "0,0,0,0,1,0,1"] {
            assert!(Reference::list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_span_ends_with_the_shorter_of_sample_and_reference() {
        let all = Reference { frames: 100, ..Reference::default() };
        assert_eq!(all.span(10, 15, Some(5)), Span { from: 0, to: 0, frames: 10 });
        assert_eq!(Reference { to: 10, ..all }.span(10, 15, Some(5)), Span { from: 0, to: 10, frames: 5 });
        assert_eq!(Reference { from: -3, ..all }.span(10, 15, None), Span { from: 7, to: 0, frames: 3 });
        assert_eq!(Reference { to: -100, ..all }.span(1, 4, None), Span { from: 0, to: 0, frames: 1 });
        assert_eq!(Reference { from: 20, ..all }.span(10, 15, None), Span { from: 10, to: 0, frames: 0 });
    }

    #[test]
    fn starts_move_to_the_nearest_multiple() {
        let starts = |to: i64| Reference { to, ..Reference::default() }.span(1, 15, Some(5)).to;
        assert_eq!([0, 2, 3, 7, 8, 12, 13, -5, -2].map(starts), [0, 0, 5, 5, 10, 10, 10, 10, 10]);
    }
}
