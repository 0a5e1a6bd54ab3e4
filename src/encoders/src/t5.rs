//! The encoders of T5 v1.1 and umT5.

use crate::params::{Params, check_kind, failed, kind_of};
use camino::Utf8Path;
use failure::{ErrorCode, Failure};
use kernels::linear::f_linear;
use tch::{Device, Kind, Tensor, no_grad};
use torch_error::TorchError;
use weights::encoder_config::ConfigFile;
use weights::{Rows, T5Config};

/// The table of embeddings.
const EMBEDDING: &str = "shared.weight";

/// The number of tokens that a block computes at a time, rounded to whole texts. It is large enough for full speed and
/// limits the memory of intermediate results.
const TOKENS: i64 = 1024;

/// A block: attention, and a gated feed-forward layer. `[out, in]` weights without biases.
#[derive(Debug)]
struct Block {
    /// `[buckets, heads]`, the table of position biases, if this block has one. Other blocks use that of the block before.
    bias: Option<Tensor>,
    attention_norm: Tensor,
    /// Weights of queries, keys and values, stacked: `[3 · inner, D]`.
    qkv: Tensor,
    attention_out: Tensor,
    ff_norm: Tensor,
    /// The half that goes through GELU, then the other half: `[2 · d_ff, D]`.
    ff_in: Tensor,
    ff_out: Tensor,
}

/// A T5 v1.1 or umT5 encoder with its parameters.
///
/// In T5, all blocks use the position biases of the first block. In umT5, each block has its own.
#[derive(Debug)]
pub struct T5Encoder {
    config: T5Config,
    identity: String,
    /// `[vocabulary, D]`. The table stays in its file, because a text needs only a few of its rows (0.26 GB for
    /// T5-XXL).
    embedding: Rows,
    kind: Kind,
    device: Device,
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
        let file = ConfigFile::read(folder, T5Config::FOLDER)?;
        let (config, files) = T5Config::open_with(&file)?;
        let mut params = Params::new(files.reader(), kind, device);
        params.hash(EMBEDDING)?;
        let embedding = files.rows(EMBEDDING)?;
        let attention = "layer.0.SelfAttention";
        let mut blocks = Vec::new();
        for number in 0..config.num_layers {
            let name = |name: &str| format!("encoder.block.{number}.{name}.weight");
            let qkv = ["q", "k", "v"].map(|part| name(&format!("{attention}.{part}")));
            let ff_in = ["wi_0", "wi_1"].map(|part| name(&format!("layer.1.DenseReluDense.{part}")));
            let (dim, inner) = (config.d_model as i64, (config.num_heads * config.d_kv) as i64);
            let qkv = params.joined(&qkv, 3 * inner, dim)?;
            let ff_in = params.joined(&ff_in, 2 * config.d_ff as i64, dim)?;
            let bias = name(&format!("{attention}.relative_attention_bias"));
            blocks.push(Block {
                bias: if params.has(&bias) { Some(params.tensor(&bias)?) } else { None },
                attention_norm: params.tensor(&name("layer.0.layer_norm"))?,
                qkv,
                attention_out: params.tensor(&name(&format!("{attention}.o")))?,
                ff_norm: params.tensor(&name("layer.1.layer_norm"))?,
                ff_in,
                ff_out: params.tensor(&name("layer.1.DenseReluDense.wo"))?,
            });
        }
        let final_norm = params.tensor("encoder.final_layer_norm.weight")?;
        Ok(T5Encoder { config, identity: params.identity(), embedding, kind, device, blocks, final_norm })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// Returns a hash of configuration and weights.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Encodes token ids `[N, L]` to the embeddings `[N, L, D]` that the network of the model gets: for T5 the hidden states of all tokens,
    /// for umT5 those of the real tokens, and zeros for padding, whose id is 0.
    ///
    /// # Errors
    /// As [`T5Encoder::encode`].
    pub fn embed(&self, ids: &Tensor) -> Result<Tensor, Failure> {
        if !self.config.is_umt5() {
            return self.encode(ids);
        }
        let mask = ids.not_equal(0);
        Ok(without_padding(&self.encode_masked(ids, &mask)?, &mask))
    }

    /// Encodes token ids `[N, L]` to hidden states `[N, L, D]`, without an attention mask: padding is attended to, and its states
    /// are part of the result, as in the pipelines of CogVideoX and Open-Sora 2.
    ///
    /// # Errors
    /// An id is outside of the vocabulary, because the tokenizer belongs to another model; or libtorch failed, with
    /// [`ErrorCode::OutOfMemory`] if memory is short.
    pub fn encode(&self, ids: &Tensor) -> Result<Tensor, Failure> {
        self.encode_all(ids, None)
    }

