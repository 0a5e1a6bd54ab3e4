//! Masks for inpainting: the pixels of a clip to generate, drawn with the probabilities of a recipe.
//!
//! Source: VideoX-Fun `get_random_mask`.

use recipe::MaskKind;

/// A mask over the frames of a clip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// The kind that was drawn.
    pub kind: MaskKind,
    /// Frames, rows and columns.
    pub size: [usize; 3],
    /// 1 for pixels to generate, `[F, H, W]`.
    pub pixels: Vec<u8>,
}

/// The caller's source of random numbers from 0 up to, but not including, 1.
struct Draws<'a>(&'a mut dyn FnMut() -> f64);

impl Draws<'_> {
    fn uniform(&mut self) -> f64 {
        (self.0)()
    }

    /// Returns a number from `low` up to, but not including, `high`. Returns `low` if that range is empty.
    fn between(&mut self, low: usize, high: usize) -> usize {
        let width = high.saturating_sub(low).max(1);
        low + (self.uniform() * width as f64) as usize
    }
}

impl Mask {
    /// Draws a mask for a clip of `[F, H, W]`. If it has one frame, the kinds are VideoX-Fun's kinds for images.
    ///
    /// `uniform` returns random numbers from 0 up to, but not including, 1.
    pub fn draw(kinds: &[(MaskKind, f64)], size: [usize; 3], uniform: &mut dyn FnMut() -> f64) -> Mask {
        let mut draws = Draws(uniform);
        let kinds = if size[0] == 1 { &MaskKind::IMAGE[..] } else { kinds };
        let mut left = draws.uniform() * kinds.iter().map(|(_, share)| share).sum::<f64>();
        let chosen = kinds.iter().find(|(_, share)| {
            left -= share;
            left < 0.0
        });
        let kind = chosen.or(kinds.last()).map_or(MaskKind::All, |(kind, _)| *kind);
        Mask::of(kind, size, &mut draws)
    }

    fn of(kind: MaskKind, size: [usize; 3], draws: &mut Draws<'_>) -> Mask {
        let [frames, height, width] = size;
        let mut mask = Mask { kind, size, pixels: vec![0; frames * height * width] };
        let smaller = height.min(width);
        match kind {
            MaskKind::All => mask.pixels.fill(1),
            MaskKind::Rectangle => {
                let inside = rectangle(draws, height, width);
                mask.set(|_, y, x| inside(y, x));
            }
            MaskKind::Tail => {
                let first = draws.between(1, 5);
                mask.set(|frame, _, _| frame >= first);
            }
            MaskKind::Middle => {
                let edge = draws.between(1, 5);
                mask.set(|frame, _, _| frame >= edge && frame + edge < frames);
            }
            MaskKind::Window => {
                let inside = rectangle(draws, height, width);
                let window = draws.between(0, frames / 2)..draws.between(frames / 2, frames);
                mask.set(|frame, y, x| window.contains(&frame) && inside(y, x));
            }
            MaskKind::Pixels => mask.pixels.iter_mut().for_each(|pixel| *pixel = u8::from(draws.uniform() < 0.5)),
            MaskKind::Boxes => {
                let count = draws.between(1, (frames / 2).max(1) + 1);
                let mut order: Vec<usize> = (0..frames).collect();
                for place in 0..count {
                    order.swap(place, draws.between(place, frames));
                    let rows = draws.between(1, height / 4 + 1);
                    let columns = draws.between(1, width / 4 + 1);
                    let (top, left) = (draws.between(0, height - rows + 1), draws.between(0, width - columns + 1));
                    let frame = order[place];
                    mask.set(|at, y, x| {
                        at == frame && (top..top + rows).contains(&y) && (left..left + columns).contains(&x)
                    });
                }
            }
            MaskKind::Ellipse | MaskKind::Circle => {
                let (x0, y0) = (draws.between(0, width) as f64, draws.between(0, height) as f64);
                let a = draws.between(smaller / 8, smaller / 4).max(1) as f64;
                let b =
                    if kind == MaskKind::Circle { a } else { draws.between(smaller / 8, smaller / 4).max(1) as f64 };
                mask.set(|frame, y, x| {
                    frame == 0 && ((y as f64 - y0) / b).powi(2) + ((x as f64 - x0) / a).powi(2) < 1.0
                });
            }
            MaskKind::Frames => {
                let made: Vec<bool> = (0..frames).map(|_| draws.uniform() > 0.5).collect();
                mask.set(|frame, _, _| made[frame]);
            }
        }
        mask
    }

