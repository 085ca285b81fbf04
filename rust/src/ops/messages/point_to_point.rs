//! Point-to-point operations (MPI-4.1 §3).
//!
//! On a communicator whose processes have agreed on it, a message travels in pieces of one size.
//! A shorter one, which may be empty, is the last. So who receives knows the end, also where there
//! is room for more.

use std::ffi::c_int;
use std::ops::Range;

use crate::error::Result;
use crate::memory::{Access, Memory};
use crate::mpi::{Abi, Communicator, RecvBuffer, SendBuffer, Status, source_and_tag};
use crate::ops::call::Call;
use crate::ops::call::buffers::check_blocks;
use crate::ops::call::counts::{Count, Form, invoke};
use crate::ops::call::pieces::piece_at;
use crate::ops::check::labels::{Labelled, Refusal};

/// A message that is being sent.
pub struct Outgoing<'b> {
    pub buffer: SendBuffer<'b>,
    pub dest: c_int,
    pub tag: c_int,
    /// Whether the bytes are looked at.
    pub is_read: bool,
    /// The elements of a piece.
    length: i64,
    /// The next piece.
    piece: Range<i64>,
    pub is_done: bool,
}

impl<'b> Outgoing<'b> {
    pub fn new<A: Abi>(
        communicator: &Communicator,
        buffer: SendBuffer<'b>,
        dest: c_int,
        tag: c_int,
    ) -> Self {
        let length = communicator.piece_length(buffer.datatype().size);
        Self {
            buffer,
            dest,
            tag,
            is_read: dest != A::constants().proc_null,
            length,
            piece: piece_at(0, buffer.count(), length),
            is_done: false,
        }
    }

    /// The number of elements in the next piece.
    pub fn count(&self) -> i64 {
        self.piece.end - self.piece.start
    }

    /// The bytes of the next piece.
    pub fn access(&self) -> Access {
        let mut access = Access::both(&self.piece, self.length, self.buffer.datatype().size);
        access.written = 0..0;
        if !self.is_read {
            access.read.end = access.read.start;
        }
        access
    }

    pub fn next(&self) -> SendBuffer<'b> {
        self.buffer.part(self.piece.start, self.count())
    }

    /// The piece has been sent.
    pub fn advance(&mut self) {
        self.is_done = self.count() < self.length;
        self.piece = piece_at(self.piece.end, self.buffer.count(), self.length);
    }
}

/// A message that is being received.
pub struct Incoming<'b, A: Abi> {
    buffer: RecvBuffer<'b>,
    pub source: c_int,
    pub tag: c_int,
    length: i64,
    /// Where there is room for the next piece.
    piece: Range<i64>,
    is_done: bool,
    /// The status that the caller wants, or `MPI_STATUS_IGNORE`.
    wanted: *mut A::Status,
    /// A status where the caller wants none.
    own: Status,
    /// Why the message is not what is asked for. It is received all the same, elsewhere, so that
    /// the next one is not taken for it.
    refusal: Option<Box<Refusal>>,
    /// Whether its array is the only result. Several are copied together.
    pub is_alone: bool,
}

impl<'b, A: Abi> Incoming<'b, A> {
    pub fn new(
        communicator: &Communicator,
        buffer: RecvBuffer<'b>,
        source: c_int,
        tag: c_int,
        wanted: *mut A::Status,
    ) -> Self {
        let length = communicator.piece_length(buffer.datatype().size);
        Self {
            source,
            tag,
            length,
            piece: piece_at(0, buffer.count(), length),
            is_done: false,
            wanted,
            own: Status::EMPTY,
            refusal: None,
            is_alone: true,
            buffer,
        }
    }

    /// Takes in what the label of the message says.
    fn take_label(&mut self, label: Labelled) {
        (self.source, self.tag) = (label.source, label.tag);
        if let Some(mut refusal) = label.refusal {
            if let Some(buffer) = refusal.buffer() {
                self.piece = piece_at(0, buffer.count(), self.length);
            } else {
                self.is_done = true;
            }
            self.refusal = Some(refusal);
        }
    }

    /// How the receiving has ended.
    fn outcome(&mut self) -> Result<()> {
        let refusal = self.refusal.take();
        refusal.map_or(Ok(()), |refusal| Err(refusal.error))
    }

    /// The number of elements for which there is room.
    fn count(&self) -> i64 {
        self.piece.end - self.piece.start
    }

