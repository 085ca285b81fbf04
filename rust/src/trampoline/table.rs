//! The names of MPItrampoline's ABI (version 2.10), in one table: what jaxlib asks this library for.
//!
//! Handles are numbers in this ABI. Those of the constants are their indices in the list of handles
//! below, whatever MPI is bound; all others are MPI's own. So jaxlib may read the constants before
//! MPI is known.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, OnceLock};

use super::status::{STATUS_IGNORE, TrampolineStatus};
use crate::error::Error;
use crate::lock::lock;
use crate::log;
use crate::mpi::exit_at_once;

macro_rules! table {
    (
        calls { $($after_panic:ident {
            $($symbol:ident = $call:ident ( $($argument:ident : $type:ty),* $(,)? );)*
        })* }
        missing { $($missing:ident)* }
        missing_without_code { $($number:ident)* ; $($seconds:ident)* }
        missing_extensions { $($extension:ident)* }
        handles { $($handle:tt)* }
        ints { $($int:ident = $value:expr,)* ; $($other_int:ident)* }
        addresses { $($address:ident = $where:expr,)* ; $($null:ident)* }
    ) => {
        /// The functions that jaxlib calls, in the ABI of the MPI that is bound.
        pub(super) trait TrampolineAbi: Send + Sync {
            $($(
                /// # Safety
                /// The arguments are those of MPI's function, with handles as numbers.
                unsafe fn $call(&self, $($argument: $type),*) -> c_int;
            )*)*

            /// MPI's own text for an error code.
            fn error_text(&self, code: c_int) -> String;
        }

        $($(const _: () = {
            #[unsafe(export_name = concat!("MPIABI_", stringify!($symbol)))]
            unsafe extern "C" fn call($($argument: $type),*) -> c_int {
                // SAFETY: jaxlib calls this as MPI's function.
                answer($after_panic, |mpi| unsafe { mpi.$call($($argument),*) })
            }
        };)*)*

        /// The functions that exist in name only.
        pub(super) const MISSING: &[&str] = &[
            $(concat!("MPI_", stringify!($missing)),)*
            $(concat!("MPIX_", stringify!($extension)),)*
        ];

        $(missing!("MPIABI_", $missing: c_int = code_of(concat!("MPI_", stringify!($missing))));)*
        $(missing!("MPIXABI_", $extension: c_int = code_of(concat!("MPIX_", stringify!($extension))));)*
        $(missing!("MPIABI_", $number: usize = {
            complain(concat!("MPI_", stringify!($number)));
            0
        });)*
        $(missing!("MPIABI_", $seconds: f64 = {
            complain(concat!("MPI_", stringify!($seconds)));
            f64::NAN
        });)*

        /// The handles that are constants, without the prefix. The index of each is its number.
        pub const HANDLES: &[&str] = &[$(stringify!($handle)),*];

        const OTHER_INTS: &[&str] = &[$(stringify!($other_int)),*];

        $(constant!($handle: usize = index_of(HANDLES, stringify!($handle)));)*
        $(constant!($int: c_int = $value);)*
        $(constant!($other_int: c_int = 1 + index_of(OTHER_INTS, stringify!($other_int)) as c_int);)*
        $(constant!($address: usize = $where);)*
        $(constant!($null: usize = 0);)*
    };
}

/// A constant of the ABI.
macro_rules! constant {
    ($name:tt: $type:ty = $value:expr) => {
        const _: () = {
            #[unsafe(export_name = concat!("MPIABI_", stringify!($name)))]
            static CONSTANT: $type = $value;
        };
    };
}

/// A function that exists in name only, and whatever its arguments are does this.
macro_rules! missing {
    ($prefix:literal, $name:ident: $type:ty = $body:expr) => {
        const _: () = {
            #[unsafe(export_name = concat!($prefix, stringify!($name)))]
            extern "C" fn missing() -> $type {
                $body
            }
        };
    };
}

/// The MPI that answers, once it is known.
static SERVED: OnceLock<Box<dyn TrampolineAbi>> = OnceLock::new();

/// Makes this MPI answer from now on, unless another one does already.
pub(super) fn set_served(mpi: Box<dyn TrampolineAbi>) {
    let _ = SERVED.set(mpi);
}

