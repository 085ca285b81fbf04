//! Whether values that all ranks share are the same on all of them (`MPI4JAX_CHECK`).

use crate::error::{Error, Result};
use crate::memory::{Access, Memory};
use crate::mpi::{Abi, RecvBuffer, SendBuffer};
use crate::ops::call::Call;
use crate::ops::call::log_text::items;
use crate::ops::check::{number_type, world_rank};

/// Number of fingerprints of each leaf.
const FINGERPRINTS: usize = 2;

/// Compares the fingerprints of a tree's leaves over all ranks. The operand has those of each leaf in its
/// last axis, and the leaves in the axis before. In the attribute `names`, a zero ends the name of each.
pub fn shared<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let own = call.counts(&operand)?;
    let names = call.ints("names")?;
    let names: Vec<_> = names.split_inclusive(|byte| *byte == 0).collect();
    if own.is_empty() || own.len() % (FINGERPRINTS * names.len().max(1)) != 0 {
        return Err(Error::invalid(format!(
            "{} fingerprints of {} leaves",
            own.len(),
            names.len()
        )));
    }
    let size = call.communicator.size as usize;
    let mut all = vec![0i64; own.len() * size];
    let int64 = number_type()?;
    let send = SendBuffer::of(&own[..], int64);
    let recv = RecvBuffer::of(&mut all[..], int64);
    call.blocking(&Access::WHOLE, || items(send.count()))
        .allgather(send, recv)?;
    let Some(record) = call.recording.record() else {
        return Ok(());
    };
    // All ranks know all of it, and come to the same.
    let differing = first_difference(&all, own.len(), names.len());
    let Some((leaf, rank)) = differing else {
        return Ok(());
    };
    let name: Vec<u8> = names[leaf].iter().map(|byte| *byte as u8).collect();
    let name = String::from_utf8_lossy(&name);
    let (first, other) = (world_rank(&record, 0), world_rank(&record, rank as i32));
    let finding = format!(
        "`{}` of rank {other} is not that of rank {first}, expected the same to the last bit.",
        name.trim_end_matches('\0')
    );
    call.refuse_value(&record, finding)
}

/// The first leaf that differs between ranks, and the first rank where it differs from rank 0's.
fn first_difference(all: &[i64], length: usize, leaves: usize) -> Option<(usize, usize)> {
    let (own, others) = all.split_at(length);
    // Before the leaves, there may be an axis of a batch.
    let leaf_of = |index: usize| index / FINGERPRINTS % leaves;
    let ranks = others.chunks_exact(length).zip(1..);
    let differences = ranks.flat_map(|(values, rank)| {
        let pairs = own.iter().zip(values).enumerate();
        let differing = pairs.filter(|(_, (own, value))| own != value);
        differing.map(move |(index, _)| (leaf_of(index), rank))
    });
    differences.min()
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn the_first_leaf_and_the_first_rank() {
        // Three ranks, two leaves.
        assert_eq!(
            first_difference(&[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4], 4, 2),
            None
        );
        assert_eq!(
            first_difference(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 5], 4, 2),
            Some((1, 1))
        );
        assert_eq!(
            first_difference(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 0, 3, 4], 4, 2),
            Some((0, 2))
        );
        // A batch of two members with one leaf.
        assert_eq!(
            first_difference(&[1, 2, 3, 4, 1, 2, 0, 4], 4, 1),
            Some((0, 1))
        );
    }
}
