//! Calls with numbers that the program has computed. The tests look at the last record, so each is
//! [`alone`].

use std::collections::BTreeSet;

use _core::ops;
use _core::recorder::{self, CallFacts, Message, Messages, record, recorded as ids};
use _core::xla::raw::*;
use zerocopy::IntoBytes;

mod common;
use common::recorder::*;
use common::*;

/// What stands for the number with this index.
const fn computed(index: i64) -> i64 {
    i64::MIN + index
}

/// An operand of numbers, which are read.
fn numbers(values: &[i32]) -> Buffer {
    buffer(S32, values.as_ptr() as usize, &[values.len() as i64])
}

/// A message to a computed rank, with a computed tag.
fn send_to_computed(dest: i64, tag: i64) -> CallFrame {
    on(RANK_0)
        .ints(&[("dest", dest), ("tag", tag)])
        .operand(floats(IN, &[5]))
}

#[test]
fn ranks_and_tags_may_be_computed() {
    let _alone = alone();
    let call = send_to_computed(computed(1), computed(0)).operand(numbers(&[9, 1]));
    let expected = ("MPI_Send", vec![IN, 5, FLOAT, 1, 9, COMM[0]]);
    assert_eq!(called("send_computed", call), expected);
    // Others stay as they are, and tokens do not count.
    let call = send_to_computed(1, computed(0)).operand(token());
    let call = call.operand(numbers(&[9])).operand(token());
    assert_eq!(called("send_computed", call), expected);
}

#[test]
fn negative_numbers_may_be_computed() {
    let _alone = alone();
    let call = on(RANK_1)
        .ints(&[
            ("source", computed(0)),
            ("tag", computed(1)),
            ("status_number", -1),
        ])
        .operand(numbers(&[-2, -1]))
        .result(floats(OUT, &[5]));
    assert_eq!(
        called("recv_computed", call),
        (
            "MPI_Recv",
            vec![OUT, 5, FLOAT, -2, -1, COMM[1], STATUS_IGNORE]
        )
    );
}

#[test]
fn elements_of_lists_may_be_computed() {
    let _alone = alone();
    let with_numbers = |mut call: CallFrame| {
        for attribute in &mut call.attributes {
            match attribute.name {
                "dests" => attribute.values = vec![computed(0), 0],
                "sources" => attribute.values = vec![computed(1), computed(0)],
                _ => {}
            }
        }
        call.operand(numbers(&[1, 0]))
    };
    assert_eq!(
        messages("exchange_computed", with_numbers(exchange())),
        messages("exchange", exchange())
    );
}

#[test]
fn the_nonblocking_form_takes_computed_numbers() {
    let _alone = alone();
    let mut array = [0f32; 5];
    let mut ticket = [0f32; 2];
    let call = on(RANK_0)
        .list("dests", &[computed(0)])
        .list("sendtags", &[7])
        .list("sources", &[])
        .list("recvtags", &[])
        .list("arrays", &[])
        .ints(&[("may_be_lost", 1)])
        .operand(floats(array.as_mut_ptr() as i64, &[5]))
        .operand(numbers(&[1]))
        .result(floats(ticket.as_mut_ptr() as i64, &[2]));
    let (outcome, calls) = run("iexchange_computed", call);
    assert_eq!(outcome, Ok(()));
    let (function, arguments) = &calls[0];
    assert_eq!(
        (*function, &arguments[1..]),
        ("MPI_Isend", &[5, FLOAT, 1, 7, COMM[0]][..])
    );
    assert_ne!(ticket, [0.0; 2]);
}

/// The rank that stands for nobody in this MPI.
const PROC_NULL: i32 = -7;

/// The result of a receive by rank 1 from a computed rank, with this array for the case that nobody
/// sends. MPI writes nothing.
fn received(source: i32, instead: &[f32]) -> Vec<f32> {
    let mut result = vec![9.0; 3];
    let call = on(RANK_1)
        .ints(&[("source", computed(0)), ("tag", 5), ("status_number", -1)])
        .operand(floats(instead.as_ptr() as i64, &[3]))
        .operand(numbers(&[source]))
        .result(floats(result.as_mut_ptr() as i64, &[3]));
    let (function, arguments) = called("recv_computed", call);
    assert_eq!((function, arguments[3]), ("MPI_Recv", source.into()));
    result
}

