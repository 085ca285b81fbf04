//! The core on an MPI that moves bytes as late as MPI may do it (`mpi`).

#[path = "../common/mod.rs"]
mod common;
mod mpi;

mod cases;
mod collectives;
mod errors;
mod flights;
mod messages;
mod programs;
#[path = "../common/random.rs"]
mod random;
mod watching;

#[global_allocator]
static ALLOCATOR: mpi::memory::Watched = mpi::memory::Watched;

/// Numbers that no other process has, and no other place of its array.
fn values(rank: usize, count: usize) -> Vec<f32> {
    let numbers = (0..count).map(|index| (10_000 * (rank + 1) + index) as f32);
    numbers.collect()
}
