//! Calls of more elements than an int counts: the same calls as of few, with a lower limit.

use _core::ops;

mod common;
use common::recorder::*;
use common::*;

/// More elements than this are many.
const LIMIT: i64 = 4;

/// The result of `body` with this limit, and with or without MPI's functions for large counts. The
/// caller is [`alone`].
fn with_limit<R>(limit: i64, use_large: bool, body: impl FnOnce() -> R) -> R {
    ops::set_count_limit(limit, use_large);
    let outcome = body();
    ops::set_count_limit(i32::MAX.into(), true);
    outcome
}

/// How an operation ends then, and what it calls.
fn limited(
    limit: i64,
    use_large: bool,
    operation: &str,
    call: CallFrame,
) -> (Outcome, Vec<Recorded>) {
    let _alone = alone();
    with_limit(limit, use_large, || run(operation, call))
}

/// The calls of MPI that an operation makes, all being well.
fn calls(limit: i64, use_large: bool, operation: &str, call: CallFrame) -> Vec<Recorded> {
    let (outcome, calls) = limited(limit, use_large, operation, call);
    assert_eq!(outcome, Ok(()), "{operation}");
    calls
}

/// The calls that make a data type of ten floats, and those that free it.
fn ten_floats() -> (Vec<Recorded>, Recorded) {
    // Two chunks of four, and two floats that begin after 32 bytes.
    let members = [2, 2, 2, 0, 32, FIRST_TYPE, FLOAT];
    (
        vec![
            ("MPI_Type_contiguous", vec![4, FLOAT]),
            ("MPI_Type_create_struct", members.into()),
            ("MPI_Type_free", vec![FIRST_TYPE]),
            ("MPI_Type_commit", vec![SECOND_TYPE]),
        ],
        ("MPI_Type_free", vec![SECOND_TYPE]),
    )
}

