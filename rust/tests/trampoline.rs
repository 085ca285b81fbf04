//! The functions that jaxlib calls, on an MPI that only records its arguments.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::process::Command;
use std::sync::Once;
use std::{array, env, ptr};

use _core::trampoline::{Devices, HANDLES, serve};

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
    comm_rank = "MPIABI_Comm_rank"(usize, *mut c_int);
    comm_size = "MPIABI_Comm_size"(usize, *mut c_int);
    comm_split = "MPIABI_Comm_split"(usize, c_int, c_int, *mut usize);
    error_string = "MPIABI_Error_string"(c_int, *mut c_char, *mut c_int);
    finalize = "MPIABI_Finalize"();
    init_thread = "MPIABI_Init_thread"(*mut c_int, *mut c_void, c_int, *mut c_int);
    is_thread_main = "MPIABI_Is_thread_main"(*mut c_int);
    bcast = "MPIABI_Bcast"(*mut c_void, c_int, usize, c_int, usize);
    reduce_scatter = "MPIABI_Reduce_scatter"(
        *const c_void, *mut c_void, *const c_int, usize, usize, usize
    );
}

unsafe extern "C" {
    #[link_name = "MPIABI_FLOAT"]
    static FLOAT: usize;
    #[link_name = "MPIABI_PACKED"]
    static PACKED: usize;
    #[link_name = "MPIABI_SUM"]
    static SUM: usize;
    #[link_name = "MPIABI_COMM_WORLD"]
    static WORLD: usize;
    #[link_name = "MPIABI_COMM_SELF"]
    static COMM_SELF: usize;
    #[link_name = "MPIABI_COMM_NULL"]
    static COMM_NULL: usize;
    #[link_name = "MPIABI_IN_PLACE"]
    static MARK_IN_PLACE: usize;
}

/// MPI's handle for a constant of jaxlib's.
fn real(name: &str) -> i64 {
    1000 + HANDLES.iter().position(|known| *known == name).unwrap() as i64
}

/// The calls of MPI in a body.
fn calls_of(body: impl FnOnce()) -> Vec<Recorded> {
    recorded();
    body();
    recorded()
}

/// Starts an MPI that answers, in a world of three processes: 0 and 1 with a device each, and 2 with
/// two.
fn start() {
    start_with(|| HashMap::from([(0, 0), (2048, 1), (4096, 2), (4097, 2)]));
}

