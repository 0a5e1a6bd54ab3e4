//! The device of a rank, and the functions that depend on it: uploads and timing.

use crate::step::compute_kind;
use c10d::cuda::{self, CopyStream, Event};
use recipe::{Device as Wanted, Fused, Recipe};
use rundir::{ErrorCode, Failure};
use std::time::Instant;
use tch::{Cuda, Device, Tensor};

/// Chooses the device of rank `local_rank` of `local_world` on its node, and makes it the current one.
///
/// If the recipe lets ranks share GPUs ([`recipe::SHARED_GPUS`]), they get the GPUs in turn.
///
/// # Errors
/// The recipe requires GPUs and none is usable, or the node has fewer GPUs than ranks.
pub fn choose(wanted: Wanted, local_rank: usize, local_world: usize) -> Result<Device, Failure> {
    let gpus = if cuda::is_built() { Cuda::device_count().max(0) as usize } else { 0 };
    let node = Gpus { built: cuda::is_built(), count: gpus, shared: gpus_are_shared() };
    let device = place(wanted, node, local_rank, local_world)?;
    if let Device::Cuda(gpu) = device {
        cuda::set_device(gpu).map_err(|error| {
            let what = format!("cannot train on GPU {gpu}");
            Failure::new(
                ErrorCode::NoGpu,
                what,
                error.to_string(),
                "check the GPU with nvidia-smi; no other program may use it",
            )
        })?;
    }
    Ok(device)
}

/// The GPUs that this rank sees.
#[derive(Debug, Clone, Copy)]
struct Gpus {
    /// Whether this program was built with CUDA.
    built: bool,
    count: usize,
    /// Whether several ranks may use one GPU.
    shared: bool,
}

fn gpus_are_shared() -> bool {
    std::env::var(recipe::SHARED_GPUS).is_ok_and(|value| value == "1")
}

/// Returns the number of ranks of a node that use the same GPU.
pub fn ranks_per_gpu(ranks_on_node: usize) -> usize {
    let gpus = if gpus_are_shared() { Cuda::device_count().max(1) as usize } else { ranks_on_node };
    ranks_on_node.div_ceil(gpus.max(1)).max(1)
}

/// Chooses as [`choose`] does, given the visible GPUs.
fn place(wanted: Wanted, gpus: Gpus, local_rank: usize, local_world: usize) -> Result<Device, Failure> {
    let fail = |code, why: &str, fix: &str| {
        Err(Failure::new(code, "cannot train on GPUs: train.device is \"cuda\"", why, fix))
    };
    match (wanted, gpus.count) {
        (Wanted::Cpu, _) | (Wanted::Auto, 0) => Ok(Device::Cpu),
        (Wanted::Cuda, _) if !gpus.built => fail(
            ErrorCode::TrainerUnusable,
            "this vidtui-train was built without CUDA",
            "build it with `--features cuda` (README, \"On GPUs\"), or set train.device = \"cpu\"",
        ),
        (Wanted::Cuda, 0) => fail(
            ErrorCode::NoGpu,
            "no GPU is visible on this node",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or set train.device = \"cpu\"",
        ),
        (_, count) if gpus.shared => Ok(Device::Cuda(local_rank % count)),
        (_, count) if count < local_world => Err(Failure::new(
            ErrorCode::TooFewRanks,
            format!("cannot give each of {local_world} ranks of this node a GPU"),
            format!("{} visible", units::counted(count, "GPU")),
            "set the slots of the node in the hostfile to its number of GPUs, and check CUDA_VISIBLE_DEVICES; to try a mesh with several ranks \
             on a GPU: env.presets = [\"nccl_shared_gpus\"]",
        )),
        _ => Ok(Device::Cuda(local_rank)),
    }
}

