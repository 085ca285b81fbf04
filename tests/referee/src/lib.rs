//! The headers that the core's declarations are compared with. The comparing is in `tests`.
//!
//! `XLA_FFI_INCLUDE` names the directory that `jax.ffi.include_dir()` gives, `MPICC` (or `mpicc`
//! on `PATH`) the MPI. mpi-sys does not notice when they change: give each MPI a target directory
//! of its own (`CARGO_TARGET_DIR`).

/// XLA's `xla/ffi/api/c_api.h`.
#[allow(
    clippy::all,
    clippy::use_self,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "bindgen writes it"
)]
pub mod xla {
    include!(concat!(env!("OUT_DIR"), "/xla.rs"));
}

/// Declarations of `mpi.h` that mpi-sys lacks.
#[allow(missing_docs, reason = "bindgen writes it")]
pub mod mpi {
    include!(concat!(env!("OUT_DIR"), "/mpi.rs"));
}

/// The header of the standard ABI, `mpi_abi.h`, where the MPI has one.
#[cfg(standard_abi)]
#[allow(
    clippy::all,
    clippy::use_self,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "bindgen writes it"
)]
pub mod standard {
    include!(concat!(env!("OUT_DIR"), "/standard.rs"));
}