/// Calls the MPI that is bound. A panic, which may not leave a C function, becomes an error code by
/// `after_panic`.
fn answer(
    after_panic: fn(Error) -> c_int,
    call: impl FnOnce(&dyn TrampolineAbi) -> c_int,
) -> c_int {
    let Some(mpi) = SERVED.get() else {
        end("mpi4jax: JAX's collectives want MPI, which they get from \
             mpi4jax.distributed.initialize(): call it before JAX is used")
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| call(&**mpi)));
    outcome.unwrap_or_else(|panic| after_panic(Error::of_panic(&*panic)))
}

/// Ends the process. XLA does not look at the error codes of most functions, and would use what they
/// have not written.
#[cold]
fn end(reason: &str) -> ! {
    log::print_error(&format!("{reason}\n"));
    exit_at_once(1)
}

/// After a panic in a function whose error code XLA makes an error of: gives the code.
#[cold]
fn refuse(panic: Error) -> c_int {
    *lock(&PANIC) = panic.message;
    PANICKED
}

/// After a panic in a function whose error code XLA ignores.
#[cold]
fn exit(panic: Error) -> c_int {
    end(&panic.message)
}

/// Text for [`PANICKED`].
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Error code of a call in which the core panicked, below the codes of missing functions.
const PANICKED: c_int = -(1 << 14);
const _: () = assert!(MISSING.len() < 1 << 14);

/// The codes of errors of our own are below 0, where MPI has none. They count down from here.
const FIRST_MISSING: c_int = -1;

/// The error code of a function that exists in name only.
#[cold]
fn code_of(function: &str) -> c_int {
    FIRST_MISSING - index_of(MISSING, function) as c_int
}

fn text_of_missing(function: &str) -> String {
    format!("{function} is not among the functions that mpi4jax has for JAX's collectives")
}

#[cold]
fn complain(function: &str) {
    log::print_error(&format!("mpi4jax: {}\n", text_of_missing(function)));
}

fn error_text(code: c_int) -> String {
    let missing = usize::try_from(FIRST_MISSING - code).ok();
    match (missing.and_then(|index| MISSING.get(index)), SERVED.get()) {
        (Some(function), _) => text_of_missing(function),
        (None, _) if code == PANICKED => lock(&PANIC).clone(),
        (None, Some(mpi)) => mpi.error_text(code),
        (None, None) => format!("error {code}"),
    }
}

/// Room for a text in this ABI: `MPIABI_MAX_ERROR_STRING`, which is the smaller one.
const MAX_STRING: usize = 1024;

/// Copies a text to C's memory.
///
/// # Safety
/// There is room for [`MAX_STRING`] bytes, and for the length.
unsafe fn give_text(text: &str, room: *mut c_char, length: *mut c_int) {
    let bytes = &text.as_bytes()[..text.len().min(MAX_STRING - 1)];
    // SAFETY: what is copied, with the null behind it, is no longer than the room.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), room.cast(), bytes.len());
        *room.add(bytes.len()) = 0;
        *length = bytes.len() as c_int;
    }
}

/// `MPIABI_Error_string`, which says what a missing function is called, too.
#[unsafe(export_name = "MPIABI_Error_string")]
unsafe extern "C" fn error_string(code: c_int, text: *mut c_char, length: *mut c_int) -> c_int {
    let words = catch_unwind(|| error_text(code));
    let words = words.unwrap_or_else(|panic| Error::of_panic(&*panic).message);
    // SAFETY: MPI-4.1 §9.4 has the caller give room.
    unsafe { give_text(&words, text, length) };
    0
}

/// `MPIABI_Get_library_version`, which MPItrampoline prints with `MPITRAMPOLINE_VERBOSE`.
#[unsafe(export_name = "MPIABI_Get_library_version")]
unsafe extern "C" fn get_library_version(text: *mut c_char, length: *mut c_int) -> c_int {
    let version = concat!("the MPI of mpi4py, by mpi4jax ", env!("CARGO_PKG_VERSION"));
    // SAFETY: MPI-4.1 §9.1.1 has the caller give room.
    unsafe { give_text(version, text, length) };
    0
}

