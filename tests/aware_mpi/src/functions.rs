//! MPI's functions, as far as they are played.
//!
//! Handles are ints in one ABI and pointers in others. Both are passed on as they came, in the same
//! registers, so all of them are words here.

use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{driver, number_from, real};

type Word = usize;

/// Declares what the real function of this name is.
macro_rules! real {
    ($name:literal as fn($($argument:ty),*)) => {{
        let address = real::find($name);
        assert!(!address.is_null(), "the real MPI has no {:?}", $name);
        // SAFETY: this is its signature, with words for handles.
        unsafe {
            transmute_copy::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(&address)
        }
    }};
}

macro_rules! functions {
    ($($name:ident),* $(,)?) => {
        /// The function of this library that stands for one of MPI's.
        pub fn own(name: &CStr) -> Option<*mut c_void> {
            $(
                if name.to_bytes() == stringify!($name).as_bytes() {
                    return Some($name as *mut c_void);
                }
            )*
            None
        }
    };
}

functions! {
    MPIX_Query_cuda_support,
    MPI_Allgather,
    MPI_Allreduce,
    MPI_Bcast,
    MPI_Get_library_version,
    MPI_Init,
    MPI_Init_thread,
    MPI_Recv,
    MPI_Send,
    MPI_Test,
}

fn bytes_of(count: c_int, datatype: Word) -> usize {
    let type_size = real!(c"MPI_Type_size" as fn(Word, *mut c_int));
    // SAFETY: the caller's data type, and room for the answer.
    let size = number_from(|size| unsafe { type_size(datatype, size) });
    size * usize::try_from(count).unwrap_or(0)
}

fn size_of(comm: Word) -> usize {
    let comm_size = real!(c"MPI_Comm_size" as fn(Word, *mut c_int));
    // SAFETY: the caller's communicator, and room for the answer.
    number_from(|size| unsafe { comm_size(comm, size) })
}

/// An array of a call, which is where the caller says, or a copy in host memory.
struct Array {
    address: usize,
    copy: Option<Vec<u8>>,
}

impl Array {
    fn new(address: *mut c_void, bytes: usize) -> Self {
        let address = address as usize;
        let is_copied = bytes > 0 && driver::is_known(address);
        Self {
            address,
            copy: is_copied.then(|| driver::read(address, bytes)),
        }
    }

    fn pointer(&mut self) -> *mut c_void {
        match &mut self.copy {
            Some(copy) => copy.as_mut_ptr().cast(),
            None => self.address as *mut c_void,
        }
    }

    fn give_back(self) {
        if let Some(copy) = self.copy {
            driver::write(self.address, &copy);
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn MPIX_Query_cuda_support() -> c_int {
    1
}

/// # Safety
/// As of MPI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Get_library_version(text: *mut c_char, length: *mut c_int) -> c_int {
    let Ok(version) = env::var("AWARE_MPI_VERSION") else {
        let function = real!(c"MPI_Get_library_version" as fn(*mut c_char, *mut c_int));
        // SAFETY: the caller's promise.
        return unsafe { function(text, length) };
    };
    // SAFETY: there is room for MPI_MAX_LIBRARY_VERSION_STRING characters.
    unsafe {
        ptr::copy_nonoverlapping(version.as_ptr(), text.cast(), version.len());
        *text.add(version.len()) = 0;
        *length = version.len() as c_int;
    }
    0
}

/// # Safety
/// As of MPI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Init(count: *mut c_int, arguments: *mut c_void) -> c_int {
    driver::start();
    let function = real!(c"MPI_Init" as fn(*mut c_int, *mut c_void));
    // SAFETY: the caller's promise.
    unsafe { function(count, arguments) }
}

/// # Safety
/// As of MPI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Init_thread(
    count: *mut c_int,
    arguments: *mut c_void,
    required: c_int,
    provided: *mut c_int,
) -> c_int {
    driver::start();
    let function = real!(c"MPI_Init_thread" as fn(*mut c_int, *mut c_void, c_int, *mut c_int));
    // SAFETY: the caller's promise.
    unsafe { function(count, arguments, required, provided) }
}

