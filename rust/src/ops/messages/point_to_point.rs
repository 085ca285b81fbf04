//! Point-to-point operations (MPI-4.1 §3).
//!
//! On a communicator whose processes have agreed on it, a message travels in pieces of one size.
//! A shorter one, which may be empty, is the last. So who receives knows the end, also where there
//! is room for more.

use std::ops::Range;

use crate::error::Result;
use crate::memory::{Access, Memory};
use crate::mpi::{Abi, Communicator, Neighbor, OwnStatus, RecvBuffer, SendBuffer, StatusPlace};
use crate::ops::call::Call;
use crate::ops::call::buffers::check_blocks;
use crate::ops::call::pieces::piece_at;
use crate::ops::check::labels::{Labelled, Refusal};
use crate::xla::Buffer;

/// A message that is being sent.
pub struct Sending<'b> {
    buffer: SendBuffer<'b>,
    to: Neighbor,
    /// Whether MPI reads the bytes.
    is_read: bool,
    /// The number of elements in a piece.
    length: i64,
    /// The next piece.
    piece: Range<i64>,
    is_done: bool,
}

impl<'b> Sending<'b> {
    #[inline(always)]
    fn new<A: Abi>(communicator: &Communicator, buffer: SendBuffer<'b>, to: Neighbor) -> Self {
        let length = communicator.piece_length(buffer.datatype().size);
        Self {
            buffer,
            to,
            is_read: to.rank != A::constants().proc_null,
            length,
            piece: piece_at(0, buffer.count(), length),
            is_done: false,
        }
    }

    /// The number of elements in the next piece.
    fn count(&self) -> i64 {
        self.piece.end - self.piece.start
    }

    /// The bytes of the next piece.
    #[inline(always)]
    fn access(&self) -> Access {
        let mut access = Access::both(&self.piece, self.length, self.buffer.datatype().size);
        access.written = 0..0;
        if !self.is_read {
            access.read.end = access.read.start;
        }
        access
    }

    #[inline(always)]
    fn next(&self) -> SendBuffer<'b> {
        self.buffer.part(self.piece.start, self.count())
    }

    /// Moves on to the next piece.
    #[inline(always)]
    fn advance(&mut self) {
        self.is_done = self.count() < self.length;
        self.piece = piece_at(self.piece.end, self.buffer.count(), self.length);
    }
}

/// Room for a message.
struct Room<'b> {
    /// Its array.
    buffer: RecvBuffer<'b>,
    /// Reason why the message is not the expected one. It is received all the same, elsewhere, so that
    /// the next one is not taken for it.
    refusal: Option<Box<Refusal>>,
}

impl Room<'_> {
    fn buffer(&mut self) -> RecvBuffer<'_> {
        let refusal = self.refusal.as_mut();
        let instead = refusal.and_then(|refusal| refusal.buffer());
        instead.unwrap_or_else(|| self.buffer.reborrow())
    }
}

/// Places for the statuses of a message.
struct Statuses<A: Abi> {
    /// The status that the caller wants, or `MPI_STATUS_IGNORE`.
    wanted: StatusPlace<'static, A>,
    /// One where the caller wants none, but the next piece depends on it.
    own: Option<OwnStatus>,
}

impl<A: Abi> Statuses<A> {
    /// The place for the status of the next piece.
    #[inline(always)]
    fn place(&mut self, is_in_pieces: bool) -> StatusPlace<'_, A> {
        if is_in_pieces && self.wanted.is_ignored() {
            return self.own.get_or_insert(OwnStatus::EMPTY).place();
        }
        self.wanted.reborrow()
    }
}

/// A message that is being received.
pub struct Receiving<'b, A: Abi> {
    room: Room<'b>,
    statuses: Statuses<A>,
    /// Sender, which may be any rank until a part of the message has arrived.
    pub from: Neighbor,
    /// The number of elements in a piece: `i64::MAX` if the message travels as a whole.
    length: i64,
    /// Elements of the next piece.
    piece: Range<i64>,
    is_done: bool,
    /// Whether its array is the only result. Several are copied together.
    pub is_alone: bool,
}

impl<'b, A: Abi> Receiving<'b, A> {
    #[inline(always)]
    pub fn new(
        communicator: &Communicator,
        buffer: RecvBuffer<'b>,
        from: Neighbor,
        wanted: StatusPlace<'static, A>,
    ) -> Self {
        let length = communicator.piece_length(buffer.datatype().size);
        Self {
            from,
            length,
            piece: piece_at(0, buffer.count(), length),
            is_done: false,
            is_alone: true,
            room: Room {
                buffer,
                refusal: None,
            },
            statuses: Statuses { wanted, own: None },
        }
    }