    /// The bytes of the next piece. One of several is written when it is known how many came.
    fn access(&self) -> Access {
        let mut access = Access::both(&self.piece, self.length, self.buffer.datatype().size);
        access.read = 0..0;
        let is_written = self.is_alone && !self.is_in_pieces() && self.refusal.is_none();
        if !is_written || self.source == A::constants().proc_null {
            access.written.end = access.written.start;
        }
        access
    }

    /// The array of the message, or where it goes instead.
    fn buffer(&mut self) -> RecvBuffer<'_> {
        let refusal = self.refusal.as_mut();
        let instead = refusal.and_then(|refusal| refusal.buffer());
        instead.unwrap_or_else(|| self.buffer.reborrow())
    }

    /// Where there is room for the next piece.
    fn next(&mut self) -> RecvBuffer<'_> {
        let (first, count) = (self.piece.start, self.count());
        self.buffer().part(first, count)
    }

    fn is_in_pieces(&self) -> bool {
        self.length != i64::MAX
    }

    /// Where MPI puts the status of the next piece.
    fn status(&mut self) -> *mut A::Status {
        if self.is_in_pieces() && self.wanted as usize == A::constants().status_ignore {
            return self.own.address::<A>();
        }
        self.wanted
    }

    /// A piece has come: looks at its status for whether that was the last.
    fn advance<M: Memory>(&mut self, call: &Call<A, M>) -> Result<()> {
        if !self.is_in_pieces() {
            self.is_done = true;
            return Ok(());
        }
        let status = self.status();
        let buffer = self.buffer();
        let (room, element) = (buffer.count(), buffer.datatype());
        let datatype = element.handle::<A>();
        let mut count = 0;
        // SAFETY: MPI has filled the status.
        let code = unsafe { (call.functions.get_count)(status, datatype, &raw mut count) };
        call.check("MPI_Get_count", code)?;
        let start = self.piece.start;
        let end = start + i64::from(count.max(0));
        if self.is_alone {
            call.store_elements(&(start..end), element)?;
        }
        self.is_done = i64::from(count) != self.length;
        if !self.is_done {
            // The next piece is of the same message.
            // SAFETY: MPI has filled the status.
            let (source, tag) = unsafe { source_and_tag::<A>(status) };
            (self.source, self.tag) = (source, tag);
            self.piece = piece_at(end, room, self.length);
        } else if self.wanted == status {
            // SAFETY: the status is the caller's own, filled by MPI, and stays (MPI-4.1 §13.3).
            let code = unsafe { (call.functions.status_set_elements)(status, datatype, end) };
            call.check("MPI_Status_set_elements_x", code)?;
        }
        Ok(())
    }
}

/// MPI-4.1 §3.2.4: blocks until a message is there.
pub fn recv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (source, tag, status) = (call.int("source")?, call.int("tag")?, call.status()?);
    let [result] = call.results()?;
    let recv = call.recv_buffer(&result)?;
    let mut message = Incoming::new(&call.communicator, recv, source, tag, status);
    let label = call.receive_label(source, tag, (&result).into())?;
    finish_receiving(call, &mut message, label)?
}

/// Receives a message behind its label, if it has one, and says whether it fits.
pub fn finish_receiving<A: Abi, M: Memory>(
    call: &Call<A, M>,
    message: &mut Incoming<'_, A>,
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

fn recv_piece<A: Abi, M: Memory>(call: &Call<A, M>, message: &mut Incoming<'_, A>) -> Result<()> {
    let (access, count) = (message.access(), message.count());
    let recv = message.next();
    let typed = call.typed_count(count, recv.datatype())?;
    let (address, status) = (recv.address(), message.status());
    let (source, tag) = (message.source, message.tag);
    // SAFETY: the result has room for so many there; `status` is the address of one, or
    // MPI_STATUS_IGNORE.
    let receive = |mpi: Form<A>, comm: A::Comm| unsafe {
        invoke!(mpi.recv(
            address,
            typed.count,
            typed.datatype,
            source,
            tag,
            comm,
            status
        ))
    };
    if message.is_alone {
        let details = || format!("<- {source} (tag {tag}, {count} items)");
        call.counted(&access, "MPI_Recv", typed.count, details, receive)?;
    } else {
        let form = call.counting.form(typed.count);
        call.check("MPI_Recv", receive(form, call.communicator.handle::<A>()))?;
    }
    message.advance(call)
}

/// MPI-4.1 §3.2.1: blocks until the operand may be overwritten.
pub fn send<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (dest, tag) = (call.int("dest")?, call.int("tag")?);
    let [operand] = call.operands()?;
    let send = call.send_buffer(&operand)?;
    let mut message = Outgoing::new::<A>(&call.communicator, send, dest, tag);
    call.send_label(dest, tag, (&operand).into())?;
    while !message.is_done {
        send_piece(call, &mut message)?;
    }
    Ok(())
}

