//! The functions of MPI that the core calls, with their C signatures.

use std::ffi::{c_char, c_int, c_void};

use super::library::Library;
use super::types::Types;

/// Declares the tables of functions once: the structs, their loading from a library, and
/// [`mpi_functions`](crate::mpi_functions), by which tests and the referee fill the tables differently.
///
/// A function that takes counts has two symbols and one declaration, in which `N` is the type of counts
/// and `D` the type of displacements. The same declaration holds for the nonblocking form of a collective
/// function, which takes one more argument: the address of its request.
macro_rules! functions {
    (
        plain {
            $($field:ident = $symbol:ident ( $($argument:ident : $type:ty),* $(,)? );)*
        }
        messages {
            $($message:ident = $int:ident, $large:ident (
                $($message_argument:ident : $message_type:ty),* $(,)?
            );)*
        }
        collectives {
            $($collective:ident =
                $blocking:ident / $nonblocking:ident, $large_blocking:ident / $large_nonblocking:ident (
                $($collective_argument:ident : $collective_type:ty),* $(,)?
            );)*
        }
    ) => {
        /// The functions of the MPI library of this process.
        pub struct Functions<A: Types> {
            $(
                #[doc = concat!("`", stringify!($symbol), "`.")]
                pub $field: unsafe extern "C" fn($($type),*) -> c_int,
            )*
            /// The functions whose counts are ints, which every MPI has.
            pub int: Counted<A, c_int, c_int>,
            /// The functions whose counts are `MPI_Count`, since MPI-4.0 (MPI-4.1 §19.2).
            pub large: Option<Counted<A, i64, A::Aint>>,
        }

        /// The functions with counts of type `N` and displacements of type `D`: ints, or `MPI_Count` and
        /// `MPI_Aint`.
        pub struct Counted<A: Types, N, D> {
            $(
                #[doc = concat!("`", stringify!($int), "` or `", stringify!($large), "`.")]
                pub $message: unsafe extern "C" fn($($message_type),*) -> c_int,
            )*
            $(
                #[doc = concat!("`", stringify!($blocking), "` or `", stringify!($large_blocking), "`.")]
                pub $collective: BothForms<
                    unsafe extern "C" fn($($collective_type),*) -> c_int,
                    unsafe extern "C" fn($($collective_type,)* *mut A::Request) -> c_int,
                >,
            )*
        }

        impl<A: Types> Functions<A> {
            /// Loads every function from `library`. The error names the function that is missing.
            pub fn load(library: &Library) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: the symbol is MPI's function of that name, and the table below declares
                    // its signature in this ABI.
                    $($field: unsafe { library.function(stringify!($symbol))? },)*
                    // SAFETY: functions without a suffix take ints.
                    int: unsafe { Counted::load(library, |[int, _]| int)? },
                    // SAFETY: functions whose names end in `_c` take `MPI_Count` and `MPI_Aint`.
                    large: unsafe { Counted::load(library, |[_, large]| large) }.ok(),
                })
            }
        }

        impl<A: Types, N, D> Counted<A, N, D> {
            /// Loads every function by the name that `pick` selects from its two names.
            ///
            /// # Safety
            /// The functions with these names take counts of type `N` and displacements of type `D`.
            unsafe fn load(
                library: &Library,
                pick: fn([&'static str; 2]) -> &'static str,
            ) -> Result<Self, String> {
                // SAFETY: the symbols are MPI's functions of these names, and the table below declares
                // their signatures in this ABI. The caller vouches for `N` and `D`.
                unsafe {
                    Ok(Self {
                        $($message: library.function(pick([stringify!($int), stringify!($large)]))?,)*
                        $($collective: BothForms {
                            blocking: library.function(pick([
                                stringify!($blocking), stringify!($large_blocking),
                            ]))?,
                            nonblocking: library.function(pick([
                                stringify!($nonblocking), stringify!($large_nonblocking),
                            ]))?,
                        },)*
                    })
                }
            }
        }

        /// A table of other functions than a library's: `$function!(MPI_Send(buffer, count, ...))` expands
        /// to the function of that name with that number of arguments. The functions for large counts
        /// are made in the same way, unless `$table` holds them.
        #[macro_export]
        macro_rules! mpi_functions {
            ($function:ident) => {
                $crate::mpi_functions!($function, Some($crate::mpi::functions::Counted {
                    $($message: $function!($large($($message_argument),*)),)*
                    $($collective: $crate::mpi::functions::BothForms {
                        blocking: $function!($large_blocking($($collective_argument),*)),
                        nonblocking: $function!($large_nonblocking($($collective_argument,)* request)),
                    },)*
                }))
            };
            ($function:ident, $table:expr) => {
                $crate::mpi::functions::Functions {
                    $($field: $function!($symbol($($argument),*)),)*
                    int: $crate::mpi::functions::Counted {
                        $($message: $function!($int($($message_argument),*)),)*
                        $($collective: $crate::mpi::functions::BothForms {
                            blocking: $function!($blocking($($collective_argument),*)),
                            nonblocking: $function!($nonblocking($($collective_argument,)* request)),
                        },)*
                    },
                    large: $table,
                }
            };
        }
    };
}