    /// Takes the sender of the message from its label, and the refusal if it does not fit.
    fn take_label(&mut self, label: Labelled) {
        self.from = label.from;
        if let Some(mut refusal) = label.refusal {
            if let Some(buffer) = refusal.buffer() {
                self.piece = piece_at(0, buffer.count(), self.length);
            } else {
                self.is_done = true;
            }
            self.room.refusal = Some(refusal);
        }
    }

    /// Whether the message travels in pieces.
    #[inline(always)]
    fn is_in_pieces(&self) -> bool {
        self.length != i64::MAX
    }

    /// The outcome of the receive: the error of a refusal, if there is one.
    fn outcome(&mut self) -> Result<()> {
        let refusal = self.room.refusal.take();
        refusal.map_or(Ok(()), |refusal| Err(refusal.error))
    }

    /// The number of elements in the next piece.
    fn count(&self) -> i64 {
        self.piece.end - self.piece.start
    }

    /// The bytes of the next piece. One of several is written when it is known how many came.
    #[inline(always)]
    fn access(&self) -> Access {
        let mut access = Access::both(&self.piece, self.length, self.room.buffer.datatype().size);
        access.read = 0..0;
        let is_written = self.is_alone && !self.is_in_pieces() && self.room.refusal.is_none();
        if !is_written || self.from.rank == A::constants().proc_null {
            access.written.end = access.written.start;
        }
        access
    }

    /// Room for the next piece, and for its status.
    #[inline(always)]
    fn next(&mut self) -> (RecvBuffer<'_>, StatusPlace<'_, A>) {
        let (first, count, is_in_pieces) = (self.piece.start, self.count(), self.is_in_pieces());
        let buffer = self.room.buffer().part(first, count);
        (buffer, self.statuses.place(is_in_pieces))
    }

    /// Moves on to the next piece, unless the status of this one says that it was the last.
    #[inline(always)]
    fn advance<M: Memory>(&mut self, call: &Call<A, M>) -> Result<()> {
        if !self.is_in_pieces() {
            self.is_done = true;
            return Ok(());
        }
        let buffer = self.room.buffer();
        let (room, element) = (buffer.count(), buffer.datatype());
        let datatype = element.handle::<A>();
        let status = self.statuses.place(true);
        let count = status.count(call.functions, datatype);
        // The next piece is of the same message.
        let (rank, tag) = status.source_and_tag();
        let count = count.or_else(|code| call.check("MPI_Get_count", code).map(|()| 0))?;
        let start = self.piece.start;
        let end = start + i64::from(count.max(0));
        if self.is_alone {
            call.store_elements(&(start..end), element)?;
        }
        self.is_done = i64::from(count) != self.length;
        if !self.is_done {
            self.from = Neighbor { rank, tag };
            self.piece = piece_at(end, room, self.length);
        } else if !self.statuses.wanted.is_ignored() {
            let code = self
                .statuses
                .wanted
                .set_elements(call.functions, datatype, end);
            call.check("MPI_Status_set_elements_x", code)?;
        }
        Ok(())
    }
}

/// The envelope of a message: the rank and the tag in two attributes.
#[inline(always)]
fn peer<A: Abi, M: Memory>(call: &Call<A, M>, rank: &str, tag: &str) -> Result<Neighbor> {
    let (rank, tag) = (call.int(rank)?, call.int(tag)?);
    Ok(Neighbor { rank, tag })
}

/// The array that becomes the result if the source is `MPI_PROC_NULL` (MPI-4.1 §3.10): the operand at this
/// position, which a call has if its program computes the source.
#[inline(always)]
fn instead_of_nothing<'a, A: Abi, M: Memory>(
    call: &Call<'a, A, M>,
    from: Neighbor,
    position: usize,
    result: &Buffer,
) -> Result<Option<Buffer<'a>>> {
    if from.rank != A::constants().proc_null {
        return Ok(None);
    }
    let instead = call.all_operands()?.get(position).copied();
    if let Some(array) = &instead {
        check_blocks(result, array, 1)?;
    }
    Ok(instead)
}

/// MPI-4.1 §3.2.4: blocks until a message is there.
pub fn recv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (from, status) = (peer(call, "source", "tag")?, call.status()?);
    let [] = call.first_operands()?;
    let [result] = call.results()?;
    let instead = instead_of_nothing(call, from, 0, &result)?;
    let recv = call.recv_buffer(&result)?;
    let mut message = Receiving::new(&call.communicator, recv, from, status);
    let label = call.receive_label(from, (&result).into())?;
    finish_receiving(call, &mut message, label)??;
    instead.map_or(Ok(()), |array| call.forward(&array, &result))
}

