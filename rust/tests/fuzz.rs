//! What others write, at random: frames, numbers of copies, the notes of other ranks, traces. No answer is
//! a crash, and what is right is read.
//!
//! `PROPTEST_CASES=100000 cargo test --test fuzz` tries more.

use std::ffi::c_int;
use std::fs;
use std::ptr;

use _core::diagnosis::{CallNote, Notes, report};
use _core::ops;
use _core::timeline;
use proptest::collection::vec;
use proptest::prelude::*;

mod common;
use common::recorder::*;
use common::*;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "common/notes.rs"]
mod notes;
#[path = "common/traces.rs"]
mod traces;

/// A length that a frame says, which is rarely the right one.
fn length() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 0..5i64,
        1 => any::<i64>(),
        1 => Just(i64::MAX),
        1 => Just(-1),
    ]
}

prop_compose! {
    /// An operand or a result. Its rank is that of its dimensions, or an impossible one.
    fn any_buffer()(
        kind in prop_oneof![6 => Just(1), 1 => any::<c_int>()],
        is_null in prop::bool::weighted(0.1),
        is_short in prop::bool::weighted(0.1),
        dtype in prop_oneof![6 => Just(F32), 1 => Just(TOKEN), 1 => any::<c_int>()],
        dims in vec(length(), 0..4),
        has_rank in prop::bool::weighted(0.9),
    ) -> Buffer {
        Buffer {
            kind,
            is_null,
            struct_size: if is_short { 8 } else { buffer(F32, 0, &[]).struct_size },
            rank: if has_rank { dims.len() as i64 } else { -1 },
            ..buffer(dtype, IN as usize, &dims)
        }
    }
}

/// A change of a frame that is right.
#[derive(Debug, Clone)]
enum Change {
    Operand(usize, Buffer),
    Result(usize, Buffer),
    NoOperand,
    NoResult,
    NoAttribute(prop::sample::Index),
    Kind(prop::sample::Index, c_int),
    Type(prop::sample::Index, c_int),
    Values(prop::sample::Index, Vec<i64>),
}

fn any_change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (0..3usize, any_buffer()).prop_map(|(index, buffer)| Change::Operand(index, buffer)),
        3 => (0..3usize, any_buffer()).prop_map(|(index, buffer)| Change::Result(index, buffer)),
        1 => Just(Change::NoOperand),
        1 => Just(Change::NoResult),
        1 => index().prop_map(Change::NoAttribute),
        1 => (index(), 0..5).prop_map(|(index, kind)| Change::Kind(index, kind)),
        1 => (index(), any::<c_int>()).prop_map(|(index, dtype)| Change::Type(index, dtype)),
        4 => (index(), vec(length(), 1..4)).prop_map(|(index, values)| Change::Values(index, values)),
    ]
}

fn replace(buffers: &mut Vec<Buffer>, index: usize, buffer: Buffer) {
    let end = buffers.len().min(index + 1);
    buffers.splice(index.min(end)..end, [buffer]);
}

fn apply(change: Change, call: &mut CallFrame) {
    let attributes = &mut call.attributes;
    match change {
        Change::Operand(index, buffer) => replace(&mut call.operands, index, buffer),
        Change::Result(index, buffer) => replace(&mut call.results, index, buffer),
        Change::NoOperand => drop(call.operands.pop()),
        Change::NoResult => drop(call.results.pop()),
        Change::NoAttribute(index) => drop(attributes.remove(index.index(attributes.len()))),
        Change::Kind(index, kind) => index.get_mut(attributes).kind = kind,
        Change::Type(index, dtype) => index.get_mut(attributes).dtype = dtype,
        Change::Values(index, values) => index.get_mut(attributes).values = values,
    }
}