/// Checks that a device can run the kernel for the scan of TTT layers, if the recipe requires it.
///
/// # Errors
/// The recipe requires the kernel, and the rank is on the CPU, the GPU cannot run the kernel for this model, or the build lacks it.
pub fn check_scan(recipe: &Recipe, device: Device) -> Result<(), Failure> {
    if !recipe.requires_scan_kernel() {
        return Ok(());
    }
    let refuse = |code, why: String| {
        let what = format!("cannot scan TTT layers: {}", recipe.train.ttt_scan.setting());
        Err(Failure::new(code, what, why, "set train.ttt_scan = \"operators\", or train on an A100 or a newer GPU"))
    };
    match device {
        Device::Cuda(gpu) if dit::cogvideox::has_scan_kernel(&recipe.model, gpu) => Ok(()),
        Device::Cuda(gpu) => refuse(
            ErrorCode::NoGpu,
            format!(
                "GPU {gpu} has too little shared memory for it or is older than compute capability 8.0, or this trainer was built without \
                 the kernel"
            ),
        ),
        _ => refuse(
            ErrorCode::NoGpu,
            "it is a CUDA kernel, and this rank computes on the CPU, which has a kernel of its own".into(),
        ),
    }
}

/// Checks that a device can run the CUDA kernels for norms, gates and rotary embeddings, if the recipe requires them.
///
/// # Errors
/// The recipe requires the kernels, and the rank is on the CPU, the GPU cannot run them for this model, or the build lacks them.
pub fn check_fused(recipe: &Recipe, device: Device) -> Result<(), Failure> {
    if recipe.train.fused != Fused::Kernel {
        return Ok(());
    }
    let refuse = |code, why: String| {
        let what = "cannot fuse norms, gates and rotary embeddings: train.fused is \"kernel\"";
        Err(Failure::new(code, what, why, "set train.fused = \"operators\", or train on an A100 or a newer GPU"))
    };
    let (model, dtype) = (&recipe.model, recipe.train.dtype);
    match device {
        Device::Cuda(gpu) if dit::cogvideox::has_fused_kernels(model, compute_kind(dtype), gpu) => Ok(()),
        Device::Cuda(gpu) => refuse(
            ErrorCode::NoGpu,
            format!(
                "GPU {gpu} is older than compute capability 8.0, this trainer was built without the kernels, or they do not have the \
                 widths of the model: {} and {} in its heads must be multiples of {} in {}, and at most 3072",
                model.dim(),
                model.head_dim,
                16 / dtype.bytes(),
                dtype.name()
            ),
        ),
        _ => refuse(
            ErrorCode::NoGpu,
            "they are CUDA kernels, and this rank computes on the CPU, which always uses the operators".into(),
        ),
    }
}

/// Makes a GPU the current one of this thread. Does nothing for the CPU.
///
/// # Errors
/// The GPU does not exist.
pub fn set_current(device: Device) -> c10d::Result<()> {
    if let Device::Cuda(gpu) = device { cuda::set_device(gpu) } else { Ok(()) }
}

/// Copies a host tensor of a batch to a device on a stream beside the one that computes. Other streams may read the copy after the
/// returned event; it is `None` on the CPU.
///
/// # Errors
/// Memory is exhausted, or the GPU has failed.
pub fn upload_beside(tensor: &Tensor, device: Device) -> c10d::Result<(Tensor, Option<Event>)> {
    let Device::Cuda(_) = device else { return Ok((tensor.shallow_clone(), None)) };
    let mut pinned = cuda::pinned(tensor)?;
    pinned.f_copy_(tensor).map_err(c10d::Error::from)?;
    let there = Tensor::f_empty(tensor.size(), (tensor.kind(), device)).map_err(c10d::Error::from)?;
    let copied = cuda::copy_beside(&there, &pinned, CopyStream::Batch)?;
    Ok((there, Some(copied)))
}

/// Copies a host tensor to a device. Does not wait for a copy to a GPU.
pub fn upload(tensor: &Tensor, device: Device) -> Tensor {
    match device {
        Device::Cuda(_) if tensor.device() != device => {
            tensor.pin_memory(device).to_device_(device, tensor.kind(), true, false)
        }
        _ => tensor.shallow_clone(),
    }
}

/// A point in time of the host's clock, or of a GPU's stream, which runs behind the host.
#[derive(Debug)]
pub enum Mark {
    /// A time of the host's clock.
    Host(Instant),
    /// A CUDA event.
    Gpu(Event),
}

