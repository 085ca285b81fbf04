//! Groups (MPI-3.1 §6.3). One has the process, or nobody.

use std::ffi::c_int;

use super::errors::{ARG, Error, RANK, Result};
use super::handles::{GROUP_NULL, UNDEFINED, state};
use super::memory::{In, Out};
use super::messages::PROC_NULL;

const EMPTY: c_int = 0x4800_0000;
const IDENT: c_int = 0;
const UNEQUAL: c_int = 3;

/// The group that every program has, which has nobody.
pub fn predefined() -> [(c_int, bool); 1] {
    [(EMPTY, false)]
}

/// Whether the group has the process.
fn has(group: c_int) -> Result<bool> {
    state().groups.get(group).copied()
}

fn put(new: Out<c_int>, has: bool) -> Result<()> {
    new.put(if has { state().groups.add(true) } else { EMPTY })
}

/// Whether ranks of a group are given: each once.
fn check(group: c_int, ranks: &[c_int]) -> Result<bool> {
    let size = c_int::from(has(group)?);
    if let Some(rank) = ranks.iter().find(|rank| !(0..size).contains(*rank)) {
        let expected = format!("a rank of a group of {size}");
        return Err(Error::got(RANK, rank, "a rank", &expected));
    }
    if ranks.len() > 1 {
        return Err(Error::new(RANK, "got rank 0 twice"));
    }
    Ok(!ranks.is_empty())
}

/// The ranks of ranges of a first rank, a last rank and a stride. There is only rank 0.
fn ranges(group: c_int, count: c_int, ranges: In<[c_int; 3]>) -> Result<Vec<c_int>> {
    let size = c_int::from(has(group)?);
    let mut ranks = Vec::new();
    for [first, last, stride] in ranges.all(count)? {
        let outside = [first, last]
            .into_iter()
            .find(|rank| !(0..size).contains(rank));
        if let Some(rank) = outside {
            let expected = format!("a rank of a group of {size}");
            return Err(Error::got(RANK, rank, "a rank of a range", &expected));
        }
        if stride == 0 {
            return Err(Error::got(
                ARG,
                stride,
                "the stride of a range",
                "another number",
            ));
        }
        ranks.push(first);
    }
    Ok(ranks)
}

mpi! {
    MPI_Group_size(group: c_int, size: Out<c_int>) => size.put(has(group)?.into());
    MPI_Group_rank(group: c_int, rank: Out<c_int>) => {
        rank.put(if has(group)? { 0 } else { UNDEFINED })
    };
    MPI_Group_translate_ranks(
        from: c_int, count: c_int, ranks: In<c_int>, to: c_int, translated: Out<c_int>,
    ) => {
        let there = if has(to)? { 0 } else { UNDEFINED };
        for (index, rank) in ranks.all(count)?.into_iter().enumerate() {
            if rank == PROC_NULL {
                translated.put_at(index, PROC_NULL)?;
                continue;
            }
            check(from, &[rank])?;
            translated.put_at(index, there)?;
        }
        Ok(())
    };
    MPI_Group_compare(first: c_int, second: c_int, result: Out<c_int>) => {
        result.put(if has(first)? == has(second)? { IDENT } else { UNEQUAL })
    };
    MPI_Group_union(first: c_int, second: c_int, new: Out<c_int>) => {
        put(new, has(first)? | has(second)?)
    };
    MPI_Group_intersection(first: c_int, second: c_int, new: Out<c_int>) => {
        put(new, has(first)? & has(second)?)
    };
    MPI_Group_difference(first: c_int, second: c_int, new: Out<c_int>) => {
        put(new, has(first)? & !has(second)?)
    };
    MPI_Group_incl(group: c_int, count: c_int, ranks: In<c_int>, new: Out<c_int>) => {
        put(new, check(group, &ranks.all(count)?)?)
    };
    MPI_Group_excl(group: c_int, count: c_int, ranks: In<c_int>, new: Out<c_int>) => {
        put(new, !check(group, &ranks.all(count)?)? & has(group)?)
    };
    MPI_Group_range_incl(group: c_int, count: c_int, triplets: In<[c_int; 3]>, new: Out<c_int>) => {
        put(new, check(group, &ranges(group, count, triplets)?)?)
    };
    MPI_Group_range_excl(group: c_int, count: c_int, triplets: In<[c_int; 3]>, new: Out<c_int>) => {
        put(new, !check(group, &ranges(group, count, triplets)?)? & has(group)?)
    };
    MPI_Group_free(group: Out<c_int>) => {
        let handle = group.get()?;
        let mut state = state();
        state.groups.get(handle)?;
        if handle != EMPTY {
            state.groups.remove(handle)?;
        }
        group.put(GROUP_NULL)
    };
}
