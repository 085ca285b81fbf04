//! The parts of an array that go to the ranks, or come from them.

use std::ffi::c_int;

use super::counts::{Count, CountList};
use crate::mpi::buffers::{RecvBuffer, SendBuffer};

/// The rows of an array that each rank has, in rank order and without gaps.
pub struct Layout {
    pub(super) rows: Vec<i64>,
    /// The elements in a row.
    pub(super) row: i64,
}

/// The sum of some counts.
pub fn sum(counts: &[i64]) -> i64 {
    counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

/// A part of an array: `count` elements from `first` on.
#[derive(Clone, Copy)]
pub struct Part {
    /// The first element.
    pub first: i64,
    /// The number of elements.
    pub count: i64,
}

impl Part {
    /// All of an array of `count` elements.
    pub fn whole(count: i64) -> Self {
        Self { first: 0, count }
    }

    /// Nothing, unless this is true.
    pub fn only_if(self, condition: bool) -> Self {
        if condition { self } else { Self::whole(0) }
    }
}

/// A layout as MPI takes it.
pub(super) struct Lists {
    pub counts: CountList,
    pub displacements: CountList,
}

impl Layout {
    /// The layout with these row counts, none of which is negative, by rank.
    pub fn new(rows: Vec<i64>, row: i64) -> Self {
        assert!(row >= 0 && rows.iter().all(|count| *count >= 0));
        Self { rows, row }
    }

    /// The elements of all ranks.
    pub fn total(&self) -> i64 {
        sum(&self.rows).saturating_mul(self.row)
    }

    /// The elements of a rank.
    pub fn count(&self, rank: c_int) -> i64 {
        self.rows[rank as usize].saturating_mul(self.row)
    }

    /// The most rows of a rank, or before one.
    pub(super) fn most_rows(&self) -> i64 {
        let (_, before) = self.rows.split_last().unwrap_or((&0, &[]));
        let last_displacement = sum(before);
        self.rows.iter().fold(last_displacement, |n, m| n.max(*m))
    }

    /// The largest count or displacement.
    pub(super) fn largest(&self) -> Count {
        Count(self.most_rows().saturating_mul(self.row))
    }

    pub(super) fn part(&self, rank: c_int) -> Part {
        let before = &self.rows[..rank as usize];
        Part {
            first: before.iter().sum::<i64>() * self.row,
            count: self.count(rank),
        }
    }

    pub(super) fn lists(&self) -> Lists {
        let mut next = 0i64;
        let displacements = self.rows.iter().map(|rows| {
            let first = next;
            next = next.saturating_add(*rows);
            first.saturating_mul(self.row)
        });
        Lists {
            displacements: CountList::new(displacements),
            counts: CountList::new(self.rows.iter().map(|n| n.saturating_mul(self.row))),
        }
    }

    /// Checks that the layout has a row count for each of `size` ranks.
    pub(super) fn check(&self, size: c_int) {
        assert!(
            self.rows.len() == size as usize,
            "{} counts for {size} ranks",
            self.rows.len()
        );
    }
}

/// Checks that MPI reads no more than there is.
#[track_caller]
pub(super) fn check_sent(send: &SendBuffer, count: i64) {
    assert!(
        send.count() >= count,
        "{count} elements of {} are sent",
        send.count()
    );
}

/// Checks that MPI writes no more elements of a type than there is room for.
#[track_caller]
#[inline(always)]
pub(super) fn check_room(recv: &RecvBuffer, count: i64, size: usize) {
    let room = recv.count() as usize * recv.datatype().size;
    let bytes = (count as usize).saturating_mul(size);
    if count < 0 || bytes > room {
        no_room(bytes, room);
    }
}

#[cold]
#[track_caller]
fn no_room(bytes: usize, room: usize) -> ! {
    panic!("{bytes} bytes are received, with room for {room}")
}
