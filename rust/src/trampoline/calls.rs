//! What jaxlib calls, done by the MPI of this process.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::status::{TrampolineStatus, with_status};
use super::table::{Calls, HANDLES, IN_PLACE, PROC_NULL, THREAD_MULTIPLE, place, set_served};
use crate::mpi::{Abi, Functions, Handle};

/// The MPI of this process, and its handles for the constants.
struct Served<A: Abi> {
    mpi: &'static Functions<A>,
    /// In the order of [`HANDLES`].
    handles: Vec<usize>,
}

/// Has the MPI that is bound answer jaxlib. `handles` are mpi4py's numbers for those in
/// [`HANDLES`]: as `COMM_WORLD` the communicator that JAX's processes are those of, on which
/// nobody else communicates. MPI was initialised with `MPI_THREAD_MULTIPLE`.
pub fn serve<A: Abi>(handles: Vec<usize>) {
    if let Some(mpi) = A::functions().get() {
        set_served(Box::new(Served { mpi, handles }));
    }
}

const COMM_NULL: usize = place(HANDLES, "COMM_NULL");
const REQUEST_NULL: usize = place(HANDLES, "REQUEST_NULL");

impl<A: Abi> Served<A> {
    /// The handle that MPI takes.
    fn real<H: Handle>(&self, handle: usize) -> H {
        H::from_raw(self.handles.get(handle).copied().unwrap_or(handle))
    }

    /// The number that jaxlib gets for a handle that MPI has given, which may be `null`.
    fn number(&self, handle: impl Handle, null: usize) -> usize {
        let raw = handle.into_raw();
        let null_of_mpi = self.handles.get(null);
        if null_of_mpi == Some(&raw) { null } else { raw }
    }

    fn peer(rank: c_int) -> c_int {
        if rank == PROC_NULL {
            A::PROC_NULL
        } else {
            rank
        }
    }

    /// What is sent where the result goes to `recv`. XLA may have the result take the operand's
    /// memory, which MPI wants to be told (MPI-4.1 §6.2).
    fn operand(send: *const c_void, recv: *mut c_void) -> *const c_void {
        if send.addr() == IN_PLACE || send == recv {
            ptr::without_provenance(A::IN_PLACE)
        } else {
            send
        }
    }

    fn is_finalized(&self) -> bool {
        let mut flag = 0;
        // SAFETY: this may be asked at any time (MPI-4.1 §11.2.5).
        unsafe { (self.mpi.finalized)(&raw mut flag) };
        flag != 0
    }
}

impl<A: Abi> Calls for Served<A> {
    fn error_text(&self, code: c_int) -> String {
        self.mpi.error_text(code)
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
        // Here the block in place is somewhere in the result, and nobody leaves it there unsaid.
        let in_place = send.addr() == IN_PLACE;
        let send = if in_place {
            Self::operand(send, recv)
        } else {
            send
        };
        // SAFETY: the caller's arguments, with MPI's handles.
        unsafe {
            (self.mpi.int.allgather)(
                send,
                send_count,
                self.real(send_type),
                recv,
                recv_count,
                self.real(recv_type),
                self.real(comm),
            )
        }
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
        // SAFETY: the caller's arguments, with MPI's handles.
        unsafe {
            (self.mpi.int.allreduce)(
                Self::operand(send, recv),
                recv,
                count,
                self.real(datatype),
                self.real(op),
                self.real(comm),
            )
        }
    }

    /// XLA frees its communicators when the process ends, which may be after MPI has ended.
    unsafe fn comm_free(&self, comm: *mut usize) -> c_int {
        // SAFETY: the caller lends the handle.
        let mut real: A::Comm = self.real(unsafe { *comm });
        let code = if self.is_finalized() {
            0
        } else {
            // SAFETY: it is one of the communicators that the caller has made.
            unsafe { (self.mpi.comm_free)(&raw mut real) }
        };
        // SAFETY: as above.
        unsafe { *comm = COMM_NULL };
        code
    }

    unsafe fn comm_rank(&self, comm: usize, rank: *mut c_int) -> c_int {
        // SAFETY: the caller's arguments, with MPI's handle.
        unsafe { (self.mpi.comm_rank)(self.real(comm), rank) }
    }

    unsafe fn comm_size(&self, comm: usize, size: *mut c_int) -> c_int {
        // SAFETY: the caller's arguments, with MPI's handle.
        unsafe { (self.mpi.comm_size)(self.real(comm), size) }
    }

    unsafe fn comm_split(
        &self,
        comm: usize,
        color: c_int,
        key: c_int,
        new_comm: *mut usize,
    ) -> c_int {
        let mut real: A::Comm = self.real(COMM_NULL);
        // SAFETY: the caller's arguments, with MPI's handles.
        let code = unsafe { (self.mpi.comm_split)(self.real(comm), color, key, &raw mut real) };
        // SAFETY: the caller lends room for the handle.
        unsafe { *new_comm = self.number(real, COMM_NULL) };
        code
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
        let mut real: A::Request = self.real(REQUEST_NULL);
        // SAFETY: the caller's arguments, with MPI's handles.
        unsafe {
            let code = (self.mpi.int.irecv)(
                buffer,
                count,
                self.real(datatype),
                Self::peer(source),
                tag,
                self.real(comm),
                &raw mut real,
            );
            *request = self.number(real, REQUEST_NULL);
            code
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
        let mut real: A::Request = self.real(REQUEST_NULL);
        // SAFETY: the caller's arguments, with MPI's handles.
        unsafe {
            let code = (self.mpi.int.isend)(
                buffer,
                count,
                self.real(datatype),
                Self::peer(dest),
                tag,
                self.real(comm),
                &raw mut real,
            );
            *request = self.number(real, REQUEST_NULL);
            code
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
        // SAFETY: the caller's arguments, with MPI's handles.
        unsafe {
            (self.mpi.int.reduce_scatter)(
                Self::operand(send, recv),
                recv,
                recv_counts,
                self.real(datatype),
                self.real(op),
                self.real(comm),
            )
        }
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
        // SAFETY: the caller's arguments, with MPI's handles.
        unsafe {
            with_status::<A>(status, |status| {
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
                    self.real(comm),
                    status,
                )
            })
        }
    }

    unsafe fn wait(&self, request: *mut usize, status: *mut TrampolineStatus) -> c_int {
        // SAFETY: the caller lends the handle, and room for the status unless it wants none.
        unsafe {
            let mut real: A::Request = self.real(*request);
            let code = with_status::<A>(status, |status| (self.mpi.wait)(&raw mut real, status));
            *request = self.number(real, REQUEST_NULL);
            code
        }
    }
}
