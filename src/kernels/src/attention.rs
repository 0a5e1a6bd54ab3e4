//! Full attention that can reuse a saved result, by the fastest kernel of the device.

use crate::ffi;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Mutex;
use tch::{Device, Kind, Tensor};

/// The result of an attention and the state for its backward pass, both of which the next pass over the same inputs can reuse.
#[derive(Debug)]
pub struct AttentionOutput(NonNull<ffi::SavedAttention>);

// SAFETY: the handle owns tensors, which any thread may use, and has one owner.
unsafe impl Send for AttentionOutput {}

impl Drop for AttentionOutput {
    fn drop(&mut self) {
        // SAFETY: the C++ created the handle, and this is its only owner.
        unsafe { ffi::vidtui_saved_attention_drop(self.0.as_ptr()) }
    }
}

/// A kernel of libtorch. The C++ uses the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The kernel of the CPU.
    Cpu = 0,
    /// FlashAttention-2.
    Flash = 1,
    /// Memory-efficient attention, which takes any dtype.
    Efficient = 2,
    /// cuDNN's fused attention.
    Cudnn = 3,
}

/// Returns the kernel for a device and a head width. `major` is the major number of a GPU's compute capability, `None` on the CPU.
///
/// cuDNN's kernels for Hopper and Blackwell use instructions of these GPUs that FlashAttention-2 does not use. libtorch chooses
/// them there too. The backward pass of cuDNN's kernels supports head widths up to 128.
pub fn choose(major: Option<i32>, is_16_bit: bool, head_width: i64, cudnn_can_run: bool) -> Kernel {
    match major {
        None => Kernel::Cpu,
        Some(9 | 10) if is_16_bit && cudnn_can_run && head_width <= 128 => Kernel::Cudnn,
        Some(_) if is_16_bit && head_width % 8 == 0 && head_width <= 256 => Kernel::Flash,
        Some(_) => Kernel::Efficient,
    }
}

/// Computes attention without a mask, scale 1/√F; differentiable in queries, keys and values, each `[B, H, L, F]`.
///
/// [`choose`] selects the kernel. On a GPU, the choice for each shape and dtype is logged once to standard error.
/// If `known` holds the result for the same inputs, the forward pass computes nothing, and the gradients are the same.
///
/// # Panics
/// The shapes do not match, or memory is short. tch's own operators panic too.
pub fn scaled_dot_product(q: &Tensor, k: &Tensor, v: &Tensor, known: Option<&AttentionOutput>) -> Tensor {
    run(kernel_for(q, k, v), [q, k, v], known, false).0
}

/// Computes [`scaled_dot_product`], and also returns what the next pass over the same inputs needs.
///
/// # Panics
/// As [`scaled_dot_product`].
pub fn scaled_dot_product_and_save(q: &Tensor, k: &Tensor, v: &Tensor) -> (Tensor, AttentionOutput) {
    let (out, saved) = run(kernel_for(q, k, v), [q, k, v], None, true);
    (out, saved.expect("the C++ returns what it is asked for"))
}

fn kernel_for(q: &Tensor, k: &Tensor, v: &Tensor) -> Kernel {
    let (is_16_bit, width) = (matches!(q.kind(), Kind::BFloat16 | Kind::Half), q.size()[3]);
    if !matches!(q.device(), Device::Cuda(_)) {
        return choose(None, is_16_bit, width, false);
    }
    let (mut major, mut cudnn_can_run) = (0, false);
    // SAFETY: the tensors outlive the call, which writes the two numbers.
    let status = unsafe {
        ffi::vidtui_attention_gpu(q.as_ptr(), k.as_ptr(), v.as_ptr(), &raw mut major, &raw mut cudnn_can_run)
    };
    ffi::expect_done(status, "choose a kernel of attention");
    let kernel = choose(Some(major), is_16_bit, width, cudnn_can_run);
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if let Some(line) = first_report(&LOGGED, &q.size(), q.kind(), kernel) {
        eprintln!("{line}");
    }
    kernel
}

/// Returns the log line for a shape, dtype and kernel; `None` if it was logged before.
fn first_report(logged: &Mutex<BTreeSet<String>>, size: &[i64], kind: Kind, kernel: Kernel) -> Option<String> {
    let name = match kernel {
        Kernel::Cpu => "the kernel of the CPU",
        Kernel::Flash => "FlashAttention-2",
        Kernel::Efficient => "memory-efficient attention",
        Kernel::Cudnn => "cuDNN's attention",
    };
    let line = format!("attention of {size:?} (batch, heads, tokens, head width) in {kind:?} is computed by {name}");
    let mut logged = logged.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    logged.insert(line.clone()).then_some(line)
}