fn send_piece<A: Abi, M: Memory>(call: &Call<A, M>, message: &mut Outgoing<'_>) -> Result<()> {
    let (access, count) = (message.access(), message.count());
    let send = message.next();
    let typed = call.typed_count(count, send.datatype())?;
    let address = send.address::<A>();
    let (dest, tag) = (message.dest, message.tag);
    call.counted(
        &access,
        "MPI_Send",
        typed.count,
        || format!("-> {dest} (tag {tag}, {count} items)"),
        // SAFETY: the operand has so many elements there.
        |mpi, comm| unsafe {
            invoke!(mpi.send(address, typed.count, typed.datatype, dest, tag, comm))
        },
    )?;
    message.advance();
    Ok(())
}

/// MPI-4.1 §3.11: sends to one rank while it receives from another.
pub fn sendrecv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (dest, send_tag) = (call.int("dest")?, call.int("sendtag")?);
    let (source, recv_tag) = (call.int("source")?, call.int("recvtag")?);
    let status = call.status()?;
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    // The two buffers of MPI_Sendrecv must be disjoint. An empty one may be anywhere.
    let mut replace = send.count().min(recv.count()) > 0 && send.begins_where(&recv);
    if replace {
        check_blocks(&result, &operand, 1)?;
    }
    let communicator = &call.communicator;
    let mut sent = Outgoing::new::<A>(communicator, send, dest, send_tag);
    // What no message replaces stays as it was.
    sent.is_read |= replace;
    let mut received = Incoming::new(communicator, recv, source, recv_tag, status);
    let label = call.exchange_labels(
        (dest, send_tag, (&operand).into()),
        (source, recv_tag, (&result).into()),
    )?;
    if let Some(label) = label {
        received.take_label(label);
        replace &= received.refusal.is_none();
    }
    loop {
        match (sent.is_done, received.is_done) {
            (false, false) => exchange_pieces(call, &mut sent, &mut received, replace)?,
            (false, true) => send_piece(call, &mut sent)?,
            (true, false) => recv_piece(call, &mut received)?,
            (true, true) => return received.outcome(),
        }
    }
}

fn exchange_pieces<A: Abi, M: Memory>(
    call: &Call<A, M>,
    sent: &mut Outgoing<'_>,
    received: &mut Incoming<'_, A>,
    replace: bool,
) -> Result<()> {
    let (dest, send_tag) = (sent.dest, sent.tag);
    let (source, recv_tag) = (received.source, received.tag);
    let access = Access {
        written: received.access().written,
        ..sent.access()
    };
    let (send_count, recv_count) = (sent.count(), received.count());
    let (send, recv) = (sent.next(), received.next());
    let typed_sent = call.typed_count(send_count, send.datatype())?;
    let typed_received = call.typed_count(recv_count, recv.datatype())?;
    let (send, recv) = (send.address::<A>(), recv.address());
    let status = received.status();
    let body = |mpi: Form<A>, comm: A::Comm| {
        if replace {
            // SAFETY: operand and result are one array, of equal shape and type.
            unsafe {
                invoke!(mpi.sendrecv_replace(
                    recv,
                    typed_received.count,
                    typed_received.datatype,
                    dest,
                    send_tag,
                    source,
                    recv_tag,
                    comm,
                    status,
                ))
            }
        } else {
            // SAFETY: each array has its elements there; `status` is the address of one, or
            // MPI_STATUS_IGNORE.
            unsafe {
                invoke!(mpi.sendrecv(
                    send,
                    typed_sent.count,
                    typed_sent.datatype,
                    dest,
                    send_tag,
                    recv,
                    typed_received.count,
                    typed_received.datatype,
                    source,
                    recv_tag,
                    comm,
                    status,
                ))
            }
        }
    };
    let largest: Count = typed_sent.count.max(typed_received.count);
    let details = || {
        format!(
            "<- {source} (tag {recv_tag}, {recv_count} items) / -> {dest} (tag {send_tag}, \
             {send_count} items)"
        )
    };
    call.counted(&access, "MPI_Sendrecv", largest, details, body)?;
    sent.advance();
    received.advance(call)
}
