//! Nonblocking operations and the wait for them, on an MPI that only records what it is asked.

use std::cell::{Cell, RefCell};
use std::sync::MutexGuard;
use std::time::Duration;

use _core::ops;
use _core::recorder::{self, Awaited};

mod common;
use common::recorder::*;
use common::*;

fn with_nothing_in_flight() -> MutexGuard<'static, ()> {
    let guard = alone();
    ops::finish(Duration::ZERO);
    recorded();
    guard
}

/// Room for arrays, as the core copies what is in flight.
struct Arrays {
    sent: [f32; 4],
    ticket: Cell<[f32; 2]>,
    received: Cell<[f32; 8]>,
}

impl Arrays {
    fn new() -> Self {
        Self {
            sent: [1.0, 2.0, 3.0, 4.0],
            ticket: Cell::default(),
            received: Cell::new([-1.0; 8]),
        }
    }

    fn operand(&self, dims: &[i64]) -> Buffer {
        floats(self.sent.as_ptr() as i64, dims)
    }

    fn ticket(&self) -> Buffer {
        floats(self.ticket.as_ptr() as i64, &[2])
    }

    /// Starts an operation, and gives the functions that it calls, with the number of elements.
    fn start(&self, operation: &str, call: CallFrame) -> Vec<Recorded> {
        messages(
            operation,
            call.result(self.ticket()).ints(&[("may_be_lost", 0)]),
        )
    }

    fn wait(&self, count: i64) -> (Outcome, Vec<Recorded>) {
        let result = floats(self.received.as_ptr() as i64, &[count]);
        let call = on(RANK_0).ints(&[("may_be_zero", 0), ("started", 0)]);
        run("wait", call.operand(self.ticket()).result(result))
    }
}

fn on_line(dests: &[i64], sources: &[i64], arrays: &[i64]) -> CallFrame {
    let tags = |ranks: &[i64]| vec![7; ranks.len()];
    on(RANK_0)
        .list("dests", dests)
        .list("sendtags", &tags(dests))
        .list("sources", sources)
        .list("recvtags", &tags(sources))
        .list("arrays", arrays)
}

/// A call whose result is an array of `count` floats.
fn to_come(call: CallFrame, count: i64) -> CallFrame {
    call.list("arrays", &[F32.into(), count])
}

fn names(calls: &[Recorded]) -> Vec<&'static str> {
    calls.iter().map(|call| call.0).collect()
}

/// `MPI_PROC_NULL` in this MPI.
const PROC_NULL: i64 = -7;

#[test]
fn a_computed_rank_may_be_nobody() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let call = on_line(&[], &[PROC_NULL], &[F32.into(), 4]);
    assert_eq!(arrays.start("iexchange", call), []);
    assert_eq!(arrays.wait(4).0, Ok(()));
}

#[test]
fn a_reduction_is_begun_and_waited_for() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let call = to_come(on(RANK_0).ints(&[("op_number", SUM)]), 4);
    let calls = arrays.start("iallreduce", call.operand(arrays.operand(&[4])));
    assert_eq!(names(&calls), ["MPI_Iallreduce"]);
    let arguments = &calls[0].1;
    assert_eq!(arguments[0], IN_PLACE);
    assert_eq!(arguments[2..6], [4, FLOAT, SUM_HANDLE, COMM[0]]);
    assert_eq!(ops::in_flight(), 1);
    let (outcome, calls) = arrays.wait(4);
    assert_eq!(outcome, Ok(()));
    assert_eq!(names(&calls), ["MPI_Wait"]);
    // This MPI adds nothing to what is there.
    assert_eq!(arrays.received.get()[..5], [1.0, 2.0, 3.0, 4.0, -1.0]);
    assert_eq!(ops::in_flight(), 0);
}

