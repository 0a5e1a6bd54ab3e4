//! [`Pending`]: a collective that was started and may not be complete.

use std::cmp::Ordering;
use std::ptr::NonNull;

use tch::{Kind, Tensor};

use crate::Result;
use crate::ffi::{self, WorkHandle, check};

/// The reduction of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// The sum over ranks.
    Sum,
    /// The maximum over ranks.
    Max,
    /// The mean over ranks: each rank receives the sum and divides it by the number of ranks.
    Avg,
}

impl Reduce {
    /// Returns the number of the reduction in the C++ shim. gloo has no mean: `Avg` requests a sum, which [`Finish`] divides.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Sum | Self::Avg => 0,
            Self::Max => 1,
        }
    }
}

/// A collective that was started. Do not read or write its tensors until [`Pending::wait`] returns.
///
/// `Pending` keeps the tensors alive. Dropping it waits too, so that no buffer is freed while in use, but discards the error.
#[must_use = "a collective is complete only after wait()"]
pub struct Pending {
    work: Option<Work>,
    doing: String,
    finish: Finish,
    /// The tensors, kept alive until the work is done.
    _tensors: Vec<Tensor>,
}

/// The local computation after the network transfer.
pub(crate) enum Finish {
    Nothing,
    /// Divides the tensors in place, by the number of ranks.
    Divide(Vec<Tensor>, i64),
    /// Reduces the parts of all ranks.
    Combine(Combine),
}

/// The local half of a reduce-scatter.
pub(crate) struct Combine {
    /// The destination of the result, `[len]`.
    pub out: Tensor,
    /// This rank's own part, `[len]`.
    pub own: Tensor,
    /// The other ranks' parts in rank order, `[size - 1, len]`.
    pub parts: Tensor,
    pub rank: usize,
    pub reduce: Reduce,
}

pub(crate) struct Work(pub NonNull<WorkHandle>);

// SAFETY: c10d's work objects may be waited on from any thread; the handle has one owner.
unsafe impl Send for Work {}

impl Pending {
    pub(crate) fn new(work: Option<Work>, doing: String, finish: Finish, tensors: Vec<Tensor>) -> Self {
        Self { work, doing, finish, _tensors: tensors }
    }

    /// Waits until the collective is complete on this rank.
    ///
    /// # Errors
    /// A peer exited, or the group's timeout passed. The content of the tensors is then undefined, and the group cannot be
    /// used again: the ranks are no longer in step.
    pub fn wait(mut self) -> Result<()> {
        self.finish_network()?;
        match std::mem::replace(&mut self.finish, Finish::Nothing) {
            Finish::Nothing => Ok(()),
            Finish::Divide(tensors, by) => torch(&self.doing, || {
                tch::no_grad(|| tensors.into_iter().try_for_each(|mut tensor| tensor.f_div_scalar_(by).map(drop)))
            }),
            Finish::Combine(combine) => torch(&self.doing, || tch::no_grad(|| combine.run())),
        }
    }

    fn finish_network(&mut self) -> Result<()> {
        let Some(work) = self.work.take() else { return Ok(()) };
        // SAFETY: the shim created the handle and this is its only owner; the call frees it.
        check(unsafe { ffi::vidtui_work_wait(work.0.as_ptr()) }, || self.doing.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Work remains here only if the caller returned early because of another error, which is the error to report.
        let _ = self.finish_network();
    }
}

impl Combine {
    /// Reduces in rank order, so that the bits do not depend on the rank; 16-bit floats are added in fp32.
    fn run(&self) -> std::result::Result<(), tch::TchError> {
        let others = self.parts.size()[0];
        let half = matches!(self.out.kind(), Kind::BFloat16 | Kind::Half);
        let part = |rank: usize| {
            let part = match rank.cmp(&self.rank) {
                Ordering::Equal => self.own.shallow_clone(),
                Ordering::Less => self.parts.f_get(rank as i64)?,
                Ordering::Greater => self.parts.f_get(rank as i64 - 1)?,
            };
            if half { part.f_to_kind(Kind::Float) } else { Ok(part) }
        };
        let combine = |total: &Tensor, a: &Tensor, b: &Tensor| match self.reduce {
            Reduce::Max => a.f_maximum_out(total, b),
            Reduce::Sum | Reduce::Avg => a.f_add_out(total, b),
        };
        let mut total = if half { self.out.f_to_kind(Kind::Float)? } else { self.out.shallow_clone() };
        let _ = combine(&total, &part(0)?, &part(1)?)?;
        for rank in 2..=others as usize {
            let _ = combine(&total, &total, &part(rank)?)?;
        }
        if self.reduce == Reduce::Avg {
            let _ = total.f_div_scalar_(others + 1)?;
        }
        if half {
            self.out.shallow_clone().f_copy_(&total)?;
        }
        Ok(())
    }
}

/// Runs tensor arithmetic and adds `doing` to its error.
pub(crate) fn torch(doing: &str, body: impl FnOnce() -> std::result::Result<(), tch::TchError>) -> Result<()> {
    body().map_err(|error| crate::Error::torch(doing, error))
}
