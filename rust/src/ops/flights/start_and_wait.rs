//! Nonblocking messages (MPI-4.1 §3.7): a call that begins them, and a call that waits.
//!
//! A handler of XLA's has its arrays for as long as it runs, and no longer. So what is in flight is
//! in a block of the core's own: the first call copies there what is sent, and the second one copies
//! from there what has come. In between, XLA may free and reuse all its memory.
//!
//! The first call gives a ticket, which is all that a program holds of what is in flight.

use std::ops::Range;
use std::ptr;

use super::progress;
use super::table::{self, Arrival, Flight};
use crate::error::{Error, Result};
use crate::memory::{Block, Memory, Room};
use crate::mpi::{Abi, Datatype, Neighbor};
use crate::ops::call::Call;
use crate::ops::call::buffers::measure;
use crate::ops::call::pieces::pieces_to_the_end;
use crate::ops::call::requests::{MessageBuffer, Requests};
use crate::ops::check::byte_type;
use crate::ops::check::labels::Label;
use crate::ops::messages::exchange::{Transfer, in_words, transfers};
use crate::recorder::Array;
use crate::xla::Buffer;
use crate::xla::raw::{XLA_FFI_DataType, XLA_FFI_DataType_F32};

/// The value by which a program refers to a flight: its number, and the mark of this process.
///
/// Floats, as JAX differentiates these. They are whole numbers, which no conversion changes.
type Ticket = [f32; 2];

/// Keeps what has begun, and gives its ticket to the program.
pub fn depart<A: Abi, M: Memory>(call: &Call<A, M>, flight: Flight) -> Result<()> {
    let [result] = call.results()?;
    check_ticket(&result)?;
    let flight_id = table::keep(flight);
    progress::start::<A>();
    call.set_flight(flight_id, None);
    let ticket: Ticket = [flight_id as f32, table::process_mark() as f32];
    let bytes: Vec<u8> = ticket.into_iter().flat_map(f32::to_ne_bytes).collect();
    call.in_memory(|memory| memory.store(&result, &bytes))
}

/// Why requests that a batch has may be mixed, or waited for twice.
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

/// The number and the process of the one ticket that all members of a batch have.
fn read_ticket<A: Abi, M: Memory>(call: &Call<A, M>, array: &Buffer) -> Result<(u32, u32)> {
    check_ticket(array)?;
    let mut bytes = vec![0; array.count as usize * size_of::<f32>()];
    call.in_memory(|memory| memory.load(array, &mut bytes))?;
    let words = bytes.chunks_exact(size_of::<f32>());
    let words = words.map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]]) as u32);
    let words: Vec<u32> = words.collect();
    match words.chunks_exact(2).next() {
        Some(&[flight_id, mark]) if words.chunks_exact(2).all(|t| t == [flight_id, mark]) => {
            Ok((flight_id, mark))
        }
        _ => Err(Error::invalid(format!(
            "wait got several requests in one array: it waits for one after the other, as in \
             jax.lax.scan. {MAPPED_CONDITION}"
        ))),
    }
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// A flight of this call, with these blocks.
    pub fn new_flight(&self, blocks: Vec<Block>) -> Result<Flight> {
        let call_site = self.number("call_site").unwrap_or(0);
        let mut flight = Flight::new(
            self.operation.name,
            call_site,
            self.comm_number,
            self.sequence(),
            blocks,
        );
        flight.may_be_lost = self.number("may_be_lost")? != 0;
        Ok(flight)
    }

    pub fn load(&self, operand: &Buffer, block: &mut Block, bytes: Range<usize>) -> Result<()> {
        self.in_memory(|memory| memory.load(operand, block.part(bytes)))
    }
}

/// The elements of an array, as messages count them.
struct Elements {
    count: i64,
    datatype: Datatype,
    /// How many there are in a piece.
    length: i64,
}

impl Elements {
    fn of<A: Abi, M: Memory>(call: &Call<A, M>, count: i64, datatype: Datatype) -> Self {
        Self {
            count,
            datatype,
            length: call.communicator.piece_length(datatype.size),
        }
    }

    fn in_bytes(self) -> Result<Self> {
        let size = self.datatype.size as i64;
        Ok(Self {
            count: self.count * size,
            datatype: byte_type()?,
            length: self.length.saturating_mul(size),
        })
    }

    /// The messages in which they travel, from or to a place in a block.
    fn messages<'c, A: Abi, M: Memory>(
        &self,
        call: &'c Call<'c, A, M>,
        block: &mut Block,
        start: usize,
        peer: Neighbor,
    ) -> Result<Vec<MessageBuffer<'c, A, M>>> {
        let mut messages = Vec::new();
        for piece in pieces_to_the_end(self.count, self.length) {
            let first = start + piece.start as usize * self.datatype.size;
            let address = block.address(first).cast();
            let count = piece.end - piece.start;
            messages.push(MessageBuffer::new(
                call,
                peer,
                address,
                count,
                self.datatype,
            )?);
        }
        Ok(messages)
    }
}