    /// Encodes token ids `[N, L]` to hidden states `[N, L, D]`. Tokens attend only to the tokens whose `mask` `[N, L]` is not 0, as in
    /// the pipelines of Open-Sora 1.2 and Wan. The states of the other tokens are computed, but they have no meaning; see
    /// [`without_padding`].
    ///
    /// # Errors
    /// As [`T5Encoder::encode`]; or the mask has another shape than the ids, or a text has no token.
    pub fn encode_masked(&self, ids: &Tensor, mask: &Tensor) -> Result<Tensor, Failure> {
        let seen = mask.not_equal(0);
        if mask.size() != ids.size() || seen.any_dim(-1, false).all().int64_value(&[]) == 0 {
            let why = format!("the mask has shape {:?}, the ids {:?}, or a text has no token", mask.size(), ids.size());
            let fix = "give each text at least its end token";
            return Err(Failure::new(ErrorCode::InvalidArgument, "cannot encode token ids", why, fix));
        }
        self.encode_all(ids, Some(&seen))
    }

    fn encode_all(&self, ids: &Tensor, seen: Option<&Tensor>) -> Result<Tensor, Failure> {
        self.check(ids)?;
        let what = || format!("cannot encode {} texts of {} tokens", ids.size()[0], ids.size()[1]);
        let rows: Vec<i64> = Vec::try_from(ids.to_device(Device::Cpu).reshape(-1)).map_err(|e| failed(&what(), e))?;
        let rows = self.embedding.read(&rows)?;
        no_grad(|| self.forward(ids.size()[0], ids.size()[1], rows, seen)).map_err(|e| failed(&what(), e))
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

    fn forward(
        &self,
        texts: i64,
        tokens: i64,
        embeddings: Vec<u8>,
        seen: Option<&Tensor>,
    ) -> Result<Tensor, TorchError> {
        let shape = [texts, tokens, self.config.d_model as i64];
        let stored = Tensor::f_from_data_size(&embeddings, &shape, kind_of(self.embedding.dtype))?;
        drop(embeddings);
        let x_nld = stored.f_to_device(self.device)?.f_to_kind(self.kind)?;
        // 0 where a token is seen, -inf elsewhere, [N, 1, 1, L].
        let mask = match seen {
            Some(seen) => {
                let zeros = Tensor::f_zeros([texts, 1, 1, tokens], (self.kind, self.device))?;
                let hidden = seen.f_to_device(self.device)?.f_logical_not()?.f_view([texts, 1, 1, tokens])?;
                Some(zeros.f_masked_fill(&hidden, f64::NEG_INFINITY)?)
            }
            None => None,
        };
        let mut bias = Tensor::new();
        for block in &self.blocks {
            if let Some(table) = &block.bias {
                bias = self.attention_bias(table, tokens)?;
            }
            let mut first = 0;
            while first < texts {
                let count = (TOKENS / tokens).max(1).min(texts - first);
                let masked = match &mask {
                    Some(mask) => Some(bias.f_add(&mask.f_narrow(0, first, count)?)?),
                    None => None,
                };
                self.block(block, x_nld.f_narrow(0, first, count)?, masked.as_ref().unwrap_or(&bias))?;
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

    /// Returns the position bias that is added to the scores, `[1, heads, L, L]`, from a table of biases.
    fn attention_bias(&self, table: &Tensor, tokens: i64) -> Result<Tensor, TorchError> {
        let mut buckets = Vec::with_capacity((tokens * tokens) as usize);
        for query in 0..tokens {
            for key in 0..tokens {
                buckets.push(bucket(key - query, &self.config));
            }
        }
        let index = Tensor::f_from_slice(&buckets)?.f_to_device(table.device())?;
        let biases = table.f_index_select(0, &index)?.f_view([tokens, tokens, -1])?;
        Ok(biases.f_permute([2, 0, 1])?.f_unsqueeze(0)?.f_contiguous()?)
    }
}

/// Returns hidden states `[N, L, D]` with zeros for the tokens whose `mask` `[N, L]` is 0, as Wan's network attends to them.
pub fn without_padding(states_nld: &Tensor, mask: &Tensor) -> Tensor {
    states_nld.masked_fill(&mask.to_device(states_nld.device()).eq(0).unsqueeze(-1), 0.0)
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
