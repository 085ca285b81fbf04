//! A reduction as one call of MPI, or as several for a piece each.

use std::ffi::c_void;

use crate::memory::{Access, Memory};
use crate::mpi::{Abi, SendBuffer};
use crate::ops::call::Call;
use crate::ops::call::counts::Count;
use crate::ops::call::operator::Operator;
use crate::ops::call::pieces::pieces;

/// The `count` elements of both arrays that one call of MPI reduces.
pub struct ReductionPiece<A: Abi> {
    pub send: *const c_void,
    pub recv: *mut c_void,
    pub count: Count,
    pub datatype: A::Datatype,
    pub access: Access,
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// Whether one call of MPI reduces so many elements.
    pub fn reduces(&self, count: i64, op: &Operator<A>) -> bool {
        // An operator that is not MPI's own is told the length as an int.
        count <= self.counting.limit || op.is_predefined && self.counting.takes(count)
    }

    /// The pieces of a reduction of `send` into `recv`, one for each call of MPI: all of it, or several where
    /// the communicator says so, or MPI can't count so far. Null and `MPI_IN_PLACE` are the same
    /// for every piece.
    pub fn reduction_pieces<'b>(
        &self,
        send: SendBuffer<'b>,
        recv: *mut c_void,
        op: &Operator<A>,
    ) -> impl Iterator<Item = ReductionPiece<A>> + use<'b, A, M> {
        let size = send.datatype().size;
        let mut length = self.piece_length(send.datatype());
        if !self.reduces(send.count().min(length), op) {
            length = self.counting.limit;
        }
        pieces(send.count(), length).map(move |elements| {
            let access = Access::both(&elements, length, size);
            ReductionPiece {
                send: forward::<A>(send.address::<A>().cast_mut(), access.read.start).cast_const(),
                recv: forward::<A>(recv, access.read.start),
                count: Count(elements.end - elements.start),
                datatype: send.datatype().handle::<A>(),
                access,
            }
        })
    }
}

/// The address that is `bytes` further on, unless it is null or `MPI_IN_PLACE`.
fn forward<A: Abi>(address: *mut c_void, bytes: usize) -> *mut c_void {
    if address.is_null() || address as usize == A::constants().in_place {
        return address;
    }
    address.wrapping_byte_add(bytes)
}
