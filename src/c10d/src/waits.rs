//! Names and counts the places where the host waits for the device.
//!
//! A host that waits cannot enqueue work, so the device becomes idle. Therefore each wait of training has a name, [`Place`], and a test
//! counts the waits of a step: libtorch operators that return numbers to the host, blocking copies between devices, waits for events, and
//! calls of [`read`]. On the CPU the host never waits, but it calls the same operators and [`read`], so the test needs no GPU. A run on the
//! CPU has no copies between devices, so it does not count these.

use std::ffi::{CStr, c_int};
use std::marker::PhantomData;

use tch::{Kind, Tensor};

use crate::Result;
use crate::ffi::{self, check, take_text};

/// A place where the host waits for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Each step: the loss, and the norm of the gradient. The optimizer runs only if the norm is finite.
    LossAndNorm,
    /// Each step: times between events. The events are already complete.
    Times,
    /// Each logged step: the norm of the weights.
    WeightNorm,
    /// Each step of Adafactor and Prodigy: sums that their learning rates depend on.
    OptimizerSums,
    /// Each gradient of a swapped block (its weights are kept outside the memory of the device) that is copied to the host.
    SwappedGradients,
    /// Each shard of a swapped block that the optimizer writes back to its backing store.
    WriteBack,
    /// Each step, if the average of the weights (EMA) is in host memory.
    Average,
    /// Each comparison of the weights between replicas.
    Drift,
}

impl Place {
    /// All places, in the order of their numbers.
    const ALL: [Place; 8] = [
        Place::LossAndNorm,
        Place::Times,
        Place::WeightNorm,
        Place::OptimizerSums,
        Place::SwappedGradients,
        Place::WriteBack,
        Place::Average,
        Place::Drift,
    ];
}

/// Runs `wait`, and counts its waits for the device at `place`.
pub fn at<T>(place: Place, wait: impl FnOnce() -> T) -> T {
    let _inside = Inside::enter(place);
    wait()
}

/// Reads numbers from the device, as fp64.
///
/// # Panics
/// If the tensor does not have exactly one dimension.
pub fn read(place: Place, numbers: &Tensor) -> Vec<f64> {
    at(place, || {
        count(c"read");
        Vec::try_from(numbers.to_kind(Kind::Double)).expect("a flat tensor of numbers")
    })
}

/// Restores the previous place of the thread on drop.
struct Inside(c_int);

impl Inside {
    fn enter(place: Place) -> Self {
        // SAFETY: only a number is passed.
        Inside(unsafe { ffi::vidtui_waits_place(place as c_int) })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: only a number is passed.
        unsafe { ffi::vidtui_waits_place(self.0) };
    }
}

/// Counts a call that is not a libtorch operator.
pub(crate) fn count(call: &CStr) {
    // SAFETY: the text outlives the call.
    unsafe { ffi::vidtui_waits_count(call.as_ptr()) }
}

/// Counts the waits of the calling thread until [`Counting::end`]. For tests only: it slows down every libtorch operator.
#[derive(Debug)]
pub struct Counting {
    is_running: bool,
    // The counts belong to the thread.
    not_send: PhantomData<*const ()>,
}

/// The waits of one kind at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The place; `None` for a wait outside [`at`] and [`read`].
    pub place: Option<Place>,
    /// The operator or function.
    pub call: String,
    /// How often it was called.
    pub count: u64,
}

impl Counting {
    /// Starts to count.
    ///
    /// # Errors
    /// This thread already counts.
    pub fn begin() -> Result<Self> {
        // SAFETY: nothing is passed.
        check(unsafe { ffi::vidtui_waits_begin() }, || "count waits for the device".to_owned())?;
        Ok(Counting { is_running: true, not_send: PhantomData })
    }

    /// Stops counting, and returns the waits by place and call.
    ///
    /// # Errors
    /// libtorch returned an error.
    pub fn end(mut self) -> Result<Vec<Wait>> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Vec<Wait>> {
        self.is_running = false;
        let mut text = std::ptr::null_mut();
        // SAFETY: `text` is where the shim writes a new C string on success.
        check(unsafe { ffi::vidtui_waits_end(&mut text) }, || "count waits for the device".to_owned())?;
        // SAFETY: the shim created the string, which is not used again.
        let text = unsafe { take_text(text) };
        let wait = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let place = words.next()?.parse::<i32>().ok()?;
            let count = words.next()?.parse().ok()?;
            let place = usize::try_from(place).ok().and_then(|place| Place::ALL.get(place).copied());
            Some(Wait { place, call: words.next()?.to_owned(), count })
        };
        Ok(text.lines().filter_map(wait).collect())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        if self.is_running {
            let _ = self.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn the_numbers_of_places_are_their_order() {
        for (number, place) in Place::ALL.into_iter().enumerate() {
            assert_eq!(place as usize, number);
        }
    }

    #[test]
    fn reads_are_counted_at_their_place_in_this_thread_while_it_counts() {
        let x = Tensor::arange(3, (Kind::Float, Device::Cpu));
        let _ = x.double_value(&[0]);
        let counting = Counting::begin().unwrap();
        assert!(Counting::begin().is_err());
        assert_eq!(read(Place::LossAndNorm, &x), [0.0, 1.0, 2.0]);
        let inner = at(Place::Drift, || {
            let _ = x.double_value(&[1]);
            at(Place::Times, || x.double_value(&[2])) + x.double_value(&[0])
        });
        assert_eq!(inner, 2.0);
        let _ = x.nonzero();
        // Arithmetic and other threads do not count.
        let _ = (&x + 1.0).sum(Kind::Float);
        std::thread::spawn(|| Tensor::from(1f32).double_value(&[])).join().unwrap();
        let waits = counting.end().unwrap();
        let of = |place, call: &str| {
            waits.iter().find(|wait| wait.place == place && wait.call == call).map_or(0, |wait| wait.count)
        };
        assert_eq!(of(Some(Place::LossAndNorm), "read"), 1);
        assert_eq!(of(Some(Place::Drift), "aten::_local_scalar_dense"), 2);
        assert_eq!(of(Some(Place::Times), "aten::_local_scalar_dense"), 1);
        assert_eq!(of(None, "aten::nonzero"), 1);
        assert_eq!(waits.len(), 4, "{waits:?}");
        let _ = x.double_value(&[0]);
        assert_eq!(Counting::begin().unwrap().end().unwrap(), []);
    }
}