/// A collective function, and its nonblocking form (MPI-4.1 §6.12).
pub struct BothForms<B, N> {
    /// The blocking form.
    pub blocking: B,
    /// The nonblocking form, which also takes the address of the request.
    pub nonblocking: N,
}

/// A user's function that reduces two vectors and writes the result to the second
/// (`MPI_User_function`, MPI-4.1 §6.9.5). `None` is C's null pointer.
pub type UserFunction<A> = Option<
    unsafe extern "C" fn(
        invec: *mut c_void,
        inoutvec: *mut c_void,
        len: *mut c_int,
        datatype: *mut <A as Types>::Datatype,
    ),
>;

/// A callback that copies an attribute of a communicator (MPI-4.1 §7.7.2).
pub type CopyAttribute<A> = Option<
    unsafe extern "C" fn(
        comm: <A as Types>::Comm,
        keyval: c_int,
        extra_state: *mut c_void,
        value: *mut c_void,
        copied: *mut c_void,
        flag: *mut c_int,
    ) -> c_int,
>;

/// A callback that deletes an attribute of a communicator (MPI-4.1 §7.7.2).
pub type DeleteAttribute<A> = Option<
    unsafe extern "C" fn(
        comm: <A as Types>::Comm,
        keyval: c_int,
        value: *mut c_void,
        extra_state: *mut c_void,
    ) -> c_int,
>;

