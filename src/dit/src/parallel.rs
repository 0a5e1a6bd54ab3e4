//! Tensor and sequence parallelism in a block: heads and hidden units are split over ranks, and so are the tokens wherever a
//! computation needs only one token at a time: norms, modulations, gates and residuals.
//!
//! A block applies the rows or columns of a weight that it receives, and calls these collectives where the
//! ranks' results are combined. [`recipe::Split`] defines the rows and columns of each rank; the caller implements
//! the collectives. Between blocks each rank has its part of the tokens: `len / ranks` rounded up, with padding after the last token.
//!
//! Gathers and reductions of tokens run in pieces where these are large ([`TokenCollectives`]): while the ranks exchange a piece, they
//! compute another, forward and backward.
//!
//! Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4.2.2. Pieces: Wang et al.,
//! "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models" (2023).

use tch::Tensor;
use torch_error::TorchError;

/// Megatron's differentiable collectives.
pub trait TensorParallel {
    /// Returns the number of ranks that share a block's heads, hidden units and tokens.
    fn size(&self) -> i64;

    /// Returns the number of this rank.
    fn rank(&self) -> i64;

    /// Returns in how many pieces the ranks exchange tokens, if each has so many bytes of them. It is the same number on all ranks.
    fn pieces(&self, bytes: i64) -> i64;

    /// Returns a replicated tensor unchanged; its gradient is the sum of all ranks' gradients.
    ///
    /// # Errors
    /// A peer exited. The other functions have the same error.
    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TorchError>;

    /// Concatenates the tensors of all ranks along the last dimension; each rank's gradient is its part.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TorchError>;

    /// Starts to concatenate the ranks' parts of `len` tokens to `[B, len, D]`; the gradient is this rank's part of the sum of all ranks'
    /// gradients.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn start_gather_tokens(&self, part: &Tensor, len: i64) -> Result<InFlight, TorchError>;

    /// Starts to sum the tokens `[B, L, D]` of all ranks for this rank's part; the gradients of all parts are gathered.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn start_reduce_tokens(&self, x: &Tensor) -> Result<InFlight, TorchError>;

    /// Gathers tokens as [`TensorParallel::start_gather_tokens`] does, and waits for them.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn gather_tokens(&self, part: &Tensor, len: i64) -> Result<Tensor, TorchError> {
        self.start_gather_tokens(part, len)?()
    }
}

/// A collective that was started. A call waits for its result.
pub type InFlight = Box<dyn FnOnce() -> Result<Tensor, TorchError>>;

/// The collectives over tokens around computations that need only one token at a time.
#[derive(Clone, Copy)]
pub struct TokenCollectives<'a> {
    tp: &'a dyn TensorParallel,
    in_pieces: bool,
}

impl<'a> TokenCollectives<'a> {
    /// `in_pieces` is false for computations that depend on the place of a token, as dropout does.
    pub fn new(tp: &'a dyn TensorParallel, in_pieces: bool) -> Self {
        TokenCollectives { tp, in_pieces }
    }

    /// Gathers the ranks' parts of `len` tokens, `[B, L / ranks, D]`, and returns the results `[B, len, …]` of `f`, whose rows depend on
    /// one token each, in the order that `order` gives to rows.
    ///
    /// # Errors
    /// A collective failed.
    pub fn gather<const N: usize>(
        &self,
        part: &Tensor,
        len: i64,
        order: impl Fn(&Tensor) -> Tensor,
        f: impl Fn(&Tensor) -> [Tensor; N],
    ) -> Result<[Tensor; N], TorchError> {
        let parts = self.parts(part, len);
        if let [part] = &parts[..] {
            return Ok(f(&order(&self.tp.gather_tokens(part, len)?)));
        }
        let mut results: [Vec<Tensor>; N] = [const { Vec::new() }; N];
        for piece in self.arrivals(&parts) {
            for (all, y) in results.iter_mut().zip(f(&piece?)) {
                all.push(y.unflatten(1, [self.tp.size(), -1]));
            }
        }
        // The pieces of each rank, one after another.
        Ok(results.map(|pieces| order(&Tensor::cat(&pieces, 2).flatten(1, 2))))
    }

