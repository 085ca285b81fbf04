//! Collective functions with blocks of one size (MPI-4.1 §6.3 to §6.11).

use std::ffi::c_int;

use super::caller::{CallWrapper, Caller, Operator, check_root, recv_address, send_address};
use super::counts::{Count, CountList, Form, Pass, invoke_collective};
use super::layout::{check_room, check_sent, sum};
use crate::mpi::abi::Abi;
use crate::mpi::buffers::{RecvBuffer, SendBuffer};

/// The array of a broadcast, which only ranks other than root write.
pub enum BcastBuffer<'b> {
    /// The array on root.
    Send(SendBuffer<'b>),
    /// Room for it, or itself.
    Recv(RecvBuffer<'b>),
}

/// Declares a reduction with an operand and a result on every rank, as MPI declares them alike.
macro_rules! reduction {
    ($(#[$doc:meta])* $name:ident = $functions:expr) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(self, send: SendBuffer, recv: RecvBuffer, op: &Operator<A>) -> Result<(), W::Error> {
            check_room(&recv, send.count(), send.datatype().size);
            let count = Count(send.count());
            let datatype = send.datatype().handle::<A>();
            self.collective($functions, (), |mpi, request, ()| {
                let form = mpi.collective_form(count, request);
                // SAFETY: both arrays have that many elements, or are one and `send` is IN_PLACE.
                Ok(unsafe {
                    invoke_collective!(form.$name(
                        send.address::<A>(), recv.address(), count, datatype, op.handle, mpi.comm,
                    ))
                })
            })
        }
    };
}

impl<A: Abi, W: CallWrapper> Caller<'_, A, W> {
    reduction!(
        /// MPI-4.1 §6.9.6.
        allreduce = ["MPI_Allreduce", "MPI_Iallreduce"]
    );
    reduction!(
        /// MPI-4.1 §6.11.2.
        exscan = ["MPI_Exscan", "MPI_Iexscan"]
    );
    reduction!(
        /// MPI-4.1 §6.11.1.
        scan = ["MPI_Scan", "MPI_Iscan"]
    );

    /// MPI-4.1 §6.9.1. Root has the result.
    pub fn reduce(
        self,
        send: SendBuffer,
        recv: Option<RecvBuffer>,
        op: &Operator<A>,
        root: c_int,
    ) -> Result<(), W::Error> {
        check_root(self.mpi.rank == root, recv.is_some());
        if let Some(recv) = &recv {
            check_room(recv, send.count(), send.datatype().size);
        }
        let (count, datatype) = (Count(send.count()), send.datatype().handle::<A>());
        self.collective(["MPI_Reduce", "MPI_Ireduce"], (), |mpi, request, ()| {
            let form = mpi.collective_form(count, request);
            let (send, recv) = (send.address::<A>(), recv_address(recv.as_ref()));
            // SAFETY: both arrays have that many elements, or are one and `send` is IN_PLACE.
            Ok(unsafe {
                invoke_collective!(
                    form.reduce(send, recv, count, datatype, op.handle, root, mpi.comm)
                )
            })
        })
    }

    /// MPI-4.1 §6.10.1.
    pub fn reduce_scatter_block(
        self,
        send: SendBuffer,
        recv: RecvBuffer,
        op: &Operator<A>,
    ) -> Result<(), W::Error> {
        check_sent(&send, recv.count().saturating_mul(self.mpi.size.into()));
        let (count, datatype) = (Count(recv.count()), recv.datatype().handle::<A>());
        let functions = ["MPI_Reduce_scatter_block", "MPI_Ireduce_scatter_block"];
        self.collective(functions, (), |mpi, request, ()| {
            let form = mpi.collective_form(count, request);
            let (send, recv) = (send.address::<A>(), recv.address());
            // SAFETY: `send` has `count` elements for every rank, and `recv` for this one.
            Ok(unsafe {
                invoke_collective!(
                    form.reduce_scatter_block(send, recv, count, datatype, op.handle, mpi.comm)
                )
            })
        })
    }

    /// MPI-4.1 §6.10.2, with `counts` of elements, one for each rank. MPI may count all elements at once.
    pub fn reduce_scatter(
        self,
        send: SendBuffer,
        recv: RecvBuffer,
        counts: Vec<i64>,
        op: &Operator<A>,
    ) -> Result<(), W::Error> {
        let all = sum(&counts);
        check_sent(&send, all);
        let own = counts[self.mpi.rank as usize];
        check_room(&recv, own, recv.datatype().size);
        assert!(counts.len() == self.mpi.size as usize && counts.iter().all(|n| *n >= 0));
        let datatype = recv.datatype().handle::<A>();
        let functions = ["MPI_Reduce_scatter", "MPI_Ireduce_scatter"];
        let counts = CountList::new(counts.into_iter());
        self.collective(functions, counts, |mpi, request, counts| {
            let form = mpi.collective_form(Count(all), request);
            let (send, recv) = (send.address::<A>(), recv.address());
            // SAFETY: `send` has the elements of all ranks, and `recv` those of this one.
            Ok(unsafe {
                invoke_collective!(
                    form.reduce_scatter(send, recv, counts, datatype, op.handle, mpi.comm)
                )
            })
        })
    }

    /// MPI-4.1 §6.7.
    pub fn allgather(self, send: SendBuffer, recv: RecvBuffer) -> Result<(), W::Error> {
        let all = send.count().saturating_mul(self.mpi.size.into());
        check_room(&recv, all, send.datatype().size);
        let functions = ["MPI_Allgather", "MPI_Iallgather"];
        self.collective(functions, (), |mpi, request, ()| {
            let block = mpi.typed(send.count(), send.datatype())?;
            let form = mpi.collective_form(block.count, request);
            let (send, recv) = (send.address::<A>(), recv.address());
            let (count, datatype) = (block.count, block.datatype);
            // SAFETY: `send` has a block, and `recv` one for every rank.
            Ok(unsafe {
                invoke_collective!(
                    form.allgather(send, count, datatype, recv, count, datatype, mpi.comm)
                )
            })
        })
    }

    /// MPI-4.1 §6.8, with blocks of `count` elements.
    pub fn alltoall(self, send: SendBuffer, recv: RecvBuffer, count: i64) -> Result<(), W::Error> {
        let all = count.saturating_mul(self.mpi.size.into());
        check_sent(&send, all);
        check_room(&recv, all, send.datatype().size);
        let functions = ["MPI_Alltoall", "MPI_Ialltoall"];
        self.collective(functions, (), |mpi, request, ()| {
            let block = mpi.typed(count, send.datatype())?;
            let form = mpi.collective_form(block.count, request);
            let (send, recv) = (send.address::<A>(), recv.address());
            let (count, datatype) = (block.count, block.datatype);
            // SAFETY: both arrays have a block for every rank.
            Ok(unsafe {
                invoke_collective!(
                    form.alltoall(send, count, datatype, recv, count, datatype, mpi.comm)
                )
            })
        })
    }

    /// MPI-4.1 §6.3.
    #[inline(always)]
    pub fn barrier(self) -> Result<(), W::Error> {
        let functions = ["MPI_Barrier", "MPI_Ibarrier"];
        // SAFETY: the communicator is valid.
        self.collective(functions, (), |mpi, request, ()| unsafe {
            Ok(match request {
                None => (mpi.functions.barrier)(mpi.comm),
                Some(request) => (mpi.functions.ibarrier)(mpi.comm, request),
            })
        })
    }

    /// MPI-4.1 §6.4.
    pub fn bcast(self, buffer: BcastBuffer, root: c_int) -> Result<(), W::Error> {
        let (address, count, datatype) = match &buffer {
            BcastBuffer::Recv(recv) => (recv.address(), recv.count(), recv.datatype()),
            BcastBuffer::Send(send) => {
                assert!(self.mpi.rank == root, "only root sends");
                let address = send.address::<A>().cast_mut();
                (address, send.count(), send.datatype())
            }
        };
        self.collective(["MPI_Bcast", "MPI_Ibcast"], (), |mpi, request, ()| {
            let typed = mpi.typed(count, datatype)?;
            let form = mpi.collective_form(typed.count, request);
            let (count, datatype) = (typed.count, typed.datatype);
            // SAFETY: the array has that many elements there, and root's is not written to.
            Ok(unsafe { invoke_collective!(form.bcast(address, count, datatype, root, mpi.comm)) })
        })
    }

    /// MPI-4.1 §6.5. Root has the result.
    pub fn gather(
        self,
        send: SendBuffer,
        recv: Option<RecvBuffer>,
        root: c_int,
    ) -> Result<(), W::Error> {
        check_root(self.mpi.rank == root, recv.is_some());
        if let Some(recv) = &recv {
            let all = send.count().saturating_mul(self.mpi.size.into());
            check_room(recv, all, send.datatype().size);
        }
        self.collective(["MPI_Gather", "MPI_Igather"], (), |mpi, request, ()| {
            let block = mpi.typed(send.count(), send.datatype())?;
            let form = mpi.collective_form(block.count, request);
            let (send, recv) = (send.address::<A>(), recv_address(recv.as_ref()));
            let (count, datatype) = (block.count, block.datatype);
            // SAFETY: `send` has a block, and on root `recv` has one for every rank.
            Ok(unsafe {
                invoke_collective!(
                    form.gather(send, count, datatype, recv, count, datatype, root, mpi.comm)
                )
            })
        })
    }

    /// MPI-4.1 §6.6. Root has the operand.
    pub fn scatter(
        self,
        send: Option<SendBuffer>,
        recv: RecvBuffer,
        root: c_int,
    ) -> Result<(), W::Error> {
        check_root(self.mpi.rank == root, send.is_some());
        if let Some(send) = &send {
            check_sent(send, recv.count().saturating_mul(self.mpi.size.into()));
        }
        self.collective(["MPI_Scatter", "MPI_Iscatter"], (), |mpi, request, ()| {
            let block = mpi.typed(recv.count(), recv.datatype())?;
            let form = mpi.collective_form(block.count, request);
            let (send, recv) = (send_address::<A>(send.as_ref()), recv.address());
            let (count, datatype) = (block.count, block.datatype);
            // SAFETY: `recv` has a block, and on root `send` has one for every rank.
            Ok(unsafe {
                invoke_collective!(
                    form.scatter(send, count, datatype, recv, count, datatype, root, mpi.comm)
                )
            })
        })
    }
}
