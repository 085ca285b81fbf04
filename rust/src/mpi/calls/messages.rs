//! Functions that send and receive messages (MPI-4.1 §3).

use std::ffi::{c_int, c_void};

use super::caller::{CallWrapper, Caller, Mpi};
use super::counts::{Form, Pass, invoke};
use super::derived::TypedCount;
use crate::mpi::abi::Abi;
use crate::mpi::buffers::{RecvBuffer, SendBuffer};
use crate::mpi::registry::Neighbor;
use crate::mpi::requests::OwnedRequest;
use crate::mpi::status::StatusPlace;
use crate::mpi::types::Handle;

impl<A: Abi, W: CallWrapper> Caller<'_, A, W> {
    /// MPI-4.1 §3.2.1.
    pub fn send(self, send: SendBuffer, to: Neighbor) -> Result<(), W::Error> {
        self.blocking("MPI_Send", |mpi| {
            let typed = mpi.typed(send.count(), send.datatype())?;
            let (form, address) = (mpi.form(typed.count), send.address::<A>());
            let (count, datatype) = (typed.count, typed.datatype);
            // SAFETY: the elements are there.
            Ok(unsafe { invoke!(form.send(address, count, datatype, to.rank, to.tag, mpi.comm)) })
        })
    }

    /// MPI-4.1 §3.2.4.
    pub fn recv(
        self,
        recv: RecvBuffer,
        from: Neighbor,
        status: StatusPlace<A>,
    ) -> Result<(), W::Error> {
        self.blocking("MPI_Recv", |mpi| {
            let typed = mpi.typed(recv.count(), recv.datatype())?;
            let (form, address) = (mpi.form(typed.count), recv.address());
            let (count, datatype) = (typed.count, typed.datatype);
            let (source, tag, status) = (from.rank, from.tag, status.address());
            // SAFETY: there is room for that many elements, and for the status.
            Ok(unsafe {
                invoke!(form.recv(address, count, datatype, source, tag, mpi.comm, status))
            })
        })
    }

    /// MPI-4.1 §3.11. The two buffers are disjoint.
    #[inline(always)]
    pub fn sendrecv(
        self,
        (send, to): (SendBuffer, Neighbor),
        (recv, from): (RecvBuffer, Neighbor),
        status: StatusPlace<A>,
    ) -> Result<(), W::Error> {
        self.blocking("MPI_Sendrecv", |mpi| {
            let sent = mpi.typed(send.count(), send.datatype())?;
            let received = mpi.typed(recv.count(), recv.datatype())?;
            let form = mpi.form(sent.count.max(received.count));
            // SAFETY: the elements are there, and there is room for what is received, and for the status.
            Ok(unsafe {
                invoke!(form.sendrecv(
                    send.address::<A>(),
                    sent.count,
                    sent.datatype,
                    to.rank,
                    to.tag,
                    recv.address(),
                    received.count,
                    received.datatype,
                    from.rank,
                    from.tag,
                    mpi.comm,
                    status.address(),
                ))
            })
        })
    }

    /// MPI-4.1 §3.11, with one array that is sent and then replaced.
    pub fn sendrecv_replace(
        self,
        buffer: RecvBuffer,
        to: Neighbor,
        from: Neighbor,
        status: StatusPlace<A>,
    ) -> Result<(), W::Error> {
        self.blocking("MPI_Sendrecv", |mpi| {
            let typed = mpi.typed(buffer.count(), buffer.datatype())?;
            let form = mpi.form(typed.count);
            // SAFETY: the elements are there, and there is room for the status.
            Ok(unsafe {
                invoke!(form.sendrecv_replace(
                    buffer.address(),
                    typed.count,
                    typed.datatype,
                    to.rank,
                    to.tag,
                    from.rank,
                    from.tag,
                    mpi.comm,
                    status.address(),
                ))
            })
        })
    }
}

impl<A: Abi> Mpi<A> {
    /// Begins to receive a message, or gives MPI's error code.
    ///
    /// # Safety
    /// There is room for the elements until the request is done.
    pub unsafe fn irecv(
        &self,
        address: *mut c_void,
        elements: &TypedCount<A>,
        from: Neighbor,
    ) -> Result<OwnedRequest, c_int> {
        let (form, comm) = (self.form(elements.count), self.comm);
        let (count, datatype, Neighbor { rank, tag }) = (elements.count, elements.datatype, from);
        self.begin_one(|request| {
            // SAFETY: the caller's promise.
            unsafe { invoke!(form.irecv(address, count, datatype, rank, tag, comm, request)) }
        })
    }

    /// Begins to send a message, or gives MPI's error code.
    ///
    /// # Safety
    /// The elements are there, and stay as they are until the request is done.
    pub unsafe fn isend(
        &self,
        address: *const c_void,
        elements: &TypedCount<A>,
        to: Neighbor,
    ) -> Result<OwnedRequest, c_int> {
        let (form, comm) = (self.form(elements.count), self.comm);
        let (count, datatype, Neighbor { rank, tag }) = (elements.count, elements.datatype, to);
        self.begin_one(|request| {
            // SAFETY: the caller's promise.
            unsafe { invoke!(form.isend(address, count, datatype, rank, tag, comm, request)) }
        })
    }

    /// The request that `begin` has MPI give, or the error code.
    fn begin_one(
        &self,
        begin: impl FnOnce(*mut A::Request) -> c_int,
    ) -> Result<OwnedRequest, c_int> {
        let mut request = A::Request::from_raw(0);
        let code = begin(&raw mut request);
        if code != 0 {
            return Err(code);
        }
        // SAFETY: MPI has given the request, and who has begun the message keeps the buffer.
        Ok(unsafe { OwnedRequest::new(self.functions, request) })
    }
}