#[test]
fn the_operand_of_an_allgather_is_a_part_of_its_result() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let call = to_come(on(RANK_1).operand(arrays.operand(&[2, 2])), 8);
    let calls = arrays.start("iallgather", call);
    assert_eq!(names(&calls), ["MPI_Iallgather"]);
    assert_eq!(arrays.wait(8).0, Ok(()));
    // Of rank 1, behind that of rank 0, which does not come.
    assert_eq!(arrays.received.get()[4..], [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn each_collective_operation_is_its_own() {
    let _alone = with_nothing_in_flight();
    for (operation, call, function, count) in [
        ("ialltoall", on(RANK_0), "MPI_Ialltoall", 2),
        ("ibcast", on(RANK_0).ints(&[("root", 1)]), "MPI_Ibcast", 4),
    ] {
        let arrays = Arrays::new();
        let call = to_come(call.operand(arrays.operand(&[2, 2])), 4);
        let calls = arrays.start(operation, call);
        assert_eq!(names(&calls), [function]);
        assert_eq!(calls[0].1[1], count);
        assert_eq!(arrays.wait(4).0, Ok(()));
    }
    let arrays = Arrays::new();
    let call = to_come(on(RANK_0), 4)
        .operand(arrays.operand(&[4]))
        .result(arrays.ticket());
    assert_eq!(
        refused("ialltoall", call.ints(&[("may_be_lost", 0)])),
        invalid("an array of shape [4] can't be sent to 2 ranks: its first axis must have size 2")
    );
}

#[test]
fn receives_are_posted_before_sends() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let call = on_line(&[1], &[1, 0], &[F32.into(), 3, F32.into(), 2]);
    let calls = arrays.start("iexchange", call.operand(arrays.operand(&[4])));
    let counts: Vec<_> = calls
        .iter()
        .map(|(name, arguments)| (*name, arguments[1]))
        .collect();
    assert_eq!(
        counts,
        [("MPI_Irecv", 3), ("MPI_Irecv", 2), ("MPI_Isend", 4)]
    );
    // One result of two.
    assert_eq!(
        arrays.wait(3).0,
        invalid("wait expects 1 arrays of other shapes or types than the iexchange has")
    );
}

/// Who receives learns by a shorter piece that it was the last.
#[test]
fn messages_travel_in_pieces() {
    let _alone = with_nothing_in_flight();
    const IN_PIECES: i64 = 901;
    set_communicator_in_pieces(IN_PIECES as usize, (0x78, 0, 2), 8);
    let arrays = Arrays::new();
    let call = on(IN_PIECES).list("dests", &[1]).list("sendtags", &[7]);
    let call = call.list("sources", &[1]).list("recvtags", &[7]);
    let call = call.list("arrays", &[F32.into(), 3]);
    let calls = arrays.start("iexchange", call.operand(arrays.operand(&[4])));
    let counts: Vec<_> = calls
        .iter()
        .map(|(name, arguments)| (*name, arguments[1]))
        .collect();
    assert_eq!(
        counts,
        [
            ("MPI_Irecv", 2),
            ("MPI_Irecv", 1),
            ("MPI_Isend", 2),
            ("MPI_Isend", 2),
            ("MPI_Isend", 0),
        ]
    );
    let from_anyone = |count| {
        let call = on(IN_PIECES).list("dests", &[]).list("sendtags", &[]);
        let call = call.list("sources", &[-2]).list("recvtags", &[7]);
        call.list("arrays", &[F32.into(), count])
    };
    // Two elements could be followed by the rest of a longer message.
    let call = from_anyone(2).result(arrays.ticket());
    assert_eq!(
        refused("iexchange", call.ints(&[("may_be_lost", 0)])),
        invalid(
            "a nonblocking receive from MPI.ANY_SOURCE is not possible where a message has several \
             parts, as with MPI4JAX_CHECK, or where it may be as long as a piece \
             (MPI4JAX_STAGING_CHUNK): name the source"
        )
    );
    let calls = arrays.start("iexchange", from_anyone(1));
    assert_eq!(
        calls.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["MPI_Irecv"]
    );
}

#[test]
fn arrays_are_held() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let call = on(RANK_0).operand(arrays.operand(&[3]));
    assert_eq!(arrays.start("hold", call), []);
    assert_eq!(arrays.wait(3), (Ok(()), vec![]));
    assert_eq!(arrays.received.get()[..4], [1.0, 2.0, 3.0, -1.0]);
}

