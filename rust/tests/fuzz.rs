//! What others write, at random: frames, numbers of copies, the notes of other ranks, traces. No answer is
//! a crash, and what is right is read.
//!
//! `PROPTEST_CASES=100000 cargo test --test fuzz` tries more.

use std::ffi::c_int;
use std::fs;
use std::ops::Range;

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
    /// The result is in the place of the operand.
    Alias(usize, usize),
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
        3 => (0..3usize, 0..3usize).prop_map(|(operand, result)| Change::Alias(operand, result)),
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
        Change::Alias(operand, result) => {
            let operand = call.operands.get(operand);
            if let Some((operand, result)) = operand.zip(call.results.get_mut(result)) {
                result.address = operand.address;
            }
        }
        Change::NoOperand => drop(call.operands.pop()),
        Change::NoResult => drop(call.results.pop()),
        Change::NoAttribute(index) => drop(attributes.remove(index.index(attributes.len()))),
        Change::Kind(index, kind) => index.get_mut(attributes).kind = kind,
        Change::Type(index, dtype) => index.get_mut(attributes).dtype = dtype,
        Change::Values(index, values) => index.get_mut(attributes).values = values,
    }
}

/// One of some numbers of arrays, but for a wrong one.
fn array_number(numbers: &'static [i64]) -> impl Strategy<Value = i64> {
    prop_oneof![40 => prop::sample::select(numbers), 1 => -1..7i64]
}

/// Copies from some arrays of 8 elements to others, of which many fit, but for a number, and how many
/// there are.
fn any_copies(
    sources: &'static [i64],
    results: &'static [i64],
) -> impl Strategy<Value = (Vec<i64>, usize)> {
    // A large size is right if no step follows from it: that would take for ever.
    let size = prop_oneof![24 => 1..4i64, 1 => -2..9i64];
    let step = prop_oneof![24 => 0..3i64, 1 => -2..9i64, 1 => any::<i64>()];
    let start = prop_oneof![24 => 0..4i64, 1 => -1..9i64, 1 => any::<i64>()];
    let numbers = (size, step.clone(), step);
    let loops = prop_oneof![4 => vec(numbers.clone(), 1..3), 1 => vec(numbers, 0)];
    let ends = [sources, results].map(|numbers| (array_number(numbers), start.clone()));
    let copy = (ends, loops).prop_map(|([(source, from), (result, to)], loops)| {
        let count = loops.len() as i64;
        let loops = loops
            .into_iter()
            .flat_map(|(size, from, to)| [size, from, to]);
        [source, from, result, to, count]
            .into_iter()
            .chain(loops)
            .collect::<Vec<_>>()
    });
    let wrong = prop::option::weighted(0.05, (any::<prop::sample::Index>(), -2..40i64));
    (vec(copy, 1..3), wrong).prop_map(|(copies, wrong)| {
        let mut numbers = copies.concat();
        if let Some((index, other)) = wrong {
            *index.get_mut(&mut numbers) = other;
        }
        (numbers, copies.len())
    })
}

/// Numbers of the listed rows of two copies, if these go over any.
fn any_rows() -> impl Strategy<Value = Option<Vec<i64>>> {
    let start = || prop_oneof![16 => Just(-1), 32 => 0..4i64, 1 => length()];
    let limit = || prop_oneof![24 => 1..4i64, 1 => length()];
    let outer = prop_oneof![4 => Just(-1), 16 => Just(0), 1 => 1..3i64];
    let of_copy = (outer, start(), limit(), start(), limit());
    let of_copy = of_copy.prop_map(|(outer, from, limit, to, room)| [outer, from, limit, to, room]);
    let of_copies = vec(of_copy, 0..3).prop_map(|rows| rows.concat());
    prop::option::weighted(0.5, of_copies)
}

/// Numbers of the arrays of a fused call: an operand that a result updates, one that is only read, a list of
/// rows, the updated result, and two new ones.
const READ: &[i64] = &[0, 1, 3, 4, 5];
const WRITTEN: &[i64] = &[0, 3, 4, 5];
const TABLE: &[i64] = &[2];

