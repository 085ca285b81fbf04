//! Several messages at once: all receives are posted, then all sends, and then it waits for all.

use std::ffi::c_int;
use std::ops::Range;

use zerocopy::IntoBytes;

use super::point_to_point::{Receiving, finish_receiving};
use crate::error::{Error, Result};
use crate::log;
use crate::memory::{Access, Block, InFlight, Memory};
use crate::mpi::calls::{Incoming, Outgoing};
use crate::mpi::{Abi, Neighbor, RecvBuffer, SendBuffer, SizedDatatype, StatusPlace};
use crate::ops::call::Call;
use crate::ops::call::buffers::measure;
use crate::ops::call::pieces::pieces_to_the_end;
use crate::ops::check::byte_type;
use crate::ops::check::labels::{self, Label};
use crate::ops::local::NumberedArrays;
use crate::recorder::Array;
use crate::xla::{Buffer, ResultBuffer};

/// An array, and the process that it goes to or comes from.
pub struct Transfer<B> {
    pub array: B,
    pub peer: Neighbor,
}

/// An array that is sent.
pub type Sent<'a> = Transfer<Buffer<'a>>;
/// An array that is received.
pub type Received<'a> = Transfer<ResultBuffer<'a>>;

impl<B> Transfer<B> {
    /// Whether the process is `MPI_PROC_NULL` (MPI-4.1 §3.10), as the program has computed. In place of a
    /// received array, the program takes another one then.
    pub fn is_with_nobody<A: Abi>(&self) -> bool {
        self.peer.rank == A::constants().proc_null
    }
}

/// The arrays with their processes, whose ranks and tags are in two attributes.
pub fn transfers<A: Abi, M: Memory, B>(
    call: &Call<A, M>,
    arrays: Vec<B>,
    rank_list: &str,
    tag_list: &str,
) -> Result<Vec<Transfer<B>>> {
    let (ranks, tags) = (call.ints(rank_list)?, call.ints(tag_list)?);
    if ranks.len() != arrays.len() || tags.len() != arrays.len() {
        return Err(Error::invalid(format!(
            "{} ranks and {} tags for {} arrays",
            ranks.len(),
            tags.len(),
            arrays.len()
        )));
    }
    let peers = ranks.iter().zip(tags.iter());
    let transfers = arrays.into_iter().zip(peers);
    let transfer = |(array, (rank, tag)): (_, (&i64, &i64))| {
        let (rank, tag) = (to_int(rank_list, *rank)?, to_int(tag_list, *tag)?);
        let peer = Neighbor { rank, tag };
        Ok(Transfer { array, peer })
    };
    transfers.map(transfer).collect()
}

/// A rank or a tag.
fn to_int(name: &str, value: i64) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| {
        Error::invalid(format!(
            "attribute `{name}` has {value}, not an int of MPI's"
        ))
    })
}

/// MPI-4.1 §3.7: sends any number of arrays, and receives any number.
///
/// A call with copies (`blocks/one_call.py`) makes these before and after, and its
/// messages are parts of its arrays, of which the first results update the first operands.
pub fn exchange<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (operands, results) = (call.all_operands()?, call.all_results()?);
    let Some(numbers) = call.optional_ints("with_copies")? else {
        let (sent, received) = sides(call, operands, results)?;
        return transfer(call, &sent, &received);
    };
    if M::IS_ON_DEVICE {
        return Err(Error::invalid("copies on a device are not the core's"));
    }
    let [updated, lists @ ..] = &*numbers else {
        return Err(Error::invalid("attribute `with_copies` is empty"));
    };
    let [sent, received, before @ .., copies, stages, rows] = split_lists::<8>(lists)?;
    let arrays = NumberedArrays::new(*updated, operands, results)?;
    arrays.make_copies(before)?;
    let sent = parts(sent, |array, first, count| {
        Ok(arrays.source(array)?.part(first, count))
    })?;
    let received = parts(received, |array, first, count| {
        Ok(arrays.result(array)?.part(first, count))
    })?;
    let (sent, received) = sides(call, sent, received)?;
    check_apart(&sent, &received)?;
    transfer(call, &sent, &received)?;
    arrays.make_copies([copies, stages, rows])
}

/// Lists of numbers, one behind the other, each behind its length.
fn split_lists<const N: usize>(numbers: &[i64]) -> Result<[&[i64]; N]> {
    let no_lists = || Error::invalid(format!("{numbers:?} are not {N} lists"));
    let mut rest = numbers;
    let mut lists = [&[][..]; N];
    for list in &mut lists {
        let (length, tail) = rest.split_first().ok_or_else(no_lists)?;
        let halves = usize::try_from(*length).ok();
        let halves = halves.and_then(|length| tail.split_at_checked(length));
        (*list, rest) = halves.ok_or_else(no_lists)?;
    }
    if rest.is_empty() {
        return Ok(lists);
    }
    Err(no_lists())
}

