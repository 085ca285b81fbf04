//! The C functions of the MPI that moves bytes.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use _core::mpi::{
    Abi, BothForms, CopyAttribute, Counted, DeleteAttribute, Functions, IntHandles, UserFunction,
};
use _core::mpi_functions;

use super::network::{
    ANY_TAG, Contribution, Member, Network, REQUEST_NULL, Reduction, Share, Status, die,
    wait_until, with,
};
use super::types::{Datatype, Operator, Part};

type Buffer = *const c_void;
type Room = *mut c_void;

/// The work of a function for a process: gives an error code, or goes well.
type Outcome<T = ()> = Result<T, c_int>;

fn code_of(outcome: Outcome) -> c_int {
    outcome.err().unwrap_or(0)
}

/// A function that no test needs.
macro_rules! missing {
    ($symbol:ident($($argument:ident),*)) => {{
        unsafe extern "C" fn called<$($argument),*>($(_: $argument),*) -> c_int {
            die(concat!(stringify!($symbol), " does nothing in this MPI"))
        }
        called
    }};
}

fn set<T>(address: *mut T, value: T) {
    // SAFETY: the caller of MPI lends it.
    unsafe { *address = value };
}

fn get<T: Copy>(address: *const T) -> T {
    // SAFETY: the caller of MPI lends it.
    unsafe { *address }
}

fn is_in_place(buffer: Buffer) -> bool {
    buffer as usize == IntHandles::constants().in_place
}

/// A count or a displacement, in one of the two forms of a function.
trait Number: Copy {
    fn to_usize(self) -> usize;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            fn to_usize(self) -> usize {
                self.try_into().unwrap_or_else(|_| die("a negative count"))
            }
        }
    )*};
}

numbers!(c_int, isize, usize);

/// How many counts the functions for large counts have got.
static LARGE_COUNTS: AtomicUsize = AtomicUsize::new(0);

impl Number for i64 {
    fn to_usize(self) -> usize {
        LARGE_COUNTS.fetch_add(1, Relaxed);
        (self as isize).to_usize()
    }
}

pub fn large_counts() -> usize {
    LARGE_COUNTS.load(Relaxed)
}

/// A call on a communicator.
struct Caller<'n> {
    network: &'n mut Network,
    function: &'static str,
    member: Member,
    size: usize,
    /// The lists that it was passed.
    lists: Vec<Range<usize>>,
}

