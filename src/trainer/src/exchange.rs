//! Small values that every rank tells every other.

use c10d::Group;
use rundir::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

/// Gives every rank the values of all ranks, in rank order. A collective: every rank must call it.
///
/// # Errors
/// When a peer is gone.
pub fn all_gather<T: Serialize + DeserializeOwned>(group: &Group, mine: &T) -> c10d::Result<Vec<T>> {
    let bytes = serde_json::to_vec(mine).expect("what ranks tell each other has a JSON form");
    let options = (Kind::Int64, Device::Cpu);
    let lens = Tensor::zeros([group.size() as i64], options);
    group.all_gather_into(&lens, &Tensor::from_slice(&[bytes.len() as i64]))?.wait()?;
    let longest = lens.max().int64_value(&[]);
    let mut padded = bytes;
    padded.resize(longest as usize, 0);
    let all = Tensor::zeros([group.size() as i64 * longest], (Kind::Uint8, Device::Cpu));
    group.all_gather_into(&all, &Tensor::from_slice(&padded))?.wait()?;
    let mut flat = vec![0u8; group.size() * longest as usize];
    let len = flat.len();
    all.copy_data_u8(&mut flat, len);
    Ok((0..group.size())
        .map(|rank| {
            let start = rank * longest as usize;
            let len = lens.int64_value(&[rank as i64]) as usize;
            serde_json::from_slice(&flat[start..start + len]).expect("every rank sends the same type")
        })
        .collect())
}

/// Gives every rank the values of all ranks, or the first failure of any of them. A collective.
///
/// So one rank's full disk is everybody's failed save, and nobody waits for a rank that has given up.
///
/// # Errors
/// The failure of the lowest rank that has one, or the loss of a peer.
pub fn agree<T: Serialize + DeserializeOwned>(group: &Group, mine: Result<T, Failure>) -> Result<Vec<T>, Failure> {
    let all = all_gather(group, &mine).map_err(crate::rank::peer_lost)?;
    all.into_iter().collect()
}

/// This rank's value when every rank has one, else the first failure of any. A collective.
///
/// # Errors
/// As [`agree`].
pub fn agree_on<T>(group: &Group, mine: Result<T, Failure>) -> Result<T, Failure> {
    let (value, told) = match mine {
        Ok(value) => (Some(value), Ok(())),
        Err(failure) => (None, Err(failure)),
    };
    agree(group, told)?;
    Ok(value.expect("all ranks agreed, so this one has a value"))
}