/// Contiguous parts of arrays. Each has three numbers: the index of the array, the first element of the part,
/// and the number of elements.
fn parts<B>(spans: &[i64], part_of: impl Fn(i64, i64, i64) -> Result<Option<B>>) -> Result<Vec<B>> {
    let part = |span: &[i64]| {
        let part = match *span {
            [array, first, count] => part_of(array, first, count)?,
            _ => None,
        };
        part.ok_or_else(|| Error::invalid(format!("{span:?} is no part of an array")))
    };
    spans.chunks(3).map(part).collect()
}

/// Both sides of an exchange: the arrays that are sent to a process, and those received from one.
fn sides<'a, A: Abi, M: Memory>(
    call: &Call<A, M>,
    sent: Vec<Buffer<'a>>,
    received: Vec<ResultBuffer<'a>>,
) -> Result<(Vec<Sent<'a>>, Vec<Received<'a>>)> {
    let mut sent = transfers(call, sent, "dests", "sendtags")?;
    let mut received = transfers(call, received, "sources", "recvtags")?;
    sent.retain(|transfer| !transfer.is_with_nobody::<A>());
    received.retain(|transfer| !transfer.is_with_nobody::<A>());
    Ok((sent, received))
}

/// Checks that MPI writes no message to memory of another one, in flight at the same time (MPI-4.1 §3.7.2).
fn check_apart(sent: &[Sent], received: &[Received]) -> Result<()> {
    let read = sent.iter().map(|sent| (sent.array.addresses(), false));
    let written = received.iter();
    let written = written.map(|received| (received.array.addresses(), true));
    let mut messages: Vec<_> = read.chain(written).collect();
    messages.retain(|(addresses, _)| !addresses.is_empty());
    messages.sort_unstable_by_key(|(addresses, _)| addresses.start);
    let (mut read_end, mut written_end) = (0, 0);
    for (addresses, is_written) in messages {
        let is_apart =
            written_end <= addresses.start && (!is_written || read_end <= addresses.start);
        if !is_apart {
            return Err(Error::invalid(
                "a message is received into memory of another one",
            ));
        }
        let end = if is_written {
            &mut written_end
        } else {
            &mut read_end
        };
        *end = addresses.end.max(*end);
    }
    Ok(())
}

/// Sends arrays, and receives others.
fn transfer<A: Abi, M: Memory>(
    call: &Call<A, M>,
    sent: &[Sent],
    received: &[Received],
) -> Result<()> {
    let is_plain = call.checked.is_none() && !call.communicator.is_in_pieces();
    if is_plain {
        all_at_once(call, sent, received)
    } else {
        one_after_another(call, sent, received)
    }
}

fn all_at_once<A: Abi, M: Memory>(
    call: &Call<A, M>,
    sent: &[Sent],
    received: &[Received],
) -> Result<()> {
    let outgoing = sent
        .iter()
        .map(|Transfer { array, peer }| call.outgoing(*peer, call.send_buffer(array)?));
    let outgoing = outgoing.collect::<Result<Vec<_>>>()?;
    let incoming = received
        .iter()
        .map(|Transfer { array, peer }| call.incoming(*peer, call.recv_buffer(array)?));
    let incoming = incoming.collect::<Result<Vec<_>>>()?;
    let details = || describe(sent, received);
    let awaits = |index| call.recording.set_awaited_message(index);
    call.logged("MPI_Waitall", details, || {
        Ok(call.mpi.exchange(&outgoing, &incoming, awaits))
    })
}

pub fn describe(sent: &[Sent], received: &[Received]) -> String {
    let message = |arrow: &str, count: i64, Neighbor { rank, tag }: Neighbor| {
        format!("{arrow} {rank} (tag {tag}, {count} items)")
    };
    let received = received.iter();
    let received = received.map(|received| message("<-", received.array.count, received.peer));
    let sent = sent.iter();
    let sent = sent.map(|sent| message("->", sent.array.count, sent.peer));
    let both = [received.collect(), sent.collect()];
    let mut both = both.map(|words: Vec<_>| words.join(", ")).to_vec();
    both.retain(|words| !words.is_empty());
    both.join(" / ")
}

/// The elements of an array, in the data type in which messages count them.
pub struct Elements {
    pub count: i64,
    pub datatype: SizedDatatype,
    /// The number of elements in a piece.
    pub length: i64,
}