impl Caller<'_> {
    /// Makes a call of a function.
    fn call<T>(
        function: &'static str,
        comm: c_int,
        body: impl FnOnce(&mut Caller) -> T,
    ) -> Outcome<T> {
        with(|network| {
            let member = network.members[&comm];
            network.enter(member, function)?;
            let size = network.contexts[member.context].handles.len();
            Ok(body(&mut Caller {
                network,
                function,
                member,
                size,
                lists: Vec::new(),
            }))
        })
    }

    fn part(&self, buffer: Buffer, count: impl Number, datatype: c_int) -> Part {
        let datatype = Arc::clone(&self.network.datatypes[&datatype]);
        Part::new(buffer, count.to_usize(), datatype)
    }

    /// A list of as many numbers as there are processes. MPI may read it as long as the buffers.
    fn list<N: Number>(&mut self, start: *const N) -> Vec<usize> {
        let end = start.wrapping_add(self.size);
        self.lists.push(start as usize..end as usize);
        (0..self.size)
            .map(|rank| get(start.wrapping_add(rank)).to_usize())
            .collect()
    }

    /// Begins a collective call.
    fn meet(&mut self, mut own: Contribution, function: String) -> c_int {
        own.function = function;
        own.lists = std::mem::take(&mut self.lists);
        self.network.meet(self.function, self.member, own)
    }

    /// As many items of a buffer for each process, one after the other.
    fn blocks(&self, buffer: Buffer, count: impl Number, datatype: c_int) -> Vec<(usize, Part)> {
        let count = count.to_usize();
        let counts = vec![count; self.size];
        let starts: Vec<_> = (0..self.size).map(|rank| rank * count).collect();
        self.blocks_at(buffer, counts, starts, datatype)
    }

    fn blocks_at(
        &self,
        buffer: Buffer,
        counts: Vec<usize>,
        starts: Vec<usize>,
        datatype: c_int,
    ) -> Vec<(usize, Part)> {
        let whole = self.part(buffer, 0, datatype);
        let parts = counts.into_iter().zip(starts);
        let parts = parts.map(|(count, start)| whole.items(start, count));
        parts.enumerate().collect()
    }

    fn to_all(&self, part: &Part) -> Vec<(usize, Part)> {
        (0..self.size).map(|rank| (rank, part.clone())).collect()
    }

    /// What all have, with the block of this process in the receive buffer if the operand is in place.
    fn gathered(&self, send: Option<Part>, mut receives: Vec<(usize, Part)>) -> Contribution {
        let own = match send {
            Some(part) => part,
            None => receives.remove(self.member.rank).1,
        };
        Contribution {
            sends: self.to_all(&own),
            receives,
            ..Contribution::default()
        }
    }

    fn operand(&self, send: Buffer, count: impl Number, datatype: c_int) -> Option<Part> {
        (!is_in_place(send)).then(|| self.part(send, count, datatype))
    }

    fn is(&self, root: c_int) -> bool {
        self.member.rank == root as usize
    }

    /// What root gets of all.
    fn to_root(
        &self,
        root: c_int,
        send: Option<Part>,
        receives: impl FnOnce() -> Vec<(usize, Part)>,
    ) -> Contribution {
        let mut receives = if self.is(root) {
            receives()
        } else {
            Vec::new()
        };
        if send.is_none() {
            receives.remove(root as usize);
        }
        Contribution {
            sends: send.map(|part| (root as usize, part)).into_iter().collect(),
            receives,
            ..Contribution::default()
        }
    }

    /// What root gives to each.
    fn of_root(
        &self,
        root: c_int,
        recv: Option<Part>,
        sends: impl FnOnce() -> Vec<(usize, Part)>,
    ) -> Contribution {
        Contribution {
            sends: if self.is(root) { sends() } else { Vec::new() },
            receives: recv.map(|part| (root as usize, part)).into_iter().collect(),
            ..Contribution::default()
        }
    }

    /// A reduction. The operand is the result's memory if it is in place.
    fn reduction(
        &self,
        [send, recv]: [Buffer; 2],
        count: impl Number,
        (datatype, op): (c_int, c_int),
        share: Share,
        has_result: bool,
    ) -> Contribution {
        let operand = if is_in_place(send) { recv } else { send };
        let count = count.to_usize();
        let result_count = match &share {
            Share::Block(_, count) => *count,
            Share::Exscan if self.member.rank == 0 => 0,
            _ => count,
        };
        Contribution {
            reduction: Some(Reduction {
                operand: self.part(operand, count, datatype),
                op: self.network.operators[&op],
                share,
                result: has_result.then(|| self.part(recv, result_count, datatype)),
            }),
            ..Contribution::default()
        }
    }

    /// The block of each process in a reduction whose result is scattered.
    fn share_of(&self, counts: &[usize]) -> Share {
        let before = counts[..self.member.rank].iter().sum();
        Share::Block(before, counts[self.member.rank])
    }
}

/// Waits for a request.
fn finish(function: &'static str, process: usize, request: c_int) -> (c_int, Status) {
    wait_until((process, function), |network| {
        loop {
            if let Some(outcome) = network.retire(request) {
                return Some(outcome);
            }
            if !network.progress(process) {
                return None;
            }
        }
    })
}

fn finish_on(function: &'static str, comm: c_int, request: c_int) -> (c_int, Status) {
    let process = with(|network| network.process_of(network.members[&comm]));
    finish(function, process, request)
}

