//! Segments of a long video: their tokens, and the order in which a TTT layer scans them.
//!
//! A sequence is all text, then all video. Segment i is text i and latent frames 12i to 12i+12; adjacent segments share
//! one frame. Index tensors hold positions in the sequence, `[L]` unless documented otherwise.

use kernels::order::Order;
use recipe::{LrAlignment, Model, SEGMENT_FRAMES};
use tch::{Device, Tensor};

/// The split of a sequence into segments for attention, and the merge. Only for more than one segment.
#[derive(Debug)]
pub struct Segments {
    count: i64,
    /// The positions in the sequence of each segment's S tokens (text, then video), `[n·S]` for n segments.
    tokens: Order,
    /// One over the number of segments that contain a token, `[L, 1]`.
    share: Tensor,
}

impl Segments {
    /// Computes the segments of a model; `None` for a model of one segment.
    pub fn new(model: &Model) -> Option<Self> {
        if model.cogvideox().segments == 1 {
            return None;
        }
        let (n, text, frame) = (model.cogvideox().segments, model.text_len, model.tokens_per_frame());
        let mut tokens: Vec<i64> = Vec::new();
        let mut seen = vec![0f32; model.seq_len()];
        for segment in 0..n {
            let video = n * text + segment * SEGMENT_FRAMES * frame;
            let span = (SEGMENT_FRAMES + 1) * frame;
            tokens.extend((segment * text..(segment + 1) * text).chain(video..video + span).map(|t| t as i64));
        }
        for token in &tokens {
            seen[*token as usize] += 1.0;
        }
        let share = (Tensor::from_slice(&seen).reciprocal()).unsqueeze(1);
        let tokens = Order::new(&tokens).expect("adjacent segments share one frame, and no token is in three");
        Some(Segments { count: n as i64, tokens, share })
    }

    /// Moves the index tensors to a device.
    pub fn move_to(&mut self, device: Device) {
        self.tokens.move_to(device);
        self.share = self.share.to_device(device);
    }

    /// Splits `[B, L, H, F]` into a batch of segments, `[B·n, S, H, F]`.
    pub fn split(&self, x_blhf: &Tensor) -> Tensor {
        let size = x_blhf.size();
        self.tokens.select(x_blhf).view([size[0] * self.count, -1, size[2], size[3]])
    }

    /// Merges segments `[B·n, S, D]` into sequences `[B, L, D]`; a token of two segments gets their mean.
    pub fn merge(&self, x_bsd: &Tensor) -> Tensor {
        let size = x_bsd.size();
        let flat = x_bsd.reshape([size[0] / self.count, self.count * size[1], size[2]]);
        self.tokens.sum(&flat) * self.share.to_kind(x_bsd.kind())
    }
}

/// The orders in which a TTT layer scans a sequence.
#[derive(Debug)]
pub struct ScanOrder {
    /// Time order: text 0, frames 0 to 12, text 1, frames 13 to 24, and so on. `None` if the sequence already has this order.
    interleave: Option<Order>,
    /// Reverse time order: texts in reverse order (tokens within a text keep their order), then all video tokens reversed. It is its own
    /// inverse.
    reverse: Order,
    /// For each token in scan order, the position of the token whose learning rate it uses. `None` if each uses its own.
    rates: Option<Tensor>,
}

impl ScanOrder {
    /// Computes the scan order of a model.
    pub fn new(model: &Model) -> Self {
        let own = model.cogvideox();
        let (n, text, frame) = (own.segments, model.text_len, model.tokens_per_frame());
        let (first_video, len) = (n * text, model.seq_len());
        let mut there: Vec<i64> = Vec::with_capacity(len);
        for segment in 0..n {
            // Only the first segment has one more frame. The others share their first frame with the segment before.
            let begin = if segment == 0 { 0 } else { segment * SEGMENT_FRAMES + 1 };
            let end = if n == 1 { model.token_frames() } else { (segment + 1) * SEGMENT_FRAMES + 1 };
            let video = first_video + begin * frame..first_video + end * frame;
            there.extend((segment * text..(segment + 1) * text).chain(video).map(|t| t as i64));
        }
        let permutation = |there: &[i64]| Order::new(there).expect("each token is scanned once");
        let reverse: Vec<i64> = (0..n)
            .rev()
            .flat_map(|segment| segment * text..(segment + 1) * text)
            .chain((first_video..len).rev())
            .map(|t| t as i64)
            .collect();
        // The reference forms a matrix of rates per mini-batch before it reorders tokens, then moves its rows but not its
        // columns, and its kernels read the last row. So a mini-batch gets the rates of the mini-batch that its last token came from.
        let rates = (own.ttt_lr_alignment == LrAlignment::Upstream && n > 1).then(|| {
            let b = own.ttt_mini_batch;
            let of = |batch: &[i64]| {
                let from = *batch.last().expect("no mini-batch is empty") as usize / b * b;
                (from..from + b).map(|t| t as i64).collect::<Vec<_>>()
            };
            Tensor::from_slice(&there.chunks_exact(b).flat_map(of).collect::<Vec<_>>())
        });
        let interleave = (n > 1).then(|| permutation(&there));
        ScanOrder { interleave, reverse: permutation(&reverse), rates }
    }

