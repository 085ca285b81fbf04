//! The record of a call.

use std::cell::RefCell;
use std::iter;

use _core::recorder::{self, Array, Awaited, Operation, Record, Recordable, Scope};

mod common;
use common::recorder::*;
use common::*;

/// The records of the calls that `body` makes, in a test that is [`alone`].
fn records_of(body: impl FnOnce()) -> Vec<Record> {
    let before = recorder::recorded().end;
    body();
    (before..recorder::recorded().end)
        .map(|id| recorder::record(id).unwrap())
        .collect()
}

/// The record of one call.
fn record_of(operation: &str, call: CallFrame) -> Record {
    let mut records = records_of(|| drop(run(operation, call)));
    assert_eq!(records.len(), 1);
    records.remove(0)
}

fn array(count: i64) -> Option<Array> {
    Some(Array { dtype: F32, count })
}

/// The records of [`a_call_of_each`]: the operand, the result, and the call in words. Ranks and
/// operators that a frame holds and the operation does not look at are kept as well.
fn expected() -> Vec<(Option<Array>, Option<Array>, &'static str)> {
    vec![
        (array(3), array(6), "allgather #1 (float32[3])"),
        (array(3), array(9), "allgatherv #2 (float32[3])"),
        (array(6), array(6), "allreduce #1 (SUM, float32[6])"),
        (array(10), array(10), "alltoall #3 (float32[10])"),
        (array(9), array(3), "alltoallv #4 (float32[9])"),
        (None, None, "barrier #2"),
        (array(7), None, "bcast #5 (SUM, root 0, float32[7])"),
        (array(5), array(3), "exchange"),
        (array(3), array(3), "exscan #6 (SUM, float32[3])"),
        (array(3), None, "gather #3 (SUM, root 0, float32[3])"),
        (array(6), None, "gatherv #4 (SUM, root 0, float32[6])"),
        (array(3), array(9), "neighbor_allgather #7 (float32[3])"),
        (array(6), array(9), "neighbor_allgatherv #5 (float32[6])"),
        (array(10), array(15), "neighbor_alltoall #8 (float32[10])"),
        (array(9), array(15), "neighbor_alltoallv #6 (float32[9])"),
        (
            None,
            array(5),
            "recv (from anyone with any tag, float32[5])",
        ),
        (array(3), None, "reduce #7 (SUM, root 0, float32[3])"),
        (array(6), array(3), "reduce_scatter #9 (SUM, float32[6])"),
        (array(9), array(6), "reduce_scatterv #8 (SUM, float32[9])"),
        (array(3), array(3), "scan #10 (SUM, float32[3])"),
        (None, array(3), "scatter #9 (SUM, root 0, float32[3])"),
        (None, array(6), "scatterv #10 (SUM, root 0, float32[6])"),
        (array(5), None, "send (to 1 with tag 9, float32[5])"),
        (
            array(5),
            array(6),
            "sendrecv (to 1 with tag 2, from 3 with tag 4, float32[5], float32[6])",
        ),
    ]
}

/// The fact that an attribute states, if records have such a one.
fn fact(record: &Record, attribute: &str) -> Option<Option<i64>> {
    let facts = record.facts;
    Some(match attribute {
        "call_site" => facts.call_site,
        "comm_number" => facts.communicator,
        "counts" => facts.counts,
        "dest" => facts.dest,
        "op_number" => facts.operator,
        "recvtag" => facts.recv_tag,
        "root" => facts.root,
        "sendtag" | "tag" => facts.send_tag,
        "source" => facts.source,
        "started" => facts.started,
        "status_number" => facts.status,
        "structure" => facts.structure,
        "backwards" | "dests" | "recvcounts" | "recvtags" | "reverse" | "sendcounts"
        | "sendtags" | "sources" => return None,
        name => panic!("nobody has thought of `{name}`"),
    })
}

const POINT_TO_POINT: [&str; 4] = ["exchange", "recv", "send", "sendrecv"];