/// A status as MPICH has it: the count, whether it is cancelled, the source, the tag.
fn fill(status: *mut c_void, value: &Status) {
    if status as usize == IntHandles::constants().status_ignore {
        return;
    }
    let words = [
        value.bytes as c_int,
        c_int::from(value.is_cancelled),
        value.source,
        value.tag,
        0,
    ];
    for (index, word) in words.into_iter().enumerate() {
        set(status.cast::<c_int>().wrapping_add(index), word);
    }
}

/// A collective function, blocking and with a request.
macro_rules! collectives {
    ($(
        $blocking:ident $block:literal / $nonblocking:ident $begin:literal
            <$($number:ident),*> ($($argument:ident: $type:ty),*) $(agreed($agreed:ident))* = |$caller:ident| $body:expr;
    )*) => {$(
        unsafe extern "C" fn $blocking<$($number: Number),*>($($argument: $type,)* comm: c_int) -> c_int {
            let begun = Caller::call($block, comm, |$caller| {
                let own: Contribution = $body;
                let agreed: Vec<usize> = vec![$($agreed.to_usize()),*];
                $caller.meet(own, format!("{} {agreed:?}", $block))
            });
            begun.map_or_else(|code| code, |request| finish_on($block, comm, request).0)
        }

        unsafe extern "C" fn $nonblocking<$($number: Number),*>(
            $($argument: $type,)* comm: c_int, request: *mut c_int
        ) -> c_int {
            code_of(Caller::call($begin, comm, |$caller| {
                let own: Contribution = $body;
                let agreed: Vec<usize> = vec![$($agreed.to_usize()),*];
                set(request, $caller.meet(own, format!("{} {agreed:?}", $begin)));
            }))
        }
    )*};
}