#[test]
fn a_ticket_is_good_once() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let held = |arrays: &Arrays| {
        let call = on(RANK_0).operand(arrays.operand(&[3]));
        arrays.start("hold", call);
    };
    held(&arrays);
    assert_eq!(arrays.wait(3).0, Ok(()));
    assert_eq!(
        arrays.wait(3).0,
        invalid("wait got a request that was waited for before: the hold")
    );
    held(&arrays);
    ops::set_line(arrays.ticket.get()[0] as u32, "main.py:5");
    assert_eq!(arrays.wait(3).0, Ok(()));
    assert_eq!(
        arrays.wait(3).0,
        invalid("wait got a request that was waited for before: the hold started at main.py:5")
    );
}

/// Fails if another flight is taken for the one that was meant, or if a flight is lost by it.
#[test]
fn a_changed_ticket_is_refused() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    for _ in 0..2 {
        let call = on(RANK_0).operand(arrays.operand(&[3]));
        arrays.start("hold", call);
    }
    let [id, seal] = arrays.ticket.get();
    let changed = [
        [0.0, 0.0],
        [id - 1.0, seal],
        [id, seal + 1.0],
        [id + 0.5, seal],
        [-id, -seal],
        [2.0 * id, 2.0 * seal],
        [id, f32::NAN],
        [f32::INFINITY, f32::INFINITY],
    ];
    for [id, seal] in changed {
        arrays.ticket.set([id, seal]);
        let refused = invalid(&format!(
            "wait got a request that was changed, or is of another process or of a program that \
             has ended: no operation here gave the ticket [{id}, {seal}]. Requests, also those in \
             a tree, can be passed on and copied, but not converted or computed with"
        ));
        assert_eq!(arrays.wait(3).0, refused);
    }
    arrays.ticket.set([id, seal]);
    assert_eq!(arrays.wait(3).0, Ok(()));
}

/// Fails if a rank that waits for a slow receiver is said to wait for what has come.
#[test]
fn what_was_sent_is_waited_for_last() {
    thread_local! {
        static SEEN: RefCell<Vec<Option<Awaited>>> = const { RefCell::new(Vec::new()) };
    }
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let call = on_line(&[1], &[1], &[F32.into(), 3]).operand(arrays.operand(&[4]));
    arrays.start("iexchange", call);
    let see = || {
        let record = recorder::record(recorder::recorded().end - 1).unwrap();
        SEEN.with_borrow_mut(|seen| seen.push(record.awaited));
    };
    assert_eq!(seeing(see, || arrays.wait(3)).0, Ok(()));
    let [first, .., last] = SEEN.take()[..] else {
        panic!("it waits once");
    };
    assert_eq!(
        [first, last],
        [Some(Awaited::Message(0)), Some(Awaited::Sends)]
    );
}

#[test]
fn the_derivative_of_a_constant_is_zero() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let result = floats(arrays.received.as_ptr() as i64, &[3]);
    let call = on(RANK_0).ints(&[("may_be_zero", 1), ("started", 0)]);
    let (outcome, calls) = run("wait", call.operand(arrays.ticket()).result(result));
    assert_eq!((outcome, calls), (Ok(()), vec![]));
    assert_eq!(arrays.received.get()[..4], [0.0, 0.0, 0.0, -1.0]);
}

#[test]
fn what_may_be_lost_is_not_kept_for_good() {
    let _alone = with_nothing_in_flight();
    for _ in 0..3000 {
        let arrays = Arrays::new();
        let call = on(RANK_0)
            .operand(arrays.operand(&[3]))
            .result(arrays.ticket());
        messages("hold", call.ints(&[("may_be_lost", 1)]));
    }
    assert!(ops::in_flight() <= 1025, "{}", ops::in_flight());
    assert!(ops::finish(Duration::ZERO).is_empty());
    assert_eq!(ops::in_flight(), 0);
}

#[test]
fn an_error_at_the_start_leaves_nothing_in_flight() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let call = on_line(&[1], &[1], &[F32.into(), 3]).operand(arrays.operand(&[4]));
    let call = call.result(arrays.ticket()).ints(&[("may_be_lost", 0)]);
    let (outcome, calls) = raising("MPI_Isend", 5, || run("iexchange", call));
    assert_eq!(
        outcome,
        internal("r0 | MPI_Isendrecv returned error code 5: number 5 is wrong")
    );
    assert!(names(&calls).contains(&"MPI_Cancel"));
    assert_eq!(ops::in_flight(), 0);
}

