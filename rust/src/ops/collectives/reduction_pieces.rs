//! A reduction as one call of MPI, or as several for a piece each.

use crate::memory::{Access, Memory};
use crate::mpi::calls::Operator;
use crate::mpi::{Abi, RecvBuffer, SendBuffer};
use crate::ops::call::Call;
use crate::ops::call::pieces::pieces;

/// The elements of both arrays that one call of MPI reduces.
pub struct ReductionPiece<'b> {
    pub send: SendBuffer<'b>,
    /// None where MPI does not look at it.
    pub recv: Option<RecvBuffer<'b>>,
    pub access: Access,
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// The pieces of a reduction of `send` into `recv`, one for each call of MPI: all of it, or several
    /// where the communicator says so, or MPI can't count so far.
    pub fn reduction_pieces<'b>(
        &self,
        send: SendBuffer<'b>,
        mut recv: Option<RecvBuffer<'b>>,
        op: &Operator<A>,
    ) -> impl Iterator<Item = ReductionPiece<'b>> + use<'b, A, M> {
        let mut length = self.piece_length(send.datatype());
        if !self.mpi.reduces(send.count().min(length), op) {
            length = self.mpi.count_limit();
        }
        pieces(send.count(), length).map(move |elements| {
            let count = elements.end - elements.start;
            ReductionPiece {
                send: send.part(elements.start, count),
                recv: recv.as_mut().map(|recv| recv.take_front(count)),
                access: Access::both(&elements, length, send.datatype().size),
            }
        })
    }
}