collectives! {
    barrier "MPI_Barrier" / ibarrier "MPI_Ibarrier" <> () = |_caller| Contribution::default();
    bcast "MPI_Bcast" / ibcast "MPI_Ibcast" <N> (
        buffer: Room, count: N, datatype: c_int, root: c_int
    ) agreed(root) = |caller| {
        let part = caller.part(buffer, count, datatype);
        let mut own = caller.of_root(root, Some(part.clone()), || caller.to_all(&part));
        own.sends.retain(|(rank, _)| *rank != root as usize);
        own.receives.retain(|_| !caller.is(root));
        own
    };
    gather "MPI_Gather" / igather "MPI_Igather" <N> (
        send: Buffer, send_count: N, send_type: c_int,
        recv: Room, recv_count: N, recv_type: c_int, root: c_int
    ) agreed(root) = |caller| {
        let operand = caller.operand(send, send_count, send_type);
        caller.to_root(root, operand, || caller.blocks(recv, recv_count, recv_type))
    };
    gatherv "MPI_Gatherv" / igatherv "MPI_Igatherv" <N, D> (
        send: Buffer, send_count: N, send_type: c_int,
        recv: Room, counts: *const N, starts: *const D, recv_type: c_int, root: c_int
    ) agreed(root) = |caller| {
        let operand = caller.operand(send, send_count, send_type);
        let lists = caller.is(root).then(|| [caller.list(counts), caller.list(starts)]);
        caller.to_root(root, operand, || {
            let [counts, starts] = lists.unwrap();
            caller.blocks_at(recv, counts, starts, recv_type)
        })
    };
    scatter "MPI_Scatter" / iscatter "MPI_Iscatter" <N> (
        send: Buffer, send_count: N, send_type: c_int,
        recv: Room, recv_count: N, recv_type: c_int, root: c_int
    ) agreed(root) = |caller| {
        let room = caller.part(recv, recv_count, recv_type);
        caller.of_root(root, Some(room), || caller.blocks(send, send_count, send_type))
    };
    scatterv "MPI_Scatterv" / iscatterv "MPI_Iscatterv" <N, D> (
        send: Buffer, counts: *const N, starts: *const D, send_type: c_int,
        recv: Room, recv_count: N, recv_type: c_int, root: c_int
    ) agreed(root) = |caller| {
        let room = caller.part(recv, recv_count, recv_type);
        let lists = caller.is(root).then(|| [caller.list(counts), caller.list(starts)]);
        caller.of_root(root, Some(room), || {
            let [counts, starts] = lists.unwrap();
            caller.blocks_at(send, counts, starts, send_type)
        })
    };
    allgather "MPI_Allgather" / iallgather "MPI_Iallgather" <N> (
        send: Buffer, send_count: N, send_type: c_int,
        recv: Room, recv_count: N, recv_type: c_int
    ) = |caller| {
        let operand = caller.operand(send, send_count, send_type);
        caller.gathered(operand, caller.blocks(recv, recv_count, recv_type))
    };
    allgatherv "MPI_Allgatherv" / iallgatherv "MPI_Iallgatherv" <N, D> (
        send: Buffer, send_count: N, send_type: c_int,
        recv: Room, counts: *const N, starts: *const D, recv_type: c_int
    ) = |caller| {
        let operand = caller.operand(send, send_count, send_type);
        let [counts, starts] = [caller.list(counts), caller.list(starts)];
        caller.gathered(operand, caller.blocks_at(recv, counts, starts, recv_type))
    };
    alltoall "MPI_Alltoall" / ialltoall "MPI_Ialltoall" <N> (
        send: Buffer, send_count: N, send_type: c_int,
        recv: Room, recv_count: N, recv_type: c_int
    ) = |caller| Contribution {
        sends: caller.blocks(send, send_count, send_type),
        receives: caller.blocks(recv, recv_count, recv_type),
        ..Contribution::default()
    };
    alltoallv "MPI_Alltoallv" / ialltoallv "MPI_Ialltoallv" <N, D> (
        send: Buffer, send_counts: *const N, send_starts: *const D, send_type: c_int,
        recv: Room, recv_counts: *const N, recv_starts: *const D, recv_type: c_int
    ) = |caller| {
        let [sent, received] = [send_counts, recv_counts].map(|start| caller.list(start));
        let [sent_at, received_at] = [send_starts, recv_starts].map(|start| caller.list(start));
        Contribution {
            sends: caller.blocks_at(send, sent, sent_at, send_type),
            receives: caller.blocks_at(recv, received, received_at, recv_type),
            ..Contribution::default()
        }
    };
    allreduce "MPI_Allreduce" / iallreduce "MPI_Iallreduce" <N> (
        send: Buffer, recv: Room, count: N, datatype: c_int, op: c_int
    ) agreed(op) agreed(count) = |caller| {
        caller.reduction([send, recv], count, (datatype, op), Share::All, true)
    };
    reduce "MPI_Reduce" / ireduce "MPI_Ireduce" <N> (
        send: Buffer, recv: Room, count: N, datatype: c_int, op: c_int, root: c_int
    ) agreed(op) agreed(count) agreed(root) = |caller| {
        caller.reduction([send, recv], count, (datatype, op), Share::All, caller.is(root))
    };
    scan "MPI_Scan" / iscan "MPI_Iscan" <N> (
        send: Buffer, recv: Room, count: N, datatype: c_int, op: c_int
    ) agreed(op) agreed(count) = |caller| {
        caller.reduction([send, recv], count, (datatype, op), Share::Scan, true)
    };
    exscan "MPI_Exscan" / iexscan "MPI_Iexscan" <N> (
        send: Buffer, recv: Room, count: N, datatype: c_int, op: c_int
    ) agreed(op) agreed(count) = |caller| {
        caller.reduction([send, recv], count, (datatype, op), Share::Exscan, true)
    };
    reduce_scatter "MPI_Reduce_scatter" / ireduce_scatter "MPI_Ireduce_scatter" <N> (
        send: Buffer, recv: Room, counts: *const N, datatype: c_int, op: c_int
    ) agreed(op) = |caller| {
        let counts = caller.list(counts);
        let count: usize = counts.iter().sum();
        caller.reduction([send, recv], count, (datatype, op), caller.share_of(&counts), true)
    };
    reduce_scatter_block "MPI_Reduce_scatter_block" / ireduce_scatter_block "MPI_Ireduce_scatter_block" <N> (
        send: Buffer, recv: Room, count: N, datatype: c_int, op: c_int
    ) agreed(op) agreed(count) = |caller| {
        let counts = vec![count.to_usize(); caller.size];
        let share = caller.share_of(&counts);
        caller.reduction([send, recv], counts.iter().sum::<usize>(), (datatype, op), share, true)
    };
}

