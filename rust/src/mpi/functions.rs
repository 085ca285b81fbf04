//! The functions of MPI that the core calls, with their C signatures.

use std::ffi::{c_char, c_int, c_void};

use super::abi::Types;
use super::library::Library;

/// Declares the table of functions once: the struct, how it is filled from a library, and the
/// list that the referee crate compares with `mpi.h`.
macro_rules! functions {
    ($($field:ident = $symbol:ident ( $($argument:ident : $type:ty),* $(,)? );)*) => {
        /// The functions of the MPI library of this process.
        pub struct Functions<A: Types> {
            $(pub $field: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        impl<A: Types> Functions<A> {
            /// Finds every function in `library`, or says which one is missing.
            pub fn load(library: &Library) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: the symbol is MPI's function of that name, whose signature in
                    // this ABI is the one declared below.
                    $($field: unsafe { library.function(stringify!($symbol))? },)*
                })
            }
        }

        /// Calls `$callback! { field = MPI_Symbol; ... }` with every function of the table.
        #[macro_export]
        macro_rules! for_each_mpi_function {
            ($callback:ident) => {
                $callback! { $($field = $symbol;)* }
            };
        }
    };
}

functions! {
    abort = MPI_Abort(comm: A::Comm, code: c_int);
    allgather = MPI_Allgather(
        send: *const c_void, send_count: c_int, send_type: A::Datatype,
        recv: *mut c_void, recv_count: c_int, recv_type: A::Datatype, comm: A::Comm,
    );
    allreduce = MPI_Allreduce(
        send: *const c_void, recv: *mut c_void, count: c_int, datatype: A::Datatype,
        op: A::Op, comm: A::Comm,
    );
    alltoall = MPI_Alltoall(
        send: *const c_void, send_count: c_int, send_type: A::Datatype,
        recv: *mut c_void, recv_count: c_int, recv_type: A::Datatype, comm: A::Comm,
    );
    barrier = MPI_Barrier(comm: A::Comm);
    bcast = MPI_Bcast(
        buffer: *mut c_void, count: c_int, datatype: A::Datatype, root: c_int, comm: A::Comm,
    );
    error_string = MPI_Error_string(code: c_int, text: *mut c_char, length: *mut c_int);
    gather = MPI_Gather(
        send: *const c_void, send_count: c_int, send_type: A::Datatype,
        recv: *mut c_void, recv_count: c_int, recv_type: A::Datatype,
        root: c_int, comm: A::Comm,
    );
    recv = MPI_Recv(
        buffer: *mut c_void, count: c_int, datatype: A::Datatype,
        source: c_int, tag: c_int, comm: A::Comm, status: *mut A::Status,
    );
    reduce = MPI_Reduce(
        send: *const c_void, recv: *mut c_void, count: c_int, datatype: A::Datatype,
        op: A::Op, root: c_int, comm: A::Comm,
    );
    scan = MPI_Scan(
        send: *const c_void, recv: *mut c_void, count: c_int, datatype: A::Datatype,
        op: A::Op, comm: A::Comm,
    );
    scatter = MPI_Scatter(
        send: *const c_void, send_count: c_int, send_type: A::Datatype,
        recv: *mut c_void, recv_count: c_int, recv_type: A::Datatype,
        root: c_int, comm: A::Comm,
    );
    send = MPI_Send(
        buffer: *const c_void, count: c_int, datatype: A::Datatype,
        dest: c_int, tag: c_int, comm: A::Comm,
    );
    sendrecv = MPI_Sendrecv(
        send: *const c_void, send_count: c_int, send_type: A::Datatype,
        dest: c_int, send_tag: c_int,
        recv: *mut c_void, recv_count: c_int, recv_type: A::Datatype,
        source: c_int, recv_tag: c_int, comm: A::Comm, status: *mut A::Status,
    );
    sendrecv_replace = MPI_Sendrecv_replace(
        buffer: *mut c_void, count: c_int, datatype: A::Datatype,
        dest: c_int, send_tag: c_int, source: c_int, recv_tag: c_int,
        comm: A::Comm, status: *mut A::Status,
    );
}

/// The longest text that `MPI_Error_string` writes in any known MPI is 512 bytes
/// (MPICH's `MPI_MAX_ERROR_STRING`); Intel MPI's and others' stay below this too.
pub const MAX_ERROR_STRING: usize = 4096;

impl<A: Types> Functions<A> {
    /// MPI's own text for an error code (MPI-4.1 §9.4).
    pub fn error_text(&self, code: c_int) -> String {
        let mut text = [0u8; MAX_ERROR_STRING];
        let mut length = 0;
        // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING.
        let outcome =
            unsafe { (self.error_string)(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
        if outcome != 0 {
            return "unknown error".into();
        }
        let length = usize::try_from(length).unwrap_or(0).min(text.len());
        String::from_utf8_lossy(&text[..length]).into_owned()
    }
}