#[test]
fn what_nobody_sends_is_the_array_of_the_call() {
    let _alone = alone();
    assert_eq!(received(PROC_NULL, &[1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]);
    assert_eq!(received(0, &[1.0, 2.0, 3.0]), [9.0; 3]);
    // It is not sent.
    let last = record(ids().end - 1).unwrap();
    assert_eq!(
        last.to_string(),
        "recv (from 0 with tag 5, float32[3]) on communicator 1"
    );
    assert_eq!(last.sent, None);
}

#[test]
fn what_nobody_sends_replaces_what_is_sent() {
    let _alone = alone();
    let run = |source, operand: Option<&[f32; 3]>| {
        let instead = [1f32, 2.0, 3.0];
        let mut result = [9f32; 3];
        let address = result.as_mut_ptr() as i64;
        let operand = operand.map_or(address, |array| array.as_ptr() as i64);
        let call = on(RANK_0)
            .ints(&[
                ("dest", 1),
                ("sendtag", 2),
                ("source", computed(0)),
                ("recvtag", 4),
                ("status_number", -1),
            ])
            .operand(floats(operand, &[3]))
            .operand(floats(instead.as_ptr() as i64, &[3]))
            .operand(numbers(&[source]))
            .result(floats(address, &[3]));
        (called("sendrecv_computed", call).0, result)
    };
    let operand = [4f32, 5.0, 6.0];
    let elsewhere = Some(&operand);
    assert_eq!(run(PROC_NULL, elsewhere), ("MPI_Sendrecv", [1.0, 2.0, 3.0]));
    assert_eq!(run(3, elsewhere), ("MPI_Sendrecv", [9.0; 3]));
    let replaced = "MPI_Sendrecv_replace";
    assert_eq!(run(PROC_NULL, None), (replaced, [1.0, 2.0, 3.0]));
    assert_eq!(run(3, None), (replaced, [9.0; 3]));
}

#[test]
fn an_array_that_stays_is_where_the_result_is() {
    let _alone = alone();
    // Nothing is at this address.
    let call = on(RANK_1)
        .ints(&[("source", computed(0)), ("tag", 5), ("status_number", -1)])
        .operand(floats(OUT, &[5]))
        .operand(numbers(&[PROC_NULL]))
        .result(floats(OUT, &[5]));
    assert_eq!(called("recv_computed", call).0, "MPI_Recv");
}

#[test]
fn an_array_for_nobody_has_the_shape_of_the_result() {
    let _alone = alone();
    let expected = "arrays do not match: [5] of XLA type 11 is not 1 times [4] of XLA type 11";
    let with_source = |mut call: CallFrame| {
        let mut attributes = call.attributes.iter_mut();
        let source = attributes.find(|attribute| attribute.name == "source");
        source.unwrap().values = vec![computed(0)];
        call.operand(floats(IN, &[4]))
            .operand(numbers(&[PROC_NULL]))
    };
    let call = with_source(recv(-1));
    assert_eq!(refused("recv_computed", call), invalid(expected));
    let call = with_source(in_and_out(sendrecv(-1), &[5], &[5]));
    assert_eq!(refused("sendrecv_computed", call), invalid(expected));
}

/// Fails if a record has what stands for a number, or other names than an ordinary call.
#[test]
fn records_have_the_numbers() {
    let _alone = alone();
    let call = send_to_computed(computed(0), computed(1)).operand(numbers(&[1, 9]));
    called("send_computed", call);
    let of_computed = record(ids().end - 1).unwrap();
    called("send", send());
    let ordinary = record(ids().end - 1).unwrap();
    assert_eq!(of_computed.name(), "send");
    assert_eq!(of_computed.arguments(), ordinary.arguments());
    assert_eq!(of_computed.facts, ordinary.facts);
    let CallFacts { dest, send_tag, .. } = of_computed.facts;
    assert_eq!((dest, send_tag), (Some(1), Some(9)));

    let lists = |operation, destinations: &[i64], call: CallFrame| {
        let mut call = call;
        call.attributes[1].values = destinations.to_vec();
        messages(operation, call)
    };
    let of_computed = exchange().operand(numbers(&[1]));
    assert_eq!(
        lists("exchange_computed", &[computed(0), 0], of_computed),
        lists("exchange", &[1, 0], exchange())
    );
}

/// Fails if a call that is over is said to have the ranks of the last one.
#[test]
fn messages_of_a_call_in_progress_have_the_ranks() {
    let _alone = alone();
    const SITE: i64 = 4711;
    let message = |rank| Message {
        rank,
        tag: 3,
        bytes: 8,
    };
    let with_placeholders = Messages {
        sent: vec![message(computed(1)), message(2)],
        received: vec![message(computed(0))],
    };
    let known = Messages {
        sent: vec![message(2)],
        received: vec![],
    };
    recorder::set_messages(SITE, with_placeholders);
    assert_eq!(recorder::messages(SITE, true), Some(known.clone()));
    let call = send_to_computed(computed(0), 5).ints(&[("call_site", SITE)]);
    called("send_computed", call.operand(numbers(&[1, 0])));
    let resolved = Messages {
        sent: vec![message(0), message(2)],
        received: vec![message(1)],
    };
    assert_eq!(recorder::messages(SITE, true), Some(resolved));
    assert_eq!(recorder::messages(SITE, false), Some(known));
}

#[test]
fn a_number_must_be_there() {
    let _alone = alone();
    let call = send_to_computed(0, computed(2)).operand(numbers(&[1, 9]));
    assert_eq!(
        refused("send_computed", call),
        invalid("attribute `tag` is computed number 2 of 2")
    );
    let mut call = exchange().operand(numbers(&[1]));
    call.attributes[3].values[1] = computed(1);
    assert_eq!(
        refused("exchange_computed", call),
        invalid("attribute `sources` is computed number 1 of 1")
    );
    // Ordinary calls have no such numbers.
    assert_eq!(
        refused("send", send_to_computed(1, computed(0))),
        invalid("attribute `tag` is -9223372036854775808, not an int of MPI's")
    );
}

#[test]
fn the_numbers_are_a_list_of_32_bit_integers() {
    let _alone = alone();
    let values = [1i32, 9];
    let address = values.as_ptr() as usize;
    let expected = "expected 32-bit integers along one axis";
    for (dtype, address, dims, shape) in [
        (S32, address, &[][..], "[]"),
        (S32, address, &[1, 2], "[1, 2]"),
        (S32, address, &[0], "[0]"),
        (S32, 0, &[2], "[2]"),
        (S64, address, &[1], "[1]"),
    ] {
        let call = send_to_computed(computed(0), computed(1));
        assert_eq!(
            refused("send_computed", call.operand(buffer(dtype, address, dims))),
            invalid(&format!(
                "computed numbers of shape {shape} and XLA type {dtype}, {expected}"
            ))
        );
    }
    assert_eq!(
        refused("barrier_computed", on(RANK_0).operand(token())),
        invalid("a call without its computed numbers")
    );
}

/// The operands that a handler sees are those before the numbers, in any order with tokens.
#[test]
fn the_frame_is_that_of_an_ordinary_call() {
    let _alone = alone();
    let call = CallFrame::default()
        .operand(token())
        .operand(floats(IN, &[5]))
        .operand(numbers(&[6, -7]))
        .operand(token())
        .result(floats(OUT, &[2]))
        .list("list", &[4, computed(1), 1 << 40])
        .ints(&[("plain", -3), ("rank", computed(0))]);
    let mut seen = 0;
    let unchanged = |_: &mut XLA_FFI_CallFrame| {};
    let outcome = call.enter(unchanged, |frame| {
        let numbers = frame.computed_numbers(|array, bytes| {
            assert_eq!((array.dtype, array.dims), (S32, &[2][..]));
            bytes.copy_from_slice([6i32, -7].as_bytes());
            Ok(())
        })?;
        frame.with_numbers(&numbers, |raw| {
            let body = |frame: &_core::xla::Frame| {
                let ([operand], [result]) = (frame.operands.exactly()?, frame.results.exactly()?);
                assert_eq!((operand.address as i64, operand.count), (IN, 5));
                assert_eq!((result.address as i64, result.count), (OUT, 2));
                assert_eq!(*frame.attributes.integers("list")?, [4, -7, 1 << 40]);
                assert_eq!(frame.attributes.integer("plain")?, -3);
                assert_eq!(frame.attributes.int("rank")?, 6);
                assert_eq!(frame.attributes.names(), ["list", "plain", "rank"]);
                frame.attributes.see_integers(usize::MAX, |index, integer| {
                    seen += 1;
                    let list = _core::xla::hash([4, -7, 1 << 40]) as i64;
                    assert_eq!(integer, [list, -3, 6][index]);
                });
                Ok(())
            };
            // SAFETY: the frame is lent for the time of the call.
            assert_eq!(outcome(unsafe { _core::xla::enter(raw, body) }), Ok(()));
        })
    });
    assert_eq!((outcome, seen), (Ok(()), 3));
}

#[test]
fn all_handlers_of_operations_have_a_form_for_computed_numbers() {
    let _alone = alone();
    let handlers = ops::host_handlers::<Recorder>().into_iter();
    let names: BTreeSet<_> = handlers.map(|(name, _)| name).collect();
    let operations = a_call_of_each().into_iter().map(|(name, _)| name);
    for name in operations.chain(ops::nonblocking_names()) {
        assert!(names.contains(&*format!("{name}_computed")), "{name}");
    }
}
