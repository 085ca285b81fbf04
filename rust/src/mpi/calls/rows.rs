//! Collective functions with as many rows for each rank as the caller says (MPI-4.1 §6.5 to §6.8).
//!
//! Where MPI can't count the elements, most of these become an `MPI_Alltoallw`. All ranks have to
//! call the same function (MPI-4.1 §6.1), so that has to follow from what all of them know: the
//! counts, and the length of a row. In `alltoallv` a rank knows its own counts only. It stays
//! `MPI_Alltoallv`, with a larger data type where needed: ranks may count in different ones, as
//! long as the elements in them are the same (MPI-4.1 §6.8), and in ints or not, as both forms are
//! bindings of one procedure (MPI-4.1 §19.2).

use std::ffi::{c_int, c_void};

use super::caller::{CallWrapper, Caller, Mpi, check_root, recv_address, send_address};
use super::counts::{Count, Form, Pass, invoke_collective};
use super::derived::TypedCount;
use super::layout::{Layout, Part, check_room, check_sent};
use super::outcome::CallError;
use crate::error::{self, Error};
use crate::mpi::abi::Abi;
use crate::mpi::buffers::{RecvBuffer, SendBuffer};
use crate::mpi::registry::SizedDatatype;

/// An array as `MPI_Alltoallw` takes it: one element of a data type for each rank, or none.
struct PerRankTypes<A: Abi> {
    counts: Vec<c_int>,
    types: Vec<A::Datatype>,
    _owners: Vec<TypedCount<A>>,
}

impl<A: Abi> PerRankTypes<A> {
    fn new(
        mpi: &Mpi<A>,
        datatype: SizedDatatype,
        part_of: impl Fn(c_int) -> Part,
    ) -> Result<Self, CallError> {
        let of_rank = |rank| match part_of(rank) {
            Part { count: 0, .. } => mpi.typed(0, datatype),
            Part { first, count } => TypedCount::at(&mpi.counting, first, count, datatype),
        };
        let owners = (0..mpi.size).map(of_rank);
        let owners = owners.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            counts: owners.iter().map(|typed| typed.count.0 as c_int).collect(),
            types: owners.iter().map(|typed| typed.datatype).collect(),
            _owners: owners,
        })
    }
}

/// The greatest common divisor.
fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl<A: Abi> Mpi<A> {
    /// The layout as `MPI_Alltoallv` can count it, and how many elements it counts as one: where
    /// there are too many, as many rows as all ranks have multiples of.
    fn in_units(&self, layout: Layout) -> error::Result<(Layout, i64)> {
        if self.counting.takes(layout.largest().0) {
            return Ok((layout, 1));
        }
        let rows = layout.rows.iter().fold(0, |rows, count| gcd(rows, *count));
        let multiples = layout.rows.iter().map(|count| count / rows).collect();
        let (most, unit) = (layout.most_rows(), rows * layout.row);
        let layout = Layout::new(multiples, 1);
        if self.counting.takes(layout.largest().0) {
            return Ok((layout, unit));
        }
        Err(Error::invalid(format!(
            "{most} rows are more than this MPI takes in one call: {} times {rows}, the greatest \
             common divisor of all counts",
            self.counting.limit,
        )))
    }

    /// The data type of a unit of `unit` elements.
    fn unit(&self, unit: i64, datatype: SizedDatatype) -> Result<TypedCount<A>, CallError> {
        match unit {
            1 => self.typed(1, datatype),
            _ => TypedCount::at(&self.counting, 0, unit, datatype),
        }
    }
}