    /// Moves the index tensors to a device.
    pub fn move_to(&mut self, device: Device) {
        self.interleave.iter_mut().chain([&mut self.reverse]).for_each(|order| order.move_to(device));
        self.rates = self.rates.take().map(|rates| rates.to_device(device));
    }

    /// Reorders tokens `[B, L, …]` into scan order.
    pub fn to_scan_order(&self, x_bl: &Tensor) -> Tensor {
        self.interleave.as_ref().map_or_else(|| x_bl.shallow_clone(), |order| order.select(x_bl))
    }

    /// Undoes [`ScanOrder::to_scan_order`].
    pub fn to_sequence_order(&self, x_bl: &Tensor) -> Tensor {
        self.interleave.as_ref().map_or_else(|| x_bl.shallow_clone(), |order| order.sum(x_bl))
    }

    /// Reorders learning rates `[B, L, H]` into scan order.
    pub fn rates(&self, eta_blh: &Tensor) -> Tensor {
        self.rates.as_ref().map_or_else(|| self.to_scan_order(eta_blh), |from| eta_blh.index_select(1, from))
    }

    /// Reverses the time order of tokens `[B, L, D]`.
    pub fn reversed(&self, x_bld: &Tensor) -> Tensor {
        self.reverse.select(x_bld)
    }
}

/// Returns the rotary factors of one segment's attention, `[S, F/2]`: time starts at zero in every segment.
pub fn attention_rotary(model: &Model) -> Tensor {
    let one =
        Model { latent_frames: model.attention_frames(), ..model.clone() }.with_cogvideox(|keys| keys.segments = 1);
    super::positions::rotary(&one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    fn model(segments: usize) -> Model {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
        let recipe = recipe::load(file.into(), &[]).expect("a valid recipe").recipe;
        Model {
            text_len: 2,
            latent_frames: SEGMENT_FRAMES * segments + 1,
            latent_height: 2,
            latent_width: 4,
            ..recipe.model
        }
        .with_cogvideox(|keys| {
            keys.segments = segments;
            keys.ttt_mini_batch = 2;
        })
    }

    fn sorted(t: &Tensor) -> Vec<i64> {
        let mut v: Vec<i64> = Vec::try_from(t).expect("positions are integers");
        v.sort_unstable();
        v
    }

    #[test]
    fn every_token_is_scanned_once_in_both_directions() {
        for n in 1..5 {
            let model = model(n);
            let scan_order = ScanOrder::new(&model);
            let all: Vec<i64> = (0..model.seq_len() as i64).collect();
            let tokens = Tensor::from_slice(&all).unsqueeze(0);
            assert_eq!(sorted(&scan_order.reversed(&tokens).view(-1)), all);
            assert_eq!(scan_order.to_sequence_order(&scan_order.to_scan_order(&tokens)), tokens);
            assert_eq!(scan_order.reversed(&scan_order.reversed(&tokens)), tokens);
        }
    }

    #[test]
    fn splitting_and_merging_returns_the_same_sequence() {
        let model = model(3);
        let segments = Segments::new(&model).expect("three segments");
        let x = Tensor::randn([2, model.seq_len() as i64, 2, 3], (Kind::Float, Device::Cpu));
        let split = segments.split(&x);
        assert_eq!(split.size(), [6, model.attention_len() as i64, 2, 3]);
        let merged = segments.merge(&split.flatten(2, 3));
        assert!((merged - x.flatten(2, 3)).abs().max().double_value(&[]) < 1e-6);
    }
}
