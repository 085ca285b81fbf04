//! Collective operations of all ranks of a communicator.
//!
//! - `blocks`: arrays whose blocks have one size.
//! - `reduction`: reductions, in pieces where MPI has to count less at once.
//! - `rows`: arrays of which each rank has as many rows as the call says.
//! - `row_counts`: how many rows each rank has, where the program computes it.
//! - `agreement`: whether values that all ranks share are the same on all of them.

pub mod agreement;
pub mod blocks;
pub mod reduction;
pub mod row_counts;
pub mod rows;
