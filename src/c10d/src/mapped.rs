//! CPU tensors in memory-mapped files. Their pages can leave the memory of the process while the tensors are not used.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use crate::ffi::{self, check};
use crate::{Error, Result};

/// A tensor in a memory-mapped file that has no name. The operating system deletes the file when the tensor is freed or the process ends.
#[derive(Debug)]
pub struct Mapped(Tensor);

// SAFETY: libtorch allows tensors to be used from any thread. The methods of `Mapped` only read the tensor's metadata or release its
// pages; only `tensor` returns it, as a clone that shares its storage. Callers synchronize access to the storage of clones.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Makes a tensor of zeros in a file in `folder`. The call reserves the space on disk.
    ///
    /// # Errors
    /// The folder does not exist or is not writable, or its disk has too little space.
    pub fn zeros(folder: &Path, size: &[i64], kind: Kind) -> Result<Self> {
        let doing = || format!("keep a tensor of {size:?} in a file in {}", folder.display());
        let path = CString::new(folder.as_os_str().as_bytes())
            .map_err(|_| Error::argument(doing(), "the path contains a zero byte"))?;
        let like = Tensor::empty([0], (kind, Device::Cpu));
        let mut out = std::ptr::null_mut();
        // SAFETY: path, dtype and size outlive the call, and `out` is where the shim writes a new tensor on success.
        let status =
            unsafe { ffi::vidtui_mapped_zeros(path.as_ptr(), size.as_ptr(), size.len(), like.as_ptr(), &mut out) };
        check(status, doing).map_err(Error::of_file)?;
        // SAFETY: the call above created the tensor and transfers ownership to us.
        Ok(Mapped(unsafe { Tensor::from_ptr(out) }))
    }

    /// Returns the tensor, which shares the file.
    pub fn tensor(&self) -> Tensor {
        self.0.shallow_clone()
    }

    /// Returns whether the first element of `view` is in the memory of this tensor.
    pub fn contains(&self, view: &Tensor) -> bool {
        let begin = self.0.data_ptr() as usize;
        let len = self.0.numel() * self.0.kind().elt_size_in_bytes();
        view.device() == Device::Cpu && (begin..begin + len).contains(&(view.data_ptr() as usize))
    }

    /// Removes the pages of the tensor from the memory of the process. The next use reads them from the page cache or the disk.
    ///
    /// # Errors
    /// The operating system fails to release the pages.
    pub fn release(&self) -> Result<()> {
        let doing = || "release the pages of a mapped file".to_owned();
        // SAFETY: `zeros` made the tensor, so its storage is a shared mapping, whose content the file keeps.
        check(unsafe { ffi::vidtui_mapped_release(self.0.as_ptr()) }, doing).map_err(Error::of_file)
    }
}

/// Copies one contiguous CPU tensor to another of the same length, in the calling thread alone. Dtypes may differ.
///
/// # Errors
/// The lengths differ, or a tensor is not contiguous or not on the CPU.
pub fn copy_in_thread(to: &Tensor, from: &Tensor) -> Result<()> {
    let doing = || format!("copy {:?} to {:?}", from.size(), to.size());
    // SAFETY: both tensors outlive the call; the shim checks that they are contiguous and of one length.
    check(unsafe { ffi::vidtui_copy_in_thread(to.as_ptr(), from.as_ptr()) }, doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the resident memory of this process, in MiB.
    fn resident_mib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() / 1024
    }

    #[test]
    fn released_pages_leave_the_process_and_keep_their_values() {
        let folder = tempfile::tempdir().unwrap();
        let mapped = Mapped::zeros(folder.path(), &[64 << 20], Kind::Float).unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the file has no name");
        let before = resident_mib();
        let _ = mapped.tensor().fill_(3.0);
        let filled = resident_mib();
        assert!(filled >= before + 250, "{before} {filled}");
        mapped.release().unwrap();
        assert!(resident_mib() + 250 <= filled);
        let sum = mapped.tensor().narrow(0, (64 << 20) - 1000, 1000).sum(Kind::Double);
        assert_eq!(sum.double_value(&[]), 3000.0);
    }

    #[test]
    fn a_copy_in_one_thread_casts_and_refuses_other_lengths() {
        let from = Tensor::arange(40_000, (Kind::Float, Device::Cpu)) / 7.0;
        for kind in [Kind::Float, Kind::BFloat16] {
            let to = Tensor::zeros([40_000], (kind, Device::Cpu));
            copy_in_thread(&to, &from).unwrap();
            assert!(to.equal(&from.to_kind(kind)), "{kind:?}");
        }
        assert!(copy_in_thread(&from, &Tensor::zeros([3], (Kind::Float, Device::Cpu))).is_err());
    }

    #[test]
    fn a_folder_that_does_not_exist_is_refused() {
        let error = Mapped::zeros(Path::new("/no/such/folder"), &[4], Kind::Float).unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{error}");
    }
}