    /// Marks each pixel for which `made(frame, row, column)` is true as a pixel to generate.
    fn set(&mut self, made: impl Fn(usize, usize, usize) -> bool) {
        let [_, height, width] = self.size;
        for (place, pixel) in self.pixels.iter_mut().enumerate() {
            let (frame, y, x) = (place / (height * width), place / width % height, place % width);
            *pixel |= u8::from(made(frame, y, x));
        }
    }
}

/// Draws a rectangle of a quarter to three quarters of each side, cut off at the edges of the frame.
fn rectangle(draws: &mut Draws<'_>, height: usize, width: usize) -> impl Fn(usize, usize) -> bool + use<> {
    let (x, y) = (draws.between(0, width), draws.between(0, height));
    let columns = draws.between(width / 4, width / 4 * 3) / 2;
    let rows = draws.between(height / 4, height / 4 * 3) / 2;
    let (down, across) = (y.saturating_sub(rows)..y + rows, x.saturating_sub(columns)..x + columns);
    move |row, column| down.contains(&row) && across.contains(&column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const SIZE: [usize; 3] = [13, 16, 24];

    /// Draws a mask with random numbers from `seed` (Steele et al. 2014, SplitMix64).
    fn draw(kinds: &[(MaskKind, f64)], size: [usize; 3], seed: u64) -> Mask {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
        Mask::draw(kinds, size, &mut || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        })
    }

    fn frame(mask: &Mask, frame: usize) -> &[u8] {
        let area = mask.size[1] * mask.size[2];
        &mask.pixels[frame * area..][..area]
    }

    #[test]
    fn the_kinds_of_masks_have_their_probabilities() {
        let mut counts = BTreeMap::new();
        for number in 0..4000 {
            *counts.entry(draw(&MaskKind::VIDEO, [5, 4, 4], number).kind).or_insert(0) += 1;
        }
        for (kind, share) in MaskKind::VIDEO {
            let found = f64::from(counts[&kind]) / 4000.0;
            assert!((found - share).abs() < 0.025, "{kind}: {found}, expected {share}");
        }
        let only = [(MaskKind::All, 0.0), (MaskKind::Tail, 1.0)];
        assert!((0..200).all(|number| draw(&only, SIZE, number).kind == MaskKind::Tail));
        assert!((0..200).all(|number| draw(&only, [1, 4, 4], number).kind != MaskKind::Tail));
    }

    #[test]
    fn each_kind_of_mask_has_its_shape() {
        for (kind, _) in MaskKind::VIDEO {
            for number in 0..50 {
                let mask = draw(&[(kind, 1.0)], SIZE, number);
                assert_eq!(mask, draw(&[(kind, 1.0)], SIZE, number));
                let whole = |at: usize, value: u8| frame(&mask, at).iter().all(|pixel| *pixel == value);
                let same = (1..SIZE[0]).all(|at| frame(&mask, at) == frame(&mask, 0));
                let holds = match kind {
                    MaskKind::All => mask.pixels.iter().all(|pixel| *pixel == 1),
                    MaskKind::Rectangle => same && !whole(0, 1),
                    MaskKind::Ellipse | MaskKind::Circle => !whole(0, 0) && (1..SIZE[0]).all(|at| whole(at, 0)),
                    MaskKind::Tail => whole(0, 0) && whole(SIZE[0] - 1, 1) && whole(4, 1),
                    MaskKind::Middle => whole(0, 0) && whole(SIZE[0] - 1, 0) && whole(6, 1),
                    MaskKind::Window => !whole(6, 1),
                    MaskKind::Pixels => !same,
                    MaskKind::Boxes => (0..SIZE[0]).filter(|at| !whole(*at, 0)).count() <= SIZE[0] / 2,
                    MaskKind::Frames => (0..SIZE[0]).all(|at| whole(at, 0) || whole(at, 1)),
                };
                assert!(holds, "{kind} {number}");
            }
        }
    }
}
