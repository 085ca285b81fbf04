//! Nonblocking messages (MPI-4.1 §3.7) and collective operations (MPI-4.1 §6.12): a call that begins them,
//! and a call that waits.
//!
//! The first call leaves its arrays in blocks (`InBlocks`), and the second call copies the results out of
//! these. In between, XLA may free and reuse all its memory, and the program holds a ticket.

use std::time::Instant;

use zerocopy::{FromBytes, IntoBytes};

use super::progress;
use super::table::{self, Flight, Ticket};
use crate::error::{Error, Result};
use crate::memory::{Arrival, Block, InBlocks, InFlight, Memory, Pieces};
use crate::mpi::Abi;
use crate::mpi::calls::Incoming;
use crate::ops::call::Call;
use crate::ops::call::buffers::measure;
use crate::ops::check::byte_type;
use crate::ops::check::labels::{self, Label};
use crate::ops::messages::exchange::{Elements, Received, describe, messages_of_copy, transfers};
use crate::recorder::Array;
use crate::xla::raw::XLA_FFI_DataType_F32;
use crate::xla::{Buffer, ResultBuffer};

/// A flight that a call is about to start, and the result for its ticket. All that can fail before MPI is
/// called has been done.
struct NewFlight<'a> {
    flight: Flight,
    ticket: ResultBuffer<'a>,
}

impl<'a> NewFlight<'a> {
    fn of<A: Abi, M: Memory>(call: &Call<'a, A, M>) -> Result<Self> {
        let ticket = call.ticket()?;
        check_ticket(&ticket)?;
        let flight = Flight {
            operation: call.operation.name,
            call_site: call.number("call_site").unwrap_or(0),
            communicator: call.comm_number,
            sequence: call.recording.sequence(),
            may_be_lost: call.number("may_be_lost")? != 0,
            needs_pushing: true,
            begin: Instant::now(),
            in_flight: InFlight::default(),
        };
        Ok(Self { flight, ticket })
    }

    /// Keeps the requests and the blocks of the call, and gives their ticket to the program.
    fn start<A: Abi, M: Memory>(mut self, mut call: Call<A, InBlocks<M>>) -> Result<()> {
        self.flight.in_flight = call.memory.take_in_flight();
        let flight_id = table::keep(self.flight);
        progress::start();
        call.recording.set_flight(flight_id, None);
        let ticket = table::ticket_of(flight_id);
        call.in_memory(|memory| memory.store(&self.ticket, ticket.as_bytes()))
    }
}

/// Starts a collective operation, whose function this is for both of its forms.
pub fn start<A: Abi, M: Memory>(
    call: Call<A, M>,
    operation: fn(&Call<A, InBlocks<M>>) -> Result<()>,
) -> Result<()> {
    let call = call.in_blocks();
    let new = NewFlight::of(&call)?;
    operation(&call)?;
    new.start(call)
}

/// Reason why requests of a batch may be mixed, or waited for twice.
const MAPPED_CONDITION: &str = "A cond or while_loop with a condition that jax.vmap maps over \
     runs both branches, or turns that only a part of the batch needs: wait for an operation in \
     the branch or turn that starts it, or use the blocking one there";

/// Checks that an array is a ticket, or several of them.
fn check_ticket(array: &Buffer) -> Result<()> {
    if array.dtype == XLA_FFI_DataType_F32 && array.dims.last() == Some(&2) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "an array of shape {:?} and XLA type {} is no ticket",
        array.dims, array.dtype
    )))
}

/// The one ticket that all members of a batch have.
fn read_ticket<A: Abi, M: Memory>(call: &Call<A, M>, array: &Buffer) -> Result<Ticket> {
    check_ticket(array)?;
    let mut tickets: Vec<Ticket> = vec![[0.0; 2]; array.count as usize / 2];
    call.in_memory(|memory| memory.load(array, tickets.as_mut_bytes()))?;
    match tickets[..] {
        [first, ref others @ ..] if others.iter().all(|ticket| *ticket == first) => Ok(first),
        _ => Err(Error::invalid(format!(
            "wait got several requests in one array: it waits for one after the other, as in \
             jax.lax.scan. {MAPPED_CONDITION}"
        ))),
    }
}

