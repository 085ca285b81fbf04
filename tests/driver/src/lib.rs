//! A stand-in for the driver of a GPU, for tests on machines without one. Linked as `libcuda.so.1`
//! it plays CUDA's driver, as `libamdhip64.so` HIP's: each function has both names.
//!
//! It is harder on its caller than a driver is. Device memory faults when the host touches it,
//! streams run late and out of step with the host, freed host memory is gone at once, and what a
//! driver leaves undefined is counted as a violation (and told on stderr).
//!
//! `driver` lists the driver's functions, `control` the ones for tests (`stand_in_*`).

mod context;
mod control;
mod copies;
mod cuda;
mod driver;
mod image;
mod libraries;
mod memory;
mod module;
mod pool;
mod ptx;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod virtual_memory;
