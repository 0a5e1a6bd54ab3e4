//! Exchanges small values between all ranks.

use crate::torch_failure::failed;
use c10d::Group;
use rundir::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

/// The maximum size of a value in [`all_gather_small`], in bytes of JSON.
const SMALL: usize = 512;

/// Returns the values of all ranks, in rank order. A collective.
///
/// # Errors
/// A peer was lost.
pub fn all_gather<T: Serialize + DeserializeOwned>(group: &Group, mine: &T) -> c10d::Result<Vec<T>> {
    let bytes = to_json(mine);
    let lens = Tensor::zeros([group.size() as i64], (Kind::Int64, Device::Cpu));
    group.all_gather_into(&lens, &Tensor::from_slice(&[bytes.len() as i64]))?.wait()?;
    gather_padded(group, bytes, lens.max().int64_value(&[]) as usize)
}

/// Gathers as [`all_gather`] does, with one collective instead of two, for values of at most 512 bytes of JSON.
///
/// # Errors
/// A peer was lost.
pub fn all_gather_small<T: Serialize + DeserializeOwned>(group: &Group, mine: &T) -> c10d::Result<Vec<T>> {
    let bytes = to_json(mine);
    assert!(bytes.len() <= SMALL, "{} bytes are not small", bytes.len());
    gather_padded(group, bytes, SMALL)
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("values that ranks exchange have a JSON form")
}

/// Gathers values that are padded to `len` bytes with spaces, which JSON ignores.
fn gather_padded<T: DeserializeOwned>(group: &Group, mut bytes: Vec<u8>, len: usize) -> c10d::Result<Vec<T>> {
    bytes.resize(len, b' ');
    let all = Tensor::zeros([(group.size() * len) as i64], (Kind::Uint8, Device::Cpu));
    group.all_gather_into(&all, &Tensor::from_slice(&bytes))?.wait()?;
    let mut flat = vec![0u8; group.size() * len];
    all.copy_data_u8(&mut flat, group.size() * len);
    let read = |bytes: &[u8]| serde_json::from_slice(bytes).expect("every rank sends the same type");
    Ok(flat.chunks_exact(len).map(read).collect())
}

/// Returns the values of all ranks, or the first failure of any of them. A collective.
///
/// A failure of one rank, such as a full disk, thus becomes the failure of all ranks, and no rank waits for a rank that
/// has ended.
///
/// # Errors
/// The failure of the lowest rank that has one, or the loss of a peer.
pub fn agree<T: Serialize + DeserializeOwned>(group: &Group, mine: Result<T, Failure>) -> Result<Vec<T>, Failure> {
    let all = all_gather(group, &mine).map_err(failed)?;
    all.into_iter().collect()
}

/// Returns this rank's value if every rank has one, otherwise the failure of the lowest rank. A collective.
///
/// # Errors
/// As [`agree`].
pub fn agree_on<T>(group: &Group, mine: Result<T, Failure>) -> Result<T, Failure> {
    let (value, outcome) = match mine {
        Ok(value) => (Some(value), Ok(())),
        Err(failure) => (None, Err(failure)),
    };
    agree(group, outcome)?;
    Ok(value.expect("no rank failed, so this one has a value"))
}

/// Waits until rank 0 has logged that the task is finished. A supervisor whose ranks have ended reads that event, so no rank may end before.
/// A collective.
pub fn finish_together(world: &Group) {
    // The task is complete, so a peer that is lost now changes nothing.
    let _ = agree(world, Ok(()));
}