/// Copies of a fused call before or after its messages, or the transpose of copies: numbers, stages, and
/// rows.
fn fused_copies() -> impl Strategy<Value = [Vec<i64>; 3]> {
    let rows = (any_rows(), array_number(TABLE)).prop_map(|(numbers, table)| {
        numbers.map_or(vec![], |numbers| [vec![table], numbers].concat())
    });
    let stages = prop::option::weighted(0.05, vec(length(), 0..3));
    let copies = (any_copies(READ, WRITTEN), stages);
    let copies = copies.prop_map(|((numbers, count), stages)| {
        let stages = stages.unwrap_or_else(|| vec![count as i64]);
        (numbers, stages)
    });
    let transposes = any_copies(WRITTEN, WRITTEN).prop_map(|(numbers, _)| (numbers, vec![]));
    (prop_oneof![3 => copies, 1 => transposes], rows)
        .prop_map(|((numbers, stages), rows)| [numbers, stages, rows])
}

/// Parts of some arrays of a fused call, each with a process.
fn parts(arrays: &'static [i64]) -> impl Strategy<Value = (Vec<i64>, Vec<i64>)> {
    let span = prop_oneof![40 => (0..7i64, 1..3i64), 1 => (length(), length())];
    let rank = prop_oneof![4 => 0..2i64, 1 => Just(-7)];
    vec((array_number(arrays), span, rank), 0..3).prop_map(|parts| {
        let spans = parts
            .iter()
            .flat_map(|(array, (first, count), _)| [*array, *first, *count]);
        let ranks = parts.iter().map(|(_, _, rank)| *rank);
        (spans.collect(), ranks.collect())
    })
}

const CANARY: f32 = 77.0;

/// Memory of 8 numbers of 4 bytes, between canaries.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Guarded([f32; 24]);

impl Guarded {
    fn floats() -> Self {
        Self([CANARY; 24])
    }

    /// Rows, some of which no array has.
    fn rows(rows: [i32; 8]) -> Self {
        let mut memory = Self::floats();
        for (float, row) in memory.0[8..].iter_mut().zip(rows) {
            *float = f32::from_bits(row as u32);
        }
        memory
    }

    fn bits(&self) -> [u32; 24] {
        self.0.map(f32::to_bits)
    }

    fn is_intact(&self) -> bool {
        self.0[..8] == [CANARY; 8] && self.0[16..] == [CANARY; 8]
    }

    fn array(&mut self) -> Buffer {
        floats(self.0[8..].as_mut_ptr() as i64, &[2, 4])
    }

    fn table(&mut self) -> Buffer {
        Buffer {
            dtype: S32,
            dims: vec![8],
            rank: 1,
            ..self.array()
        }
    }
}

fn any_table() -> impl Strategy<Value = [i32; 8]> {
    prop::array::uniform8(prop_oneof![8 => -1..4i32, 1 => any::<i32>()])
}

/// Leaves an attribute out, once in a while.
fn without_some(call: &mut CallFrame, missing: Option<prop::sample::Index>) {
    if let Some(index) = missing {
        call.attributes.remove(index.index(call.attributes.len()));
    }
}

