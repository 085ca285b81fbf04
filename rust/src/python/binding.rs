//! The MPI that is loaded, and the handlers that call it.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;

use pyo3::exceptions::{PyImportError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::c_interface::REGISTRY_INTERFACE;
use crate::memory::gpu_aware;
use crate::mpi::{
    self, Abi, Constants, Functions, Handle, IntHandles, Library, Lineage, PointerHandles,
    WaitPolicy,
};
use crate::trampoline::Devices;
use crate::watch::Start;
use crate::xla::Handler;
use crate::{log, ops, recorder, trampoline, watch};

type Handlers = Vec<(&'static str, Handler)>;

/// The core in the ABI of one MPI. Python knows handles as numbers, and the ABI by its name: this is
/// what depends on it, without it in a type.
pub trait Core: Sync {
    /// Loads the functions of the MPI that the shared library at `path` calls. Gives the handlers for
    /// host memory, and those for device memory.
    fn bind(&self, path: &str) -> Result<(Handlers, Handlers), String>;

    /// Sets the policy of waits, if this MPI lets them have one.
    fn set_wait_policy(&self, path: &str, policy: WaitPolicy) -> Result<bool, String>;

    /// `MPI_STATUS_IGNORE` (MPI-4.1 §3.2.6).
    fn status_ignore(&self) -> usize;

    /// Counts the copies of `MPI_COMM_WORLD`, and theirs, and is told when MPI can't be called any more.
    fn follow(&self, world: usize, comm_self: usize);

    /// The lineage of a communicator, if it is a copy that is followed.
    fn lineage_of(&self, comm: usize) -> Option<Lineage>;

    /// Frees the communicators that the core has made of one.
    fn free_communicator(&self, comm_number: usize);

    /// Starts the thread that watches calls.
    fn start_watching(&self, start: Start);

    /// Makes this MPI answer JAX's collectives.
    fn serve_jax(&self, handles: Vec<usize>, members: Vec<i32>, rank: i32, devices: Devices);
}

/// The core for a kind of handles, and the special values of one MPI.
struct Binding<A> {
    constants: &'static Constants,
    handles: PhantomData<fn() -> A>,
}

impl<A> Binding<A> {
    const fn new(constants: &'static Constants) -> Self {
        Self {
            constants,
            handles: PhantomData,
        }
    }
}

impl<A: Abi> Core for Binding<A> {
    fn bind(&self, path: &str) -> Result<(Handlers, Handlers), String> {
        let library = Library::open(path)?;
        let functions = Functions::<A>::load(&library)?;
        gpu_aware::bind(&library);
        recorder::set_proc_null(self.constants.proc_null);
        // A second import in the same process finds the same MPI.
        A::set_constants(self.constants);
        A::functions().get_or_init(|| functions);
        Ok((ops::host_handlers::<A>(), ops::device_handlers::<A>()))
    }

    fn set_wait_policy(&self, path: &str, policy: WaitPolicy) -> Result<bool, String> {
        let library = Library::open(path)?;
        let functions = A::functions().get();
        Ok(functions.is_some_and(|functions| mpi::set_wait_policy(functions, &library, policy)))
    }

    fn status_ignore(&self) -> usize {
        self.constants.status_ignore
    }

    fn follow(&self, world: usize, comm_self: usize) {
        if let Some(functions) = A::functions().get() {
            // SAFETY: Python passes mpi4py's handles of these two.
            unsafe {
                mpi::follow_copies(functions, A::Comm::from_raw(world));
                mpi::follow_end(functions, A::Comm::from_raw(comm_self));
            }
            mpi::before_finalize(ops::stop_pushing);
        }
    }

    fn lineage_of(&self, comm: usize) -> Option<Lineage> {
        // SAFETY: Python passes a handle of mpi4py's.
        unsafe { mpi::lineage_of(A::functions().get()?, A::Comm::from_raw(comm)) }
    }

    fn free_communicator(&self, comm_number: usize) {
        ops::free_communicator::<A>(comm_number);
    }

    fn start_watching(&self, start: Start) {
        watch::start::<A>(start);
    }

    fn serve_jax(&self, handles: Vec<usize>, members: Vec<i32>, rank: i32, devices: Devices) {
        // SAFETY: Python passes handles of mpi4py's, under these names.
        unsafe { trampoline::serve::<A>(handles, members, rank, devices) };
    }
}

/// The core for the ABI called `abi`.
fn core_for(abi: &str) -> PyResult<&'static dyn Core> {
    static MPICH: Binding<IntHandles> = Binding::new(&mpi::MPICH);
    static OPEN_MPI: Binding<PointerHandles> = Binding::new(&mpi::OPEN_MPI);
    static STANDARD: Binding<PointerHandles> = Binding::new(&mpi::STANDARD);
    match abi {
        "mpich" => Ok(&MPICH),
        "openmpi" => Ok(&OPEN_MPI),
        "standard" => Ok(&STANDARD),
        _ => Err(PyValueError::new_err(format!(
            "`abi` is {abi:?}, expected one of \"mpich\", \"openmpi\", \"standard\""
        ))),
    }
}

static LOADED: OnceLock<&'static dyn Core> = OnceLock::new();

/// The core for the MPI that is loaded, once it is.
pub fn loaded() -> Option<&'static dyn Core> {
    LOADED.get().copied()
}

