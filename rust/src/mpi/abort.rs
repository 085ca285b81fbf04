//! The end of all ranks.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use super::abi::Abi;
use super::functions::Functions;
use super::registry::Communicator;
use super::types::Handle;

static WORLD: OnceLock<usize> = OnceLock::new();

/// MPICH's launcher drops what it has not read yet when it hears of an abort.
const READING: Duration = Duration::from_millis(200);

/// Says what mpi4py's number for the handle of `MPI_COMM_WORLD` is.
///
/// # Safety
/// It is.
pub unsafe fn set_world(handle: usize) {
    let _ = WORLD.set(handle);
}

/// Ends all ranks: those of `MPI_COMM_WORLD`, or of the communicator as long as that is not known.
///
/// The launcher does the first. For any other communicator, MPICH sends a message to each rank
/// and waits until it has arrived, for ever if a host is gone.
pub fn abort<A: Abi>(functions: &Functions<A>, communicator: &Communicator, code: c_int) {
    let world = WORLD.get().map(|handle| A::Comm::from_raw(*handle));
    let comm = world.unwrap_or_else(|| communicator.handle::<A>());
    let_launcher_read();
    // SAFETY: a valid communicator of this process's.
    unsafe { (functions.abort)(comm, code) };
}

/// Gives the launcher time to read what was printed last.
fn let_launcher_read() {
    thread::sleep(READING);
}

/// Ends this process, also from a thread that is not its main one, without the functions that would
/// run at exit while other threads use what these free.
pub fn exit_at_once(code: c_int) -> ! {
    let_launcher_read();
    // SAFETY: this ends the process.
    unsafe { libc::_exit(code) }
}