fn start_with(owners: fn() -> HashMap<i64, c_int>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        bind();
        let handles = (0..HANDLES.len()).map(|index| 1000 + index).collect();
        let devices = Devices {
            bytes: 4,
            versions: "jaxlib 7".into(),
            owners: Box::new(owners),
        };
        // SAFETY: the stand-in takes any handle.
        unsafe { serve::<Recorder>(handles, vec![4, 7, 9], 1, devices) };
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

/// Fails when a constant has the size of JAX's world, so that a list with a count for one process is
/// read for three.
#[test]
fn other_constants_are_no_communicators() {
    start();
    let (send, mut recv, counts) = ([1.0f32], [0.0f32], [1]);
    let (from, to) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
    let counts = counts.as_ptr();
    let (mut rank, mut size) = (-1, -1);
    let mut codes = Vec::new();
    // SAFETY: there is one element with its count, and the numbers may be written.
    let calls = calls_of(|| unsafe {
        codes.push(reduce_scatter(from, to, counts, FLOAT, SUM, COMM_SELF));
        codes.push(comm_rank(COMM_SELF, &raw mut rank));
        codes.push(comm_size(COMM_SELF, &raw mut size));
    });
    assert_eq!((calls, rank, size), (vec![], -1, -1));
    let expected = "JAX's collectives have no other communicators of MPI's than their world";
    for code in codes {
        assert_eq!(text_of(code), expected);
    }
}

#[test]
fn types_that_jax_does_not_send_are_refused() {
    start();
    let mut data = [0.0f32; 3];
    let address = data.as_mut_ptr().cast::<c_void>();
    let mut code = 0;
    // SAFETY: the array has three elements.
    let calls = calls_of(|| unsafe { code = allreduce(address, address, 3, PACKED, SUM, WORLD) });
    assert_eq!(calls, []);
    assert_eq!(
        text_of(code),
        "MPI_PACKED is not among the types of JAX's collectives that mpi4jax knows"
    );
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
fn communicators_are_freed() {
    start();
    // SAFETY: a handle that may be written.
    unsafe {
        let mut comm = WORLD;
        let calls = calls_of(|| assert_eq!(comm_free(&raw mut comm), 0));
        assert_eq!(calls, [("MPI_Comm_free", vec![real("COMM_WORLD")])]);
        assert_eq!(comm, COMM_NULL);
    }
}

/// The memory of a C++ class with virtual functions, and of an object of it with a vector.
#[repr(C)]
struct Description {
    table: usize,
    name: *const c_char,
}

#[repr(C)]
struct Object {
    table: *const *const Description,
    devices: [*const i32; 3],
}

/// Options that the address sanitizer asks for: variables stay on the stack, where they are searched.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"detect_stack_use_after_return=0".as_ptr()
}

/// Asks for a communicator as XLA does, which has the devices on its stack. Gives the communicator
/// and what MPI is asked for.
fn split(class: &CStr, devices: &[i32], color: c_int, key: c_int) -> (usize, Vec<Recorded>) {
    start();
    let description = Description {
        table: 0,
        name: class.as_ptr(),
    };
    // The functions come behind the description.
    let table = [ptr::null(), &raw const description, ptr::null()];
    let range = devices.as_ptr_range();
    let object = Object {
        table: &raw const table[2],
        devices: [range.start, range.end, range.end],
    };
    // Lies further up on the stack.
    let words: [usize; 64] = black_box(array::from_fn(|word| word));
    let mut comm = 12345;
    let calls = calls_of(|| {
        // SAFETY: a handle that may be written.
        assert_eq!(unsafe { comm_split(WORLD, color, key, &raw mut comm) }, 0);
    });
    black_box((&object, &words));
    (comm, calls)
}

const CLIQUE: &CStr = c"N3xla3cpu12CpuCliqueKeyE";

/// Why a call on a communicator fails.
fn refusal(comm: usize) -> String {
    let mut data = [0.0f32; 3];
    let address = data.as_mut_ptr().cast::<c_void>();
    let mut code = 0;
    // SAFETY: the array has three elements.
    let calls = calls_of(|| unsafe { code = allreduce(address, address, 3, FLOAT, SUM, comm) });
    assert_eq!(calls, [], "MPI was asked");
    text_of(code)
}

#[test]
fn a_communicator_has_the_processes_of_its_devices() {
    let (comm, calls) = split(CLIQUE, &[4096, 2048], 4096, 1);
    let names: Vec<_> = calls.iter().map(|call| call.0).collect();
    assert_eq!(
        names,
        [
            "MPI_Comm_group",
            "MPI_Group_incl",
            "MPI_Group_free",
            "MPI_Comm_create_group",
            "MPI_Group_free",
        ]
    );
    assert_eq!(calls[1].1[1], 2);
    assert_eq!(calls[3].1[0], real("COMM_WORLD"));
    let (mut rank, mut size) = (-1, -1);
    // SAFETY: both may be written.
    unsafe {
        assert_eq!(comm_rank(comm, &raw mut rank), 0);
        assert_eq!(comm_size(comm, &raw mut size), 0);
    }
    assert_eq!((rank, size), (1, 2));
}

/// Fails if members of a communicator make it with different tags, or others with the same one.
#[test]
fn a_communicator_is_made_with_a_tag_of_its_own() {
    let tag = |devices: &[i32], color, key| split(CLIQUE, devices, color, key).1[3].1[2];
    assert_eq!(tag(&[0, 2048], 0, 1), tag(&[0, 2048], 0, 1));
    assert_ne!(tag(&[0, 2048], 0, 1), tag(&[4096, 2048], 4096, 1));
    assert!((0..=32767).contains(&tag(&[0, 2048, 4096], 0, 1)));
}

#[test]
fn devices_that_are_not_found_make_no_communicator() {
    let (comm, calls) = split(c"N3xla3gpu12GpuCliqueKeyE", &[0, 2048], 0, 1);
    assert_eq!(calls, []);
    assert_eq!(
        refusal(comm),
        "mpi4jax does not find which devices a program runs on in jaxlib 7. Use a version of JAX \
         that it was tested with"
    );
    // Those of another communicator are not taken.
    for (devices, color, key) in [
        (&[0, 2048][..], 2048, 1),
        (&[0, 2048], 0, 2),
        (&[2048, 2048], 2048, 1),
        (&[], 0, 0),
    ] {
        assert_eq!(split(CLIQUE, devices, color, key).1, []);
    }
}

#[test]
fn several_devices_of_a_process_are_refused() {
    let (comm, calls) = split(CLIQUE, &[2048, 4096, 4097], 2048, 0);
    assert_eq!(calls, []);
    assert_eq!(
        refusal(comm),
        "a program runs on several devices of process 2, but JAX's collectives use MPI with one \
         device for each process. Start a process for each device (jax_num_cpu_devices=1)"
    );
}

#[test]
fn an_error_of_mpi_is_that_of_all_calls_on_the_communicator() {
    let (comm, _) = failing("MPI_Comm_create_group", 7, || {
        split(CLIQUE, &[0, 2048], 0, 1)
    });
    assert_eq!(refusal(comm), "number 7 is wrong");
}

fn text_of(code: c_int) -> String {
    let (mut text, mut length) = ([0; 1024], 0);
    // SAFETY: there is room for the longest text.
    unsafe {
        assert_eq!(error_string(code, text.as_mut_ptr(), &raw mut length), 0);
        let text = CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned();
        assert_eq!(text.len(), length as usize);
        text
    }
}

#[test]
fn errors_have_texts() {
    start();
    // SAFETY: it does nothing.
    let code = unsafe { bcast(ptr::null_mut(), 0, FLOAT, 0, WORLD) };
    assert!(code < 0);
    let expected = "MPI_Bcast is not among the functions that mpi4jax has for JAX's collectives";
    assert_eq!(text_of(code), expected);
    assert_eq!(text_of(7), "number 7 is wrong");
}

/// A reduce-scatter with a count for each of the three processes of JAX's world: gives the code,
/// and the calls of MPI.
fn reduce_scattered(counts: [c_int; 3]) -> (c_int, Vec<Recorded>) {
    start();
    let address = ptr::without_provenance_mut(OUT as usize);
    let mut code = 0;
    let calls = calls_of(|| {
        let send = ptr::without_provenance(IN as usize);
        // SAFETY: there is a count for each process, and nothing is read or written at the addresses.
        code = unsafe { reduce_scatter(send, address, counts.as_ptr(), FLOAT, SUM, WORLD) };
    });
    (code, calls)
}

/// Fails if the elements of all processes are counted in an int, which wraps, or where a panic about it
/// leaves a C function, which ends the process.
#[test]
fn more_than_an_int_counts_is_scattered() {
    let of_all = [real("FLOAT"), real("SUM"), real("COMM_WORLD")];
    let (code, calls) = reduce_scattered([800_000_000; 3]);
    let arguments = [&[IN, OUT, 800_000_000], &of_all[..]].concat();
    assert_eq!(code, 0);
    assert_eq!(calls, [("MPI_Reduce_scatter_block", arguments)]);
    // The recorder shows the first two of a list.
    let (code, calls) = reduce_scattered([c_int::MAX, 1, 1]);
    let arguments = [&[IN, OUT, c_int::MAX.into(), 1], &of_all[..]].concat();
    assert_eq!(code, 0);
    assert_eq!(calls, [("MPI_Reduce_scatter_c", arguments)]);
    let (_, calls) = reduce_scattered([5; 3]);
    assert_eq!(calls[0].0, "MPI_Reduce_scatter");
}

#[test]
fn a_panic_is_an_error_that_says_what_to_do() {
    let (code, calls) = reduce_scattered([-1, 1, 1]);
    assert_eq!(calls, []);
    let text = text_of(code);
    assert!(text.starts_with("mpi4jax panicked: "), "{text}");
    assert!(text.ends_with(". This is a defect of mpi4jax: please report it"));
}

/// Fails if XLA goes on with what a function has not written, as it looks at no code of `MPI_Comm_split`.
#[test]
fn a_panic_where_no_code_is_read_ends_the_process() {
    let mut test = Command::new(env::current_exe().unwrap());
    let outcome = test.args(["--ignored", "--exact", "owners_panic"]).output();
    let outcome = outcome.unwrap();
    let text = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(1), "{text}");
    let line = "mpi4jax panicked: no owners. This is a defect of mpi4jax: please report it\n";
    assert!(text.ends_with(line), "{text}");
}

#[test]
#[ignore = "ends its process, so another test runs it in one of its own"]
fn owners_panic() {
    start_with(|| panic!("no owners"));
    split(CLIQUE, &[4096, 2048], 4096, 1);
}