impl<A: Abi, W: CallWrapper> Caller<'_, A, W> {
    /// Calls `MPI_Alltoallw` in place of a function that can't count the elements, and that is a special case
    /// of it (MPI-4.1 §6.8): the part of each rank has a data type of its own, which contains its place. All
    /// ranks must do this, or none.
    #[cold]
    fn alltoallw(
        self,
        [function, nonblocking]: [&'static str; 2],
        datatype: SizedDatatype,
        (send, sent): (*const c_void, impl Fn(c_int) -> Part),
        (recv, received): (*mut c_void, impl Fn(c_int) -> Part),
    ) -> Result<(), W::Error> {
        if self.owner.is_some() {
            let limit = self.mpi.counting.limit;
            return self.refuse(
                nonblocking,
                Error::invalid(format!(
                    "{nonblocking} of more than {limit} elements is more than this MPI counts in \
                     one call"
                )),
            );
        }
        self.blocking(function, |mpi| {
            let sent = PerRankTypes::new(mpi, datatype, sent)?;
            let received = PerRankTypes::new(mpi, datatype, received)?;
            let displacements = vec![0; sent.counts.len()];
            // SAFETY: the lists have a member for each rank, and no type goes beyond its array.
            Ok(unsafe {
                (mpi.functions.alltoallw)(
                    send,
                    sent.counts.as_ptr(),
                    displacements.as_ptr(),
                    sent.types.as_ptr(),
                    recv,
                    received.counts.as_ptr(),
                    displacements.as_ptr(),
                    received.types.as_ptr(),
                    mpi.comm,
                )
            })
        })
    }

    /// MPI-4.1 §6.7.
    pub fn allgatherv(
        self,
        send: SendBuffer,
        recv: RecvBuffer,
        layout: &Layout,
    ) -> Result<(), W::Error> {
        layout.check(self.mpi.size);
        let datatype = send.datatype();
        let (sent, largest) = (layout.count(self.mpi.rank), layout.largest());
        check_sent(&send, sent);
        check_room(&recv, layout.total(), datatype.size);
        let functions = ["MPI_Allgatherv", "MPI_Iallgatherv"];
        let (send, recv) = (send.address::<A>(), recv.address());
        if !self.mpi.counting.takes(largest.0) {
            let sent = (send, |_| Part::whole(sent));
            let received = (recv, |rank| layout.part(rank));
            return self.alltoallw(functions, datatype, sent, received);
        }
        let (sent, datatype) = (Count(sent), datatype.handle::<A>());
        self.collective(functions, layout.lists(), |mpi, request, lists| {
            let form = mpi.collective_form(largest, request);
            let (counts, starts) = (&lists.counts, &lists.displacements);
            // SAFETY: `send` has this rank's rows, and `recv` has room for those of all ranks.
            Ok(unsafe {
                invoke_collective!(form.allgatherv(
                    send, sent, datatype, recv, counts, starts, datatype, mpi.comm,
                ))
            })
        })
    }

    /// MPI-4.1 §6.8.
    pub fn alltoallv(
        self,
        (send, sent): (SendBuffer, Layout),
        (recv, received): (RecvBuffer, Layout),
    ) -> Result<(), W::Error> {
        sent.check(self.mpi.size);
        received.check(self.mpi.size);
        check_sent(&send, sent.total());
        check_room(&recv, received.total(), send.datatype().size);
        let units = [sent, received].map(|layout| self.mpi.in_units(layout));
        let ((sent, send_unit), (received, recv_unit)) = match units {
            [Ok(sent), Ok(received)] => (sent, received),
            [Err(error), _] | [_, Err(error)] => return self.refuse("MPI_Alltoallv", error),
        };
        let largest = sent.largest().max(received.largest());
        let lists = (sent.lists(), received.lists());
        let functions = ["MPI_Alltoallv", "MPI_Ialltoallv"];
        self.collective(functions, lists, |mpi, request, (sent, received)| {
            let send_unit = mpi.unit(send_unit, send.datatype())?;
            let recv_unit = mpi.unit(recv_unit, recv.datatype())?;
            let form = mpi.collective_form(largest, request);
            // SAFETY: both arrays have the rows of all ranks.
            Ok(unsafe {
                invoke_collective!(form.alltoallv(
                    send.address::<A>(),
                    &sent.counts,
                    &sent.displacements,
                    send_unit.datatype,
                    recv.address(),
                    &received.counts,
                    &received.displacements,
                    recv_unit.datatype,
                    mpi.comm,
                ))
            })
        })
    }

    /// MPI-4.1 §6.5. Root has the result.
    pub fn gatherv(
        self,
        send: SendBuffer,
        recv: Option<RecvBuffer>,
        layout: &Layout,
        root: c_int,
    ) -> Result<(), W::Error> {
        layout.check(self.mpi.size);
        let is_root = self.mpi.rank == root;
        check_root(is_root, recv.is_some());
        if let Some(recv) = &recv {
            check_room(recv, layout.total(), send.datatype().size);
        }
        let (count, datatype, largest) = (send.count(), send.datatype(), layout.largest());
        assert!(
            count == layout.count(self.mpi.rank),
            "the rows of this rank"
        );
        let functions = ["MPI_Gatherv", "MPI_Igatherv"];
        let (send, recv) = (send.address::<A>(), recv_address(recv.as_ref()));
        if !self.mpi.counting.takes(largest.0) {
            let sent = (send, |rank| Part::whole(count).only_if(rank == root));
            let received = (recv, |rank| layout.part(rank).only_if(is_root));
            return self.alltoallw(functions, datatype, sent, received);
        }
        let (count, datatype) = (Count(count), datatype.handle::<A>());
        self.collective(functions, layout.lists(), |mpi, request, lists| {
            let form = mpi.collective_form(largest, request);
            let (counts, starts) = (&lists.counts, &lists.displacements);
            // SAFETY: `send` has this rank's rows, and on root `recv` has those of all ranks.
            Ok(unsafe {
                invoke_collective!(form.gatherv(
                    send, count, datatype, recv, counts, starts, datatype, root, mpi.comm,
                ))
            })
        })
    }

    /// MPI-4.1 §6.6. Root has the operand.
    pub fn scatterv(
        self,
        send: Option<SendBuffer>,
        recv: RecvBuffer,
        layout: &Layout,
        root: c_int,
    ) -> Result<(), W::Error> {
        layout.check(self.mpi.size);
        let is_root = self.mpi.rank == root;
        check_root(is_root, send.is_some());
        if let Some(send) = &send {
            check_sent(send, layout.total());
        }
        let (count, datatype, largest) = (recv.count(), recv.datatype(), layout.largest());
        let functions = ["MPI_Scatterv", "MPI_Iscatterv"];
        let (send, recv) = (send_address::<A>(send.as_ref()), recv.address());
        if !self.mpi.counting.takes(largest.0) {
            let sent = (send, |rank| layout.part(rank).only_if(is_root));
            let received = (recv, |rank| Part::whole(count).only_if(rank == root));
            return self.alltoallw(functions, datatype, sent, received);
        }
        let (count, datatype) = (Count(count), datatype.handle::<A>());
        self.collective(functions, layout.lists(), |mpi, request, lists| {
            let form = mpi.collective_form(largest, request);
            let (counts, starts) = (&lists.counts, &lists.displacements);
            // SAFETY: `recv` has this rank's rows, and on root `send` has those of all ranks.
            Ok(unsafe {
                invoke_collective!(form.scatterv(
                    send, counts, starts, datatype, recv, count, datatype, root, mpi.comm,
                ))
            })
        })
    }
}