fn run(
    kernel: Kernel,
    [q, k, v]: [&Tensor; 3],
    known: Option<&AttentionOutput>,
    saves: bool,
) -> (Tensor, Option<AttentionOutput>) {
    let (mut out, mut made) = (std::ptr::null_mut(), std::ptr::null_mut());
    let known = known.map_or(std::ptr::null(), |known| known.0.as_ptr().cast_const());
    let to = if saves { &raw mut made } else { std::ptr::null_mut() };
    // SAFETY: the tensors outlive the call; `known` is null or a handle that outlives the call; the C++ writes a new tensor, and a new
    // handle unless `to` is null, on success.
    let status =
        unsafe { ffi::vidtui_attention(q.as_ptr(), k.as_ptr(), v.as_ptr(), kernel as i32, known, to, &raw mut out) };
    ffi::expect_done(status, "compute attention");
    // SAFETY: the call above created the tensor and transfers ownership to us.
    (unsafe { Tensor::from_ptr(out) }, NonNull::new(made).map(AttentionOutput))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(size: [i64; 4]) -> [Tensor; 3] {
        [(); 3].map(|()| Tensor::randn(size, (Kind::Float, Device::Cpu)).set_requires_grad(true))
    }

    /// Returns the output of attention, and the gradients of queries, keys and values.
    fn results(out: Tensor, leaves: &[Tensor; 3], pull: &Tensor) -> Vec<Tensor> {
        let loss = (&out * pull).sum(Kind::Float);
        let mut all = Tensor::run_backward(&[loss], &leaves.iter().collect::<Vec<_>>(), false, false);
        all.insert(0, out.detach());
        all
    }

    fn libtorchs([q, k, v]: &[Tensor; 3]) -> Tensor {
        Tensor::scaled_dot_product_attention(q, k, v, None::<&Tensor>, 0.0, false, None, false)
    }

    #[test]
    fn a_known_result_gives_the_gradients_of_attention() {
        let leaves = inputs([2, 3, 5, 8]);
        let [q, k, v] = &leaves;
        let pull = Tensor::randn([2, 3, 5, 8], (Kind::Float, Device::Cpu));
        let want = results(libtorchs(&leaves), &leaves, &pull);
        let (saved_out, saved) = tch::no_grad(|| scaled_dot_product_and_save(q, k, v));
        assert!(!saved_out.requires_grad());
        let (first, recorded) = scaled_dot_product_and_save(q, k, v);
        for out in [
            first,
            scaled_dot_product(q, k, v, None),
            scaled_dot_product(q, k, v, Some(&saved)),
            scaled_dot_product(q, k, v, Some(&recorded)),
        ] {
            for (got, want) in results(out, &leaves, &pull).iter().zip(&want) {
                assert!((got - want).abs().max().double_value(&[]) < 1e-5);
            }
        }
    }

    #[test]
    fn hopper_and_blackwell_use_cudnn_and_others_flash_attention() {
        use Kernel::{Cpu, Cudnn, Efficient, Flash};
        // The compute capability, whether numbers have 16 bits, the head width, whether cuDNN can run, and the kernel.
        let table = [
            (None, false, 64, false, Cpu),
            (None, true, 64, false, Cpu),
            (Some(8), true, 64, true, Flash),
            (Some(9), true, 64, true, Cudnn),
            (Some(9), true, 128, true, Cudnn),
            (Some(10), true, 64, true, Cudnn),
            (Some(12), true, 64, true, Flash),
            (Some(9), true, 64, false, Flash),
            (Some(9), true, 192, true, Flash),
            (Some(9), true, 264, true, Efficient),
            (Some(9), true, 60, false, Efficient),
            (Some(9), false, 64, true, Efficient),
            (Some(8), false, 64, false, Efficient),
        ];
        for (major, is_16_bit, width, cudnn_can_run, want) in table {
            let got = choose(major, is_16_bit, width, cudnn_can_run);
            assert_eq!(got, want, "{major:?}, 16 bits {is_16_bit}, width {width}, cuDNN {cudnn_can_run}");
        }
    }

    #[test]
    fn each_shape_dtype_and_kernel_is_logged_once() {
        let logged = Mutex::default();
        let report = |tokens, kind, kernel| first_report(&logged, &[1, 2, tokens, 64], kind, kernel).is_some();
        assert!(report(16, Kind::BFloat16, Kernel::Cudnn));
        assert!(!report(16, Kind::BFloat16, Kernel::Cudnn));
        assert!(report(32, Kind::BFloat16, Kernel::Cudnn));
        assert!(report(16, Kind::Half, Kernel::Cudnn));
        assert!(report(16, Kind::BFloat16, Kernel::Flash));
    }

    #[test]
    fn the_kernels_of_a_gpu_give_the_numbers_of_the_cpu() {
        if !tch::Cuda::is_available() {
            println!("skipped: no GPU");
            return;
        }
        let size = [2, 3, 96, 64];
        let (leaves, pull) = (inputs(size), Tensor::randn(size, (Kind::Float, Device::Cpu)));
        let want = results(libtorchs(&leaves), &leaves, &pull);
        for (kernel, kind) in [
            (Kernel::Efficient, Kind::Float),
            (Kernel::Efficient, Kind::BFloat16),
            (Kernel::Flash, Kind::BFloat16),
            (Kernel::Cudnn, Kind::BFloat16),
        ] {
            let there =
                leaves.each_ref().map(|t| t.detach().to_device(Device::Cuda(0)).to_kind(kind).set_requires_grad(true));
            let [q, k, v] = &there;
            if kernel == Kernel::Cudnn && kernel_for(q, k, v) != kernel {
                println!("skipped: cuDNN's attention, which this GPU does not use");
                continue;
            }
            let (_, saved) = tch::no_grad(|| run(kernel, [q, k, v], None, true));
            for known in [None, saved.as_ref()] {
                let out = run(kernel, [q, k, v], known, false).0;
                let got = results(out, &there, &pull.to_device(Device::Cuda(0)).to_kind(kind));
                for (got, want) in got.iter().zip(&want) {
                    let got = got.to_device(Device::Cpu).to_kind(Kind::Float);
                    let error = ((got - want).norm() / want.norm()).double_value(&[]);
                    // A rounding to bf16 is one part in 256; sums of many of them average out.
                    assert!(error < if kind == Kind::Float { 1e-3 } else { 0.02 }, "{kernel:?}: off by {error:e}");
                }
            }
        }
    }
}
