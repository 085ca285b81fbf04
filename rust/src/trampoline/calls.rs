//! The functions that jaxlib calls, in terms of the MPI of this process.

use std::ffi::{c_char, c_int, c_void};
use std::slice;

use super::records::{self, Facts, Request};
use super::served::{COMM_NULL, Devices, Served, UNAVAILABLE};
use super::status::{TrampolineStatus, with_status};
use super::table::{HANDLES, THREAD_MULTIPLE, TrampolineAbi, set_served};
use crate::mpi::{Abi, is_available};

/// Has the MPI that is bound answer jaxlib. `handles` are mpi4py's numbers for those in
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
    if let Some(mpi) = A::functions().get() {
        set_served(Box::new(Served::new(mpi, handles, members, rank, devices)));
    }
}

impl<A: Abi> TrampolineAbi for Served<A> {
    fn error_text(&self, code: c_int) -> String {
        self.own_error_text(code)
            .unwrap_or_else(|| self.mpi.error_text(code))
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
        let facts = Facts::sending(send_type, send_count);
        // SAFETY: the caller's arguments, with MPI's handles.
        self.call(&records::ALLGATHER, comm, facts, |comm| unsafe {
            (self.mpi.int.allgather)(
                Self::block(send),
                send_count,
                self.real(send_type),
                recv,
                recv_count,
                self.real(recv_type),
                comm,
            )
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
        let facts = Facts::sending(datatype, count).with_op(op);
        // SAFETY: the caller's arguments, with MPI's handles.
        self.call(&records::ALLREDUCE, comm, facts, |comm| unsafe {
            (self.mpi.int.allreduce)(
                Self::operand(send, recv),
                recv,
                count,
                self.real(datatype),
                self.real(op),
                comm,
            )
        })
    }

    /// XLA frees its communicators when the process ends, which may be after MPI has ended.
    unsafe fn comm_free(&self, comm: *mut usize) -> c_int {
        // SAFETY: the caller lends the handle.
        let code = match self.comm(unsafe { *comm }) {
            // SAFETY: it is one of the communicators that the caller has made.
            Ok(mut real) => unsafe { (self.mpi.comm_free)(&raw mut real) },
            Err(_) => 0,
        };
        // SAFETY: as above.
        unsafe { *comm = COMM_NULL };
        code
    }

    unsafe fn comm_rank(&self, comm: usize, rank: *mut c_int) -> c_int {
        match self.rank_and_size(comm) {
            // SAFETY: the caller lends room for the rank.
            Ok((own, _)) => unsafe { *rank = own },
            Err(code) => return code,
        }
        0
    }

    unsafe fn comm_size(&self, comm: usize, size: *mut c_int) -> c_int {
        match self.rank_and_size(comm) {
            // SAFETY: the caller lends room for the size.
            Ok((_, processes)) => unsafe { *size = processes as c_int },
            Err(code) => return code,
        }
        0
    }

    /// XLA does not look at the error code. Where there can be no communicator, it gets one on which
    /// every call fails.
    unsafe fn comm_split(&self, _: usize, color: c_int, key: c_int, new_comm: *mut usize) -> c_int {
        let index = match self.members(color, key) {
            Ok(members) => {
                let index = self.communicators.add(key, &members);
                let handle = self.create(&members, index);
                let handle = handle.map_err(|code| self.error_text(code));
                self.communicators.set_handle(index, handle);
                index
            }
            Err(reason) => {
                let index = self.communicators.add(0, &[self.communicators.own_rank()]);
                self.communicators.set_handle(index, Err(reason));
                index
            }
        };
        // SAFETY: the caller lends room for the handle.
        unsafe { *new_comm = HANDLES.len() + index };
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
        let receive = Request {
            operation: &records::RECV,
            comm,
            facts: Facts::default()
                .receiving(datatype, count)
                .from(source, tag),
            expected: Some((datatype, count)),
        };
        let (datatype, source) = (self.real(datatype), Self::peer(source));
        // SAFETY: the caller's arguments, with MPI's handles; the caller lends room for the request.
        unsafe {
            self.start(receive, request, |comm, request| {
                (self.mpi.int.irecv)(buffer, count, datatype, source, tag, comm, request)
            })
        }
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
        let send = Request {
            operation: &records::SEND,
            comm,
            facts: Facts::sending(datatype, count).to(dest, tag),
            expected: None,
        };
        let (datatype, dest) = (self.real(datatype), Self::peer(dest));
        // SAFETY: the caller's arguments, with MPI's handles; the caller lends room for the request.
        unsafe {
            self.start(send, request, |comm, request| {
                (self.mpi.int.isend)(buffer, count, datatype, dest, tag, comm, request)
            })
        }
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
        let size = match self.rank_and_size(comm) {
            Ok((_, size)) => size,
            Err(code) => return code,
        };
        // SAFETY: the caller has a count for each process.
        let count = unsafe { slice::from_raw_parts(recv_counts, size) }
            .iter()
            .sum();
        let facts = Facts::sending(datatype, count).with_op(op);
        // SAFETY: the caller's arguments, with MPI's handles.
        self.call(&records::REDUCE_SCATTER, comm, facts, |comm| unsafe {
            (self.mpi.int.reduce_scatter)(
                Self::operand(send, recv),
                recv,
                recv_counts,
                self.real(datatype),
                self.real(op),
                comm,
            )
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
        let facts = Facts::sending(send_type, send_count)
            .receiving(recv_type, recv_count)
            .to(dest, send_tag)
            .from(source, recv_tag);
        self.call(&records::SENDRECV, comm, facts, |comm| {
            // SAFETY: the caller's arguments, with MPI's handles.
            let body = |status: *mut A::Status| unsafe {
                (self.mpi.int.sendrecv)(
                    send,
                    send_count,
                    self.real(send_type),
                    Self::peer(dest),
                    send_tag,
                    recv,
                    recv_count,
                    self.real(recv_type),
                    Self::peer(source),
                    recv_tag,
                    comm,
                    status,
                )
            };
            // SAFETY: the caller lends room for the status unless it wants none.
            let (code, mut status) = unsafe { with_status::<A>(status, body) };
            self.check_length(code, &mut status, recv_type, recv_count)
        })
    }

    unsafe fn wait(&self, request: *mut usize, status: *mut TrampolineStatus) -> c_int {
        if !is_available() {
            return UNAVAILABLE;
        }
        // SAFETY: the caller lends the handle.
        let jax_request = unsafe { *request };
        let mut real: A::Request = self.real(jax_request);
        // SAFETY: the request is the caller's.
        let body = |status: *mut A::Status| unsafe { (self.mpi.wait)(&raw mut real, status) };
        // SAFETY: the caller lends room for the status unless it wants none.
        let wait = || unsafe { with_status::<A>(status, body) };
        let code = match self.requests.take(jax_request) {
            Some(message) => self.call(message.operation, message.comm, message.facts, |_| {
                let (code, mut status) = wait();
                match message.expected {
                    Some((datatype, count)) => {
                        self.check_length(code, &mut status, datatype, count)
                    }
                    None => code,
                }
            }),
            None => wait().0,
        };
        // SAFETY: as above.
        unsafe { *request = self.request(real) };
        code
    }
}
