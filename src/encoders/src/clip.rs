//! The text encoder of CLIP.

mod config;

use crate::params::{Params, check_kind, failed, kind_of};
use camino::Utf8Path;
pub use config::ClipConfig;
use failure::{ErrorCode, Failure};
use kernels::linear::f_linear;
use tch::{Device, Kind, Tensor, no_grad};
use torch_error::TorchError;
use weights::Rows;

/// The table of embeddings.
const EMBEDDING: &str = "embeddings.token_embedding.weight";
/// The factor in `x · sigmoid(1.702 x)`, CLIP's approximation of GELU.
const QUICK_GELU: f64 = 1.702;

/// Hidden states of texts.
#[derive(Debug)]
pub struct ClipStates {
    /// `[N, L, D]`, after the last norm.
    pub states: Tensor,
    /// `[N, D]`, the state of each text's first end token.
    pub pooled: Tensor,
}

/// A weight and a bias, of a linear layer `[out, in]`, `[out]`, or of a norm `[D]`, `[D]`.
#[derive(Debug)]
struct Affine {
    weight: Tensor,
    bias: Tensor,
}

/// A layer: attention and a feed-forward part, each after a norm.
#[derive(Debug)]
struct Layer {
    norm1: Affine,
    /// Queries, keys and values, stacked: `[3D, D]`.
    qkv: Affine,
    out: Affine,
    norm2: Affine,
    ff_in: Affine,
    ff_out: Affine,
}

/// A text encoder of CLIP with its parameters. A token sees itself and earlier tokens; padding is not masked.
#[derive(Debug)]
pub struct ClipEncoder {
    config: ClipConfig,
    identity: String,
    /// `[vocabulary, D]`. The table stays in its file, because a text needs only a few of its rows.
    embedding: Rows,
    kind: Kind,
    device: Device,
    /// `[positions, D]`
    positions: Tensor,
    layers: Vec<Layer>,
    final_norm: Affine,
}

impl ClipEncoder {
    /// Reads the folder of a text encoder or of a whole CLIP. `kind` is bf16 or fp32.
    ///
    /// # Errors
    /// The folder holds another model; weights are missing or have other shapes; out of memory.
    pub fn open(folder: &Utf8Path, kind: Kind, device: Device) -> Result<Self, Failure> {
        check_kind(kind, folder.as_str())?;
        let (config, files) = ClipConfig::open(folder)?;
        let mut params = Params::new(files.reader(), kind, device);
        params.hash(EMBEDDING)?;
        let embedding = files.rows(EMBEDDING)?;
        let affine = |params: &mut Params<'_>, name: &str| -> Result<Affine, Failure> {
            let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
            Ok(Affine { weight: params.tensor(&weight)?, bias: params.tensor(&bias)? })
        };
        let width = config.hidden_size as i64;
        let mut layers = Vec::new();
        for layer in 0..config.num_hidden_layers {
            let name = |name: &str| format!("encoder.layers.{layer}.{name}");
            let parts = |end: &str| ["q", "k", "v"].map(|part| name(&format!("self_attn.{part}_proj.{end}")));
            let bias: Vec<Tensor> =
                parts("bias").iter().map(|name| params.tensor(name)).collect::<Result<_, Failure>>()?;
            let bias = Tensor::f_cat(&bias, 0).map_err(|e| failed(&format!("cannot load {folder}"), e))?;
            layers.push(Layer {
                norm1: affine(&mut params, &name("layer_norm1"))?,
                qkv: Affine { weight: params.joined(&parts("weight"), 3 * width, width)?, bias },
                out: affine(&mut params, &name("self_attn.out_proj"))?,
                norm2: affine(&mut params, &name("layer_norm2"))?,
                ff_in: affine(&mut params, &name("mlp.fc1"))?,
                ff_out: affine(&mut params, &name("mlp.fc2"))?,
            });
        }
        let positions = params.tensor("embeddings.position_embedding.weight")?;
        let final_norm = affine(&mut params, "final_layer_norm")?;
        Ok(ClipEncoder { config, identity: params.identity(), embedding, kind, device, positions, layers, final_norm })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ClipConfig {
        &self.config
    }

    /// Returns a hash of configuration and weights.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Encodes token ids `[N, L]`; L is at most the number of positions, 77.
    ///
    /// # Errors
    /// An id is outside of the vocabulary, or a text has no end token, because the tokenizer belongs to another model; or libtorch
    /// failed, with [`ErrorCode::OutOfMemory`] if memory is short.
    pub fn encode(&self, ids: &Tensor) -> Result<ClipStates, Failure> {
        self.check(ids)?;
        let what = || format!("cannot encode {} texts of {} tokens", ids.size()[0], ids.size()[1]);
        let rows: Vec<i64> = Vec::try_from(ids.to_device(Device::Cpu).reshape(-1)).map_err(|e| failed(&what(), e))?;
        let ends = self.ends(&rows, ids.size()[1] as usize)?;
        let rows = self.embedding.read(&rows)?;
        no_grad(|| self.forward(ids.size()[0], ids.size()[1], rows, &ends)).map_err(|e| failed(&what(), e))
    }

