//! The encoder of T5 v1.1.

use crate::params::{Params, check_kind, failed, kind_of};
use camino::Utf8Path;
use failure::{ErrorCode, Failure};
use kernels::linear::f_linear;
use tch::{Device, Kind, Tensor, no_grad};
use torch_error::TorchError;
use weights::{Rows, T5Config};

/// The table of embeddings.
const EMBEDDING: &str = "shared.weight";

/// The number of tokens that a block computes at a time, rounded to whole texts. It is large enough for full speed and
/// limits the memory of intermediate results.
const TOKENS: i64 = 1024;

/// A block: attention, and a gated feed-forward layer. `[out, in]` weights without biases.
#[derive(Debug)]
struct Block {
    attention_norm: Tensor,
    /// Weights of queries, keys and values, stacked: `[3 · inner, D]`.
    qkv: Tensor,
    attention_out: Tensor,
    ff_norm: Tensor,
    /// The half that goes through GELU, then the other half: `[2 · d_ff, D]`.
    ff_in: Tensor,
    ff_out: Tensor,
}

/// A T5 v1.1 encoder with its parameters.
///
/// There is no attention mask: padding is attended to, as in the pipelines of CogVideoX, and its outputs are part of the embedding.
#[derive(Debug)]
pub struct T5Encoder {
    config: T5Config,
    identity: String,
    /// `[vocabulary, D]`. The table stays in its file, because a text needs only a few of its rows (0.26 GB for
    /// T5-XXL).
    embedding: Rows,
    kind: Kind,
    device: Device,
    /// `[buckets, heads]`. The table of the first block, which all blocks use.
    bias: Tensor,
    blocks: Vec<Block>,
    final_norm: Tensor,
}