unsafe extern "C" fn alltoallw(
    send: Buffer,
    send_counts: *const c_int,
    send_starts: *const c_int,
    send_types: *const c_int,
    recv: Room,
    recv_counts: *const c_int,
    recv_starts: *const c_int,
    recv_types: *const c_int,
    comm: c_int,
) -> c_int {
    let begun = Caller::call("MPI_Alltoallw", comm, |caller| {
        // Displacements are in bytes.
        let parts = |start: Buffer, counts, starts, types| {
            let ranks = (0..caller.size).map(|rank| {
                let at = |list: *const c_int| get(list.wrapping_add(rank));
                let start = start.wrapping_byte_offset(at(starts) as isize);
                (rank, caller.part(start, at(counts), at(types)))
            });
            ranks.collect()
        };
        let own = Contribution {
            sends: parts(send, send_counts, send_starts, send_types),
            receives: parts(recv, recv_counts, recv_starts, recv_types),
            ..Contribution::default()
        };
        caller.meet(own, "MPI_Alltoallw".into())
    });
    begun.map_or_else(
        |code| code,
        |request| finish_on("MPI_Alltoallw", comm, request).0,
    )
}

/// Sends and receives at once, as far as both are asked for, and waits.
fn run_messages(
    function: &'static str,
    comm: c_int,
    send: Option<(Part, c_int, c_int)>,
    recv: Option<(Part, c_int, c_int)>,
    status: *mut c_void,
) -> c_int {
    let begun = Caller::call(function, comm, |caller| {
        let (name, member) = (caller.function, caller.member);
        let recv =
            recv.map(|(part, source, tag)| caller.network.receive(name, member, part, source, tag));
        let send = send.map(|(part, dest, tag)| caller.network.send(name, member, part, dest, tag));
        (recv, send)
    });
    let (recv, send) = match begun {
        Ok(requests) => requests,
        Err(code) => return code,
    };
    let received = recv.map_or((0, Status::default()), |recv| {
        finish_on(function, comm, recv)
    });
    let sent = send.map_or(0, |send| finish_on(function, comm, send).0);
    if recv.is_some() {
        fill(status, &received.1);
    }
    if received.0 == 0 { sent } else { received.0 }
}

fn part(buffer: Buffer, count: impl Number, datatype: c_int) -> Part {
    with(|network| {
        let datatype = Arc::clone(&network.datatypes[&datatype]);
        Part::new(buffer, count.to_usize(), datatype)
    })
}

fn ignored() -> *mut c_void {
    IntHandles::constants().status_ignore as *mut c_void
}

unsafe extern "C" fn send<N: Number>(
    buffer: Buffer,
    count: N,
    datatype: c_int,
    dest: c_int,
    tag: c_int,
    comm: c_int,
) -> c_int {
    let message = (part(buffer, count, datatype), dest, tag);
    run_messages("MPI_Send", comm, Some(message), None, ignored())
}

unsafe extern "C" fn recv<N: Number>(
    buffer: Room,
    count: N,
    datatype: c_int,
    source: c_int,
    tag: c_int,
    comm: c_int,
    status: *mut c_void,
) -> c_int {
    let message = (part(buffer, count, datatype), source, tag);
    run_messages("MPI_Recv", comm, None, Some(message), status)
}

unsafe extern "C" fn sendrecv<N: Number>(
    send: Buffer,
    send_count: N,
    send_type: c_int,
    dest: c_int,
    send_tag: c_int,
    recv: Room,
    recv_count: N,
    recv_type: c_int,
    source: c_int,
    recv_tag: c_int,
    comm: c_int,
    status: *mut c_void,
) -> c_int {
    let sent = (part(send, send_count, send_type), dest, send_tag);
    let received = (part(recv, recv_count, recv_type), source, recv_tag);
    run_messages("MPI_Sendrecv", comm, Some(sent), Some(received), status)
}