fn any_missing() -> impl Strategy<Value = Option<prop::sample::Index>> {
    prop::option::weighted(0.05, any::<prop::sample::Index>())
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
        (numbers, _) in any_copies(&[0, 1], &[0, 1]),
        rows in any_rows(),
        listed in any_table(),
        table_count in prop_oneof![8 => Just(8), 1 => length().prop_map(|count| count.min(8))],
        missing in any_missing(),
        is_table_a_result in prop::bool::weighted(0.1),
        (name, is_in_place) in prop::sample::select(vec![
            ("copy", false),
            ("copy", true),
            ("copy_transposed", true),
        ]),
    ) {
        let _alone = alone();
        let mut memory = [Guarded::floats(); 4];
        let mut table = Guarded::rows(listed);
        let arrays = memory.each_mut().map(Guarded::array);
        let [first, second, ..] = arrays.clone();
        let results = if is_in_place { &arrays[..2] } else { &arrays[2..] };
        let mut call = CallFrame { operands: vec![first, second], results: results.to_vec(), ..CallFrame::default() };
        let updated = if is_in_place { 2 } else { 0 };
        call = call.ints(&[("updated", updated)]).list("copies", &numbers);
        if let Some(rows) = &rows {
            let table = Buffer { dims: vec![table_count], ..table.table() };
            call = call.list("rows", rows).operand(table);
        }
        if is_table_a_result && !is_in_place {
            call.results[1] = table.array();
        }
        without_some(&mut call, missing);
        let (outcome, _) = run(name, call);
        if let Err((_, text)) = outcome {
            prop_assert!(!text.contains("panicked"), "{}", text);
        }
        prop_assert!(memory.iter().chain([&table]).all(Guarded::is_intact));
        // Without rows, or the attribute, it is an array as any.
        let is_table = rows.is_some() && missing.is_none() && table_count > 0;
        if is_table || !is_table_a_result {
            prop_assert_eq!(table.bits(), Guarded::rows(listed).bits());
        }
    }

    /// Fails if a fused call writes anywhere but to its results, or has MPI do so, or if messages in flight
    /// overlap.
    #[test]
    fn fused_calls_write_their_results_only(
        (sent, dests) in parts(READ),
        (received, sources) in parts(WRITTEN),
        before in fused_copies(),
        after in fused_copies(),
        updated in prop_oneof![24 => Just(1), 1 => length()],
        listed in any_table(),
        missing in any_missing(),
        alias in prop::option::weighted(0.1, 0..3usize),
    ) {
        let _alone = alone();
        let mut memory = [Guarded::floats(); 4];
        let mut table = Guarded::rows(listed);
        let [own, read, new, other] = memory.each_mut().map(Guarded::array);
        let operands = vec![own.clone(), read, table.table()];
        let mut results = vec![own, new, other];
        if let Some(operand) = alias {
            results[1].address = operands[operand].address;
        }
        let written: Vec<_> = results.iter().map(|result| result.address as i64..result.address as i64 + 32).collect();
        let lists = [[sent, received].to_vec(), before.to_vec(), after.to_vec()].concat();
        let lists: [&[i64]; 8] = std::array::from_fn(|index| &lists[index][..]);
        let tags = |ranks: &[i64]| vec![0; ranks.len()];
        let mut call = on(RANK_0).list("dests", &dests).list("sendtags", &tags(&dests));
        call = call.list("sources", &sources).list("recvtags", &tags(&sources));
        call = CallFrame { operands, results, ..call.with_copies(updated, lists) };
        without_some(&mut call, missing);
        let (outcome, calls) = run("exchange", call);
        if let Err((_, text)) = outcome {
            prop_assert!(!text.contains("panicked"), "{}", text);
        }
        prop_assert!(memory.iter().chain([&table]).all(Guarded::is_intact));
        if alias != Some(1) {
            prop_assert_eq!(memory[1], Guarded::floats());
        }
        if alias != Some(2) {
            prop_assert_eq!(table.bits(), Guarded::rows(listed).bits());
        }
        let has_bytes = |(function, words): &&Recorded| *function != "MPI_Wait" && words[1] > 0;
        let messages = calls.iter().filter(has_bytes);
        let messages: Vec<_> = messages
            .map(|(function, words)| (*function, words[0]..words[0] + 4 * words[1]))
            .collect();
        for (index, (function, bytes)) in messages.iter().enumerate() {
            if *function != "MPI_Irecv" {
                continue;
            }
            let is_in = |result: &Range<i64>| result.start <= bytes.start && bytes.end <= result.end;
            prop_assert!(written.iter().any(is_in));
            for (other, (_, others)) in messages.iter().enumerate() {
                let is_apart = bytes.end <= others.start || others.end <= bytes.start;
                prop_assert!(other == index || is_apart);
            }
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