/// # Safety
/// As of MPI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Allreduce(
    operand: *mut c_void,
    result: *mut c_void,
    count: c_int,
    datatype: Word,
    op: Word,
    comm: Word,
) -> c_int {
    let bytes = bytes_of(count, datatype);
    let (mut from, mut to) = (Array::new(operand, bytes), Array::new(result, bytes));
    type Pointer = *mut c_void;
    let function = real!(c"MPI_Allreduce" as fn(Pointer, Pointer, c_int, Word, Word, Word));
    // SAFETY: the caller's promise, or copies of the same size.
    let code = unsafe { function(from.pointer(), to.pointer(), count, datatype, op, comm) };
    to.give_back();
    code
}

/// # Safety
/// As of MPI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Allgather(
    operand: *mut c_void,
    send_count: c_int,
    send_type: Word,
    result: *mut c_void,
    recv_count: c_int,
    recv_type: Word,
    comm: Word,
) -> c_int {
    let mut from = Array::new(operand, bytes_of(send_count, send_type));
    let mut to = Array::new(result, bytes_of(recv_count, recv_type) * size_of(comm));
    type Pointer = *mut c_void;
    let function = real!(c"MPI_Allgather" as fn(Pointer, c_int, Word, Pointer, c_int, Word, Word));
    // SAFETY: the caller's promise, or copies of the same size.
    let code = unsafe {
        let (from, to) = (from.pointer(), to.pointer());
        function(from, send_count, send_type, to, recv_count, recv_type, comm)
    };
    to.give_back();
    code
}

/// # Safety
/// As of MPI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Bcast(
    array: *mut c_void,
    count: c_int,
    datatype: Word,
    root: c_int,
    comm: Word,
) -> c_int {
    let mut array = Array::new(array, bytes_of(count, datatype));
    let function = real!(c"MPI_Bcast" as fn(*mut c_void, c_int, Word, c_int, Word));
    // SAFETY: the caller's promise, or a copy of the same size.
    let code = unsafe { function(array.pointer(), count, datatype, root, comm) };
    array.give_back();
    code
}

/// # Safety
/// As of MPI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Send(
    array: *mut c_void,
    count: c_int,
    datatype: Word,
    dest: c_int,
    tag: c_int,
    comm: Word,
) -> c_int {
    let mut array = Array::new(array, bytes_of(count, datatype));
    let function = real!(c"MPI_Send" as fn(*mut c_void, c_int, Word, c_int, c_int, Word));
    // SAFETY: the caller's promise, or a copy of the same size.
    unsafe { function(array.pointer(), count, datatype, dest, tag, comm) }
}

/// # Safety
/// As of MPI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Recv(
    array: *mut c_void,
    count: c_int,
    datatype: Word,
    source: c_int,
    tag: c_int,
    comm: Word,
    status: *mut c_void,
) -> c_int {
    let mut array = Array::new(array, bytes_of(count, datatype));
    type Pointer = *mut c_void;
    let function = real!(c"MPI_Recv" as fn(Pointer, c_int, Word, c_int, c_int, Word, Pointer));
    // SAFETY: the caller's promise, or a copy of the same size.
    let code = unsafe { function(array.pointer(), count, datatype, source, tag, comm, status) };
    array.give_back();
    code
}

static STRANGE_TESTS: AtomicUsize = AtomicUsize::new(0);

static TESTS: AtomicUsize = AtomicUsize::new(0);

/// How many calls of `MPI_Test` were made.
pub fn tests() -> usize {
    TESTS.load(Ordering::Relaxed)
}

pub fn strange_tests() -> usize {
    STRANGE_TESTS.load(Ordering::Relaxed)
}

/// # Safety
/// As of MPI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Test(
    request: *mut c_void,
    flag: *mut c_int,
    status: *mut c_void,
) -> c_int {
    TESTS.fetch_add(1, Ordering::Relaxed);
    if driver::context() != driver::start_context() {
        STRANGE_TESTS.fetch_add(1, Ordering::Relaxed);
    }
    let function = real!(c"MPI_Test" as fn(*mut c_void, *mut c_int, *mut c_void));
    // SAFETY: the caller's promise.
    unsafe { function(request, flag, status) }
}