    /// Returns this rank's part of the sum over ranks of `f`, applied to all tokens `x` `[B, L, …]`. Rows of `f` depend on one token each.
    /// The sum has its rows in the order that `order` gives them.
    ///
    /// # Errors
    /// A collective failed.
    pub fn reduce(
        &self,
        x: &Tensor,
        order: impl Fn(&Tensor) -> Tensor,
        f: impl Fn(&Tensor) -> Tensor,
    ) -> Result<Tensor, TorchError> {
        self.reduce_of([x], order, |[x]| f(x))
    }

    /// Reduces as [`TokenCollectives::reduce`] does, a function of several tensors with the same tokens. The first one has the width of the
    /// sum, split over the ranks.
    ///
    /// # Errors
    /// A collective failed.
    pub fn reduce_of<const N: usize>(
        &self,
        x: [&Tensor; N],
        order: impl Fn(&Tensor) -> Tensor,
        f: impl Fn([&Tensor; N]) -> Tensor,
    ) -> Result<Tensor, TorchError> {
        let (ranks, len) = (self.tp.size(), x[0].size()[1]);
        // The width of `x` is split over the ranks, that of the sum is not: a rank's part of the sum is as large as `x`.
        let count = if len % ranks == 0 { self.count(x[0], len / ranks) } else { 1 };
        if count == 1 {
            return self.tp.start_reduce_tokens(&order(&f(x)))?();
        }
        // The piece of every rank's part.
        let pieces = x.map(|x| divided(&order(x).unflatten(1, [ranks, -1]), count, 2));
        self.reduced((0..pieces[0].len()).map(|i| {
            let piece = pieces.each_ref().map(|pieces| pieces[i].flatten(1, 2));
            Ok(f(piece.each_ref()))
        }))
    }

    /// Gathers the ranks' parts of `len` tokens, applies `f`, whose rows depend on one token each, and returns this rank's part of the sum
    /// over ranks.
    ///
    /// # Errors
    /// A collective failed.
    pub fn gather_and_reduce(
        &self,
        part: &Tensor,
        len: i64,
        f: impl Fn(&Tensor) -> Tensor,
    ) -> Result<Tensor, TorchError> {
        let parts = self.parts(part, len);
        if let [part] = &parts[..] {
            let y = f(&self.tp.gather_tokens(part, len)?);
            return self.tp.start_reduce_tokens(&y)?();
        }
        self.reduced(self.arrivals(&parts).map(|piece| Ok(f(&piece?))))
    }

    /// Gathers pieces, each while the one before is computed.
    fn arrivals<'b>(&'b self, parts: &'b [Tensor]) -> impl Iterator<Item = Result<Tensor, TorchError>> + 'b {
        let start = |piece: &Tensor| self.tp.start_gather_tokens(piece, piece.size()[1] * self.tp.size());
        let mut arriving = None;
        (0..parts.len()).map(move |i| {
            let wait = arriving.take().unwrap_or_else(|| start(&parts[i]))?;
            arriving = parts.get(i + 1).map(start);
            wait()
        })
    }

    /// Reduces pieces, each while the next one is computed.
    fn reduced(&self, pieces: impl Iterator<Item = Result<Tensor, TorchError>>) -> Result<Tensor, TorchError> {
        let (mut reducing, mut sums) = (None::<InFlight>, Vec::new());
        for piece in pieces {
            let started = self.tp.start_reduce_tokens(&piece?)?;
            if let Some(wait) = reducing.replace(started) {
                sums.push(wait()?);
            }
        }
        sums.extend(reducing.map(|wait| wait()).transpose()?);
        Ok(Tensor::cat(&sums, 1))
    }

    /// Divides a rank's part of `len` tokens. A part with padding stays whole, because a piece cannot have padding between its tokens.
    fn parts(&self, part: &Tensor, len: i64) -> Vec<Tensor> {
        let rows = part.size()[1];
        let count = if rows * self.tp.size() == len { self.count(part, rows) } else { 1 };
        divided(part, count, 1)
    }

