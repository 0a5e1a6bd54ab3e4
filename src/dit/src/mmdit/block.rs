//! Both kinds of blocks: two streams that attend to each other, and one joined stream.

use super::{EPS, Grid};
use crate::family::Tokens;
use crate::mixers::Mixers;
use crate::parallel::TensorParallel;
use crate::params::{LayerSlot, Slots, UnitParams};
use kernels::OnGpu;
use kernels::fused::{self, Modulation, rotate};
use recipe::families::mmdit::Mmdit as Sizes;
use tch::Tensor;
use torch_error::TorchError;

/// The sizes of the blocks and the slots of their parameters, which are indices into a unit's table. All blocks of a kind share them.
#[derive(Debug)]
pub struct Block {
    head_dim: i64,
    two_stream_blocks: usize,
    one_stream_blocks: usize,
    /// The layers of video and text in a block with two streams; `None` if the network has no such block.
    two: Option<[Stream; 2]>,
    /// The layers of a block with one stream; `None` if the network has no such block.
    one: Option<Stream>,
    on_gpu: OnGpu,
}

/// The slots of the layers that process one stream.
#[derive(Debug)]
struct Stream {
    modulation: LayerSlot,
    q: LayerSlot,
    k: LayerSlot,
    v: LayerSlot,
    q_norm: usize,
    k_norm: usize,
    o: LayerSlot,
    up: LayerSlot,
    down: LayerSlot,
}

impl Stream {
    fn new(slots: &Slots, prefix: &str) -> Self {
        let layer = |name: &str| slots.layer(&format!("{prefix}{name}"));
        Stream {
            modulation: layer("modulation.linear"),
            q: layer("attn.q"),
            k: layer("attn.k"),
            v: layer("attn.v"),
            q_norm: layer("attn.q_norm").weight,
            k_norm: layer("attn.k_norm").weight,
            o: layer("attn.o"),
            up: layer("mlp.up"),
            down: layer("mlp.down"),
        }
    }

    /// Returns the slots of the parameters that every rank of a TP group has and applies to its own tokens or heads.
    fn replicated(&self) -> Vec<usize> {
        let biases = [self.o, self.down].into_iter().filter(|layer| layer.has_bias).map(|layer| layer.weight + 1);
        biases.chain([self.q_norm, self.k_norm]).collect()
    }
}

/// A modulation's vectors, `[B, 1, D]` each.
struct Vectors {
    shift: Tensor,
    scale: Tensor,
    gate: Tensor,
}

impl Vectors {
    /// Divides a modulation `[B, N·3·D]` into the vectors of `N` updates.
    fn of<const N: usize>(modulation: &Tensor) -> [Vectors; N] {
        let mut parts = modulation.unsqueeze(1).chunk(3 * N as i64, -1).into_iter();
        let mut next = || parts.next().expect("a modulation has three vectors for each update");
        std::array::from_fn(|_| Vectors { shift: next(), scale: next(), gate: next() })
    }
}

impl Block {
    /// Looks up the slots of the blocks' parameters. `slots` returns those of a block.
    pub fn new(sizes: &Sizes, slots: impl Fn(usize) -> Slots) -> Self {
        let (two, one) = (sizes.two_stream_blocks, sizes.one_stream_blocks);
        Block {
            head_dim: sizes.head_dim() as i64,
            two_stream_blocks: two,
            one_stream_blocks: one,
            two: (two > 0).then(|| ["video.", "text."].map(|prefix| Stream::new(&slots(0), prefix))),
            one: (one > 0).then(|| Stream::new(&slots(two), "")),
            on_gpu: OnGpu::Operators,
        }
    }

    /// Selects libtorch's operators or the CUDA kernels on GPUs.
    pub fn on_gpu(&mut self, on_gpu: OnGpu) {
        self.on_gpu = on_gpu;
    }

    /// Applies a block to this rank's parts of the streams and returns the streams after it.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub fn forward(
        &self,
        grid: &Grid,
        number: usize,
        p: &UnitParams,
        tokens: &Tokens,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Vec<Tensor>, TorchError> {
        let act_bd = &tokens.shared[0];
        match (&self.two, &self.one) {
            (Some(streams), _) if number < self.two_stream_blocks => {
                self.two_streams(grid, p, streams, [&tokens.streams[0], &tokens.streams[1]], act_bd, mixers, tp)
            }
            (_, Some(stream)) => {
                let x = match &tokens.streams[..] {
                    [video, text] => Tensor::cat(&[text, video], 1),
                    joined => joined[0].shallow_clone(),
                };
                let x = self.one_stream(grid, p, stream, &x, act_bd, mixers, tp)?;
                if number + 1 < self.two_stream_blocks + self.one_stream_blocks {
                    return Ok(vec![x]);
                }
                let text = (grid.text_tokens + tp.size() - 1) / tp.size();
                Ok(vec![x.narrow(1, text, x.size()[1] - text), x.narrow(1, 0, text)])
            }
            _ => unreachable!("the number of a block is less than the number of blocks"),
        }
    }