    fn check(&self, ids: &Tensor) -> Result<(), Failure> {
        let bad = |code, why: String, fix: &str| Err(Failure::new(code, "cannot encode token ids", why, fix));
        let most = self.config.max_position_embeddings;
        if ids.dim() != 2 || ids.kind() != Kind::Int64 || ids.numel() == 0 || ids.size()[1] > most as i64 {
            let why =
                format!("they are {:?} of shape {:?}, expected Int64 [N, at most {most}]", ids.kind(), ids.size());
            return bad(ErrorCode::InvalidArgument, why, "give at least one text, cut to the number of positions");
        }
        let (least, most) = (ids.min().int64_value(&[]), ids.max().int64_value(&[]));
        if least < 0 || most >= self.config.vocab_size as i64 {
            let outside = if least < 0 { least } else { most };
            let why = format!("id {outside} is outside of the vocabulary of {} tokens", self.config.vocab_size);
            return bad(ErrorCode::TensorMismatch, why, "use the tokenizer of the same model");
        }
        Ok(())
    }

    /// Returns the place of each text's first end token.
    fn ends(&self, ids: &[i64], tokens: usize) -> Result<Vec<i64>, Failure> {
        let place = |text: &[i64]| {
            let end = self.config.end_token().or_else(|| text.iter().max().copied())?;
            text.iter().position(|&id| id == end).map(|place| place as i64)
        };
        ids.chunks(tokens).map(place).collect::<Option<_>>().ok_or_else(|| {
            let why = format!("a text has no end token, id {:?}", self.config.end_token());
            let fix = "use the tokenizer of the same model";
            Failure::new(ErrorCode::TensorMismatch, "cannot encode token ids", why, fix)
        })
    }

    fn forward(&self, texts: i64, tokens: i64, embeddings: Vec<u8>, ends: &[i64]) -> Result<ClipStates, TorchError> {
        let shape = [texts, tokens, self.config.hidden_size as i64];
        let stored = Tensor::f_from_data_size(&embeddings, &shape, kind_of(self.embedding.dtype))?;
        drop(embeddings);
        let positions = self.positions.f_narrow(0, 0, tokens)?;
        let mut x_nld = stored.f_to_device(self.device)?.f_to_kind(self.kind)?.f_add(&positions)?;
        for layer in &self.layers {
            x_nld = self.layer(layer, x_nld)?;
        }
        let states = self.norm(&x_nld, &self.final_norm)?;
        let first = (0..texts).map(|text| text * tokens);
        let rows: Vec<i64> = first.zip(ends).map(|(first, end)| first + end).collect();
        let rows = Tensor::f_from_slice(&rows)?.f_to_device(self.device)?;
        let pooled = states.f_view([texts * tokens, -1])?.f_index_select(0, &rows)?;
        Ok(ClipStates { states, pooled })
    }

    fn layer(&self, layer: &Layer, mut x_nld: Tensor) -> Result<Tensor, TorchError> {
        let [n, l, d] = [0, 1, 2].map(|axis| x_nld.size()[axis]);
        let heads = self.config.num_attention_heads as i64;
        let qkv = linear(&self.norm(&x_nld, &layer.norm1)?, &layer.qkv)?;
        let qkv = qkv.f_view([n, l, 3, heads, d / heads])?.f_permute([2, 0, 3, 1, 4])?;
        let [q, k, v] = [0, 1, 2].map(|part| qkv.select(0, part));
        let out = Tensor::f_scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, true, None, false)?;
        drop((qkv, q, k, v));
        let out = out.f_transpose(1, 2)?.f_reshape([n, l, d])?;
        let _ = x_nld.f_add_(&linear(&out, &layer.out)?)?;
        let inner = linear(&self.norm(&x_nld, &layer.norm2)?, &layer.ff_in)?;
        let gate = inner.f_mul_scalar(QUICK_GELU)?.f_sigmoid_()?.f_mul_(&inner)?;
        drop(inner);
        let _ = x_nld.f_add_(&linear(&gate, &layer.ff_out)?)?;
        Ok(x_nld)
    }

    fn norm(&self, x: &Tensor, norm: &Affine) -> Result<Tensor, TorchError> {
        let width = [self.config.hidden_size as i64];
        Ok(x.f_layer_norm(width, Some(&norm.weight), Some(&norm.bias), self.config.layer_norm_eps, true)?)
    }
}

fn linear(x: &Tensor, layer: &Affine) -> Result<Tensor, TorchError> {
    f_linear(x, &layer.weight, Some(&layer.bias))
}