unsafe extern "C" fn sendrecv_replace<N: Number>(
    buffer: Room,
    count: N,
    datatype: c_int,
    dest: c_int,
    send_tag: c_int,
    source: c_int,
    recv_tag: c_int,
    comm: c_int,
    status: *mut c_void,
) -> c_int {
    let received = part(buffer, count, datatype);
    let copy = received.pack();
    let byte = super::types::Element::Byte.handle();
    let sent = part(copy.as_ptr().cast(), copy.len(), byte);
    let messages = (
        Some((sent, dest, send_tag)),
        Some((received, source, recv_tag)),
    );
    run_messages("MPI_Sendrecv_replace", comm, messages.0, messages.1, status)
}

unsafe extern "C" fn isend<N: Number>(
    buffer: Buffer,
    count: N,
    datatype: c_int,
    dest: c_int,
    tag: c_int,
    comm: c_int,
    request: *mut c_int,
) -> c_int {
    code_of(Caller::call("MPI_Isend", comm, |caller| {
        let part = caller.part(buffer, count, datatype);
        let begun = caller
            .network
            .send(caller.function, caller.member, part, dest, tag);
        set(request, begun);
    }))
}

unsafe extern "C" fn irecv<N: Number>(
    buffer: Room,
    count: N,
    datatype: c_int,
    source: c_int,
    tag: c_int,
    comm: c_int,
    request: *mut c_int,
) -> c_int {
    code_of(Caller::call("MPI_Irecv", comm, |caller| {
        let part = caller.part(buffer, count, datatype);
        let begun = caller
            .network
            .receive(caller.function, caller.member, part, source, tag);
        set(request, begun);
    }))
}

/// A function that a request is passed to.
fn enter_with_request(function: &'static str, request: c_int) -> Outcome<Option<usize>> {
    if request == REQUEST_NULL {
        return Ok(None);
    }
    with(|network| {
        if network.is_finalized {
            network.note(format!("{function} was called after MPI_Finalize"));
        }
        let Some(member) = network.member_of(request, function) else {
            return Err(super::network::ASKED_FOR);
        };
        Ok(Some(network.process_of(member)))
    })
}

/// The code with which a wait or a successful test ends, where a test may have asked for another one.
fn code_after(function: &'static str, process: usize, code: c_int) -> c_int {
    with(|network| {
        let context = network
            .contexts
            .iter()
            .position(|context| context.processes.contains(&process));
        let context = context.unwrap();
        let rank = network.contexts[context]
            .processes
            .iter()
            .position(|own| *own == process);
        let member = Member {
            context,
            rank: rank.unwrap(),
        };
        let asked_for = network.enter(member, function);
        if code == 0 { code_of(asked_for) } else { code }
    })
}

unsafe extern "C" fn wait(request: *mut c_int, status: *mut c_void) -> c_int {
    let process = match enter_with_request("MPI_Wait", get(request)) {
        Ok(Some(process)) => process,
        Ok(None) => {
            let empty = Status {
                source: super::network::ANY_SOURCE,
                tag: ANY_TAG,
                ..Status::default()
            };
            fill(status, &empty);
            return 0;
        }
        Err(code) => return code,
    };
    let (code, value) = finish("MPI_Wait", process, get(request));
    fill(status, &value);
    set(request, REQUEST_NULL);
    code_after("MPI_Wait", process, code)
}

unsafe extern "C" fn test(request: *mut c_int, flag: *mut c_int, status: *mut c_void) -> c_int {
    set(flag, 1);
    let process = match enter_with_request("MPI_Test", get(request)) {
        Ok(Some(process)) => process,
        Ok(None) => return 0,
        Err(code) => return code,
    };
    let ended = with(|network| {
        network.progress(process);
        network.retire(get(request))
    });
    let Some((code, value)) = ended else {
        set(flag, 0);
        return 0;
    };
    fill(status, &value);
    set(request, REQUEST_NULL);
    code_after("MPI_Test", process, code)
}

