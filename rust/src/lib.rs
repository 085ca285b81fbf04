//! The core of mpi4jax: XLA handlers that call the MPI of this process.
//!
//! Each module imports from those above it in this list only, and files within a module import
//! one way, too. `tests/modules.rs` holds them to both.
//!
//! - [`error`]: the errors of calls.
//! - `lock`: locks.
//! - `loaded`: the libraries that are loaded.
//! - [`files`]: files with checksums.
//! - `fault`: a line where MPI crashes on device memory.
//! - [`log`]: the debug lines.
//! - [`mpi`]: the MPI of this process: its functions, and the objects that calls refer to.
//! - [`xla`]: the frames in which XLA hands a call over.
//! - [`recorder`]: the last calls, and their times.
//! - [`trace`]: all calls, in a file.
//! - [`diagnosis`]: mistakes between ranks, and deadlocks.
//! - [`timeline`]: the traces of all processes, as one.
//! - [`memory`]: the memory of a call's arrays, and how MPI gets at it.
//! - [`ops`]: the handlers that XLA calls, one for each operation.
//! - [`watch`]: the thread that explains a hang.
//! - [`trampoline`]: the MPI that JAX's own collectives call.
//! - [`c_interface`]: the registry for handlers that other packages write.
//! - `python`: the extension module `mpi4jax._core`.

// Where a call could panic, it gives back an error instead.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]
// Threads are started in one way (`clippy.toml`).
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod c_interface;
pub mod diagnosis;
pub mod error;
mod fault;
pub mod files;
#[cfg(target_os = "linux")]
mod loaded;
mod lock;
pub mod log;
pub mod memory;
pub mod mpi;
pub mod ops;
pub mod recorder;
pub mod timeline;
pub mod trace;
pub mod trampoline;
pub mod watch;
pub mod xla;

#[cfg(feature = "python")]
mod python;
