//! An MPI library for a world of one process, with the binary interface of MPICH.
//!
//! mpi4py cannot be imported where no MPI library is installed, and mpi4jax needs mpi4py. This
//! library takes the place of the missing one: a program runs unchanged, on one process. It offers
//! the functions of MPI-3.1 under the soname and with the handles of MPICH (`libmpi.so.12`).
//!
//! Left out are files, one-sided communication, intercommunicators, spawned processes, ports,
//! distributed arrays and the representation "external32": their functions exist, and return an error
//! that says so.
//!
//! All state is behind one lock ([`handles::state`]), which is never held while a callback of the
//! program's runs: callbacks call MPI again.

/// Declares functions of MPI's C interface. A body returns `Result<()>`; its error is raised by the
/// error handler of the communicator that is named after `on`, or else of `MPI_COMM_WORLD`. That
/// communicator is checked before the body runs.
macro_rules! mpi {
    ($(
        $name:ident($($argument:ident : $type:ty),* $(,)?) $(on $comm:expr)? => $body:expr;
    )*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            super::errors::call(stringify!($name), None$(.or(Some($comm)))?, || $body)
        }
    )*};
}

mod attributes;
mod collectives;
mod communicators;
mod datatypes;
mod environment;
mod errors;
mod groups;
mod handles;
mod infos;
mod memory;
mod messages;
mod operators;
mod requests;
mod topologies;
mod unsupported;

#[cfg(test)]
mod tests;
