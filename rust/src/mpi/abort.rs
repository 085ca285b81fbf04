//! Functions that end all ranks, or this process.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use super::abi::Abi;
use super::functions::Functions;
use super::registry::Communicator;
use super::types::Handle;

static WORLD: OnceLock<usize> = OnceLock::new();

/// Time for the launcher to read output: MPICH's launcher drops unread output at an abort.
const READING_TIME: Duration = Duration::from_millis(200);

/// Sets the handle of `MPI_COMM_WORLD`, as mpi4py's number.
///
/// # Safety
/// The handle is of `MPI_COMM_WORLD`.
pub unsafe fn set_world(handle: usize) {
    let _ = WORLD.set(handle);
}

/// Ends all ranks of `MPI_COMM_WORLD`, or of the communicator `other` while the world is not known.
///
/// `MPI_COMM_WORLD` is ended by the launcher. For any other communicator, MPICH sends a message to each
/// rank and waits until the message has arrived, for ever if a host is gone.
pub fn abort<A: Abi>(functions: &Functions<A>, other: Option<&Communicator>, code: c_int) {
    let world = WORLD.get().map(|handle| A::Comm::from_raw(*handle));
    let comm = world.or_else(|| other.map(Communicator::handle::<A>));
    let_launcher_read();
    if let Some(comm) = comm {
        // SAFETY: the communicator is valid.
        unsafe { (functions.abort)(comm, code) };
    }
}

/// Gives the launcher time to read the last output.
fn let_launcher_read() {
    thread::sleep(READING_TIME);
}

/// Ends this process from any thread, without its exit handlers, which would free what other threads
/// are using.
pub fn exit_at_once(code: c_int) -> ! {
    let_launcher_read();
    // SAFETY: this ends the process.
    unsafe { libc::_exit(code) }
}