/// Fails if MPI may still write to memory that is used again.
#[test]
fn memory_is_left_alone_after_an_error() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let in_block = || {
        let call = on_line(&[], &[1], &[F32.into(), 8]);
        let calls = arrays.start("iexchange", call);
        assert_eq!(names(&calls), ["MPI_Irecv"]);
        calls[0].1[0]
    };
    let address = in_block();
    assert_eq!(arrays.wait(8).0, Ok(()));
    assert_eq!(in_block(), address);
    let (outcome, _) = raising("MPI_Wait", 5, || arrays.wait(8));
    assert_eq!(
        outcome,
        internal("r0 | MPI_Waitall returned error code 5: number 5 is wrong")
    );
    assert_eq!(ops::in_flight(), 0);
    assert_ne!(in_block(), address);
    assert_eq!(arrays.wait(8).0, Ok(()));
}

#[test]
fn what_is_left_at_the_end_is_named() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    arrays.start("hold", on(RANK_0).operand(arrays.operand(&[3])));
    ops::set_line(arrays.ticket.get()[0] as u32, "main.py:7");
    // However many came later.
    for _ in 0..5000 {
        let others = Arrays::new();
        others.start("hold", on(RANK_0).operand(others.operand(&[3])));
        assert_eq!(others.wait(3).0, Ok(()));
    }
    let left = ops::finish(Duration::ZERO);
    let left: Vec<_> = left
        .iter()
        .map(|left| (left.what.as_str(), left.is_done))
        .collect();
    assert_eq!(left, [("the hold started at main.py:7", true)]);
}

/// Fails when a collective operation was added without a nonblocking form, or if that calls MPI in
/// another way.
#[test]
fn every_collective_operation_has_a_nonblocking_form() {
    let _alone = with_nothing_in_flight();
    let is_split = |call: &Recorded| call.0 == "MPI_Comm_split";
    for ((operation, call), (_, again)) in a_call_of_each().into_iter().zip(a_call_of_each()) {
        if ["exchange", "recv", "send", "sendrecv"].contains(&operation) {
            continue;
        }
        let (_, mut blocking) = run(operation, call);
        let (form, mut calls) = Nonblocking::start(operation, again).unwrap();
        blocking.retain(|call| !is_split(call));
        calls.retain(|call| !is_split(call));
        assert_alike(&blocking, &calls);
        assert_eq!(ops::in_flight(), 1, "{operation}");
        assert_eq!(names(&form.wait()), vec!["MPI_Wait"; calls.len()]);
        assert_eq!(ops::in_flight(), 0, "{operation}");
    }
}

#[test]
fn the_list_of_nonblocking_operations_is_sorted() {
    let names = ops::nonblocking_names();
    assert!(names.is_sorted(), "{names:?}");
    assert_eq!(names[0], "hold");
    assert!(names[1..].iter().all(|name| name.starts_with('i')));
}

#[test]
fn an_error_of_a_collective_operation_leaves_nothing_in_flight() {
    let _alone = with_nothing_in_flight();
    let arrays = Arrays::new();
    let call = on(RANK_0).ints(&[("op_number", SUM), ("may_be_lost", 0)]);
    let call = to_come(call, 4)
        .operand(arrays.operand(&[4]))
        .result(arrays.ticket());
    let (outcome, _) = raising("MPI_Iallreduce", 5, || run("iallreduce", call));
    assert_eq!(
        outcome,
        internal("r0 | MPI_Iallreduce returned error code 5: number 5 is wrong")
    );
    assert_eq!(ops::in_flight(), 0);
}

/// Fails if ranks compare a result that is not there yet.
#[test]
fn a_ticket_is_no_array_of_the_record() {
    let _alone = with_nothing_in_flight();
    for (operation, call) in a_call_of_each() {
        let before = recorder::recorded().end;
        let Some((form, _)) = Nonblocking::start(operation, call) else {
            continue;
        };
        let record = recorder::record(before).unwrap();
        assert_eq!(record.operation.name, form.name);
        assert_eq!(record.received, None, "{operation}");
        form.wait();
    }
}