    /// Lets both streams attend to each other, then applies the feed-forward layer of each.
    #[expect(clippy::too_many_arguments, reason = "a block's inputs and the layers of its kind")]
    fn two_streams(
        &self,
        grid: &Grid,
        p: &UnitParams,
        streams: &[Stream; 2],
        x: [&Tensor; 2],
        act_bd: &Tensor,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Vec<Tensor>, TorchError> {
        let replicated: Vec<usize> = streams.iter().flat_map(Stream::replicated).collect();
        let modulations = streams.each_ref().map(|stream| p.layer(stream.modulation).linear(act_bd));
        let (p, modulations) = &p.copied_to(&replicated, modulations, tp)?;
        let [video, text] = modulations.each_ref().map(Vectors::of::<2>);
        let lens = [grid.video_tokens(), grid.text_tokens];

        let project = |i: usize, vectors: &Vectors| {
            let normed = self.modulated_norm(x[i], vectors);
            let stream = &streams[i];
            let qkv = |all: &Tensor| [stream.q, stream.k, stream.v].map(|slot| p.layer(slot).linear(all));
            let projected = p.collectives(tp).gather(&normed, lens[i], Tensor::shallow_clone, qkv)?;
            Ok::<_, TorchError>(self.normed_heads(p, stream, projected))
        };
        let (of_video, of_text) = (project(0, &video[0])?, project(1, &text[0])?);
        let [q, k, v] = std::array::from_fn(|i| Tensor::cat(&[&of_text[i], &of_video[i]], 1));
        let mixed = self.attention([&q, &k, &v], &grid.rotary, mixers);
        let mixed = [mixed.narrow(1, lens[1], lens[0]), mixed.narrow(1, 0, lens[1])];

        [video, text]
            .into_iter()
            .enumerate()
            .map(|(i, [attention, feed_forward])| {
                let stream = &streams[i];
                let update = p.project_heads(p.layer(stream.o), &mixed[i], tp)?;
                let x = self.gated_add(x[i], &update, &attention);

                let normed = self.modulated_norm(&x, &feed_forward);
                let layers = [stream.up, stream.down].map(|slot| p.layer(slot));
                let update = p.feed_forward(layers, &feed_forward.gate, &normed, lens[i], tp)?;
                Ok(self.gated_add(&x, &update, &feed_forward))
            })
            .collect()
    }

    /// Applies attention and the feed-forward layer beside each other to the joined stream: for each rank its text, then its video.
    #[expect(clippy::too_many_arguments, reason = "a block's inputs and the layers of its kind")]
    fn one_stream(
        &self,
        grid: &Grid,
        p: &UnitParams,
        stream: &Stream,
        x: &Tensor,
        act_bd: &Tensor,
        mixers: &Mixers,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let modulation = p.layer(stream.modulation).linear(act_bd);
        let (p, [modulation]) = &p.copied_to(&stream.replicated(), [modulation], tp)?;
        let [vectors] = Vectors::of(modulation);
        let order = grid.joined_order(tp.size());

        let normed = self.modulated_norm(x, &vectors);
        let inputs = [stream.q, stream.k, stream.v, stream.up];
        let project = |all: &Tensor| inputs.map(|slot| p.layer(slot).linear(all));
        let projected = p.collectives(tp).gather(&normed, order.len(), Tensor::shallow_clone, project)?;
        let [q, k, v, hidden] = projected;
        let [q, k, v] = self.normed_heads(p, stream, [q, k, v].map(|x| order.without_padding(&x)));
        let mixed = order.with_padding(&self.attention([&q, &k, &v], &order.rotary, mixers));

        let [o, down] = [stream.o, stream.down].map(|slot| p.before_gate(p.layer(slot), &vectors.gate));
        let product = |[mixed, hidden]: [&Tensor; 2]| {
            let mut sum = down.row_product(&hidden.gelu("tanh"), tp);
            sum += o.row_product(mixed, tp);
            sum
        };
        let sum = p.collectives(tp).reduce_of([&mixed, &hidden], Tensor::shallow_clone, product)?;
        Ok(self.gated_add(x, &down.plus_bias(sum, tp), &vectors))
    }

    /// Divides queries, keys and values `[B, L, H·F]` into heads, and normalizes queries and keys by their root mean square.
    fn normed_heads(&self, p: &UnitParams, stream: &Stream, projected: [Tensor; 3]) -> [Tensor; 3] {
        let [q, k, v] = projected.map(|x| x.unflatten(-1, [-1, self.head_dim]));
        let norm = |x: Tensor, slot: usize| x.rms_norm([self.head_dim], Some(p.tensor(slot)), EPS);
        [norm(q, stream.q_norm), norm(k, stream.k_norm), v]
    }

    /// Rotates queries and keys `[B, L, H, F]` and returns the output of attention, `[B, L, H·F]`.
    fn attention(&self, [q, k, v]: [&Tensor; 3], rotary: &Tensor, mixers: &Mixers) -> Tensor {
        let (q, k) = (rotate(q, rotary, self.on_gpu), rotate(k, rotary, self.on_gpu));
        mixers.attention(&q, &k, v)
    }

    /// Normalizes tokens without gain and bias, then shifts and scales them.
    fn modulated_norm(&self, x: &Tensor, Vectors { shift, scale, .. }: &Vectors) -> Tensor {
        let gain = x.new_ones(&x.size()[2..], (x.kind(), x.device()));
        let (bias, modulation) = (gain.zeros_like(), Modulation { shift, scale });
        fused::modulated_norm(x, (&gain, &bias), [modulation; 2], 0, EPS, self.on_gpu)
    }

    /// Adds `update`, multiplied by the gate, to the residual.
    fn gated_add(&self, x: &Tensor, update: &Tensor, vectors: &Vectors) -> Tensor {
        fused::gated_add(x, update, [&vectors.gate; 2], 0, self.on_gpu)
    }
}