impl Elements {
    pub fn of<A: Abi, M: Memory>(call: &Call<A, M>, count: i64, datatype: SizedDatatype) -> Self {
        Self {
            count,
            datatype,
            length: call.communicator.piece_length(datatype.size),
        }
    }

    pub fn in_bytes(self) -> Result<Self> {
        let size = self.datatype.size as i64;
        Ok(Self {
            count: self.count * size,
            datatype: byte_type()?,
            length: self.length.saturating_mul(size),
        })
    }

    /// The messages in which the elements are sent.
    fn outgoing<'b, A: Abi, M: Memory>(
        &self,
        call: &Call<A, M>,
        peer: Neighbor,
        send: SendBuffer<'b>,
    ) -> Result<Vec<Outgoing<'b, A>>> {
        let pieces = pieces_to_the_end(self.count, self.length);
        let message = |piece: Range<i64>| {
            call.outgoing(peer, send.part(piece.start, piece.end - piece.start))
        };
        pieces.map(message).collect()
    }

    /// The messages in which the elements are received.
    pub fn incoming<'b, A: Abi, M: Memory>(
        &self,
        call: &Call<A, M>,
        peer: Neighbor,
        mut recv: RecvBuffer<'b>,
    ) -> Result<Vec<Incoming<'b, A>>> {
        let pieces = pieces_to_the_end(self.count, self.length);
        let message =
            |piece: Range<i64>| call.incoming(peer, recv.take_front(piece.end - piece.start));
        pieces.map(message).collect()
    }
}

/// The messages in which an array is sent from a copy of it, behind its label if it has one.
pub fn messages_of_copy<'f, A: Abi, M: Memory>(
    call: &Call<A, M>,
    Transfer { array, peer }: &Sent,
    in_flight: &'f InFlight,
) -> Result<Vec<Outgoing<'f, A>>> {
    let mut messages = Vec::new();
    if let Some(label) = call.label(*peer, array.into()) {
        let mut block = Block::take(size_of::<Label>());
        let bytes = block.part(0..size_of::<Label>());
        bytes.copy_from_slice(label.as_bytes());
        let send = in_flight.add_send(block, labels::BYTES.into(), byte_type()?);
        messages.push(call.outgoing(*peer, send)?);
    }
    let (datatype, bytes) = measure(array)?;
    let mut block = Block::take(bytes);
    call.in_memory(|memory| memory.load(array, block.part(0..bytes)))?;
    let send = in_flight.add_send(block, array.count, datatype);
    messages.extend(Elements::of(call, array.count, datatype).outgoing(call, *peer, send)?);
    Ok(messages)
}

/// Receives the messages one after another, where the first part of each tells about the rest: with
/// labels, or in pieces. All sends are posted before, so that no two processes wait for each other.
/// They are sent from copies, as they may be in flight for long after a receive has failed.
fn one_after_another<A: Abi, M: Memory>(
    call: &Call<A, M>,
    sent: &[Sent],
    received: &[Received],
) -> Result<()> {
    let sends = InFlight::default();
    let mut outgoing = Vec::new();
    for transfer in sent {
        outgoing.extend(messages_of_copy(call, transfer, &sends)?);
    }
    let mut incoming = Vec::new();
    for Transfer { array, peer } in received {
        let buffer = call.recv_buffer(array)?;
        let ignored = StatusPlace::ignored();
        let mut message = Receiving::<A>::new(&call.communicator, buffer, *peer, ignored);
        message.is_alone = false;
        incoming.push((message, Array::from(array)));
    }
    call.in_memory(|memory| memory.before(&Access::WHOLE))?;
    let rank = call.communicator.rank;
    let entry = log::is_enabled()
        .then(|| log::LoggedCall::begin(rank, "MPI_Waitall", &describe(sent, received)));
    let code = sends.begin(&call.mpi, &outgoing, &[]);
    drop(outgoing);
    call.check("MPI_Isend", code)?;
    let mut outcome = Ok(());
    for (index, (message, array)) in incoming.iter_mut().enumerate() {
        call.recording.set_awaited_message(index);
        let label = call.receive_label(message.from, *array)?;
        outcome = outcome.and(finish_receiving(call, message, label)?);
    }
    call.recording.set_awaited_sends();
    let mut sends = sends;
    let code = sends.wait();
    if let Some(entry) = entry {
        entry.end(code);
    }
    call.check("MPI_Wait", code)?;
    call.in_memory(|memory| memory.after(&Access::WHOLE))?;
    outcome
}