/// Messages of no more bytes than this are sent at once by all MPIs.
const SENT_AT_ONCE: usize = 4096;

/// MPI-4.1 §3.7.2: begins to send any number of arrays, and to receive any number.
pub fn iexchange<A: Abi, M: Memory>(call: Call<A, M>) -> Result<()> {
    let call = call.in_blocks();
    let mut sent = transfers(&call, call.all_operands()?, "dests", "sendtags")?;
    let received = transfers(&call, call.all_results()?, "sources", "recvtags")?;
    // What users call it.
    let (name, function) = match (sent.len(), received.len()) {
        (1, 0) => ("isend", "MPI_Isend"),
        (0, 1) => ("irecv", "MPI_Irecv"),
        (1, 1) => ("isendrecv", "MPI_Isendrecv"),
        _ => ("iexchange", "MPI_Isendrecv"),
    };
    sent.retain(|transfer| !transfer.is_with_nobody::<A>());
    let mut new = NewFlight::of(&call)?;
    let in_flight = &call.memory.in_flight;
    let (mut receives, mut sends) = (Vec::new(), Vec::new());
    let mut largest = 0;
    for transfer in &received {
        largest = largest.max(measure(&transfer.array)?.1);
        add_arrival(&call, transfer, &mut receives, in_flight)?;
    }
    for transfer in &sent {
        largest = largest.max(measure(&transfer.array)?.1);
        sends.extend(messages_of_copy(&call, transfer, in_flight)?);
    }
    new.flight.operation = name;
    new.flight.needs_pushing = largest > SENT_AT_ONCE;
    let details = || describe(&sent, &received);
    call.logged(function, details, || {
        Ok(in_flight.begin(&call.mpi, &sends, &receives))
    })?;
    drop((sends, receives));
    new.start(call)
}

/// Makes room for an array that is received. Adds the messages in which it is.
fn add_arrival<'f, A: Abi, M: Memory>(
    call: &Call<A, M>,
    transfer: &Received,
    messages: &mut Vec<Incoming<'f, A>>,
    in_flight: &'f InFlight,
) -> Result<()> {
    let Received { array, peer } = transfer;
    let (datatype, bytes) = measure(array)?;
    if transfer.is_with_nobody::<A>() {
        return call.recv_buffer(array).map(drop);
    }
    let mut elements = Elements::of(call, array.count, datatype);
    let before = messages.len();
    let mut label = None;
    if call.checked.is_some() {
        // Anything may be sent. MPICH ends if some bytes are a part of an element.
        elements = elements.in_bytes()?;
        let block = Block::take(size_of::<Label>());
        let (block, recv) = in_flight.add_recv(block, labels::BYTES.into(), byte_type()?);
        label = Some((messages.len(), block));
        messages.push(call.incoming(*peer, recv)?);
    }
    let first = messages.len();
    let block = Block::take(bytes);
    let (block, recv) = in_flight.add_recv(block, elements.count, elements.datatype);
    messages.extend(elements.incoming(call, *peer, recv)?);
    if peer.rank < 0 && messages.len() > before + 1 {
        return Err(Error::invalid(
            "a nonblocking receive from MPI.ANY_SOURCE is not possible where a message has \
             several parts, as with MPI4JAX_CHECK, or where it may be as long as a piece \
             (MPI4JAX_STAGING_CHUNK): name the source",
        ));
    }
    in_flight.add_arrival(Arrival {
        pieces: Some(Pieces {
            requests: first..messages.len(),
            datatype: elements.datatype,
            length: elements.length,
        }),
        label,
        ..Arrival::whole(array.into(), block, bytes)
    });
    Ok(())
}

/// Holds arrays until they are waited for, with nothing to be done meanwhile.
pub fn hold<A: Abi, M: Memory>(call: Call<A, M>) -> Result<()> {
    start(call, |call| {
        let mut operands = call.all_operands()?.into_iter();
        operands.try_for_each(|operand| {
            let result = ResultBuffer::nowhere(operand.dtype, operand.count);
            call.forward(&operand, &result)
        })
    })
}