#[test]
fn each_call_leaves_a_record() {
    let _alone = alone();
    let numbers = [RANK_0, RANK_1];
    let earlier = numbers.map(recorder::calls_on);
    assert_eq!(a_call_of_each().len(), expected().len());
    for ((operation, call), (sent, received, text)) in a_call_of_each().into_iter().zip(expected())
    {
        let attributes: Vec<_> = call
            .attributes
            .iter()
            .map(|attribute| (attribute.name, attribute.kind, attribute.values.clone()))
            .collect();
        let mut record = record_of(operation, call);

        assert_eq!(record.operation.name, operation);
        let is_collective = !POINT_TO_POINT.contains(&operation);
        assert_eq!(record.operation.is_collective(), is_collective);
        assert!(record.end.unwrap() >= record.begin, "{operation}");
        assert_eq!(
            (record.sent, record.received),
            (sent, received),
            "{operation}"
        );

        for (name, kind, values) in attributes {
            let is_scalar = kind == _core::xla::raw::XLA_FFI_AttrType_SCALAR;
            if let Some(fact) = fact(&record, name) {
                assert!(fact.is_some(), "{operation} {name}");
                assert!(!is_scalar || fact == Some(values[0]), "{operation} {name}");
            }
        }
        // Other tests on this communicator may have come first.
        if is_collective {
            record.sequence -= earlier[record.communicator() as usize];
        }
        let communicator = record.communicator();
        assert_eq!(
            record.to_string(),
            format!("{text} on communicator {communicator}")
        );
    }
}

#[test]
fn what_no_attribute_states_is_not_known() {
    let _alone = alone();
    let record = record_of("send", send());
    assert_eq!(record.facts.dest, Some(1));
    assert_eq!(record.facts.source, None);
    assert_eq!(record.line(), None);
}

#[test]
fn each_communicator_counts_its_collective_calls() {
    let _alone = alone();
    let (a, b) = (new_communicator().0, new_communicator().0);
    let records = records_of(|| {
        for communicator in [a, b, a] {
            drop(run("barrier", on(communicator)));
        }
        drop(run("send", send()));
    });
    let sequences: Vec<_> = records.iter().map(|record| record.sequence).collect();
    assert_eq!(sequences, [1, 1, 2, 0]);
    assert_eq!((recorder::calls_on(a), recorder::calls_on(b)), (2, 1));
}

/// Fails when a record is written after the call, where a call that hangs would not be seen.
#[test]
fn a_call_has_its_record_while_mpi_is_called() {
    let _alone = alone();
    let see = || {
        let record = recorder::record(recorder::recorded().end - 1).unwrap();
        assert_eq!(record.operation.name, "send");
        assert_eq!(record.facts.send_tag, Some(9));
        assert_eq!(record.end, None);
    };
    let record = seeing(see, || record_of("send", send()));
    assert!(record.end.is_some());
}

/// Fails if a call with several messages leaves open which of them is missing.
#[test]
fn a_call_says_which_message_it_waits_for() {
    thread_local! {
        static SEEN: RefCell<Vec<Option<Awaited>>> = const { RefCell::new(Vec::new()) };
    }
    let _alone = alone();
    let see = || {
        let record = recorder::record(recorder::recorded().end - 1).unwrap();
        SEEN.with_borrow_mut(|seen| seen.push(record.awaited));
    };
    let seen_of = |operation, call| {
        drop(seeing(see, || run(operation, call)));
        let mut seen = SEEN.take();
        seen.dedup();
        seen
    };
    let messages = (0..4).map(|index| Some(Awaited::Message(index)));
    let all: Vec<_> = iter::once(None).chain(messages).collect();
    assert_eq!(seen_of("exchange", exchange()), all);
    assert_eq!(
        seen_of("neighbor_allgather", neighbor_allgather(RANK_0)),
        all
    );
    assert_eq!(seen_of("send", send()), [None]);
}

#[test]
fn the_last_calls_are_kept() {
    const KEPT: u64 = 1024;
    let _alone = alone();
    let before = recorder::recorded().end;
    let tagged = |tag| on(RANK_0).ints(&[("dest", 1), ("tag", tag)]);
    for tag in 0..KEPT as i64 + 10 {
        drop(run("send", tagged(tag).operand(floats(IN, &[1]))));
    }
    let ids = recorder::recorded();
    assert_eq!(ids, before + 10..before + 10 + KEPT);
    for (id, tag) in ids.zip(10..) {
        let record = recorder::record(id).unwrap();
        assert_eq!(record.id, id);
        assert_eq!(record.facts.send_tag, Some(tag));
    }
    assert!(recorder::record(before + 9).is_none());
    assert!(recorder::record(before + 10 + KEPT).is_none());
}

#[test]
fn a_call_that_fails_is_over() {
    let _alone = alone();
    let record = raising("MPI_Send", 6, || record_of("send", send()));
    assert!(record.end.is_some());
}