/// Copies between arrays of 8 elements, of which many fit, but for a number.
fn any_copies() -> impl Strategy<Value = Vec<i64>> {
    // A large size is right if no step follows from it: that would take for ever.
    let size = prop_oneof![8 => 1..4i64, 1 => -2..9i64];
    let step = prop_oneof![8 => 0..4i64, 1 => -2..9i64, 1 => any::<i64>()];
    let start = prop_oneof![12 => 0..5i64, 2 => -1..9i64, 1 => any::<i64>()];
    let array = || prop_oneof![16 => 0..2i64, 1 => -1..4i64];
    let loops = vec((size, step.clone(), step), 0..3);
    let copy = (array(), start.clone(), array(), start, loops).prop_map(
        |(source, from, result, to, loops)| {
            let count = loops.len() as i64;
            let loops = loops
                .into_iter()
                .flat_map(|(size, from, to)| [size, from, to]);
            [source, from, result, to, count]
                .into_iter()
                .chain(loops)
                .collect::<Vec<_>>()
        },
    );
    let wrong = prop::option::weighted(0.1, (any::<prop::sample::Index>(), -2..40i64));
    (vec(copy, 1..3), wrong).prop_map(|(copies, wrong)| {
        let mut numbers = copies.concat();
        if let Some((index, other)) = wrong {
            *index.get_mut(&mut numbers) = other;
        }
        numbers
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Fails by a crash where a handler believes what a frame says. This MPI touches no array.
    #[test]
    fn any_frame_has_an_answer(
        index: prop::sample::Index,
        changes in vec(any_change(), 1..4),
    ) {
        let _alone = alone();
        let mut calls = a_call_of_each();
        let (operation, mut call) = calls.swap_remove(index.index(calls.len()));
        // These have no result, and the core itself writes one.
        let has_none = ["bcast", "gather", "gatherv", "reduce"].contains(&operation);
        for change in changes {
            if has_none && matches!(change, Change::Result(..)) {
                continue;
            }
            if !call.attributes.is_empty() {
                apply(change, &mut call);
            }
        }
        ops::set_raise_on_error(true);
        let (outcome, _) = run(operation, call);
        ops::set_raise_on_error(false);
        if let Err((_, text)) = outcome {
            prop_assert!(!text.contains("panicked"), "{}: {}", operation, text);
        }
    }

    /// Fails if a copy is made that is not in its arrays: they have canaries around them.
    #[test]
    fn copies_stay_in_their_arrays(
        numbers in any_copies(),
        (name, is_in_place) in prop::sample::select(vec![
            ("copy", false),
            ("copy", true),
            ("give_back", true),
        ]),
    ) {
        let _alone = alone();
        const CANARY: f32 = 77.0;
        let mut memory = [[CANARY; 24]; 4];
        let arrays = memory.each_mut().map(|memory| floats(ptr::from_mut(&mut memory[8]) as i64, &[2, 4]));
        let [first, second, ..] = arrays.clone();
        let results = if is_in_place { &arrays[..2] } else { &arrays[2..] };
        let call = CallFrame { operands: vec![first, second], results: results.to_vec(), ..CallFrame::default() };
        let updated = if is_in_place { 2 } else { 0 };
        let (outcome, _) = run(name, call.ints(&[("updated", updated)]).list("copies", &numbers));
        if let Err((_, text)) = outcome {
            prop_assert!(!text.contains("panicked"), "{}", text);
        }
        for array in memory {
            prop_assert_eq!(&array[..8], &[CANARY; 8]);
            prop_assert_eq!(&array[16..], &[CANARY; 8]);
        }
    }

    /// Fails by a panic where a rank believes what another one says of itself.
    #[test]
    fn any_note_is_read_or_refused(
        position: prop::sample::Index,
        text in prop_oneof!["[0-9]{1,20}", "[-{}\\[\\],:\"]{1,2}", "null", "\\PC{0,3}"],
        length in 0..4usize,
    ) {
        let calls = [notes::agreeing(2, "roots", "1"), notes::receive(2, 0)];
        let all = calls.map(notes::waiting);
        let mut bytes = serde_json::to_vec(&notes::notes_of(&all)).unwrap();
        let start = position.index(bytes.len());
        let end = bytes.len().min(start + length);
        bytes.splice(start..end, text.bytes());
        if let Ok(changed) = serde_json::from_slice::<Notes>(&bytes) {
            let diagnosis = notes::diagnosis_of(&changed, 2, &[]);
            prop_assert!(!report(&changed, 2, &diagnosis).is_empty());
        }
    }

    /// Fails if a rank is told another note than a rank gave.
    #[test]
    fn notes_come_as_they_are(
        texts in vec("\\PC{0,20}", 4),
        eighths: u32,
        numbers in vec(any::<i32>(), 3),
        count: u64,
    ) {
        let [operation, text, line, reason] = &texts[..] else { unreachable!() };
        let call = CallNote {
            operation: operation.clone(),
            text: text.clone(),
            line: line.clone(),
            // JSON may change the last digit of others.
            seconds: f64::from(eighths) / 8.0,
            sequence: count,
            ..notes::messages(2, &[notes::to(numbers[0], numbers[1].into()), notes::from(numbers[1], 0)])
        };
        let all = [notes::waiting(call), notes::ended(numbers[2], reason, count), notes::elsewhere(count)];
        let sent = notes::notes_of(&all);
        let bytes = serde_json::to_vec(&sent).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Notes>(&bytes).unwrap(), sent);
    }

    /// Fails by a panic where the reader of traces believes a file.
    #[test]
    fn any_trace_is_read_or_refused(
        position in any::<prop::sample::Index>(),
        bytes in vec(any::<u8>(), 0..12),
        is_of_calls: bool,
        is_cut: bool,
    ) {
        let folder = traces::Folder::new("fuzz");
        for rank in 0..2 {
            traces::write(&folder, rank, 2, &traces::steps(rank, 2, 3));
        }
        let path = folder.file(if is_of_calls { "rank-1.calls" } else { "rank-1.json" });
        let mut content = fs::read(&path).unwrap();
        let start = position.index(content.len());
        let end = if is_cut { content.len() } else { content.len().min(start + bytes.len()) };
        content.splice(start..end, bytes);
        fs::write(&path, content).unwrap();
        let outcome = timeline::merge(&folder.0, &folder.file("timeline"), 0.0..f64::INFINITY);
        if let Err(error) = outcome {
            prop_assert!(!error.to_string().contains('\n'), "{}", error);
        }
    }
}
