//! Nonblocking collective operations (MPI-4.1 §6.12): the functions of the blocking ones, on copies of
//! the arrays.

use super::start_and_wait::depart;
use super::table::Arrival;
use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::Abi;
use crate::ops::call::Call;

/// Starts the operation whose function this is, and gives a ticket for it.
pub fn start<A: Abi, M: Memory>(
    mut call: Call<A, M>,
    operation: fn(&Call<A, M>) -> Result<()>,
) -> Result<()> {
    let mut flight = call.new_flight(Vec::new())?;
    call.departure = Some(Box::default());
    let outcome = operation(&call);
    let departure = call.departure.take().unwrap_or_default().into_inner();
    flight.blocks.extend(departure.blocks);
    // Also if there was an error: what has begun before needs its blocks.
    flight.add_requests::<A>(departure.requests, Vec::new());
    flight.keep_lists(departure.lists);
    outcome?;
    let arrivals = departure.results.into_iter().map(|result| Arrival {
        block: result.block,
        bytes: 0..result.bytes,
        array: result.array,
        pieces: 0..0,
        datatype: result.datatype,
        length: i64::MAX,
        label: None,
    });
    flight.arrivals = arrivals.collect();
    depart(&call, flight)
}