/// MPI-4.1 §3.7.3: waits for what a call has begun, and gives what has come.
pub fn wait<A: Abi, M: Memory>(call: Call<A, M>) -> Result<()> {
    let call = &call;
    let [ticket] = call.operands()?;
    let results = call.all_results()?;
    let read = read_ticket(call, &ticket)?;
    if read == [0.0; 2] && call.int("may_be_zero")? != 0 {
        // The derivative of what was started from a constant.
        return results
            .iter()
            .try_for_each(|result| call.store_zeros(result));
    }
    let (flight_id, flight) = table::take(read).map_err(|text| {
        let is_batch = ticket.dims.len() > 1;
        Error::invalid(if is_batch {
            format!("{text}. {MAPPED_CONDITION}")
        } else {
            text
        })
    })?;
    call.recording.set_flight(flight_id, Some(flight.sequence));
    let mut in_flight = flight.in_flight;
    let expected = results.iter().map(Array::from);
    let fits = expected.eq(in_flight.arrivals().iter().map(|arrival| arrival.array));
    // Who wants no result waits for the end of the operation.
    if !results.is_empty() && !fits {
        return Err(Error::invalid(format!(
            "wait expects {} arrays of other shapes or types than the {} has",
            results.len(),
            flight.operation
        )));
    }
    let details = || format!("for {}", flight.operation);
    call.logged("MPI_Waitall", details, || {
        read_labels(call, &mut in_flight)?;
        check_pieces(call, &mut in_flight)?;
        if flight.sequence == 0 {
            wait_for_messages(call, &mut in_flight);
        }
        Ok(in_flight.wait())
    })?;
    let Some(mut landed) = in_flight.land() else {
        return Err(Error::internal(
            "an operation that was waited for is in flight",
        ));
    };
    for (index, result) in results.iter().enumerate() {
        call.in_memory(|memory| memory.store(result, landed.array(index)))?;
    }
    Ok(())
}

/// The arrays that messages bring, and the pieces of these. Nobody sends the others.
fn messages(in_flight: &mut InFlight) -> Vec<(Array, Pieces)> {
    let arrivals = in_flight.arrivals().iter();
    arrivals
        .filter_map(|arrival| Some((arrival.array, arrival.pieces.clone()?)))
        .collect()
}

/// Waits for one array after the other, and then for what is sent. `InFlight::wait` gives the error codes.
fn wait_for_messages<A: Abi, M: Memory>(call: &Call<A, M>, in_flight: &mut InFlight) {
    for (index, (_, pieces)) in messages(in_flight).into_iter().enumerate() {
        call.recording.set_awaited_message(index);
        for request in pieces.requests {
            let _ = in_flight.wait_for(request);
        }
    }
    call.recording.set_awaited_sends();
}

/// Compares what comes with what is expected, if messages have labels.
fn read_labels<A: Abi, M: Memory>(call: &Call<A, M>, in_flight: &mut InFlight) -> Result<()> {
    let Some(record) = call.checked.as_deref() else {
        return Ok(());
    };
    let mut outcome = Ok(());
    for index in 0..in_flight.arrivals().len() {
        let wanted = in_flight.arrivals()[index].array;
        let Some(Ok((block, status))) = in_flight.label(index) else {
            continue; // `wait` gives the code
        };
        let source = status.source_and_tag::<A>();
        let Ok(label) = Label::read_from_bytes(block.part(0..size_of::<Label>())) else {
            continue; // it has this length
        };
        let read = call.read_label(record, &label, wanted, source);
        let refusal = read.and_then(|label| label.refusal.map_or(Ok(()), |r| Err(r.error)));
        outcome = outcome.and(refusal);
    }
    outcome
}

/// Checks that each piece had the length that told the receives apart.
fn check_pieces<A: Abi, M: Memory>(call: &Call<A, M>, in_flight: &mut InFlight) -> Result<()> {
    for (array, pieces) in messages(in_flight) {
        let Pieces {
            requests,
            datatype,
            length,
        } = pieces;
        for request in requests.start..requests.end - 1 {
            let Ok(status) = in_flight.wait_for(request) else {
                return Ok(()); // `wait` gives the code
            };
            let count = status.count(call.functions, datatype.handle::<A>());
            let count = count.or_else(|code| call.check("MPI_Get_count", code).map(|()| 0))?;
            if i64::from(count) != length {
                return Err(Error::invalid(format!(
                    "a message is shorter than the {array} that a nonblocking receive expects"
                )));
            }
        }
    }
    Ok(())
}