/// Function of the Fortran interface, which jaxlib does not use.
#[unsafe(export_name = "mpiwrapper_export_fortran_constants_")]
extern "C" fn export_fortran_constants() {}

/// Declares the versions that MPItrampoline looks at: its ABI's, and MPIwrapper's, whose part the core
/// plays.
macro_rules! versions {
    ($($name:literal = $value:expr,)*) => {
        $(const _: () = {
            #[unsafe(export_name = $name)]
            static VERSION: c_int = $value;
        };)*
    };
}

versions! {
    "mpiabi_version_major" = 2,
    "mpiabi_version_minor" = 10,
    "mpiabi_version_patch" = 0,
    "mpiwrapper_version_major" = 2,
    "mpiwrapper_version_minor" = 11,
    "mpiwrapper_version_patch" = 1,
}

/// The index of a name in a list.
pub(super) const fn index_of(names: &[&str], name: &str) -> usize {
    let mut index = 0;
    while !are_equal(names[index].as_bytes(), name.as_bytes()) {
        index += 1;
    }
    index
}

const fn are_equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut index = 0;
    while index < a.len() {
        if a[index] != b[index] {
            return false;
        }
        index += 1;
    }
    true
}

/// `MPIABI_IN_PLACE` and `MPIABI_PROC_NULL`.
pub(super) const IN_PLACE: usize = usize::MAX;
pub(super) const PROC_NULL: c_int = -1;
/// `MPIABI_UNDEFINED`: the same in every MPI.
const UNDEFINED: c_int = -32766;
/// `MPIABI_THREAD_MULTIPLE`.
pub(super) const THREAD_MULTIPLE: c_int = 3;

