//! The functions that jaxlib calls, in terms of the MPI of this process.

use std::convert::identity;
use std::ffi::{c_char, c_int, c_void};
use std::slice;

use super::records::{self, CallArguments, Started};
use super::served::{COMM_NULL, Devices, REQUEST_NULL, Served, UNAVAILABLE, code_of};
use super::status::{TrampolineStatus, give_status};
use super::table::{HANDLES, THREAD_MULTIPLE, TrampolineAbi, set_served};
use crate::mpi::calls::{Mpi, check};
use crate::mpi::{Abi, OwnStatus, RecvBuffer, SendBuffer, is_available};

/// Makes the MPI that is bound answer jaxlib. `handles` are mpi4py's numbers for those in
/// [`HANDLES`]: as `COMM_WORLD` the communicator that JAX's processes are those of, on which
/// nobody else communicates. `members` are the ranks of these in `MPI_COMM_WORLD`, and `rank` is
/// that of this process among them. MPI was initialised with `MPI_THREAD_MULTIPLE`.
///
/// # Safety
/// MPI knows the handles as those of what [`HANDLES`] says.
pub unsafe fn serve<A: Abi>(
    handles: Vec<usize>,
    members: Vec<c_int>,
    rank: c_int,
    devices: Devices,
) {
    if let Some(functions) = A::functions().get() {
        let served = Served::new(functions, handles, members, rank, devices);
        set_served(Box::new(served));
    }
}

impl<A: Abi> TrampolineAbi for Served<A> {
    fn error_text(&self, code: c_int) -> String {
        self.own_error_text(code)
            .unwrap_or_else(|| self.functions.error_text(code))
    }

    unsafe fn allgather(
        &self,
        send: *const c_void,
        send_count: c_int,
        send_type: usize,
        recv: *mut c_void,
        recv_count: c_int,
        recv_type: usize,
        comm: usize,
    ) -> c_int {
        let arguments = CallArguments::sending(send_type, send_count);
        self.call(&records::ALLGATHER, comm, arguments, |mpi| {
            let (send_type, recv_type) = (self.datatype(send_type)?, self.datatype(recv_type)?);
            let all = i64::from(recv_count) * i64::from(mpi.size());
            // SAFETY: the caller has a block, and room for one of each process.
            let (send, recv) = unsafe {
                (
                    Self::block(send, send_count.into(), send_type),
                    RecvBuffer::new(recv, all, recv_type),
                )
            };
            mpi.blocking(identity).allgather(send, recv)
        })
    }

    unsafe fn allreduce(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: c_int,
        datatype: usize,
        op: usize,
        comm: usize,
    ) -> c_int {
        let arguments = CallArguments::sending(datatype, count).with_op(op);
        self.call(&records::ALLREDUCE, comm, arguments, |mpi| {
            let datatype = self.datatype(datatype)?;
            // SAFETY: the caller has that many elements, and room for as many.
            let (send, recv) = unsafe {
                (
                    Self::operand(send, recv, count.into(), datatype),
                    RecvBuffer::new(recv, count.into(), datatype),
                )
            };
            let op = self.operator(op);
            mpi.blocking(identity).allreduce(send, recv, &op)
        })
    }

    /// XLA frees its communicators when the process ends, which may be after MPI has ended.
    unsafe fn comm_free(&self, comm: *mut usize) -> c_int {
        // SAFETY: the caller lends the handle.
        let code = match self.comm(unsafe { *comm }) {
            Ok((of_jax, communicator)) => {
                let mpi = Mpi::new(self.functions, &communicator);
                // SAFETY: it is one of the communicators that the caller has made, and uses no more.
                code_of(of_jax, unsafe { mpi.blocking(identity).comm_free() })
            }
            Err(_) => 0,
        };
        // SAFETY: as above.
        unsafe { *comm = COMM_NULL };
        code
    }

    unsafe fn comm_rank(&self, comm: usize, rank: *mut c_int) -> c_int {
        // SAFETY: the caller lends room for the rank.
        unsafe { give(self.communicator_of_jax(comm).map(|comm| comm.rank), rank) }
    }