impl T5Encoder {
    /// Reads a `text_encoder/` folder. `kind` is bf16 or fp32.
    ///
    /// # Errors
    /// The folder holds another model; weights are missing or have other shapes; out of memory.
    pub fn open(folder: &Utf8Path, kind: Kind, device: Device) -> Result<Self, Failure> {
        check_kind(kind, folder.as_str())?;
        let (config, files) = T5Config::open(folder)?;
        let mut params = Params::new(files.reader(), kind, device);
        params.hash(EMBEDDING)?;
        let embedding = files.rows(EMBEDDING)?;
        let attention = "layer.0.SelfAttention";
        let bias = params.tensor(&format!("encoder.block.0.{attention}.relative_attention_bias.weight"))?;
        let mut blocks = Vec::new();
        for number in 0..config.num_layers {
            let name = |name: &str| format!("encoder.block.{number}.{name}.weight");
            let qkv = ["q", "k", "v"].map(|part| name(&format!("{attention}.{part}")));
            let ff_in = ["wi_0", "wi_1"].map(|part| name(&format!("layer.1.DenseReluDense.{part}")));
            let (dim, inner) = (config.d_model as i64, (config.num_heads * config.d_kv) as i64);
            let qkv = params.joined(&qkv, 3 * inner, dim)?;
            let ff_in = params.joined(&ff_in, 2 * config.d_ff as i64, dim)?;
            blocks.push(Block {
                attention_norm: params.tensor(&name("layer.0.layer_norm"))?,
                qkv,
                attention_out: params.tensor(&name(&format!("{attention}.o")))?,
                ff_norm: params.tensor(&name("layer.1.layer_norm"))?,
                ff_in,
                ff_out: params.tensor(&name("layer.1.DenseReluDense.wo"))?,
            });
        }
        let final_norm = params.tensor("encoder.final_layer_norm.weight")?;
        Ok(T5Encoder { config, identity: params.identity(), embedding, kind, device, bias, blocks, final_norm })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// Returns a hash of configuration and weights.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Encodes token ids `[N, L]` to hidden states `[N, L, D]`.
    ///
    /// # Errors
    /// An id is outside of the vocabulary, because the tokenizer belongs to another model; or libtorch failed, with
    /// [`ErrorCode::OutOfMemory`] if memory is short.
    pub fn encode(&self, ids: &Tensor) -> Result<Tensor, Failure> {
        self.check(ids)?;
        let what = || format!("cannot encode {} texts of {} tokens", ids.size()[0], ids.size()[1]);
        let rows: Vec<i64> = Vec::try_from(ids.to_device(Device::Cpu).reshape(-1)).map_err(|e| failed(&what(), e))?;
        let rows = self.embedding.read(&rows)?;
        no_grad(|| self.forward(ids.size()[0], ids.size()[1], rows)).map_err(|e| failed(&what(), e))
    }

    fn check(&self, ids: &Tensor) -> Result<(), Failure> {
        let what = "cannot encode token ids";
        let bad = |code, why: String, fix: &str| Err(Failure::new(code, what, why, fix));
        if ids.dim() != 2 || ids.kind() != Kind::Int64 || ids.numel() == 0 {
            let why = format!("they are {:?} of shape {:?}, expected Int64 [N, L]", ids.kind(), ids.size());
            return bad(ErrorCode::InvalidArgument, why, "give at least one text");
        }
        let (least, most) = (ids.min().int64_value(&[]), ids.max().int64_value(&[]));
        if least < 0 || most >= self.config.vocab_size as i64 {
            let outside = if least < 0 { least } else { most };
            let why = format!("id {outside} is outside of the vocabulary of {} tokens", self.config.vocab_size);
            return bad(ErrorCode::TensorMismatch, why, "use the tokenizer/ folder of the same model");
        }
        Ok(())
    }

    fn forward(&self, texts: i64, tokens: i64, embeddings: Vec<u8>) -> Result<Tensor, TorchError> {
        let shape = [texts, tokens, self.config.d_model as i64];
        let stored = Tensor::f_from_data_size(&embeddings, &shape, kind_of(self.embedding.dtype))?;
        drop(embeddings);
        let x_nld = stored.f_to_device(self.device)?.f_to_kind(self.kind)?;
        let bias = self.attention_bias(tokens)?;
        for block in &self.blocks {
            let mut first = 0;
            while first < texts {
                let count = (TOKENS / tokens).max(1).min(texts - first);
                self.block(block, x_nld.f_narrow(0, first, count)?, &bias)?;
                first += count;
            }
        }
        self.norm(&x_nld, &self.final_norm)
    }

    /// Applies a block to a view of hidden states, in place.
    fn block(&self, block: &Block, mut x_nld: Tensor, bias: &Tensor) -> Result<(), TorchError> {
        let [n, l] = [0, 1].map(|axis| x_nld.size()[axis]);
        let (heads, width) = (self.config.num_heads as i64, self.config.d_kv as i64);
        let qkv = f_linear(&self.norm(&x_nld, &block.attention_norm)?, &block.qkv, None)?;
        let qkv = qkv.f_view([n, l, 3, heads, width])?.f_permute([2, 0, 3, 1, 4])?;
        let [q, k, v] = [0, 1, 2].map(|part| qkv.select(0, part));
        // Scores are not divided by √width.
        let out = Tensor::f_scaled_dot_product_attention(&q, &k, &v, Some(bias), 0.0, false, 1.0, false)?;
        drop((qkv, q, k, v));
        let out = out.f_transpose(1, 2)?.f_reshape([n, l, heads * width])?;
        let _ = x_nld.f_add_(&f_linear(&out, &block.attention_out, None)?)?;
        drop(out);
        let inner = f_linear(&self.norm(&x_nld, &block.ff_norm)?, &block.ff_in, None)?;
        let halves = inner.f_chunk(2, -1)?;
        let gated = halves[0].f_gelu("tanh")?.f_mul_(&halves[1])?;
        drop((inner, halves));
        let _ = x_nld.f_add_(&f_linear(&gated, &block.ff_out, None)?)?;
        Ok(())
    }

    /// Applies T5's RMS norm; the mean of squares is in fp32.
    fn norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, TorchError> {
        let precise = x.f_to_kind(Kind::Float)?;
        let mean = precise.f_square()?.f_mean_dim([-1].as_slice(), true, Kind::Float)?;
        let scaled = precise.f_mul(&mean.f_add_scalar(self.config.layer_norm_epsilon)?.f_rsqrt()?)?;
        Ok(scaled.f_to_kind(weight.kind())?.f_mul_(weight)?)
    }

    /// Returns the position bias that is added to the scores, `[1, heads, L, L]`.
    fn attention_bias(&self, tokens: i64) -> Result<Tensor, TorchError> {
        let mut buckets = Vec::with_capacity((tokens * tokens) as usize);
        for query in 0..tokens {
            for key in 0..tokens {
                buckets.push(bucket(key - query, &self.config));
            }
        }
        let index = Tensor::f_from_slice(&buckets)?.f_to_device(self.bias.device())?;
        let table = self.bias.f_index_select(0, &index)?.f_view([tokens, tokens, -1])?;
        Ok(table.f_permute([2, 0, 1])?.f_unsqueeze(0)?.f_contiguous()?)
    }
}

/// Returns the bucket of a distance between two positions, key minus query: exact up to a quarter of the buckets in each
/// direction, then logarithmic.
fn bucket(distance: i64, config: &T5Config) -> i64 {
    let half = config.relative_attention_num_buckets as i64 / 2;
    let exact = half / 2;
    let (later, far) = (if distance > 0 { half } else { 0 }, distance.abs());
    if far < exact {
        return later + far;
    }
    // fp32, as in transformers: at some distances, only rounding decides to which whole number the quotient is
    // truncated.
    let log =
        (far as f32 / exact as f32).ln() / ((config.relative_attention_max_distance as f64 / exact as f64).ln() as f32);
    later + (exact + (log * (half - exact) as f32) as i64).min(half - 1)
}
