//! Every tensor of the model: names, shapes, initialization, optimizer group and TP split.

/// One tensor of the model.
///
/// [`param_specs`](crate::param_specs) lists them. That list defines the tensors of a checkpoint, the target of the weight converter, the
/// groups of the optimizer and the parameter count on screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSpec {
    /// The name in checkpoints, such as `blocks.3.attn.q.weight`.
    pub name: String,
    /// The name in a diffusers folder, such as `transformer_blocks.3.attn1.to_q.weight`; `None` for TTT layers, and in the tables of families
    /// that cannot be trained yet, which have functions for their names in files.
    pub diffusers: Option<String>,
    /// The shape; the weight of a linear layer is `[out, in]`.
    pub shape: Vec<usize>,
    /// The FSDP unit that contains the tensor.
    pub unit: FsdpUnit,
    /// The initialization when no weights are loaded.
    pub init: ParamInit,
    /// Whether the tensor can be trained.
    pub role: ParamRole,
    /// The learning rate that applies to the tensor.
    pub group: ParamGroup,
    /// Whether weight decay applies; never to biases and norms.
    pub decay: bool,
    /// The split of the tensor over the ranks of a TP group.
    pub split: Split,
}

/// The split of a tensor over the ranks of a TP group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Each rank has the whole tensor.
    None,
    /// Each rank has an equal part of this dimension.
    Dim(usize),
    /// Each rank has the whole tensor and computes a part of its gradient; the parts are summed.
    Summed,
}

impl ParamSpec {
    /// Returns the number of elements.
    pub fn len(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }

    /// Returns the offset and the shape of the part of the tensor that rank `rank` of a TP group of `tp` ranks has.
    pub fn part(&self, rank: usize, tp: usize) -> (Vec<usize>, Vec<usize>) {
        let (mut offset, mut shape) = (vec![0; self.shape.len()], self.shape.clone());
        if let Split::Dim(dim) = self.split {
            shape[dim] /= tp;
            offset[dim] = rank * shape[dim];
        }
        (offset, shape)
    }

    /// Returns whether each rank of a TP group has a different part of the tensor.
    pub fn is_split(&self) -> bool {
        matches!(self.split, Split::Dim(_))
    }

    /// Returns whether the tensor has no elements, which no checked recipe allows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A part of the model whose parameters FSDP gathers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FsdpUnit {
    /// Embeddings and the final layer.
    Root,
    /// One transformer block.
    Block(usize),
}

/// The initialization of a tensor when no weights are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamInit {
    /// Uniform within ±√(6 / (in + out)); a convolution counts as the linear layer over its patch.
    Xavier,
    /// Zeros: biases, and the layers that make a new block the identity (adaLN-zero).
    Zeros,
    /// Ones: gains of norms.
    Ones,
    /// The sine and cosine table of positions.
    Positions,
    /// Uniform within ±1/√in, for weight and bias: TTT projections, as in the reference's converter.
    Linear {
        /// The input width.
        fan_in: usize,
    },
    /// Normal with a standard deviation of 0.02: inner weights and learning rates of TTT layers.
    Normal,
    /// 0.1: gates of TTT layers, so that a new layer has an effect from the first step.
    Gate,
    /// Normal with a standard deviation of 1 / rank: A of an adapter, modulation tables of STDiT3 and Wan, and the empty text of STDiT3.
    Gaussian {
        /// The rank of the adapter; for a table, the root of its width.
        rank: usize,
    },
}

/// Whether a tensor can be trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamRole {
    /// A parameter of the model, trained unless the recipe freezes it.
    Trained,
    /// A constant that is saved with the parameters.
    Buffer,
    /// A factor of a LoRA adapter, always trained.
    Adapter,
}

/// The learning rate that applies to a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamGroup {
    /// `lr_ttt`: TTT layers and their gates.
    Ttt,
    /// `lr`: everything else.
    Rest,
}