    /// Returns the number of pieces for a rank's part of `rows` tokens, which is as large as a tensor.
    fn count(&self, as_large_as: &Tensor, rows: i64) -> i64 {
        if self.tp.size() == 1 || !self.in_pieces {
            return 1;
        }
        let bytes = as_large_as.numel() * as_large_as.kind().elt_size_in_bytes();
        self.tp.pieces(bytes as i64).clamp(1, rows.max(1))
    }
}

/// Divides a tensor along a dimension. The graph has one node for all pieces, which joins their gradients.
fn divided(x: &Tensor, count: i64, dim: i64) -> Vec<Tensor> {
    let rows = x.size()[dim as usize];
    if count == 1 { vec![x.shallow_clone()] } else { x.split((rows + count - 1) / count, dim) }
}

/// Returns this rank's part of the tokens `[B, L, D]`. Tokens after the last are zero.
pub fn own_tokens(x_bld: &Tensor, tp: &dyn TensorParallel) -> Tensor {
    let (size, len) = (tp.size(), x_bld.size()[1]);
    if size == 1 {
        return x_bld.shallow_clone();
    }
    let part = (len + size - 1) / size;
    let start = (tp.rank() * part).min(len);
    let own = x_bld.narrow(1, start, part.min(len - start));
    // A copy, because the whole sequence is not needed after this.
    let mut shape = x_bld.size();
    shape[1] = part - own.size()[1];
    Tensor::cat(&[own, x_bld.new_zeros(&shape, (x_bld.kind(), x_bld.device()))], 1)
}

/// Returns how many of the first `split` tokens of a sequence are in this rank's part of `part_len` tokens.
pub fn own_split(split: i64, part_len: i64, tp: &dyn TensorParallel) -> i64 {
    (split - tp.rank() * part_len).clamp(0, part_len)
}

/// A TP group of one rank.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl TensorParallel for Alone {
    fn size(&self) -> i64 {
        1
    }

    fn rank(&self) -> i64 {
        0
    }

    fn pieces(&self, _bytes: i64) -> i64 {
        1
    }

    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TorchError> {
        Ok(x.shallow_clone())
    }

    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TorchError> {
        Ok(x.shallow_clone())
    }

    fn start_gather_tokens(&self, part: &Tensor, _len: i64) -> Result<InFlight, TorchError> {
        Ok(here(part))
    }

    fn start_reduce_tokens(&self, x: &Tensor) -> Result<InFlight, TorchError> {
        Ok(here(x))
    }
}