/// Receives a message behind its label, if it has one, and says whether it fits.
pub fn finish_receiving<A: Abi, M: Memory>(
    call: &Call<A, M>,
    message: &mut Receiving<'_, A>,
    label: Option<Labelled>,
) -> Result<Result<()>> {
    if let Some(label) = label {
        message.take_label(label);
    }
    while !message.is_done {
        recv_piece(call, message)?;
    }
    Ok(message.outcome())
}

fn recv_piece<A: Abi, M: Memory>(call: &Call<A, M>, message: &mut Receiving<'_, A>) -> Result<()> {
    let (access, count, is_alone) = (message.access(), message.count(), message.is_alone);
    let from = message.from;
    let (recv, status) = message.next();
    if is_alone {
        let details = || format!("<- {} (tag {}, {count} items)", from.rank, from.tag);
        call.blocking(&access, details).recv(recv, from, status)?;
    } else {
        call.unlogged().recv(recv, from, status)?;
    }
    message.advance(call)
}

/// MPI-4.1 §3.2.1: blocks until the operand may be overwritten.
pub fn send<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let to = peer(call, "dest", "tag")?;
    let [operand] = call.operands()?;
    let send = call.send_buffer(&operand)?;
    let mut message = Sending::new::<A>(&call.communicator, send, to);
    call.send_label(to, (&operand).into())?;
    while !message.is_done {
        send_piece(call, &mut message)?;
    }
    Ok(())
}

fn send_piece<A: Abi, M: Memory>(call: &Call<A, M>, message: &mut Sending<'_>) -> Result<()> {
    let (access, send, to) = (message.access(), message.next(), message.to);
    let details = || format!("-> {} (tag {}, {} items)", to.rank, to.tag, send.count());
    call.blocking(&access, details).send(send, to)?;
    message.advance();
    Ok(())
}

/// MPI-4.1 §3.11: sends to one rank while it receives from another.
pub fn sendrecv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (to, from) = (
        peer(call, "dest", "sendtag")?,
        peer(call, "source", "recvtag")?,
    );
    let status = call.status()?;
    let [operand] = call.first_operands()?;
    let [result] = call.results()?;
    let instead = instead_of_nothing(call, from, 1, &result)?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    // The two buffers of MPI_Sendrecv must be disjoint. An empty one may be anywhere.
    let mut replace = send.count().min(recv.count()) > 0 && send.begins_where(&recv);
    if replace {
        check_blocks(&result, &operand, 1)?;
    }
    let communicator = &call.communicator;
    let mut sent = Sending::new::<A>(communicator, send, to);
    // What no message replaces stays as it was.
    sent.is_read |= replace;
    let mut received = Receiving::new(communicator, recv, from, status);
    let label = call.exchange_labels((to, (&operand).into()), (from, (&result).into()))?;
    if let Some(label) = label {
        received.take_label(label);
        replace &= received.room.refusal.is_none();
    }
    loop {
        match (sent.is_done, received.is_done) {
            (false, false) => exchange_pieces(call, &mut sent, &mut received, replace)?,
            (false, true) => send_piece(call, &mut sent)?,
            (true, false) => recv_piece(call, &mut received)?,
            (true, true) => break,
        }
    }
    received.outcome()?;
    // What is sent may have been where the result is.
    instead.map_or(Ok(()), |array| call.forward(&array, &result))
}

#[inline(always)]
fn exchange_pieces<A: Abi, M: Memory>(
    call: &Call<A, M>,
    sent: &mut Sending<'_>,
    received: &mut Receiving<'_, A>,
    replace: bool,
) -> Result<()> {
    let (to, from) = (sent.to, received.from);
    let access = Access {
        written: received.access().written,
        ..sent.access()
    };
    let (send, recv_count) = (sent.next(), received.count());
    let details = || {
        format!(
            "<- {} (tag {}, {recv_count} items) / -> {} (tag {}, {} items)",
            from.rank,
            from.tag,
            to.rank,
            to.tag,
            send.count()
        )
    };
    let caller = call.blocking(&access, details);
    let (recv, status) = received.next();
    if replace {
        caller.sendrecv_replace(recv, to, from, status)?;
    } else {
        caller.sendrecv((send, to), (recv, from), status)?;
    }
    sent.advance();
    received.advance(call)
}