impl Mark {
    /// Marks the end of the work that was submitted so far.
    ///
    /// # Errors
    /// The GPU has failed.
    pub fn now(device: Device) -> c10d::Result<Self> {
        match device {
            Device::Cuda(_) => Event::record().map(Mark::Gpu),
            _ => Ok(Mark::Host(Instant::now())),
        }
    }

    /// Returns the seconds since `earlier`, which must be of the same device. Waits until the GPU has reached the mark.
    ///
    /// # Errors
    /// The GPU has failed.
    pub fn seconds_since(&self, earlier: &Self) -> c10d::Result<f64> {
        match (self, earlier) {
            (Mark::Gpu(now), Mark::Gpu(earlier)) => now.seconds_since(earlier),
            (Mark::Host(now), Mark::Host(earlier)) => Ok((*now - *earlier).as_secs_f64()),
            _ => panic!("both marks are of one device"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_gets_the_gpu_of_its_local_rank_and_the_cpu_if_there_is_none() {
        let place = |wanted, count| place(wanted, Gpus { built: true, count, shared: false }, 3, 4).unwrap();
        assert_eq!(place(Wanted::Auto, 4), Device::Cuda(3));
        assert_eq!(place(Wanted::Cuda, 8), Device::Cuda(3));
        assert_eq!(place(Wanted::Auto, 0), Device::Cpu);
        assert_eq!(place(Wanted::Cpu, 4), Device::Cpu);
    }

    #[test]
    fn ranks_that_may_share_gpus_get_them_in_turn() {
        let place = |count, rank| {
            place(Wanted::Cuda, Gpus { built: true, count, shared: true }, rank, 4).map_err(|failure| failure.code)
        };
        assert_eq!([0, 1, 2, 3].map(|rank| place(1, rank)), [Ok(Device::Cuda(0)); 4]);
        assert_eq!([0, 1, 2, 3].map(|rank| place(2, rank)), [0, 1, 0, 1].map(|gpu| Ok(Device::Cuda(gpu))));
        assert_eq!([place(8, 3), place(0, 3)], [Ok(Device::Cuda(3)), Err(ErrorCode::NoGpu)]);
    }

    #[test]
    fn the_cuda_kernel_of_the_scan_is_refused_on_the_cpu() {
        let sets = ["train.ttt_scan=kernel", "model.layer=ttt_mlp", "model.ttt_mini_batch=16"];
        let check = |sets: &[&str]| check_scan(&crate::tests::support::recipe([1, 1, 1], sets), Device::Cpu);
        assert_eq!(check(&sets).unwrap_err().code, ErrorCode::NoGpu);
        assert_eq!((check(&sets[1..]), check(&sets[..1])), (Ok(()), Ok(())));
    }

    #[test]
    fn the_fused_kernels_are_refused_on_the_cpu_and_on_a_gpu_that_cannot_run_them() {
        let check = |fused: &str, device| {
            let recipe = crate::tests::support::recipe([1, 1, 1], &[&format!("train.fused={fused}")]);
            check_fused(&recipe, device).map_err(|failure| failure.code)
        };
        assert_eq!(check("kernel", Device::Cpu), Err(ErrorCode::NoGpu));
        // No machine has GPU 99.
        assert_eq!(check("kernel", Device::Cuda(99)), Err(ErrorCode::NoGpu));
        assert_eq!([Device::Cpu, Device::Cuda(99)].map(|device| check("operators", device)), [Ok(()); 2]);
    }

    #[test]
    fn a_build_without_cuda_no_gpu_and_too_few_gpus_are_different_errors() {
        let gpus = |built, count| Gpus { built, count, shared: false };
        let code = |built, count| place(Wanted::Cuda, gpus(built, count), 0, 2).unwrap_err().code;
        assert_eq!(code(false, 0), ErrorCode::TrainerUnusable);
        assert_eq!(code(true, 0), ErrorCode::NoGpu);
        assert_eq!(code(true, 1), ErrorCode::TooFewRanks);
        assert!(place(Wanted::Auto, gpus(true, 1), 0, 2).is_err());
    }
}