type Capsules<'py> = Vec<(&'static str, Bound<'py, PyCapsule>)>;

/// Binds the MPI found through the loaded shared library at `path`. Gives the XLA handlers for host
/// and for device memory, as pairs of name and capsule.
#[pyfunction]
pub fn load<'py>(
    py: Python<'py>,
    path: &str,
    abi: &str,
) -> PyResult<(Capsules<'py>, Capsules<'py>)> {
    let core = core_for(abi)?;
    let (host, device) = core.bind(path).map_err(PyImportError::new_err)?;
    LOADED.get_or_init(|| core);
    log::set_sink(print);
    let capsules = |handlers: Handlers| {
        handlers
            .into_iter()
            .map(|(name, handler)| Ok((name, capsule(py, handler as *mut c_void, TARGET)?)))
            .collect::<PyResult<_>>()
    };
    Ok((capsules(host)?, capsules(device)?))
}

/// Sets whether waits in MPI poll at first, if there is a core for each process of the node, and whether
/// they give way to threads that compute in the end. `path` is the path of the loaded library. Returns
/// whether this MPI can do so.
#[pyfunction]
pub fn set_wait_policy(path: &str, has_core: bool, gives_way: bool) -> PyResult<bool> {
    let policy = WaitPolicy {
        has_core,
        gives_way,
    };
    loaded()
        .map_or(Ok(false), |core| core.set_wait_policy(path, policy))
        .map_err(PyImportError::new_err)
}

/// `MPI_STATUS_IGNORE` in an ABI, as a number (MPI-4.1 §3.2.6).
#[pyfunction]
pub fn status_ignore(abi: &str) -> PyResult<usize> {
    Ok(core_for(abi)?.status_ignore())
}

/// The registry for handlers that other packages write, as [`c_interface`](crate::c_interface)
/// describes it.
#[pyfunction]
pub fn registry(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    recorder::set_foreign_handlers();
    let address = ptr::from_ref(&REGISTRY_INTERFACE).cast_mut().cast();
    capsule(py, address, c"mpi4jax.registry")
}

/// The name under which XLA takes a handler.
const TARGET: &CStr = c"xla._CUSTOM_CALL_TARGET";

/// A capsule around an address that is valid until the process ends.
fn capsule<'py>(
    py: Python<'py>,
    address: *mut c_void,
    name: &'static CStr,
) -> PyResult<Bound<'py, PyCapsule>> {
    // SAFETY: the address is not null and needs no freeing; the name is static.
    let capsule = unsafe {
        let capsule = pyo3::ffi::PyCapsule_New(address, name.as_ptr(), None);
        Bound::from_owned_ptr_or_err(py, capsule)?
    };
    Ok(capsule.cast_into()?)
}

/// Prints a line through `sys.stdout`, where pytest and notebooks look for it.
fn print(line: &str) {
    // While the interpreter shuts down, no thread can attach to it any more.
    Python::try_attach(|py| {
        let outcome = py
            .import("sys")
            .and_then(|sys| sys.getattr("stdout"))
            .and_then(|stdout| {
                stdout.call_method1("write", (format!("{line}\n"),))?;
                stdout.call_method0("flush")
            });
        if let Err(error) = outcome {
            error.write_unraisable(py, None);
        }
    });
}