fn here(x: &Tensor) -> InFlight {
    let x = x.shallow_clone();
    Box::new(move || Ok(x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use tch::{Device, Kind};

    /// One of `size` ranks, one or two. A second rank has three times this one's tokens, and half of its results. Logs what starts, what is
    /// waited for, and what is computed.
    struct Twin {
        size: i64,
        pieces: i64,
        log: Rc<RefCell<Vec<&'static str>>>,
    }

    impl Twin {
        fn new(size: i64, pieces: i64) -> Self {
            Twin { size, pieces, log: Rc::default() }
        }

        fn started(&self, names: [&'static str; 2], result: Tensor) -> Result<InFlight, TorchError> {
            self.log.borrow_mut().push(names[0]);
            let log = self.log.clone();
            Ok(Box::new(move || {
                log.borrow_mut().push(names[1]);
                Ok(result)
            }))
        }

        fn computes(&self, x: &Tensor) -> Tensor {
            self.log.borrow_mut().push("compute");
            x.sin()
        }
    }

    impl TensorParallel for Twin {
        fn size(&self) -> i64 {
            self.size
        }

        fn rank(&self) -> i64 {
            0
        }

        fn pieces(&self, _bytes: i64) -> i64 {
            self.pieces
        }

        fn copy_to(&self, x: &Tensor) -> Result<Tensor, TorchError> {
            Ok(x.shallow_clone())
        }

        fn gather_from(&self, x: &Tensor) -> Result<Tensor, TorchError> {
            Ok(Tensor::cat(&[x, x], -1))
        }

        fn start_gather_tokens(&self, part: &Tensor, len: i64) -> Result<InFlight, TorchError> {
            let all = if self.size == 1 { part.shallow_clone() } else { of_two(part) };
            self.started(["gather", "gathered"], all.narrow(1, 0, len))
        }

        fn start_reduce_tokens(&self, x: &Tensor) -> Result<InFlight, TorchError> {
            self.started(["reduce", "reduced"], x.narrow(1, 0, (x.size()[1] + 1) / 2) * 1.5)
        }
    }

    /// Returns the tokens of both ranks.
    fn of_two(part: &Tensor) -> Tensor {
        Tensor::cat(&[part, &(part * 3.0)], 1)
    }

    /// Returns a part of 5 tokens of two samples.
    fn part() -> Tensor {
        Tensor::arange(2 * 5 * 3, (Kind::Float, Device::Cpu)).view([2, 5, 3])
    }

    #[test]
    fn a_piece_is_computed_while_others_are_exchanged() {
        let logged = |run: &dyn Fn(&Twin)| {
            let twin = Twin::new(2, 3);
            run(&twin);
            twin.log.take().join(" ")
        };
        let both = logged(&|twin| {
            let _ = TokenCollectives::new(twin, true).gather_and_reduce(&part(), 10, |x| twin.computes(x)).unwrap();
        });
        let want = "gather gather gathered compute reduce gather gathered compute reduce reduced gathered compute reduce reduced reduced";
        assert_eq!(both, want);
        let gather = logged(&|twin| {
            let gathered = TokenCollectives::new(twin, true);
            let _ = gathered.gather(&part(), 10, Tensor::shallow_clone, |x| [twin.computes(x)]).unwrap();
        });
        assert_eq!(gather, "gather gather gathered compute gather gathered compute gathered compute");
        let reduce = logged(&|twin| {
            let whole = of_two(&part());
            let _ =
                TokenCollectives::new(twin, true).reduce(&whole, Tensor::shallow_clone, |x| twin.computes(x)).unwrap();
        });
        assert_eq!(reduce, "compute reduce compute reduce reduced compute reduce reduced reduced");
    }

    #[test]
    fn pieces_give_the_results_of_the_whole() {
        let whole = of_two(&part());
        let reverse = |x: &Tensor| x.flip([1]);
        // 9 tokens: the part of the other rank has padding, and is not divided.
        for (pieces, len) in [(1, 10), (2, 10), (3, 10), (9, 10), (3, 9)] {
            let twin = Twin::new(2, pieces);
            for in_pieces in [true, false] {
                let tokens = TokenCollectives::new(&twin, in_pieces);
                let [sine, double] = tokens.gather(&part(), len, reverse, |x| [x.sin(), x * 2.0]).unwrap();
                let all = whole.narrow(1, 0, len);
                assert_eq!((sine, double), (reverse(&all).sin(), reverse(&all) * 2.0));
                let reduced = tokens.reduce(&all, reverse, Tensor::sin).unwrap();
                assert_eq!(reduced, reverse(&all).sin().narrow(1, 0, 5) * 1.5);
                assert_eq!(tokens.gather_and_reduce(&part(), len, Tensor::sin).unwrap(), part().sin() * 1.5);
            }
            let divided = twin.log.borrow().iter().filter(|what| **what == "gather").count() > 4;
            assert_eq!(divided, pieces > 1 && len == 10);
        }
    }

    #[test]
    fn a_group_of_one_rank_computes_all_tokens_at_once() {
        let alone = Twin::new(1, 3);
        let tokens = TokenCollectives::new(&alone, true);
        let _ = tokens.gather(&part(), 5, Tensor::shallow_clone, |x| [alone.computes(x)]).unwrap();
        let _ = tokens.reduce(&part(), Tensor::shallow_clone, |x| alone.computes(x)).unwrap();
        let _ = tokens.gather_and_reduce(&part(), 5, |x| alone.computes(x)).unwrap();
        assert_eq!(alone.log.borrow().iter().filter(|what| **what == "compute").count(), 3);
    }
}
