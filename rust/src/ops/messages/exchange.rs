//! Several messages at once: all receives are posted, then all sends, and then it waits for all.

use std::ffi::c_int;

use super::point_to_point::{Incoming, Outgoing, finish_receiving};
use crate::error::{Error, Result};
use crate::log;
use crate::memory::{Access, Memory};
use crate::mpi::{Abi, Neighbor};
use crate::ops::call::Call;
use crate::ops::call::requests::{MessageBuffer, Requests, exchange_messages};
use crate::ops::check::labels::Label;
use crate::recorder::Array;
use crate::xla::Buffer;

/// An array, and the process that it goes to or comes from.
pub struct Transfer<'a> {
    pub array: Buffer<'a>,
    pub peer: Neighbor,
}

/// Each array with its process, by the attributes that say so.
pub fn transfers<'a, A: Abi, M: Memory>(
    call: &Call<A, M>,
    arrays: Vec<Buffer<'a>>,
    ranks: &str,
    tags: &str,
) -> Result<Vec<Transfer<'a>>> {
    let (ranks, tags) = (call.int_list(ranks)?, call.int_list(tags)?);
    if ranks.len() != arrays.len() || tags.len() != arrays.len() {
        return Err(Error::invalid(format!(
            "{} ranks and {} tags for {} arrays",
            ranks.len(),
            tags.len(),
            arrays.len()
        )));
    }
    let peers = ranks.into_iter().zip(tags);
    let transfers = arrays.into_iter().zip(peers);
    let transfers = transfers.map(|(array, (rank, tag))| Transfer {
        array,
        peer: Neighbor { rank, tag },
    });
    Ok(transfers.collect())
}

/// MPI-4.1 §3.7: sends any number of arrays, and receives any number.
pub fn exchange<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let sent = transfers(call, call.all_operands()?, "dests", "sendtags")?;
    let received = transfers(call, call.all_results()?, "sources", "recvtags")?;
    let is_plain = call.checked.is_none() && !call.communicator.is_in_pieces();
    if is_plain {
        all_at_once(call, &sent, &received)
    } else {
        one_after_another(call, &sent, &received)
    }
}

fn all_at_once<A: Abi, M: Memory>(
    call: &Call<A, M>,
    sent: &[Transfer],
    received: &[Transfer],
) -> Result<()> {
    let outgoing = sent.iter().map(|Transfer { array, peer }| {
        let buffer = call.send_buffer(array)?.cast_mut();
        MessageBuffer::new(call, *peer, buffer.address, buffer.count, buffer.datatype)
    });
    let outgoing = outgoing.collect::<Result<Vec<_>>>()?;
    let incoming = received.iter().map(|Transfer { array, peer }| {
        let buffer = call.recv_buffer(array)?;
        MessageBuffer::new(call, *peer, buffer.address, buffer.count, buffer.datatype)
    });
    let incoming = incoming.collect::<Result<Vec<_>>>()?;
    let details = || in_words(sent, received);
    call.mpi("MPI_Waitall", details, |_, comm| {
        // SAFETY: each message has an array of the call to itself, or shares one that is read.
        unsafe { exchange_messages(call, comm, &outgoing, &incoming) }
    })
}

pub fn in_words(sent: &[Transfer], received: &[Transfer]) -> String {
    let of = |arrow: &str, transfers: &[Transfer]| {
        let words = transfers.iter().map(|Transfer { array, peer }| {
            let Neighbor { rank, tag } = peer;
            format!("{arrow} {rank} (tag {tag}, {} items)", array.count)
        });
        words.collect::<Vec<_>>().join(", ")
    };
    let mut both = vec![of("<-", received), of("->", sent)];
    both.retain(|words| !words.is_empty());
    both.join(" / ")
}

/// Receives the messages one after another, where the first part of each tells about the rest: with
/// labels, or in pieces. All sends are posted before, so that no two processes wait for each other.
fn one_after_another<A: Abi, M: Memory>(
    call: &Call<A, M>,
    sent: &[Transfer],
    received: &[Transfer],
) -> Result<()> {
    let comm = call.communicator.handle::<A>();
    let mut outgoing = Vec::new();
    for Transfer { array, peer } in sent {
        let buffer = call.send_buffer(array)?;
        let mut message = Outgoing::new::<A>(&call.communicator, buffer, peer.rank, peer.tag);
        message.is_read = false; // `before` has all of them copied
        outgoing.push((message, call.label(*peer, array.into())));
    }
    let mut incoming = Vec::new();
    for Transfer { array, peer } in received {
        let buffer = call.recv_buffer(array)?;
        let ignored = A::constants().status_ignore as *mut A::Status;
        let mut message =
            Incoming::<A>::new(&call.communicator, buffer, peer.rank, peer.tag, ignored);
        message.is_alone = false;
        incoming.push((message, Array::from(array)));
    }
    call.in_memory(|memory| memory.before(&Access::WHOLE))?;
    let rank = call.communicator.rank;
    let entry = log::is_enabled()
        .then(|| log::LoggedCall::begin(rank, "MPI_Waitall", &in_words(sent, received)));
    let mut requests = Requests::new(call, comm).without_progress();
    for (message, label) in &mut outgoing {
        begin_to_send(call, &mut requests, message, label.as_ref())?;
    }
    let mut outcome = Ok(());
    for (index, (message, array)) in incoming.iter_mut().enumerate() {
        call.progress().set_awaited_message(index);
        let label = call.receive_label(message.source, message.tag, *array)?;
        outcome = outcome.and(finish_receiving(call, message, label)?);
    }
    call.progress().set_awaited_sends();
    let code = requests.wait();
    if let Some(entry) = entry {
        entry.end(code);
    }
    call.check("MPI_Wait", code)?;
    call.in_memory(|memory| memory.after(&Access::WHOLE))?;
    outcome
}

/// Begins to send a message, behind its label if it has one.
fn begin_to_send<A: Abi, M: Memory>(
    call: &Call<A, M>,
    requests: &mut Requests<A>,
    message: &mut Outgoing,
    label: Option<&Label>,
) -> Result<()> {
    let peer = Neighbor {
        rank: message.dest,
        tag: message.tag,
    };
    let mut begin = |part: &MessageBuffer<A, M>| {
        // SAFETY: label and operand stay until all requests are done.
        let code: c_int = unsafe { requests.send(part) }.err().unwrap_or(0);
        call.check("MPI_Isend", code)
    };
    if let Some(label) = label {
        begin(&label.message(call, peer)?)?;
    }
    while !message.is_done {
        let (address, count) = (message.address(&message.access()), message.count());
        let datatype = message.buffer.datatype;
        begin(&MessageBuffer::new(
            call,
            peer,
            address.cast_mut(),
            count,
            datatype,
        )?)?;
        message.advance();
    }
    Ok(())
}