/// The arrays to be received, which are nowhere yet, each by its type and its size.
fn expected<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<Vec<Buffer<'static>>> {
    let numbers = call.ints("arrays")?;
    let arrays = numbers.chunks_exact(2).map(|pair| Buffer {
        address: ptr::null_mut(),
        dtype: pair[0] as XLA_FFI_DataType,
        dims: &[],
        count: pair[1],
    });
    Ok(arrays.collect())
}

/// Messages of no more bytes than this are sent at once by all MPIs.
const SENT_AT_ONCE: usize = 4096;

/// MPI-4.1 §3.7.2: begins to send any number of arrays, and to receive any number.
pub fn iexchange<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let sent = transfers(call, call.all_operands()?, "dests", "sendtags")?;
    let received = transfers(call, expected(call)?, "sources", "recvtags")?;
    let is_anyones = |transfer: &Transfer| transfer.peer.rank < 0;
    let has_parts = call.checked.is_some() || call.communicator.is_in_pieces();
    if has_parts && received.iter().any(is_anyones) {
        return Err(Error::invalid(
            "a nonblocking receive from MPI.ANY_SOURCE is not possible where a message has \
             several parts, as with MPI4JAX_CHECK or MPI4JAX_STAGING_CHUNK: name the source",
        ));
    }
    let mut room = Room::default();
    let mut places = Vec::new();
    for Transfer { array, .. } in sent.iter().chain(&received) {
        let (datatype, bytes) = measure(array)?;
        places.push((datatype, room.add(bytes)));
    }
    // What users call it.
    let (name, function) = match (sent.len(), received.len()) {
        (1, 0) => ("isend", "MPI_Isend"),
        (0, 1) => ("irecv", "MPI_Irecv"),
        (1, 1) => ("isendrecv", "MPI_Isendrecv"),
        _ => ("iexchange", "MPI_Isendrecv"),
    };
    let mut block = Block::take(room.bytes);
    let mut flight = call.new_flight(Vec::new())?;
    flight.operation = name;
    flight.needs_pushing = places.iter().any(|(_, bytes)| bytes.len() > SENT_AT_ONCE);
    let (outgoing, incoming) = places.split_at(sent.len());
    for (Transfer { array, .. }, (_, bytes)) in sent.iter().zip(outgoing) {
        call.load(array, &mut block, bytes.clone())?;
    }
    let (mut receives, mut sends, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for (Transfer { array, peer }, (datatype, bytes)) in received.iter().zip(incoming) {
        let mut elements = Elements::of(call, array.count, *datatype);
        let label = if call.checked.is_some() {
            // What comes may be anything. MPICH ends if some bytes are a part of an element.
            elements = elements.in_bytes()?;
            let label = Box::new(Label::EMPTY);
            receives.push(label.message(call, *peer)?);
            Some((receives.len() - 1, label))
        } else {
            None
        };
        let first = receives.len();
        receives.extend(elements.messages(call, &mut block, bytes.start, *peer)?);
        flight.arrivals.push(Arrival {
            block: 0,
            bytes: bytes.clone(),
            array: Array::from(array),
            pieces: first..receives.len(),
            datatype: elements.datatype,
            length: elements.length,
            label,
        });
    }
    for (Transfer { array, peer }, (datatype, bytes)) in sent.iter().zip(outgoing) {
        if let Some(label) = call.label(*peer, array.into()) {
            let label = Box::new(label);
            sends.push(label.message(call, *peer)?);
            labels.push(label);
        }
        let elements = Elements::of(call, array.count, *datatype);
        sends.extend(elements.messages(call, &mut block, bytes.start, *peer)?);
    }
    flight.blocks.push(block);
    let mut requests = Vec::new();
    let details = || in_words(&sent, &received);
    call.mpi(function, details, |_, comm| {
        // SAFETY: block and labels stay in the flight until all is done.
        let begun = unsafe { Requests::begin(call, comm, &sends, &receives) };
        match begun {
            Ok(begun) => {
                requests = begun.into_list();
                0
            }
            Err(code) => code,
        }
    })?;
    flight.add_requests::<A>(requests, labels);
    depart(call, flight)
}