/// An operation that moves a block of ten floats: how it is called, and its arguments for a block
/// of a number of elements of a type.
struct Move {
    operation: &'static str,
    call: fn() -> CallFrame,
    function: [&'static str; 2],
    arguments: fn(i64, i64) -> Vec<i64>,
}

fn message() -> CallFrame {
    on(RANK_0).ints(&[
        ("dest", 1),
        ("sendtag", 2),
        ("source", 3),
        ("recvtag", 4),
        ("tag", 5),
        ("status_number", -1),
    ])
}

fn root() -> CallFrame {
    on(RANK_0).ints(&[("root", 0)])
}

const MOVES: [Move; 9] = [
    Move {
        operation: "allgather",
        call: || in_and_out(on(RANK_0), &[10], &[2, 10]),
        function: ["MPI_Allgather", "MPI_Allgather_c"],
        arguments: |count, type_| vec![IN, count, type_, OUT, count, type_, COMM[0]],
    },
    // The arrays have twice as many elements.
    Move {
        operation: "alltoall",
        call: || in_and_out(on(RANK_0), &[2, 10], &[2, 10]),
        function: ["MPI_Alltoall", "MPI_Alltoall_c"],
        arguments: |count, type_| vec![IN, count, type_, OUT, count, type_, COMM[0]],
    },
    Move {
        operation: "bcast",
        call: || root().operand(floats(IN, &[10])),
        function: ["MPI_Bcast", "MPI_Bcast_c"],
        arguments: |count, type_| vec![IN, count, type_, 0, COMM[0]],
    },
    Move {
        operation: "gather",
        call: || in_and_out(root(), &[10], &[2, 10]),
        function: ["MPI_Gather", "MPI_Gather_c"],
        arguments: |count, type_| vec![IN, count, type_, OUT, count, type_, 0, COMM[0]],
    },
    Move {
        operation: "scatter",
        call: || in_and_out(root(), &[2, 10], &[10]),
        function: ["MPI_Scatter", "MPI_Scatter_c"],
        arguments: |count, type_| vec![IN, count, type_, OUT, count, type_, 0, COMM[0]],
    },
    Move {
        operation: "recv",
        call: || message().result(floats(OUT, &[10])),
        function: ["MPI_Recv", "MPI_Recv_c"],
        arguments: |count, type_| vec![OUT, count, type_, 3, 5, COMM[0], STATUS_IGNORE],
    },
    Move {
        operation: "send",
        call: || message().operand(floats(IN, &[10])),
        function: ["MPI_Send", "MPI_Send_c"],
        arguments: |count, type_| vec![IN, count, type_, 1, 5, COMM[0]],
    },
    // Only what is sent is large.
    Move {
        operation: "sendrecv",
        call: || in_and_out(message(), &[10], &[3]),
        function: ["MPI_Sendrecv", "MPI_Sendrecv_c"],
        arguments: |count, type_| {
            let sent = [IN, count, type_, 1, 2];
            let received = [OUT, 3, FLOAT, 3, 4];
            [&sent[..], &received, &[COMM[0], STATUS_IGNORE]].concat()
        },
    },
    // Only what is received is large.
    Move {
        operation: "sendrecv",
        call: || in_and_out(message(), &[3], &[10]),
        function: ["MPI_Sendrecv", "MPI_Sendrecv_c"],
        arguments: |count, type_| {
            let sent = [IN, 3, FLOAT, 1, 2];
            let received = [OUT, count, type_, 3, 4];
            [&sent[..], &received, &[COMM[0], STATUS_IGNORE]].concat()
        },
    },
];

#[test]
fn few_elements_are_counted_with_an_int() {
    for (limit, use_large) in [(10, true), (10, false), (i64::MAX, true)] {
        for case in MOVES {
            let expected = (case.function[0], (case.arguments)(10, FLOAT));
            let calls = calls(limit, use_large, case.operation, (case.call)());
            assert_eq!(calls, [expected]);
        }
    }
}

#[test]
fn many_elements_are_counted_with_64_bits() {
    for case in MOVES {
        let expected = (case.function[1], (case.arguments)(10, FLOAT));
        let calls = calls(9, true, case.operation, (case.call)());
        assert_eq!(calls, [expected]);
    }
}

/// Where MPI has no large counts, the block is one element of a type that is freed in the end.
#[test]
fn many_elements_are_one_of_a_derived_type_otherwise() {
    let (made, freed) = ten_floats();
    for case in MOVES {
        let call = (case.function[0], (case.arguments)(1, SECOND_TYPE));
        assert_eq!(
            calls(LIMIT, false, case.operation, (case.call)()),
            [&made[..], &[call, freed.clone()]].concat()
        );
    }
}

#[test]
fn what_is_received_elsewhere_than_on_root_may_be_large() {
    let (made, freed) = ten_floats();
    let with = |call| [&made[..], &[call, freed.clone()]].concat();
    let elsewhere = || on(RANK_1).ints(&[("root", 0)]);
    let type_ = SECOND_TYPE;
    assert_eq!(
        calls(LIMIT, false, "bcast", in_and_out(elsewhere(), &[10], &[10])),
        with(("MPI_Bcast", vec![OUT, 1, type_, 0, COMM[1]]))
    );
    assert_eq!(
        calls(
            LIMIT,
            false,
            "gather",
            elsewhere().operand(floats(IN, &[10]))
        ),
        with(("MPI_Gather", vec![IN, 1, type_, 0, 1, type_, 0, COMM[1]]))
    );
    assert_eq!(
        calls(
            LIMIT,
            false,
            "scatter",
            elsewhere().result(floats(OUT, &[10]))
        ),
        with(("MPI_Scatter", vec![0, 1, type_, OUT, 1, type_, 0, COMM[1]]))
    );
}

#[test]
fn one_large_array_is_replaced() {
    let call = || {
        message()
            .operand(floats(IN, &[10]))
            .result(floats(IN, &[10]))
    };
    let arguments = |count, type_| vec![IN, count, type_, 1, 2, 3, 4, COMM[0], STATUS_IGNORE];
    assert_eq!(
        calls(LIMIT, true, "sendrecv", call()),
        [("MPI_Sendrecv_replace_c", arguments(10, FLOAT))]
    );
    let calls = calls(LIMIT, false, "sendrecv", call());
    let replaced = ("MPI_Sendrecv_replace", arguments(1, SECOND_TYPE));
    assert_eq!(calls[4], replaced, "{calls:?}");
}

/// Fails when a type outlives its call, or is freed before or twice.
#[test]
fn every_type_that_is_made_is_freed_once() {
    let call = in_and_out(message(), &[10], &[15]);
    let calls = calls(LIMIT, false, "sendrecv", call);
    let names: Vec<_> = calls.iter().map(|(name, _)| *name).collect();
    let block = [
        "MPI_Type_contiguous",
        "MPI_Type_create_struct",
        "MPI_Type_free",
        "MPI_Type_commit",
    ];
    let end = ["MPI_Sendrecv", "MPI_Type_free", "MPI_Type_free"];
    assert_eq!(names, [&block[..], &block, &end].concat());
    let mut freed: Vec<_> = calls
        .iter()
        .filter(|(name, _)| *name == "MPI_Type_free")
        .map(|(_, arguments)| arguments[0] - FIRST_TYPE)
        .collect();
    freed.sort();
    assert_eq!(freed, [0, 1, 2, 3]);
}

/// A multiple of the limit leaves no rest.
#[test]
fn a_block_may_be_a_number_of_whole_chunks() {
    let call = message().operand(floats(IN, &[12]));
    assert_eq!(
        calls(LIMIT, false, "send", call)[1],
        (
            "MPI_Type_create_struct",
            vec![2, 3, 0, 0, 48, FIRST_TYPE, FLOAT]
        )
    );
}

/// A reduction of ten floats: how it is called on these addresses, and the arguments of a call
/// that reduces a number of them.
struct Reduction {
    operation: &'static str,
    function: [&'static str; 2],
    arguments: fn(i64, i64, i64, i64) -> Vec<i64>,
}

const REDUCTIONS: [Reduction; 4] = [
    Reduction {
        operation: "allreduce",
        function: ["MPI_Allreduce", "MPI_Allreduce_c"],
        arguments: |send, recv, count, op| vec![send, recv, count, FLOAT, op, COMM[0]],
    },
    Reduction {
        operation: "exscan",
        function: ["MPI_Exscan", "MPI_Exscan_c"],
        arguments: |send, recv, count, op| vec![send, recv, count, FLOAT, op, COMM[0]],
    },
    Reduction {
        operation: "reduce",
        function: ["MPI_Reduce", "MPI_Reduce_c"],
        arguments: |send, recv, count, op| vec![send, recv, count, FLOAT, op, 0, COMM[0]],
    },
    Reduction {
        operation: "scan",
        function: ["MPI_Scan", "MPI_Scan_c"],
        arguments: |send, recv, count, op| vec![send, recv, count, FLOAT, op, COMM[0]],
    },
];

fn reduce(operand: i64, result: i64, op: i64) -> CallFrame {
    on(RANK_0)
        .ints(&[("op_number", op), ("root", 0), ("reverse", 0)])
        .operand(floats(operand, &[10]))
        .result(floats(result, &[10]))
}

#[test]
fn reductions_of_many_elements_are_counted_with_64_bits() {
    for case in REDUCTIONS {
        let arguments = |count| (case.arguments)(IN, OUT, count, SUM_HANDLE);
        assert_eq!(
            calls(10, true, case.operation, reduce(IN, OUT, SUM)),
            [(case.function[0], arguments(10))]
        );
        assert_eq!(
            calls(9, true, case.operation, reduce(IN, OUT, SUM)),
            [(case.function[1], arguments(10))]
        );
    }
}

/// The calls for four, four and two floats, whose addresses are these.
fn in_chunks(case: &Reduction, addresses: [[i64; 2]; 3], op: i64) -> Vec<Recorded> {
    let call = |([send, recv], count): ([i64; 2], i64)| {
        (case.function[0], (case.arguments)(send, recv, count, op))
    };
    addresses.into_iter().zip([4, 4, 2]).map(call).collect()
}

#[test]
fn reductions_of_many_elements_are_split_otherwise() {
    for case in REDUCTIONS {
        let addresses = [0, 16, 32].map(|bytes| [IN + bytes, OUT + bytes]);
        assert_eq!(
            calls(LIMIT, false, case.operation, reduce(IN, OUT, SUM)),
            in_chunks(&case, addresses, SUM_HANDLE)
        );
    }
}

#[test]
fn a_reduction_in_place_is_in_place_in_every_chunk() {
    for case in REDUCTIONS {
        let addresses = [0, 16, 32].map(|bytes| [IN_PLACE, IN + bytes]);
        assert_eq!(
            calls(LIMIT, false, case.operation, reduce(IN, IN, SUM)),
            in_chunks(&case, addresses, SUM_HANDLE)
        );
    }
}

/// MPI hands the length to the operator as an int.
#[test]
fn reductions_with_an_operator_of_a_user_are_always_split() {
    for case in REDUCTIONS {
        let addresses = [0, 16, 32].map(|bytes| [IN + bytes, OUT + bytes]);
        assert_eq!(
            calls(LIMIT, true, case.operation, reduce(IN, OUT, USER_MADE)),
            in_chunks(&case, addresses, USER_MADE_HANDLE)
        );
    }
}

/// The operators for 16-bit floats are such operators, too.
#[test]
fn reductions_of_half_floats_are_always_split() {
    let call = on(RANK_0)
        .ints(&[("op_number", SUM)])
        .operand(buffer(BF16, IN as usize, &[10]))
        .result(buffer(BF16, IN as usize, &[10]));
    let calls = calls(LIMIT, true, "allreduce", call);
    let (made, reduced) = calls.split_first().unwrap();
    assert_eq!(made.0, "MPI_Op_create");
    let op = reduced[0].1[4];
    let part = |start, count| {
        let arguments = vec![IN_PLACE, IN + start, count, SHORT, op, COMM[0]];
        ("MPI_Allreduce", arguments)
    };
    assert_eq!(reduced, [part(0, 4), part(8, 4), part(16, 2)]);
}

#[test]
fn a_result_that_is_not_there_stays_null_in_every_chunk() {
    let call = on(RANK_1)
        .ints(&[("op_number", SUM), ("root", 0)])
        .operand(floats(IN, &[6]));
    let part = |send, count| {
        let arguments = vec![send, 0, count, FLOAT, SUM_HANDLE, 0, COMM[1]];
        ("MPI_Reduce", arguments)
    };
    assert_eq!(
        calls(LIMIT, false, "reduce", call),
        [part(IN, 4), part(IN + 16, 2)]
    );
}

/// A chunk of no elements would be a call too many.
#[test]
fn a_reduction_may_be_a_number_of_whole_chunks() {
    assert_eq!(calls(5, false, "scan", reduce(IN, OUT, SUM)).len(), 2);
}

fn reduce_scatter(op: i64) -> CallFrame {
    in_and_out(on(RANK_1).ints(&[("op_number", op)]), &[2, 6], &[6])
}

/// The arguments of `MPI_Reduce_scatter_block`, in either form.
fn scattered(op: i64) -> Vec<i64> {
    vec![IN, OUT, 6, FLOAT, op, COMM[1]]
}

#[test]
fn reduce_scatter_counts_blocks() {
    for use_large in [true, false] {
        assert_eq!(
            calls(6, use_large, "reduce_scatter", reduce_scatter(SUM)),
            [("MPI_Reduce_scatter_block", scattered(SUM_HANDLE))]
        );
    }
    assert_eq!(
        calls(5, true, "reduce_scatter", reduce_scatter(SUM)),
        [("MPI_Reduce_scatter_block_c", scattered(SUM_HANDLE))]
    );
}

/// Rank 1's part of a reduction of six floats to rank 0, and of the next six to rank 1.
fn reduced_to_each(op: i64) -> Vec<Recorded> {
    [
        (IN, 0, 4, 0),
        (IN + 16, 0, 2, 0),
        (IN + 24, OUT, 4, 1),
        (IN + 40, OUT + 16, 2, 1),
    ]
    .map(|(send, recv, count, root)| {
        let arguments = vec![send, recv, count, FLOAT, op, root, COMM[1]];
        ("MPI_Reduce", arguments)
    })
    .into()
}

#[test]
fn reduce_scatter_is_a_reduction_for_each_rank_otherwise() {
    assert_eq!(
        calls(LIMIT, false, "reduce_scatter", reduce_scatter(SUM)),
        reduced_to_each(SUM_HANDLE)
    );
    assert_eq!(
        calls(LIMIT, true, "reduce_scatter", reduce_scatter(USER_MADE)),
        reduced_to_each(USER_MADE_HANDLE)
    );
}

/// MPI may hand all blocks to an operator at once, with their number as an int.
#[test]
fn reduce_scatter_counts_all_blocks_for_an_operator_of_a_user() {
    let fits = calls(12, true, "reduce_scatter", reduce_scatter(USER_MADE));
    assert_eq!(
        fits,
        [("MPI_Reduce_scatter_block", scattered(USER_MADE_HANDLE))]
    );
    let split = calls(11, true, "reduce_scatter", reduce_scatter(USER_MADE));
    let roots: Vec<_> = split
        .iter()
        .map(|(name, arguments)| (*name, arguments[2], arguments[5]))
        .collect();
    assert_eq!(roots, [("MPI_Reduce", 6, 0), ("MPI_Reduce", 6, 1)]);
}

/// One row of five floats for rank 0, and three for rank 1.
fn reduce_scatterv(op: i64) -> CallFrame {
    let call = on(RANK_1)
        .list("counts", &[1, 3])
        .ints(&[("op_number", op)]);
    in_and_out(call, &[4, 5], &[3, 5])
}

/// Fails if Open MPI, which has no functions for large counts, gets counts whose sum is no int: it adds
/// them up in one.
#[test]
fn reduce_scatterv_counts_the_rows_of_all_ranks() {
    let all = |op| vec![IN, OUT, 5, 15, FLOAT, op, COMM[1]];
    let without_large = calls(19, false, "reduce_scatterv", reduce_scatterv(SUM));
    let names: Vec<_> = without_large.iter().map(|call| call.0).collect();
    assert_eq!(names, ["MPI_Reduce"; 2]);
    for (limit, op, handle, function) in [
        (20, SUM, SUM_HANDLE, "MPI_Reduce_scatter"),
        (19, SUM, SUM_HANDLE, "MPI_Reduce_scatter_c"),
        (20, USER_MADE, USER_MADE_HANDLE, "MPI_Reduce_scatter"),
    ] {
        assert_eq!(
            calls(limit, true, "reduce_scatterv", reduce_scatterv(op)),
            [(function, all(handle))]
        );
    }
}

#[test]
fn reduce_scatterv_is_a_reduction_for_each_rank_otherwise() {
    let reduced = |handle| {
        [
            (IN, 0, 5, 0),
            (IN + 20, OUT, 14, 1),
            (IN + 76, OUT + 56, 1, 1),
        ]
        .map(|(send, recv, count, root)| {
            let arguments = vec![send, recv, count, FLOAT, handle, root, COMM[1]];
            ("MPI_Reduce", arguments)
        })
    };
    assert_eq!(
        calls(14, false, "reduce_scatterv", reduce_scatterv(SUM)),
        reduced(SUM_HANDLE)
    );
    assert_eq!(
        calls(14, true, "reduce_scatterv", reduce_scatterv(USER_MADE)),
        reduced(USER_MADE_HANDLE)
    );
}

/// An operation that deals out rows of five floats, one and three of them: its arguments, for a
/// number of elements in a row, counts and displacements.
struct Rows {
    operation: &'static str,
    call: fn() -> CallFrame,
    function: [&'static str; 2],
    arguments: fn(i64, [i64; 4]) -> Vec<i64>,
}

const ROWS: [Rows; 4] = [
    Rows {
        operation: "allgatherv",
        call: || in_and_out(on(RANK_0).list("counts", &[1, 3]), &[1, 5], &[4, 5]),
        function: ["MPI_Allgatherv", "MPI_Allgatherv_c"],
        arguments: |count, lists| {
            [&[IN, count, FLOAT, OUT], &lists[..], &[FLOAT, COMM[0]]].concat()
        },
    },
    Rows {
        operation: "alltoallv",
        call: || {
            let counts = on(RANK_0).list("sendcounts", &[1, 3]);
            in_and_out(counts.list("recvcounts", &[1, 0]), &[4, 5], &[1, 5])
        },
        function: ["MPI_Alltoallv", "MPI_Alltoallv_c"],
        arguments: |count, lists| {
            let received = [count, 0, 0, count, FLOAT, COMM[0]];
            [&[IN], &lists[..], &[FLOAT, OUT], &received].concat()
        },
    },
    Rows {
        operation: "gatherv",
        call: || in_and_out(root().list("counts", &[1, 3]), &[1, 5], &[4, 5]),
        function: ["MPI_Gatherv", "MPI_Gatherv_c"],
        arguments: |count, lists| {
            [&[IN, count, FLOAT, OUT], &lists[..], &[FLOAT, 0, COMM[0]]].concat()
        },
    },
    Rows {
        operation: "scatterv",
        call: || in_and_out(root().list("counts", &[1, 3]), &[4, 5], &[1, 5]),
        function: ["MPI_Scatterv", "MPI_Scatterv_c"],
        arguments: |count, lists| {
            [&[IN], &lists[..], &[FLOAT, OUT, count, FLOAT, 0, COMM[0]]].concat()
        },
    },
];

/// The largest count is 15, and no displacement is more.
#[test]
fn rows_of_many_elements_are_counted_with_64_bits() {
    for case in ROWS {
        let arguments = (case.arguments)(5, [5, 15, 0, 5]);
        for (limit, use_large, function) in [
            (15, true, case.function[0]),
            (15, false, case.function[0]),
            (14, true, case.function[1]),
        ] {
            assert_eq!(
                calls(limit, use_large, case.operation, (case.call)()),
                [(function, arguments.clone())]
            );
        }
    }
}

/// A data type of floats of an array: how many are in a chunk, how many chunks and further floats
/// there are, and the bytes before either.
type DerivedType = [i64; 5];

/// With a limit of 14.
const FIVE: DerivedType = [5, 1, 0, 0, 20];
const FIFTEEN: DerivedType = [14, 1, 1, 0, 56];
const FIFTEEN_AFTER_FIVE: DerivedType = [14, 1, 1, 20, 76];
const TWENTY: DerivedType = [14, 1, 6, 0, 56];

/// The calls that make a type, which has the number after the one of its chunks.
fn making(chunk: i64, [length, chunks, rest, first, end]: DerivedType) -> [Recorded; 4] {
    let members = vec![2, chunks, rest, first, end, chunk, FLOAT];
    [
        ("MPI_Type_contiguous", vec![length, FLOAT]),
        ("MPI_Type_create_struct", members),
        ("MPI_Type_free", vec![chunk]),
        ("MPI_Type_commit", vec![chunk + 1]),
    ]
}

/// An operation on rows of five floats, and what goes to each rank and comes from it.
struct Exchange {
    operation: &'static str,
    call: CallFrame,
    rank: usize,
    sent: (i64, [Option<DerivedType>; 2]),
    received: (i64, [Option<DerivedType>; 2]),
}

fn exchanges() -> [Exchange; 6] {
    let on_both = [Some(FIVE), Some(FIFTEEN_AFTER_FIVE)];
    let elsewhere = || on(RANK_1).ints(&[("root", 0)]).list("counts", &[1, 3]);
    let [allgatherv, _, gatherv, scatterv] = ROWS.map(|rows| (rows.call)());
    [
        Exchange {
            operation: "allgatherv",
            call: allgatherv,
            rank: 0,
            sent: (IN, [Some(FIVE), Some(FIVE)]),
            received: (OUT, on_both),
        },
        // What has no elements has no type.
        Exchange {
            operation: "allgatherv",
            call: in_and_out(on(RANK_0).list("counts", &[0, 4]), &[0, 5], &[4, 5]),
            rank: 0,
            sent: (IN, [None, None]),
            received: (OUT, [None, Some(TWENTY)]),
        },
        Exchange {
            operation: "gatherv",
            call: gatherv,
            rank: 0,
            sent: (IN, [Some(FIVE), None]),
            received: (OUT, on_both),
        },
        Exchange {
            operation: "gatherv",
            call: elsewhere().operand(floats(IN, &[3, 5])),
            rank: 1,
            sent: (IN, [Some(FIFTEEN), None]),
            received: (0, [None, None]),
        },
        Exchange {
            operation: "scatterv",
            call: scatterv,
            rank: 0,
            sent: (IN, on_both),
            received: (OUT, [Some(FIVE), None]),
        },
        Exchange {
            operation: "scatterv",
            call: elsewhere().result(floats(OUT, &[3, 5])),
            rank: 1,
            sent: (0, [None, None]),
            received: (OUT, [Some(FIFTEEN), None]),
        },
    ]
}

/// Where all ranks know all counts, all call `MPI_Alltoallw`, whose counts are one or none.
#[test]
fn rows_of_many_elements_are_one_of_a_type_for_each_rank_otherwise() {
    for case in exchanges() {
        let mut expected = vec![];
        let mut types = (FIRST_TYPE..).step_by(2);
        let mut side = |(address, derived): (i64, [Option<DerivedType>; 2])| {
            let mut type_of = |type_| {
                let chunk = types.next().unwrap();
                expected.extend(making(chunk, type_));
                chunk + 1
            };
            let made = derived.map(|type_| type_.map_or(FLOAT, &mut type_of));
            let counts = derived.map(|type_| type_.is_some().into());
            [&[address], &counts[..], &[0, 0], &made].concat()
        };
        let arguments = [side(case.sent), side(case.received), vec![COMM[case.rank]]].concat();
        expected.push(("MPI_Alltoallw", arguments));
        let mut calls = calls(14, false, case.operation, case.call);
        let mut freed = calls.split_off(expected.len());
        assert_eq!(calls, expected, "{}", case.operation);
        freed.sort();
        let made = types.next().unwrap() - FIRST_TYPE;
        let made = (1..made).step_by(2).map(|n| FIRST_TYPE + n);
        assert!(
            freed
                .into_iter()
                .eq(made.map(|made| ("MPI_Type_free", vec![made])))
        );
    }
}

/// No limit is too low.
#[test]
fn one_row_may_have_many_elements() {
    for case in exchanges() {
        let mut calls = calls(1, false, case.operation, case.call);
        calls.retain(|(name, _)| !name.starts_with("MPI_Type_"));
        assert_eq!(calls.len(), 1, "{calls:?}");
        assert_eq!(calls[0].0, "MPI_Alltoallw");
    }
}

fn alltoallv(sent: [i64; 2], received: [i64; 2]) -> CallFrame {
    let counts = on(RANK_0).list("sendcounts", &sent);
    let counts = counts.list("recvcounts", &received);
    let rows = |counts: [i64; 2]| [counts.iter().sum(), 5];
    in_and_out(counts, &rows(sent), &rows(received))
}

/// The other ranks may be in `MPI_Alltoallv`: each knows its own counts only. What a rank sends
/// may be counted otherwise than what it receives.
#[test]
fn alltoallv_counts_rows_otherwise() {
    let call = [
        &[IN, 1, 3, 0, 1, SECOND_TYPE],
        &[OUT, 5, 0, 0, 5, FLOAT][..],
        &[COMM[0]],
    ];
    assert_eq!(
        calls(14, false, "alltoallv", alltoallv([1, 3], [1, 0])),
        [
            &making(FIRST_TYPE, FIVE)[..],
            &[("MPI_Alltoallv", call.concat())],
            &[("MPI_Type_free", vec![SECOND_TYPE])],
        ]
        .concat()
    );
}

/// Counts of rows that are too many as well are multiples of more.
#[test]
fn alltoallv_counts_several_rows_at_once() {
    let calls = calls(2, false, "alltoallv", alltoallv([4, 2], [6, 12]));
    // Ten floats, and thirty.
    let units = [
        making(FIRST_TYPE, [2, 5, 0, 0, 40]),
        making(FIRST_TYPE + 2, [2, 15, 0, 0, 120]),
    ];
    assert_eq!(calls[..8], units.concat());
    let call = [
        &[IN, 2, 1, 0, 2, FIRST_TYPE + 1],
        &[OUT, 1, 2, 0, 1, FIRST_TYPE + 3][..],
        &[COMM[0]],
    ];
    assert_eq!(calls[8], ("MPI_Alltoallv", call.concat()));
}

#[test]
fn too_many_rows_for_alltoallv_are_refused() {
    let refused = |rows, divisor| {
        invalid(&format!(
            "{rows} rows are more than this MPI takes in one call: 2 times {divisor}, the greatest \
             common divisor of all counts"
        ))
    };
    let too_many_sent = limited(2, false, "alltoallv", alltoallv([1, 3], [1, 0]));
    assert_eq!(too_many_sent, (refused(3, 1), vec![]));
    let too_many_received = limited(2, false, "alltoallv", alltoallv([2, 2], [12, 4]));
    assert_eq!(too_many_received, (refused(12, 4), vec![]));
}

/// A displacement is where the rows of all ranks before end: it may be large where no count is.
#[test]
fn displacements_count_as_well() {
    let call = in_and_out(on(RANK_1).list("counts", &[7, 3]), &[3], &[10]);
    let (last, arguments) = calls(6, true, "allgatherv", call).remove(0);
    assert_eq!(last, "MPI_Allgatherv_c");
    assert_eq!(arguments, [IN, 3, FLOAT, OUT, 7, 3, 0, 7, FLOAT, COMM[1]]);
}

#[test]
fn the_real_limit_is_that_of_an_int() {
    let send = |count| message().operand(floats(IN, &[count]));
    let sent = |count| vec![IN, count, FLOAT, 1, 5, COMM[0]];
    let most = i64::from(i32::MAX);
    {
        let _alone = alone();
        assert_eq!(called("send", send(most)), ("MPI_Send", sent(most)));
        assert_eq!(
            called("send", send(most + 1)),
            ("MPI_Send_c", sent(most + 1))
        );
    }
    // No limit is beyond it.
    assert_eq!(
        calls(i64::MAX, true, "send", send(most + 1)),
        [("MPI_Send_c", sent(most + 1))]
    );
    assert_eq!(
        calls(i64::MAX, false, "send", send(3 * most + 7))[1],
        (
            "MPI_Type_create_struct",
            vec![2, 3, 7, 0, 3 * most * 4, FIRST_TYPE, FLOAT]
        )
    );
}

/// The outcome of a call of many elements in which a function of MPI's fails, and what is called.
fn failed(
    function: &'static str,
    operation: &str,
    call: CallFrame,
) -> (Outcome, Vec<&'static str>) {
    let _alone = alone();
    let body = || raising(function, 9, || run(operation, call));
    let (outcome, calls) = with_limit(LIMIT, false, body);
    (outcome, calls.into_iter().map(|(name, _)| name).collect())
}

fn error_of(function: &str) -> Outcome {
    internal(&format!(
        "r0 | {function} returned error code 9: number 9 is wrong"
    ))
}

/// Types that were made before the error are freed, and nothing is sent.
#[test]
fn errors_of_types_are_errors_of_the_call() {
    let send = || message().operand(floats(IN, &[10]));
    for (function, called) in [
        ("MPI_Type_contiguous", &[][..]),
        (
            "MPI_Type_create_struct",
            &["MPI_Type_create_struct", "MPI_Type_free"],
        ),
        (
            "MPI_Type_commit",
            &[
                "MPI_Type_create_struct",
                "MPI_Type_free",
                "MPI_Type_commit",
                "MPI_Type_free",
            ],
        ),
    ] {
        let expected = [&["MPI_Type_contiguous"], called].concat();
        assert_eq!(
            failed(function, "send", send()),
            (error_of(function), expected)
        );
    }
}

#[test]
fn the_type_is_freed_after_an_error_of_the_call() {
    let (outcome, calls) = failed("MPI_Send", "send", message().operand(floats(IN, &[10])));
    assert_eq!(outcome, error_of("MPI_Send"));
    assert_eq!(calls[4..], ["MPI_Send", "MPI_Type_free"]);
}

/// The function is the one that was meant, as in the log. Its types are freed.
#[test]
fn errors_of_an_exchange_name_the_operation() {
    let (outcome, calls) = failed("MPI_Alltoallw", "scatterv", (ROWS[3].call)());
    assert_eq!(outcome, error_of("MPI_Scatterv"));
    let end = [
        "MPI_Alltoallw",
        "MPI_Type_free",
        "MPI_Type_free",
        "MPI_Type_free",
    ];
    assert_eq!(calls[12..], end);
}

/// The other ranks may be waiting in the chunk that failed.
#[test]
fn no_chunk_follows_one_that_failed() {
    let (outcome, calls) = failed("MPI_Allreduce", "allreduce", reduce(IN, OUT, SUM));
    assert_eq!(outcome, error_of("MPI_Allreduce"));
    assert_eq!(calls, ["MPI_Allreduce"]);
}

/// The elements of the calls, by the first line of each. Types are made without a word.
fn logged(operation: &str, call: CallFrame) -> Vec<String> {
    let lines = logged_lines_of(|| drop(calls(LIMIT, false, operation, call)));
    let last = |line: String| line.split(" | ").last().unwrap().to_owned();
    let lines = lines.into_iter().map(last);
    lines.filter(|line| !line.contains("done with")).collect()
}

#[test]
fn the_log_tells_elements_apart_from_types() {
    assert_eq!(
        logged("send", message().operand(floats(IN, &[10]))),
        ["MPI_Send -> 1 (tag 5, 10 items)"]
    );
    assert_eq!(
        logged("scatterv", (ROWS[3].call)()),
        ["MPI_Scatterv (5 items, root=0)"]
    );
    assert_eq!(
        logged("allreduce", reduce(IN, OUT, SUM)),
        [
            "MPI_Allreduce with 4 items",
            "MPI_Allreduce with 4 items",
            "MPI_Allreduce with 2 items",
        ]
    );
    assert_eq!(
        logged("reduce_scatter", reduce_scatter(SUM)),
        [
            "MPI_Reduce (4 items, root=0)",
            "MPI_Reduce (2 items, root=0)",
            "MPI_Reduce (4 items, root=1)",
            "MPI_Reduce (2 items, root=1)",
        ]
    );
}

/// A nonblocking form makes the calls of the blocking one, in their nonblocking forms.
#[test]
fn nonblocking_forms_count_alike() {
    let moves = || {
        let moves = MOVES.into_iter().take(5);
        moves.map(|case| (case.operation, (case.call)()))
    };
    let reductions = |op| {
        let calls = REDUCTIONS.map(|case| (case.operation, reduce(IN, OUT, op)));
        let scatters = [
            ("reduce_scatter", reduce_scatter(op)),
            ("reduce_scatterv", reduce_scatterv(op)),
        ];
        calls.into_iter().chain(scatters)
    };
    let cases = || moves().chain(reductions(SUM)).chain(reductions(USER_MADE));
    let _alone = alone();
    for use_large in [true, false] {
        for ((operation, call), (_, again)) in cases().zip(cases()) {
            let (_, blocking) = with_limit(LIMIT, use_large, || run(operation, call));
            let start = || Nonblocking::start(operation, again).unwrap();
            let (form, calls) = with_limit(LIMIT, use_large, start);
            assert_alike(&blocking, &calls);
            form.wait();
        }
    }
}

/// There is no nonblocking `MPI_Alltoallw` of many elements in their place: ranks may not know that it
/// is needed.
#[test]
fn nonblocking_rows_of_many_elements_need_64_bits() {
    let _alone = alone();
    for case in ROWS {
        let (_, blocking) = with_limit(14, true, || run(case.operation, (case.call)()));
        let start = || Nonblocking::start(case.operation, (case.call)()).unwrap();
        let (form, calls) = with_limit(14, true, start);
        assert_alike(&blocking, &calls);
        form.wait();
    }
    let mut ticket = [0.0f32; 2];
    let mut rows = [0.0f32; 5];
    let call = root().list("counts", &[1, 3]).ints(&[("may_be_lost", 0)]);
    let call = call.list("arrays", &[F32.into(), 20]);
    let call = call.operand(floats(rows.as_mut_ptr() as i64, &[1, 5]));
    let call = call.result(floats(ticket.as_mut_ptr() as i64, &[2]));
    assert_eq!(
        with_limit(14, false, || refused("igatherv", call)),
        invalid("MPI_Igatherv of more than 14 elements is more than this MPI counts in one call")
    );
}

/// Fails when an operation was added that takes counts, and no test here has many elements for it.
#[test]
fn the_lists_here_have_every_operation_that_counts() {
    let moves = MOVES.map(|case| case.operation);
    let reductions = REDUCTIONS.map(|case| case.operation);
    let rows = ROWS.map(|case| case.operation);
    let others = ["reduce_scatter", "reduce_scatterv", "barrier"];
    // In exchange.rs and neighbors.rs.
    let neighbors = [
        "exchange",
        "neighbor_allgather",
        "neighbor_allgatherv",
        "neighbor_alltoall",
        "neighbor_alltoallv",
    ];
    // In row_counts.rs: they count the same rows, or a few numbers.
    let ragged = [
        "allgatherv_counts",
        "allgatherv_rows",
        "alltoallv_counts",
        "alltoallv_rows",
    ];
    // In agreement.rs: it counts two numbers for each leaf.
    let agreement = ["shared"];
    // In nonblocking.rs, and above with the blocking ones.
    let in_flight = [ops::nonblocking_names(), vec!["wait"]].concat();
    // In local.rs: they count nothing.
    let local = [
        "concatenate",
        "copy",
        "copy_transposed",
        "in_order",
        "order",
        "split",
    ];
    let lists = [
        &moves[..],
        &reductions,
        &rows,
        &others,
        &neighbors,
        &ragged,
        &agreement,
        &in_flight,
        &local,
    ]
    .concat();
    for (operation, _) in ops::host_handlers::<Recorder>() {
        let operation = operation.trim_end_matches("_computed"); // calls the other
        assert!(lists.contains(&operation), "{operation}");
    }
}