#[test]
fn a_call_that_is_refused_before_it_is_known_leaves_no_record() {
    let _alone = alone();
    let records = records_of(|| drop(run("barrier", on(FREED))));
    assert_eq!(records.len(), 0);
}

#[test]
fn lists_are_told_apart_by_a_hash() {
    let _alone = alone();
    let hash = |counts: &[i64]| {
        let call = in_and_out(on(RANK_0).list("counts", counts), &[1, 3], &[3, 3]);
        record_of("allgatherv", call).facts.counts.unwrap()
    };
    assert_eq!(hash(&[1, 2]), hash(&[1, 2]));
    assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
    assert_ne!(hash(&[1, 2]), hash(&[1, 0]));
}

/// Fails if the record of a call is overwritten before the call is over.
#[test]
fn a_call_in_progress_keeps_its_record() {
    const OTHERS: u64 = 5000;
    let _alone = alone();
    let see = || {
        let id = recorder::in_progress()[0];
        let in_another_thread = || {
            for _ in 0..OTHERS {
                drop(run("send", send()));
            }
        };
        std::thread::scope(|scope| drop(scope.spawn(in_another_thread).join()));
        assert_eq!(recorder::in_progress(), [id]);
        let record = recorder::record(id).unwrap();
        assert_eq!((record.operation.name, record.end), ("barrier", None));
        assert_eq!(record.thread, recorder::os_thread::current());
        let recent = recorder::recent();
        assert_eq!(recent[0].id, id);
        assert_ne!(recent[1].thread, record.thread);
    };
    let before = recorder::recorded().end;
    seeing(see, || drop(run("barrier", on(RANK_1))));
    assert!(recorder::in_progress().is_empty());
    let skipped = OTHERS / 1024;
    let after = recorder::recorded().end;
    assert!((OTHERS + 1..OTHERS + 2 + skipped).contains(&(after - before)));
}

/// A call that does something while its record is written.
struct During<F>(i64, F);

impl<F: Fn()> Recordable for During<F> {
    fn sent(&self) -> Option<(i32, i64)> {
        Some((F32, self.0))
    }

    fn received(&self) -> Option<(i32, i64)> {
        self.1();
        Some((F32, self.0))
    }

    fn integers(&self, _: usize, mut see: impl FnMut(usize, i64)) {
        see(0, self.0);
    }

    fn attribute_names(&self) -> Vec<String> {
        vec!["tag".into()]
    }
}

static CALL: Operation = Operation::new("call", Scope::Message);

fn begin(count: i64) -> recorder::Recording {
    recorder::begin(&CALL, &During(count, || ()), RANK_0)
}

/// Fails if the calls of other threads that come around the ring write into the record, too.
#[test]
fn a_record_is_written_by_one_call() {
    let _alone = alone();
    let others = || {
        for count in 1..5000 {
            drop(begin(count));
        }
    };
    let call = During(7, || {
        std::thread::scope(|scope| scope.spawn(others).join().unwrap());
    });
    let recording = recorder::begin(&CALL, &call, RANK_0);
    let record = recording.record().unwrap();
    assert_eq!((record.sent, record.received), (array(7), array(7)));
    assert_eq!(record.facts.send_tag, Some(7));
    assert_eq!(record.end, None);
    assert_eq!(recorder::in_progress(), [recording.id()]);
}

/// Fails if calls take each other's records where there are too many of them.
#[test]
fn more_calls_at_once_than_records() {
    const KEPT: usize = 1024;
    let _alone = alone();
    let recordings: Vec<_> = (0..2 * KEPT as i64).map(begin).collect();
    let in_progress = recorder::in_progress();
    assert_eq!(in_progress.len(), KEPT);
    for (recording, count) in recordings.iter().zip(0..).take(KEPT) {
        assert_eq!(recording.record().unwrap().sent, array(count));
    }
    assert!(recordings[KEPT].record().is_none());
    drop(recordings);
    assert!(recorder::in_progress().is_empty());
    assert_eq!(begin(3).record().unwrap().sent, array(3));
}

/// Fails if a call is not counted as another one is made at the same time.
#[test]
fn calls_at_once_on_a_communicator_are_counted() {
    const CALLS: u64 = 100_000;
    static COLLECTIVE: Operation = Operation::new("collective", Scope::All);
    let _alone = alone();
    let communicator = new_communicator().0;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..CALLS {
                    drop(recorder::begin(
                        &COLLECTIVE,
                        &During(1, || ()),
                        communicator,
                    ));
                }
            });
        }
    });
    assert_eq!(recorder::calls_on(communicator), 2 * CALLS);
}