/// Holds arrays until they are waited for, with nothing to be done meanwhile.
pub fn hold<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let operands = call.all_operands()?;
    let mut room = Room::default();
    let mut arrivals = Vec::new();
    for operand in &operands {
        let (datatype, bytes) = measure(operand)?;
        arrivals.push(Arrival {
            block: 0,
            bytes: room.add(bytes),
            array: Array::from(operand),
            pieces: 0..0,
            datatype,
            length: i64::MAX,
            label: None,
        });
    }
    let mut block = Block::take(room.bytes);
    for (operand, arrival) in operands.iter().zip(&arrivals) {
        call.load(operand, &mut block, arrival.bytes.clone())?;
    }
    let mut flight = call.new_flight(vec![block])?;
    flight.arrivals = arrivals;
    depart(call, flight)
}

/// MPI-4.1 §3.7.3: waits for what a call has begun, and gives what has come.
pub fn wait<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [ticket] = call.operands()?;
    let results = call.all_results()?;
    let (flight_id, mark) = read_ticket(call, &ticket)?;
    if flight_id == 0 && call.int("may_be_zero")? != 0 {
        // The derivative of what was started from a constant.
        return results.iter().try_for_each(|result| {
            let zeros = vec![0; measure(result)?.1];
            call.in_memory(|memory| memory.store(result, &zeros))
        });
    }
    let mut flight = table::take(flight_id, mark).map_err(|text| {
        let is_batch = ticket.dims.len() > 1;
        Error::invalid(if is_batch {
            format!("{text}. {MAPPED_CONDITION}")
        } else {
            text
        })
    })?;
    call.set_flight(flight_id, Some(flight.sequence));
    let expected = results.iter().map(Array::from);
    // Who wants no result waits for the end of the operation.
    if !results.is_empty() && !expected.eq(flight.arrivals.iter().map(|arrival| arrival.array)) {
        return Err(Error::invalid(format!(
            "wait expects {} arrays of other shapes or types than the {} has",
            results.len(),
            flight.operation
        )));
    }
    let operation = flight.operation;
    let mut fits = Ok(());
    call.mpi(
        "MPI_Waitall",
        || format!("for {operation}"),
        |functions, _| {
            fits = read_labels(call, &mut flight).and_then(|()| check_pieces(call, &mut flight));
            if fits.is_err() {
                return 0;
            }
            if flight.sequence > 0 {
                return flight.wait(functions);
            }
            for index in 0..flight.arrivals.len() {
                call.progress().set_awaited_message(index);
                for piece in flight.arrivals[index].pieces.clone() {
                    // The code is that of all.
                    let _ = flight.wait_for(piece, functions);
                }
            }
            call.progress().set_awaited_sends();
            flight.wait(functions)
        },
    )?;
    fits?;
    for (result, arrival) in results.iter().zip(&flight.arrivals) {
        let bytes = flight.blocks[arrival.block].part(arrival.bytes.clone());
        call.in_memory(|memory| memory.store(result, bytes))?;
    }
    Ok(())
}

/// Compares what comes with what is expected, if messages have labels.
fn read_labels<A: Abi, M: Memory>(call: &Call<A, M>, flight: &mut Flight) -> Result<()> {
    let Some(record) = call.checked.as_deref() else {
        return Ok(());
    };
    let mut outcome = Ok(());
    for index in 0..flight.arrivals.len() {
        let Some((index, label)) = flight.arrivals[index].label.take() else {
            continue;
        };
        let wanted = flight.arrivals[index].array;
        let Ok(status) = flight.wait_for(index, call.functions) else {
            continue; // `wait` gives the code
        };
        // SAFETY: MPI has filled the status.
        let read = unsafe { call.read_label(record, &label, wanted, status) };
        let refusal = read.and_then(|label| label.refusal.map_or(Ok(()), |r| Err(r.error)));
        outcome = outcome.and(refusal);
    }
    outcome
}

/// Checks that each piece had the length that told the receives apart.
fn check_pieces<A: Abi, M: Memory>(call: &Call<A, M>, flight: &mut Flight) -> Result<()> {
    for index in 0..flight.arrivals.len() {
        let arrival = &flight.arrivals[index];
        let (array, length) = (arrival.array, arrival.length);
        let datatype = arrival.datatype.handle::<A>();
        let pieces = arrival.pieces.clone();
        for piece in pieces.clone().take(pieces.len().saturating_sub(1)) {
            let Ok(status) = flight.wait_for(piece, call.functions) else {
                return Ok(()); // `wait` gives the code
            };
            let mut count = 0;
            // SAFETY: MPI has filled the status.
            let code = unsafe { (call.functions.get_count)(status, datatype, &raw mut count) };
            call.check("MPI_Get_count", code)?;
            if i64::from(count) != length {
                return Err(Error::invalid(format!(
                    "a message is shorter than the {array} that a nonblocking receive expects"
                )));
            }
        }
    }
    Ok(())
}