    unsafe fn comm_size(&self, comm: usize, size: *mut c_int) -> c_int {
        // SAFETY: the caller lends room for the size.
        unsafe { give(self.communicator_of_jax(comm).map(|comm| comm.size), size) }
    }

    /// XLA does not look at the error code. Where there can be no communicator, it gets one on which
    /// every call fails.
    unsafe fn comm_split(&self, _: usize, color: c_int, key: c_int, new_comm: *mut usize) -> c_int {
        let (new, handle) = match self.members(color, key) {
            Ok(members) => {
                let new = self.communicators.add(key, &members);
                let handle = self.create(&members, new);
                (new, handle.map_err(|code| self.error_text(code)))
            }
            Err(reason) => {
                let own_rank = self.communicators.own_rank;
                (self.communicators.add(0, &[own_rank]), Err(reason))
            }
        };
        let _ = new.handle.set(handle);
        // SAFETY: the caller lends room for the handle.
        unsafe { *new_comm = HANDLES.len() + new.index };
        0
    }

    /// mpi4py finalises MPI, after all that runs at exit.
    unsafe fn finalize(&self) -> c_int {
        0
    }

    /// mpi4py has initialised MPI.
    unsafe fn init_thread(
        &self,
        _: *mut c_int,
        _: *mut *mut *mut c_char,
        _: c_int,
        provided: *mut c_int,
    ) -> c_int {
        // SAFETY: the caller lends room for the level.
        unsafe { *provided = THREAD_MULTIPLE };
        0
    }

    unsafe fn irecv(
        &self,
        buffer: *mut c_void,
        count: c_int,
        datatype: usize,
        source: c_int,
        tag: c_int,
        comm: usize,
        request: *mut usize,
    ) -> c_int {
        let arguments = CallArguments::default();
        let arguments = arguments.receiving(datatype, count).from(source, tag);
        let expected = self.datatype(datatype).ok();
        let begin = |mpi: &Mpi<A>, requests: &mut Vec<_>| {
            // SAFETY: the caller has room for that many elements, until it has waited.
            let recv = unsafe { RecvBuffer::new(buffer, count.into(), self.datatype(datatype)?) };
            let message = mpi.incoming(Self::peer(source, tag), recv)?;
            // SAFETY: as above.
            Ok(unsafe { mpi.begin(&[], &[message], requests) })
        };
        let started = |own| Started {
            operation: &records::RECV,
            comm,
            arguments,
            expected: expected.map(|datatype| (datatype, count)),
            request: own,
        };
        // SAFETY: the caller lends room for the request.
        unsafe { give(self.start(comm, begin, started), request) }
    }

    /// XLA makes communicators on the thread that asks for this only. It asks on threads of its
    /// own for a collective operation that runs beside other work, and would refuse to run it. With
    /// `MPI_THREAD_MULTIPLE`, any thread may.
    unsafe fn is_thread_main(&self, flag: *mut c_int) -> c_int {
        // SAFETY: the caller lends the flag.
        unsafe { *flag = 1 };
        0
    }

    unsafe fn isend(
        &self,
        buffer: *const c_void,
        count: c_int,
        datatype: usize,
        dest: c_int,
        tag: c_int,
        comm: usize,
        request: *mut usize,
    ) -> c_int {
        let arguments = CallArguments::sending(datatype, count).to(dest, tag);
        let begin = |mpi: &Mpi<A>, requests: &mut Vec<_>| {
            let datatype = self.datatype(datatype)?;
            // SAFETY: the caller has that many elements, and keeps them until it has waited.
            let send = unsafe { SendBuffer::new(buffer, count.into(), datatype) };
            let message = mpi.outgoing(Self::peer(dest, tag), send)?;
            // SAFETY: as above.
            Ok(unsafe { mpi.begin(&[message], &[], requests) })
        };
        let started = |own| Started {
            operation: &records::SEND,
            comm,
            arguments,
            expected: None,
            request: own,
        };
        // SAFETY: the caller lends room for the request.
        unsafe { give(self.start(comm, begin, started), request) }
    }