unsafe extern "C" fn cancel(request: *mut c_int) -> c_int {
    with(|network| {
        if network.member_of(get(request), "MPI_Cancel").is_some() {
            network.cancel(get(request));
        }
    });
    0
}

unsafe extern "C" fn get_count(status: *const c_void, datatype: c_int, count: *mut c_int) -> c_int {
    let size = with(|network| network.datatypes[&datatype].size());
    set(count, get(status.cast::<c_int>()) / size as c_int);
    0
}

unsafe extern "C" fn status_set_elements(
    status: *mut c_void,
    datatype: c_int,
    count: i64,
) -> c_int {
    let size = with(|network| network.datatypes[&datatype].size());
    set(status.cast::<c_int>(), count as c_int * size as c_int);
    0
}

unsafe extern "C" fn comm_split(comm: c_int, color: c_int, key: c_int, new: *mut c_int) -> c_int {
    let own = [color, key];
    let mut all: Vec<c_int> = Vec::new();
    let begun = Caller::call("MPI_Comm_split", comm, |caller| {
        all.resize(2 * caller.size, 0);
        let int = super::types::Element::Int.handle();
        let receives = caller.blocks(all.as_mut_ptr().cast(), 2, int);
        let operand = caller.part(own.as_ptr().cast(), 2, int);
        let own = caller.gathered(Some(operand), receives);
        (caller.meet(own, "MPI_Comm_split".into()), caller.member)
    });
    let (request, member) = match begun {
        Ok(begun) => begun,
        Err(code) => return code,
    };
    let (code, _) = finish_on("MPI_Comm_split", comm, request);
    let mut ranks: Vec<_> = (0..all.len() / 2)
        .filter(|rank| all[2 * rank] == color)
        .collect();
    ranks.sort_by_key(|rank| (all[2 * rank + 1], *rank));
    set(new, with(|network| network.split(member, &ranks)));
    code
}

unsafe extern "C" fn comm_free(comm: *mut c_int) -> c_int {
    with(|network| network.members.remove(&get(comm)));
    0
}

unsafe extern "C" fn error_string(code: c_int, text: *mut c_char, length: *mut c_int) -> c_int {
    let words = match code {
        super::network::TRUNCATED => "the message is longer than its buffer".to_owned(),
        _ => format!("number {code} was asked for"),
    };
    for (index, byte) in words.bytes().chain([0]).enumerate() {
        set(text.wrapping_add(index), byte as c_char);
    }
    set(length, words.len() as c_int);
    0
}

unsafe extern "C" fn op_create(
    function: UserFunction<IntHandles>,
    _: c_int,
    op: *mut c_int,
) -> c_int {
    with(|network| {
        let handle = network.new_handle();
        network
            .operators
            .insert(handle, Operator::UserMade(function));
        set(op, handle);
    });
    0
}

fn new_type(new: *mut c_int, items: impl FnOnce(&Network) -> Vec<(isize, c_int, Arc<Datatype>)>) {
    with(|network| {
        let datatype = Arc::new(Datatype::of(&items(network)));
        let handle = network.new_handle();
        network.datatypes.insert(handle, datatype);
        set(new, handle);
    });
}

unsafe extern "C" fn type_contiguous(count: c_int, old: c_int, new: *mut c_int) -> c_int {
    new_type(new, |network| {
        vec![(0, count, Arc::clone(&network.datatypes[&old]))]
    });
    0
}

unsafe extern "C" fn type_create_struct(
    count: c_int,
    lengths: *const c_int,
    displacements: *const isize,
    types: *const c_int,
    new: *mut c_int,
) -> c_int {
    new_type(new, |network| {
        let items = (0..count as usize).map(|index| {
            let datatype = &network.datatypes[&get(types.wrapping_add(index))];
            let length = get(lengths.wrapping_add(index));
            let start = get(displacements.wrapping_add(index));
            (start, length, Arc::clone(datatype))
        });
        items.collect()
    });
    0
}

