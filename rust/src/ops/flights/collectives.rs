//! Nonblocking collective operations (MPI-4.1 §6.12): the functions of the blocking ones, on copies of
//! the arrays.

use super::start_and_wait::Departure;
use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::Abi;
use crate::ops::call::Call;

/// Starts the operation whose function this is, and gives a ticket for it.
pub fn start<A: Abi, M: Memory>(
    mut call: Call<A, M>,
    operation: fn(&Call<A, M>) -> Result<()>,
) -> Result<()> {
    let departure = Departure::new(&call)?;
    call.departure = Some(Box::default());
    operation(&call)?;
    let in_flight = call.departure.take().unwrap_or_default();
    departure.depart(&call, *in_flight)
}
