//! The registry for XLA handlers that other packages write.
//!
//! Such a handler gets the numbers that mpi4jax puts into programs as attributes. What they stand
//! for it asks of a struct in a capsule called `mpi4jax.registry`, which `mpi4jax._core.registry()`
//! gives. C declares it like this; C++, which has a keyword `operator`, under other names:
//!
//! ```c
//! struct mpi4jax_registry {
//!     size_t struct_size; /* of what this version has: later ones have more, at the end */
//!     int (*communicator)(int64_t number, uintptr_t *handle, int *rank, int *size);
//!     int (*operator)(int64_t number, uintptr_t *handle);
//!     int (*datatype)(int xla_dtype, uintptr_t *handle, size_t *size);
//! };
//! ```
//!
//! Each function returns 0, or 1 if there is none: it is unknown, or was freed. Then it writes
//! nothing. Where an output is null, it is left out. `handle` is the number of MPI's handle: a
//! pointer, or MPICH's int in the low 32 bits. `size` is a number of processes, or the bytes of an
//! element. The struct stays where it is, and its functions may be called by any thread.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Result;
use crate::mpi::REGISTRY;
use crate::recorder;

/// The struct, as the module's documentation has it in C.
#[repr(C)]
pub struct RegistryInterface {
    /// The bytes of the struct.
    pub struct_size: usize,
    /// The communicator with a number: its handle, this process's rank and the number of processes.
    pub communicator: unsafe extern "C" fn(
        comm_number: i64,
        handle: *mut usize,
        rank: *mut c_int,
        size: *mut c_int,
    ) -> c_int,
    /// The reduction operator with a number. MPI's own take 16-bit floats for integers.
    pub operator: unsafe extern "C" fn(op_number: i64, handle: *mut usize) -> c_int,
    /// The MPI data type that holds elements of XLA's type, and their size.
    pub datatype:
        unsafe extern "C" fn(xla_dtype: c_int, handle: *mut usize, size: *mut usize) -> c_int,
}

/// The struct of this process.
pub static REGISTRY_INTERFACE: RegistryInterface = RegistryInterface {
    struct_size: size_of::<RegistryInterface>(),
    communicator,
    operator,
    datatype,
};

/// Gives an object to C: 0 if there is one, and 1 if there is none, or if looking for it panics.
fn answer<T>(find: impl FnOnce() -> Result<T>, give: impl FnOnce(T)) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(|| find().map(give)));
    c_int::from(!matches!(outcome, Ok(Ok(()))))
}

/// Writes an output, unless it is left out.
///
/// # Safety
/// There is room at `output`, or it is null.
unsafe fn put<T>(output: *mut T, value: T) {
    if !output.is_null() {
        // SAFETY: the caller's promise.
        unsafe { output.write(value) }
    }
}

unsafe extern "C" fn communicator(
    comm_number: i64,
    handle: *mut usize,
    rank: *mut c_int,
    size: *mut c_int,
) -> c_int {
    if comm_number == recorder::DEFAULT_COMMUNICATOR {
        recorder::share_default();
    }
    answer(
        || REGISTRY.communicator(comm_number),
        // SAFETY: C lends the outputs, or leaves them out.
        |communicator| unsafe {
            put(handle, communicator.raw_handle());
            put(rank, communicator.rank);
            put(size, communicator.size);
        },
    )
}

unsafe extern "C" fn operator(op_number: i64, handle: *mut usize) -> c_int {
    answer(
        || REGISTRY.raw_operator(op_number),
        // SAFETY: C lends the output, or leaves it out.
        |raw_handle| unsafe { put(handle, raw_handle) },
    )
}

unsafe extern "C" fn datatype(xla_dtype: c_int, handle: *mut usize, size: *mut usize) -> c_int {
    answer(
        || REGISTRY.datatype(xla_dtype),
        // SAFETY: C lends the outputs, or leaves them out.
        |datatype| unsafe {
            put(handle, datatype.raw_handle());
            put(size, datatype.size);
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Fails by ending the process, were the panic to cross into C.
    #[test]
    fn a_panic_is_an_answer() {
        extern "C" fn panicking() -> c_int {
            answer(|| -> Result<()> { panic!("no way") }, |()| ())
        }
        assert_eq!(panicking(), 1);
    }

    #[test]
    fn only_what_was_found_is_given() {
        let mut output = None;
        assert_eq!(answer(|| Ok(3), |value| output = Some(value)), 0);
        assert_eq!(output, Some(3));
        let nothing = || Err::<i32, _>(Error::invalid("nothing"));
        assert_eq!(answer(nothing, |_| unreachable!()), 1);
    }
}