unsafe extern "C" fn type_commit(_: *mut c_int) -> c_int {
    0
}

unsafe extern "C" fn type_free(datatype: *mut c_int) -> c_int {
    with(|network| network.datatypes.remove(&get(datatype)));
    0
}

unsafe extern "C" fn comm_create_keyval(
    _: CopyAttribute<IntHandles>,
    delete: DeleteAttribute<IntHandles>,
    keyval: *mut c_int,
    _: *mut c_void,
) -> c_int {
    with(|network| {
        let handle = network.new_handle();
        network.deleters.insert(handle, delete);
        set(keyval, handle);
    });
    0
}

unsafe extern "C" fn comm_set_attr(comm: c_int, keyval: c_int, _: *mut c_void) -> c_int {
    with(|network| network.attributes.push((comm, keyval)));
    0
}

/// Ends MPI: it deletes the attributes before (MPI-4.1 §11.2.4).
pub fn finalize() {
    let attributes = with(|network| std::mem::take(&mut network.attributes));
    for (comm, keyval) in attributes {
        if let Some(delete) = with(|network| network.deleters[&keyval]) {
            // SAFETY: as MPI calls it.
            unsafe { delete(comm, keyval, std::ptr::null_mut(), std::ptr::null_mut()) };
        }
    }
    with(|network| network.is_finalized = true);
}

impl Network {
    /// The handle of a process for the communicator of some ranks of another one.
    fn split(&mut self, member: Member, ranks: &[usize]) -> c_int {
        let parent = &self.contexts[member.context];
        let processes: Vec<_> = ranks.iter().map(|rank| parent.processes[*rank]).collect();
        // The first of them makes it.
        let key = (
            member.context,
            parent.collective_calls(member.rank),
            processes.clone(),
        );
        let context = match self.splits.get(&key) {
            Some(context) => *context,
            None => {
                let context = self.new_context(processes);
                self.splits.insert(key, context);
                context
            }
        };
        let own = ranks.iter().position(|rank| *rank == member.rank).unwrap();
        self.contexts[context].handles[own]
    }
}

/// A collective function in both of its forms.
macro_rules! both {
    ($blocking:ident, $nonblocking:ident) => {
        BothForms {
            blocking: $blocking,
            nonblocking: $nonblocking,
        }
    };
}

/// The functions that take counts, in one of their forms.
macro_rules! counted {
    () => {
        Counted {
            allgather: both!(allgather, iallgather),
            allgatherv: both!(allgatherv, iallgatherv),
            allreduce: both!(allreduce, iallreduce),
            alltoall: both!(alltoall, ialltoall),
            alltoallv: both!(alltoallv, ialltoallv),
            bcast: both!(bcast, ibcast),
            exscan: both!(exscan, iexscan),
            gather: both!(gather, igather),
            gatherv: both!(gatherv, igatherv),
            irecv,
            isend,
            recv,
            reduce: both!(reduce, ireduce),
            reduce_scatter: both!(reduce_scatter, ireduce_scatter),
            reduce_scatter_block: both!(reduce_scatter_block, ireduce_scatter_block),
            scan: both!(scan, iscan),
            scatter: both!(scatter, iscatter),
            scatterv: both!(scatterv, iscatterv),
            send,
            sendrecv,
            sendrecv_replace,
        }
    };
}

/// The functions for the core's table.
pub fn functions() -> Functions<IntHandles> {
    Functions {
        alltoallw,
        barrier,
        cancel,
        comm_create_keyval,
        comm_free,
        comm_set_attr,
        comm_split,
        error_string,
        get_count,
        ibarrier,
        op_create,
        status_set_elements,
        test,
        type_commit,
        type_contiguous,
        type_create_struct,
        type_free,
        wait,
        int: counted!(),
        large: Some(counted!()),
        ..mpi_functions!(missing, None)
    }
}