functions! {
    plain {
        abort = MPI_Abort(comm: A::Comm, code: c_int);
        alltoallw = MPI_Alltoallw(
            send: *const c_void, send_counts: *const c_int, send_displacements: *const c_int,
            send_types: *const A::Datatype,
            recv: *mut c_void, recv_counts: *const c_int, recv_displacements: *const c_int,
            recv_types: *const A::Datatype, comm: A::Comm,
        );
        barrier = MPI_Barrier(comm: A::Comm);
        cancel = MPI_Cancel(request: *mut A::Request);
        comm_create_group = MPI_Comm_create_group(
            comm: A::Comm, group: A::Group, tag: c_int, new_comm: *mut A::Comm,
        );
        comm_create_keyval = MPI_Comm_create_keyval(
            copy: CopyAttribute<A>, delete: DeleteAttribute<A>, keyval: *mut c_int,
            extra_state: *mut c_void,
        );
        comm_free = MPI_Comm_free(comm: *mut A::Comm);
        comm_get_attr = MPI_Comm_get_attr(
            comm: A::Comm, keyval: c_int, value: *mut c_void, flag: *mut c_int,
        );
        comm_get_errhandler = MPI_Comm_get_errhandler(
            comm: A::Comm, errhandler: *mut A::Errhandler,
        );
        comm_group = MPI_Comm_group(comm: A::Comm, group: *mut A::Group);
        comm_set_attr = MPI_Comm_set_attr(comm: A::Comm, keyval: c_int, value: *mut c_void);
        comm_split = MPI_Comm_split(
            comm: A::Comm, color: c_int, key: c_int, new_comm: *mut A::Comm,
        );
        errhandler_free = MPI_Errhandler_free(errhandler: *mut A::Errhandler);
        error_string = MPI_Error_string(code: c_int, text: *mut c_char, length: *mut c_int);
        get_count = MPI_Get_count(
            status: *const A::Status, datatype: A::Datatype, count: *mut c_int,
        );
        group_free = MPI_Group_free(group: *mut A::Group);
        group_incl = MPI_Group_incl(
            group: A::Group, count: c_int, ranks: *const c_int, new_group: *mut A::Group,
        );
        ibarrier = MPI_Ibarrier(comm: A::Comm, request: *mut A::Request);
        lookup_name = MPI_Lookup_name(
            service_name: *const c_char, info: A::Info, port_name: *mut c_char,
        );
        op_create = MPI_Op_create(
            function: UserFunction<A>, commute: c_int, op: *mut A::Op,
        );
        publish_name = MPI_Publish_name(
            service_name: *const c_char, info: A::Info, port_name: *const c_char,
        );
        status_set_elements = MPI_Status_set_elements_x(
            status: *mut A::Status, datatype: A::Datatype, count: i64,
        );
        test = MPI_Test(
            request: *mut A::Request, flag: *mut c_int, status: *mut A::Status,
        );
        type_commit = MPI_Type_commit(datatype: *mut A::Datatype);
        type_contiguous = MPI_Type_contiguous(
            count: c_int, old_type: A::Datatype, new_type: *mut A::Datatype,
        );
        type_create_struct = MPI_Type_create_struct(
            count: c_int, lengths: *const c_int, displacements: *const A::Aint,
            types: *const A::Datatype, new_type: *mut A::Datatype,
        );
        type_free = MPI_Type_free(datatype: *mut A::Datatype);
        wait = MPI_Wait(request: *mut A::Request, status: *mut A::Status);
    }
    messages {
        irecv = MPI_Irecv, MPI_Irecv_c (
            buffer: *mut c_void, count: N, datatype: A::Datatype, source: c_int, tag: c_int,
            comm: A::Comm, request: *mut A::Request,
        );
        isend = MPI_Isend, MPI_Isend_c (
            buffer: *const c_void, count: N, datatype: A::Datatype, dest: c_int, tag: c_int,
            comm: A::Comm, request: *mut A::Request,
        );
        recv = MPI_Recv, MPI_Recv_c (
            buffer: *mut c_void, count: N, datatype: A::Datatype,
            source: c_int, tag: c_int, comm: A::Comm, status: *mut A::Status,
        );
        send = MPI_Send, MPI_Send_c (
            buffer: *const c_void, count: N, datatype: A::Datatype,
            dest: c_int, tag: c_int, comm: A::Comm,
        );
        sendrecv = MPI_Sendrecv, MPI_Sendrecv_c (
            send: *const c_void, send_count: N, send_type: A::Datatype,
            dest: c_int, send_tag: c_int,
            recv: *mut c_void, recv_count: N, recv_type: A::Datatype,
            source: c_int, recv_tag: c_int, comm: A::Comm, status: *mut A::Status,
        );
        sendrecv_replace = MPI_Sendrecv_replace, MPI_Sendrecv_replace_c (
            buffer: *mut c_void, count: N, datatype: A::Datatype,
            dest: c_int, send_tag: c_int, source: c_int, recv_tag: c_int,
            comm: A::Comm, status: *mut A::Status,
        );
    }
    collectives {
        allgather = MPI_Allgather / MPI_Iallgather, MPI_Allgather_c / MPI_Iallgather_c (
            send: *const c_void, send_count: N, send_type: A::Datatype,
            recv: *mut c_void, recv_count: N, recv_type: A::Datatype, comm: A::Comm,
        );
        allgatherv = MPI_Allgatherv / MPI_Iallgatherv, MPI_Allgatherv_c / MPI_Iallgatherv_c (
            send: *const c_void, send_count: N, send_type: A::Datatype,
            recv: *mut c_void, recv_counts: *const N, displacements: *const D,
            recv_type: A::Datatype, comm: A::Comm,
        );
        allreduce = MPI_Allreduce / MPI_Iallreduce, MPI_Allreduce_c / MPI_Iallreduce_c (
            send: *const c_void, recv: *mut c_void, count: N, datatype: A::Datatype,
            op: A::Op, comm: A::Comm,
        );
        alltoall = MPI_Alltoall / MPI_Ialltoall, MPI_Alltoall_c / MPI_Ialltoall_c (
            send: *const c_void, send_count: N, send_type: A::Datatype,
            recv: *mut c_void, recv_count: N, recv_type: A::Datatype, comm: A::Comm,
        );
        alltoallv = MPI_Alltoallv / MPI_Ialltoallv, MPI_Alltoallv_c / MPI_Ialltoallv_c (
            send: *const c_void, send_counts: *const N, send_displacements: *const D,
            send_type: A::Datatype,
            recv: *mut c_void, recv_counts: *const N, recv_displacements: *const D,
            recv_type: A::Datatype, comm: A::Comm,
        );
        bcast = MPI_Bcast / MPI_Ibcast, MPI_Bcast_c / MPI_Ibcast_c (
            buffer: *mut c_void, count: N, datatype: A::Datatype, root: c_int, comm: A::Comm,
        );
        exscan = MPI_Exscan / MPI_Iexscan, MPI_Exscan_c / MPI_Iexscan_c (
            send: *const c_void, recv: *mut c_void, count: N, datatype: A::Datatype,
            op: A::Op, comm: A::Comm,
        );
        gather = MPI_Gather / MPI_Igather, MPI_Gather_c / MPI_Igather_c (
            send: *const c_void, send_count: N, send_type: A::Datatype,
            recv: *mut c_void, recv_count: N, recv_type: A::Datatype,
            root: c_int, comm: A::Comm,
        );
        gatherv = MPI_Gatherv / MPI_Igatherv, MPI_Gatherv_c / MPI_Igatherv_c (
            send: *const c_void, send_count: N, send_type: A::Datatype,
            recv: *mut c_void, recv_counts: *const N, displacements: *const D,
            recv_type: A::Datatype, root: c_int, comm: A::Comm,
        );
        reduce = MPI_Reduce / MPI_Ireduce, MPI_Reduce_c / MPI_Ireduce_c (
            send: *const c_void, recv: *mut c_void, count: N, datatype: A::Datatype,
            op: A::Op, root: c_int, comm: A::Comm,
        );
        reduce_scatter =
            MPI_Reduce_scatter / MPI_Ireduce_scatter,
            MPI_Reduce_scatter_c / MPI_Ireduce_scatter_c (
            send: *const c_void, recv: *mut c_void, recv_counts: *const N,
            datatype: A::Datatype, op: A::Op, comm: A::Comm,
        );
        reduce_scatter_block =
            MPI_Reduce_scatter_block / MPI_Ireduce_scatter_block,
            MPI_Reduce_scatter_block_c / MPI_Ireduce_scatter_block_c (
            send: *const c_void, recv: *mut c_void, recv_count: N, datatype: A::Datatype,
            op: A::Op, comm: A::Comm,
        );
        scan = MPI_Scan / MPI_Iscan, MPI_Scan_c / MPI_Iscan_c (
            send: *const c_void, recv: *mut c_void, count: N, datatype: A::Datatype,
            op: A::Op, comm: A::Comm,
        );
        scatter = MPI_Scatter / MPI_Iscatter, MPI_Scatter_c / MPI_Iscatter_c (
            send: *const c_void, send_count: N, send_type: A::Datatype,
            recv: *mut c_void, recv_count: N, recv_type: A::Datatype,
            root: c_int, comm: A::Comm,
        );
        scatterv = MPI_Scatterv / MPI_Iscatterv, MPI_Scatterv_c / MPI_Iscatterv_c (
            send: *const c_void, send_counts: *const N, displacements: *const D,
            send_type: A::Datatype,
            recv: *mut c_void, recv_count: N, recv_type: A::Datatype,
            root: c_int, comm: A::Comm,
        );
    }
}

/// The room for a text of `MPI_Error_string`. The longest `MPI_MAX_ERROR_STRING` of any known MPI is
/// MPICH's 512 bytes.
pub const MAX_ERROR_STRING: usize = 4096;

impl<A: Types> Functions<A> {
    /// MPI's own text for an error code (MPI-4.1 §9.4).
    pub fn error_text(&self, code: c_int) -> String {
        let mut text = [0u8; MAX_ERROR_STRING];
        let mut length = 0;
        // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING.
        let outcome = unsafe {
            (self.error_string)(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length)
        };
        if outcome != 0 {
            return "unknown error".into();
        }
        let length = usize::try_from(length).unwrap_or(0).min(text.len());
        String::from_utf8_lossy(&text[..length]).into_owned()
    }
}