    unsafe fn reduce_scatter(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        recv_counts: *const c_int,
        datatype: usize,
        op: usize,
        comm: usize,
    ) -> c_int {
        let size = match self.communicator_of_jax(comm) {
            Ok(communicator) => communicator.size as usize,
            Err(code) => return code,
        };
        // SAFETY: the caller has a count for each process.
        let counts = unsafe { slice::from_raw_parts(recv_counts, size) };
        let counts: Vec<i64> = counts.iter().copied().map(i64::from).collect();
        let count = counts.iter().sum();
        let arguments = CallArguments::sending(datatype, count).with_op(op);
        self.call(&records::REDUCE_SCATTER, comm, arguments, |mpi| {
            let own = counts[mpi.rank() as usize];
            let datatype = self.datatype(datatype)?;
            // SAFETY: the caller has the elements of all processes, and room for those of this one.
            let (send, recv) = unsafe {
                (
                    Self::operand(send, recv, count, datatype),
                    RecvBuffer::new(recv, own, datatype),
                )
            };
            let (op, caller) = (self.operator(op), mpi.blocking(identity));
            let is_large = count > mpi.count_limit();
            if is_large && counts.iter().all(|other| *other == own) {
                // Open MPI 5.0 adds the counts of the other function up in an int.
                return caller.reduce_scatter_block(send, recv, &op);
            }
            caller.reduce_scatter(send, recv, counts, &op)
        })
    }

    unsafe fn sendrecv(
        &self,
        send: *const c_void,
        send_count: c_int,
        send_type: usize,
        dest: c_int,
        send_tag: c_int,
        recv: *mut c_void,
        recv_count: c_int,
        recv_type: usize,
        source: c_int,
        recv_tag: c_int,
        comm: usize,
        status: *mut TrampolineStatus,
    ) -> c_int {
        let arguments = CallArguments::sending(send_type, send_count)
            .receiving(recv_type, recv_count)
            .to(dest, send_tag)
            .from(source, recv_tag);
        self.call(&records::SENDRECV, comm, arguments, |mpi| {
            let (send_type, recv_type) = (self.datatype(send_type)?, self.datatype(recv_type)?);
            // SAFETY: the caller has that many elements, and room for those that come.
            let (send, recv) = unsafe {
                (
                    Self::block(send, send_count.into(), send_type),
                    RecvBuffer::new(recv, recv_count.into(), recv_type),
                )
            };
            let mut received = OwnStatus::EMPTY;
            let (to, from) = (Self::peer(dest, send_tag), Self::peer(source, recv_tag));
            mpi.blocking(identity)
                .sendrecv((send, to), (recv, from), received.place())?;
            // SAFETY: the caller lends room for the status unless it wants none.
            unsafe { give_status::<A>(&mut received, 0, status) };
            self.check_length(&mut received, recv_type, recv_count)
        })
    }

    unsafe fn wait(&self, request: *mut usize, status: *mut TrampolineStatus) -> c_int {
        if !is_available() {
            return UNAVAILABLE;
        }
        // SAFETY: the caller lends the handle.
        let jax_request = unsafe { request.replace(REQUEST_NULL) };
        let Some(mut started) = self.requests.take(jax_request) else {
            // It waits for nothing (MPI-4.1 §3.7.3).
            // SAFETY: the caller lends room for the status unless it wants none.
            unsafe { give_status::<A>(&mut { OwnStatus::EMPTY }, 0, status) };
            return 0;
        };
        self.call(started.operation, started.comm, started.arguments, |_| {
            let code = started.request.wait();
            let received = started.request.status();
            // SAFETY: as above.
            unsafe { give_status::<A>(received, code, status) };
            check(self.functions, "MPI_Wait", code)?;
            match started.expected {
                Some((datatype, count)) => self.check_length(received, datatype, count),
                None => Ok(()),
            }
        })
    }
}

/// Stores an output, and returns the error code, which is 0 without an error.
///
/// # Safety
/// There is room at `output`.
unsafe fn give<T>(outcome: Result<T, c_int>, output: *mut T) -> c_int {
    match outcome {
        Ok(value) => {
            // SAFETY: the caller's promise.
            unsafe { output.write(value) };
            0
        }
        Err(code) => code,
    }
}
