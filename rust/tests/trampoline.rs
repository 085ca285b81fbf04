//! What jaxlib calls, on an MPI that only records what it is asked.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;

use _core::trampoline::{HANDLES, serve};

mod common;
use common::recorder::*;

/// Declares functions as jaxlib does, by their names in MPItrampoline's ABI.
macro_rules! trampoline {
    ($($name:ident = $symbol:literal ( $($type:ty),* );)*) => {
        unsafe extern "C" {
            $(
                #[link_name = $symbol]
                fn $name($(_: $type),*) -> c_int;
            )*
        }
    };
}

trampoline! {
    allgather = "MPIABI_Allgather"(
        *const c_void, c_int, usize, *mut c_void, c_int, usize, usize
    );
    allreduce = "MPIABI_Allreduce"(*const c_void, *mut c_void, c_int, usize, usize, usize);
    comm_free = "MPIABI_Comm_free"(*mut usize);
    comm_split = "MPIABI_Comm_split"(usize, c_int, c_int, *mut usize);
    error_string = "MPIABI_Error_string"(c_int, *mut c_char, *mut c_int);
    finalize = "MPIABI_Finalize"();
    init_thread = "MPIABI_Init_thread"(*mut c_int, *mut c_void, c_int, *mut c_int);
    is_thread_main = "MPIABI_Is_thread_main"(*mut c_int);
    bcast = "MPIABI_Bcast"(*mut c_void, c_int, usize, c_int, usize);
}

unsafe extern "C" {
    #[link_name = "MPIABI_FLOAT"]
    static FLOAT: usize;
    #[link_name = "MPIABI_SUM"]
    static SUM: usize;
    #[link_name = "MPIABI_COMM_WORLD"]
    static WORLD: usize;
    #[link_name = "MPIABI_COMM_NULL"]
    static COMM_NULL: usize;
    #[link_name = "MPIABI_IN_PLACE"]
    static MARK_IN_PLACE: usize;
}

/// MPI's handle for a constant of jaxlib's.
fn real(name: &str) -> i64 {
    1000 + HANDLES.iter().position(|known| *known == name).unwrap() as i64
}

/// What a body has asked MPI for.
fn calls_of(body: impl FnOnce()) -> Vec<Recorded> {
    recorded();
    body();
    recorded()
}

fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        bind();
        serve::<Recorder>(
            (0..HANDLES.len()).map(|place| 1000 + place).collect(),
            vec![4, 7],
            1,
        );
    });
}

#[test]
fn handles_are_those_of_mpi() {
    start();
    let (send, mut recv) = ([1.0f32; 3], [0.0f32; 3]);
    let (from, to) = (
        send.as_ptr().cast::<c_void>(),
        recv.as_mut_ptr().cast::<c_void>(),
    );
    // SAFETY: both arrays have three elements.
    let calls = calls_of(|| unsafe { assert_eq!(allreduce(from, to, 3, FLOAT, SUM, WORLD), 0) });
    let expected = vec![
        from as i64,
        to as i64,
        3,
        real("FLOAT"),
        real("SUM"),
        real("COMM_WORLD"),
    ];
    assert_eq!(calls, [("MPI_Allreduce", expected)]);
}

#[test]
fn what_is_in_place_is_said_so() {
    start();
    let mut data = [0.0f32; 3];
    let address = data.as_mut_ptr().cast::<c_void>();
    let sent = |calls: Vec<Recorded>| calls[0].1[0];
    // SAFETY: the array has three elements.
    unsafe {
        let same = calls_of(|| assert_eq!(allreduce(address, address, 3, FLOAT, SUM, WORLD), 0));
        assert_eq!(sent(same), IN_PLACE);
        let mark = ptr::without_provenance(MARK_IN_PLACE);
        let marked = calls_of(|| assert_eq!(allreduce(mark, address, 3, FLOAT, SUM, WORLD), 0));
        assert_eq!(sent(marked), IN_PLACE);
        // Where the operand is a block of the result, its address says nothing.
        let first =
            calls_of(|| assert_eq!(allgather(address, 1, FLOAT, address, 1, FLOAT, WORLD), 0));
        assert_eq!(sent(first), address as i64);
    }
}

#[test]
fn mpi_stays_as_it_is() {
    start();
    let (mut provided, mut flag) = (-1, -1);
    // SAFETY: both may be written.
    let calls = calls_of(|| unsafe {
        assert_eq!(
            init_thread(ptr::null_mut(), ptr::null_mut(), 1, &raw mut provided),
            0
        );
        assert_eq!(is_thread_main(&raw mut flag), 0);
        assert_eq!(finalize(), 0);
    });
    assert_eq!(calls, []);
    assert_eq!((provided, flag), (3, 1));
}

#[test]
fn nothing_is_freed_after_the_end() {
    start();
    // SAFETY: a handle that may be written.
    unsafe {
        let mut comm = WORLD;
        let calls = after_the_end(|| calls_of(|| assert_eq!(comm_free(&raw mut comm), 0)));
        assert!(
            !calls
                .iter()
                .any(|(function, _)| *function == "MPI_Comm_free")
        );
        assert_eq!(comm, COMM_NULL);
    }
}

#[test]
fn a_communicator_that_was_not_made_is_null() {
    start();
    // SAFETY: a handle that may be written.
    unsafe {
        let mut comm = 12345;
        let code = failing("MPI_Comm_split", 7, || {
            comm_split(WORLD, 0, 0, &raw mut comm)
        });
        assert_eq!((code, comm), (7, COMM_NULL));
    }
}

#[test]
fn errors_have_texts() {
    start();
    let text = |code| {
        let (mut text, mut length) = ([0; 1024], 0);
        // SAFETY: there is room for the longest text.
        unsafe {
            assert_eq!(error_string(code, text.as_mut_ptr(), &raw mut length), 0);
            let text = CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned();
            assert_eq!(text.len(), length as usize);
            text
        }
    };
    // SAFETY: it does nothing.
    let code = unsafe { bcast(ptr::null_mut(), 0, FLOAT, 0, WORLD) };
    assert!(code < 0);
    let expected = "MPI_Bcast is not among the functions that mpi4jax has for JAX's collectives";
    assert_eq!(text(code), expected);
    assert_eq!(text(7), "number 7 is wrong");
}