table! {
    // What XLA's collectives call (xla/backends/cpu/collectives/mpi_*.cc, jaxlib 0.6 to 0.12), and
    // what MPItrampoline itself does, by what follows a panic.
    calls {
        refuse {
            Allgather = allgather(
                send: *const c_void, send_count: c_int, send_type: usize,
                recv: *mut c_void, recv_count: c_int, recv_type: usize, comm: usize,
            );
            Allreduce = allreduce(
                send: *const c_void, recv: *mut c_void, count: c_int, datatype: usize,
                op: usize, comm: usize,
            );
            Irecv = irecv(
                buffer: *mut c_void, count: c_int, datatype: usize, source: c_int, tag: c_int,
                comm: usize, request: *mut usize,
            );
            Isend = isend(
                buffer: *const c_void, count: c_int, datatype: usize, dest: c_int, tag: c_int,
                comm: usize, request: *mut usize,
            );
            Reduce_scatter = reduce_scatter(
                send: *const c_void, recv: *mut c_void, recv_counts: *const c_int,
                datatype: usize, op: usize, comm: usize,
            );
            Sendrecv = sendrecv(
                send: *const c_void, send_count: c_int, send_type: usize, dest: c_int,
                send_tag: c_int,
                recv: *mut c_void, recv_count: c_int, recv_type: usize, source: c_int,
                recv_tag: c_int, comm: usize, status: *mut TrampolineStatus,
            );
            Wait = wait(request: *mut usize, status: *mut TrampolineStatus);
        }
        exit {
            Comm_free = comm_free(comm: *mut usize);
            Comm_rank = comm_rank(comm: usize, rank: *mut c_int);
            Comm_size = comm_size(comm: usize, size: *mut c_int);
            Comm_split = comm_split(comm: usize, color: c_int, key: c_int, new_comm: *mut usize);
            Finalize = finalize();
            Init_thread = init_thread(
                count: *mut c_int, arguments: *mut *mut *mut c_char, required: c_int,
                provided: *mut c_int,
            );
            Is_thread_main = is_thread_main(flag: *mut c_int);
        }
    }
    missing {
        Abort Accumulate Add_error_class Add_error_code Add_error_string Allgatherv
        Alloc_mem Alltoall Alltoallv Alltoallw Barrier Bcast Bsend Bsend_init Buffer_attach
        Buffer_detach Cancel Cart_coords Cart_create Cart_get Cart_map Cart_rank Cart_shift
        Cart_sub Cartdim_get Close_port Comm_accept Comm_call_errhandler Comm_compare
        Comm_connect Comm_create Comm_create_errhandler Comm_create_group Comm_create_keyval
        Comm_delete_attr Comm_disconnect Comm_dup Comm_dup_with_info Comm_free_keyval
        Comm_get_attr Comm_get_errhandler Comm_get_info Comm_get_name Comm_get_parent
        Comm_group Comm_idup Comm_join Comm_remote_group Comm_remote_size Comm_set_attr
        Comm_set_errhandler Comm_set_info Comm_set_name Comm_spawn Comm_spawn_multiple
        Comm_split_type Comm_test_inter Compare_and_swap Dims_create Dist_graph_create
        Dist_graph_create_adjacent Dist_graph_neighbors Dist_graph_neighbors_count
        Errhandler_free Error_class Exscan Fetch_and_op File_call_errhandler File_close
        File_create_errhandler File_delete File_get_amode File_get_atomicity
        File_get_byte_offset File_get_errhandler File_get_group File_get_info
        File_get_position File_get_position_shared File_get_size File_get_type_extent
        File_get_view File_iread File_iread_all File_iread_at File_iread_at_all
        File_iread_shared File_iwrite File_iwrite_all File_iwrite_at File_iwrite_at_all
        File_iwrite_shared File_open File_preallocate File_read File_read_all
        File_read_all_begin File_read_all_end File_read_at File_read_at_all
        File_read_at_all_begin File_read_at_all_end File_read_ordered
        File_read_ordered_begin File_read_ordered_end File_read_shared File_seek
        File_seek_shared File_set_atomicity File_set_errhandler File_set_info File_set_size
        File_set_view File_sync File_write File_write_all File_write_all_begin
        File_write_all_end File_write_at File_write_at_all File_write_at_all_begin
        File_write_at_all_end File_write_ordered File_write_ordered_begin
        File_write_ordered_end File_write_shared Finalized Free_mem Gather Gatherv Get
        Get_accumulate Get_address Get_count Get_elements Get_elements_x Get_processor_name
        Get_version Graph_create Graph_get Graph_map Graph_neighbors Graph_neighbors_count
        Graphdims_get Grequest_complete Grequest_start Group_compare Group_difference
        Group_excl Group_free Group_incl Group_intersection Group_range_excl
        Group_range_incl Group_rank Group_size Group_translate_ranks Group_union Iallgather
        Iallgatherv Iallreduce Ialltoall Ialltoallv Ialltoallw Ibarrier Ibcast Ibsend
        Iexscan Igather Igatherv Improbe Imrecv Ineighbor_allgather Ineighbor_allgatherv
        Ineighbor_alltoall Ineighbor_alltoallv Ineighbor_alltoallw Info_create Info_delete
        Info_dup Info_free Info_get Info_get_nkeys Info_get_nthkey Info_get_valuelen
        Info_set Init Initialized Intercomm_create Intercomm_merge Iprobe Ireduce
        Ireduce_scatter Ireduce_scatter_block Irsend Iscan Iscatter Iscatterv Issend
        Lookup_name Mprobe Mrecv Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall
        Neighbor_alltoallv Neighbor_alltoallw Op_commutative Op_create Op_free Open_port
        Pack Pack_external Pack_external_size Pack_size Probe Publish_name Put Query_thread
        Raccumulate Recv Recv_init Reduce Reduce_local Reduce_scatter_block Register_datarep
        Request_free Request_get_status Rget Rget_accumulate Rput Rsend Rsend_init Scan
        Scatter Scatterv Send Send_init Sendrecv_replace Ssend Ssend_init Start Startall
        Status_c2f Status_f2c Status_set_cancelled Status_set_elements Status_set_elements_x
        Test Test_cancelled Testall Testany Testsome Topo_test Type_commit Type_contiguous
        Type_create_darray Type_create_f90_complex Type_create_f90_integer
        Type_create_f90_real Type_create_hindexed Type_create_hindexed_block
        Type_create_hvector Type_create_indexed_block Type_create_keyval Type_create_resized
        Type_create_struct Type_create_subarray Type_delete_attr Type_dup Type_free
        Type_free_keyval Type_get_attr Type_get_contents Type_get_envelope Type_get_extent
        Type_get_extent_x Type_get_name Type_get_true_extent Type_get_true_extent_x
        Type_indexed Type_match_size Type_set_attr Type_set_name Type_size Type_size_x
        Type_struct Type_vector Unpack Unpack_external Unpublish_name Waitall Waitany
        Waitsome Win_allocate Win_allocate_shared Win_attach Win_call_errhandler
        Win_complete Win_create Win_create_dynamic Win_create_errhandler Win_create_keyval
        Win_delete_attr Win_detach Win_fence Win_flush Win_flush_all Win_flush_local
        Win_flush_local_all Win_free Win_free_keyval Win_get_attr Win_get_errhandler
        Win_get_group Win_get_info Win_get_name Win_lock Win_lock_all Win_post Win_set_attr
        Win_set_errhandler Win_set_info Win_set_name Win_shared_query Win_start Win_sync
        Win_test Win_unlock Win_unlock_all Win_wait
    }
    // They can't return an error.
    missing_without_code {
        Aint_add Aint_diff Comm_c2f Comm_f2c Errhandler_c2f Errhandler_f2c File_c2f File_f2c
        Group_c2f Group_f2c Info_c2f Info_f2c Message_c2f Message_f2c Op_c2f Op_f2c
        Request_c2f Request_f2c Type_c2f Type_f2c Win_c2f Win_f2c;
        Wtick Wtime
    }
    missing_extensions { Query_cuda_support Query_hip_support Query_ze_support }
    handles {
        COMM_NULL COMM_SELF COMM_WORLD 2DOUBLE_PRECISION 2INT 2INTEGER 2REAL AINT BYTE CHAR
        CHARACTER COMPLEX COMPLEX16 COMPLEX32 COMPLEX8 COUNT CXX_BOOL CXX_DOUBLE_COMPLEX
        CXX_FLOAT_COMPLEX CXX_LONG_DOUBLE_COMPLEX C_BOOL C_COMPLEX C_DOUBLE_COMPLEX
        C_FLOAT_COMPLEX C_LONG_DOUBLE_COMPLEX DATATYPE_NULL DOUBLE DOUBLE_COMPLEX DOUBLE_INT
        DOUBLE_PRECISION FLOAT FLOAT_INT INT INT16_T INT32_T INT64_T INT8_T INTEGER INTEGER1
        INTEGER2 INTEGER4 INTEGER8 LOGICAL LONG LONG_DOUBLE LONG_DOUBLE_INT LONG_INT
        LONG_LONG LONG_LONG_INT OFFSET PACKED REAL REAL16 REAL4 REAL8 SHORT SHORT_INT
        SIGNED_CHAR UINT16_T UINT32_T UINT64_T UINT8_T UNSIGNED UNSIGNED_CHAR UNSIGNED_LONG
        UNSIGNED_LONG_LONG UNSIGNED_SHORT WCHAR ERRHANDLER_NULL ERRORS_ARE_FATAL
        ERRORS_RETURN FILE_NULL GROUP_EMPTY GROUP_NULL INFO_ENV INFO_NULL MESSAGE_NO_PROC
        MESSAGE_NULL BAND BOR BXOR LAND LOR LXOR MAX MAXLOC MIN MINLOC NO_OP OP_NULL PROD
        REPLACE SUM REQUEST_NULL WIN_NULL
    }
    ints {
        SUCCESS = 0, UNDEFINED = UNDEFINED, PROC_NULL = PROC_NULL, ANY_SOURCE = -2, ANY_TAG = -1,
        ROOT = -3, THREAD_SINGLE = 0, THREAD_FUNNELED = 1, THREAD_SERIALIZED = 2,
        THREAD_MULTIPLE = THREAD_MULTIPLE,;
        APPNUM BSEND_OVERHEAD CART COMBINER_CONTIGUOUS COMBINER_DARRAY COMBINER_DUP
        COMBINER_F90_COMPLEX COMBINER_F90_INTEGER COMBINER_F90_REAL COMBINER_HINDEXED
        COMBINER_HINDEXED_BLOCK COMBINER_HVECTOR COMBINER_INDEXED COMBINER_INDEXED_BLOCK
        COMBINER_NAMED COMBINER_RESIZED COMBINER_STRUCT COMBINER_SUBARRAY COMBINER_VECTOR
        COMM_TYPE_SHARED CONGRUENT DISTRIBUTE_BLOCK DISTRIBUTE_CYCLIC DISTRIBUTE_DFLT_DARG
        DISTRIBUTE_NONE DIST_GRAPH ERR_ACCESS ERR_AMODE ERR_ARG ERR_ASSERT ERR_BAD_FILE
        ERR_BASE ERR_BUFFER ERR_COMM ERR_CONVERSION ERR_COUNT ERR_DIMS ERR_DISP
        ERR_DUP_DATAREP ERR_FILE ERR_FILE_EXISTS ERR_FILE_IN_USE ERR_GROUP ERR_INFO
        ERR_INFO_KEY ERR_INFO_NOKEY ERR_INFO_VALUE ERR_INTERN ERR_IN_STATUS ERR_IO
        ERR_KEYVAL ERR_LASTCODE ERR_LOCKTYPE ERR_NAME ERR_NOT_SAME ERR_NO_MEM ERR_NO_SPACE
        ERR_NO_SUCH_FILE ERR_OP ERR_OTHER ERR_PENDING ERR_PORT ERR_QUOTA ERR_RANK
        ERR_READ_ONLY ERR_REQUEST ERR_RMA_ATTACH ERR_RMA_CONFLICT ERR_RMA_FLAVOR
        ERR_RMA_RANGE ERR_RMA_SHARED ERR_RMA_SYNC ERR_ROOT ERR_SERVICE ERR_SIZE ERR_SPAWN
        ERR_TAG ERR_TOPOLOGY ERR_TRUNCATE ERR_TYPE ERR_UNKNOWN ERR_UNSUPPORTED_DATAREP
        ERR_UNSUPPORTED_OPERATION ERR_WIN GRAPH HOST IDENT IO KEYVAL_INVALID LASTUSEDCODE
        LOCK_EXCLUSIVE LOCK_SHARED MODE_APPEND MODE_CREATE MODE_DELETE_ON_CLOSE MODE_EXCL
        MODE_NOCHECK MODE_NOPRECEDE MODE_NOPUT MODE_NOSTORE MODE_NOSUCCEED MODE_RDONLY
        MODE_RDWR MODE_SEQUENTIAL MODE_UNIQUE_OPEN MODE_WRONLY ORDER_C ORDER_FORTRAN
        SEEK_CUR SEEK_END SEEK_SET SIMILAR TAG_UB TYPECLASS_COMPLEX TYPECLASS_INTEGER
        TYPECLASS_REAL UNEQUAL UNIVERSE_SIZE WIN_BASE WIN_CREATE_FLAVOR WIN_DISP_UNIT
        WIN_FLAVOR_ALLOCATE WIN_FLAVOR_CREATE WIN_FLAVOR_DYNAMIC WIN_FLAVOR_SHARED WIN_MODEL
        WIN_SEPARATE WIN_SIZE WIN_UNIFIED WTIME_IS_GLOBAL
    }
    addresses {
        IN_PLACE = IN_PLACE, STATUS_IGNORE = STATUS_IGNORE, STATUSES_IGNORE = STATUS_IGNORE,;
        ARGVS_NULL ARGV_NULL BOTTOM COMM_DUP_FN COMM_NULL_COPY_FN COMM_NULL_DELETE_FN
        CONVERSION_FN_NULL DISPLACEMENT_CURRENT DUP_FN ERRCODES_IGNORE F_STATUSES_IGNORE
        F_STATUS_IGNORE NULL_COPY_FN NULL_DELETE_FN TYPE_DUP_FN TYPE_NULL_COPY_FN
        TYPE_NULL_DELETE_FN UNWEIGHTED WEIGHTS_EMPTY WIN_DUP_FN WIN_NULL_COPY_FN
        WIN_NULL_DELETE_FN
    }
}
