//! The operations, called as XLA calls them, on an MPI that only records what it is asked.

use std::collections::BTreeSet;

use _core::memory::Driver;
use _core::mpi::PredefinedOp;
use _core::xla::Handler;
use _core::{log, ops};

mod common;
use common::recorder::*;
use common::*;

#[test]
fn allgather_receives_a_block_from_each_rank() {
    let call = in_and_out(on(RANK_0), &[3], &[2, 3]);
    assert_eq!(
        called("allgather", call),
        ("MPI_Allgather", vec![IN, 3, FLOAT, OUT, 3, FLOAT, COMM[0]])
    );
}

/// MPI would write past the end of the result.
#[test]
fn allgather_needs_room_for_each_rank() {
    let call = in_and_out(on(RANK_0), &[3], &[1, 3]);
    assert_eq!(
        refused("allgather", call),
        invalid("arrays do not match: [1, 3] of XLA type 11 is not 2 times [3] of XLA type 11")
    );
}

fn allreduce(comm: i64) -> CallFrame {
    on(comm).ints(&[("op_number", SUM)])
}

#[test]
fn allreduce_passes_both_arrays() {
    let call = allreduce(RANK_1)
        .operand(floats(IN, &[2, 3]))
        .operand(token())
        .result(floats(OUT, &[2, 3]))
        .result(token());
    assert_eq!(
        called("allreduce", call),
        (
            "MPI_Allreduce",
            vec![IN, OUT, 6, FLOAT, SUM_HANDLE, COMM[1]]
        )
    );
}

#[test]
fn one_array_is_reduced_in_place() {
    for (operation, function) in [
        ("allreduce", "MPI_Allreduce"),
        ("exscan", "MPI_Exscan"),
        ("scan", "MPI_Scan"),
    ] {
        let call = scan(RANK_0)
            .operand(floats(IN, &[4]))
            .result(floats(IN, &[4]));
        assert_eq!(
            called(operation, call),
            (function, vec![IN_PLACE, IN, 4, FLOAT, SUM_HANDLE, COMM[0]])
        );
    }
}

#[test]
fn allreduce_takes_arrays_of_one_shape_and_type() {
    let call = in_and_out(allreduce(RANK_0), &[4], &[5]);
    assert_eq!(
        refused("allreduce", call),
        invalid("arrays do not match: [5] of XLA type 11 is not 1 times [4] of XLA type 11")
    );
    let call = allreduce(RANK_0)
        .operand(floats(IN, &[4]))
        .result(buffer(S64, OUT as usize, &[4]));
    assert_eq!(
        refused("allreduce", call),
        invalid("arrays do not match: [4] of XLA type 5 is not 1 times [4] of XLA type 11")
    );
}

#[test]
fn alltoall_sends_a_block_to_each_rank() {
    let call = in_and_out(on(RANK_0), &[2, 5], &[2, 5]);
    assert_eq!(
        called("alltoall", call),
        ("MPI_Alltoall", vec![IN, 5, FLOAT, OUT, 5, FLOAT, COMM[0]])
    );
}

#[test]
fn alltoall_needs_a_block_for_each_rank() {
    let call = in_and_out(on(RANK_0), &[4, 5], &[4, 5]);
    assert_eq!(
        refused("alltoall", call),
        invalid(
            "an array of shape [4, 5] can't be sent to 2 ranks: its first axis must have size 2"
        )
    );
    let call = in_and_out(on(RANK_0), &[], &[]);
    assert_eq!(
        refused("alltoall", call),
        invalid("an array of shape [] can't be sent to 2 ranks: its first axis must have size 2")
    );
}

#[test]
fn barrier_takes_nothing_but_a_token() {
    let call = on(RANK_1).operand(token()).result(token());
    assert_eq!(called("barrier", call), ("MPI_Barrier", vec![COMM[1]]));
}

#[test]
fn bcast_reads_on_root() {
    let call = on(RANK_0).ints(&[("root", 0)]).operand(floats(IN, &[7]));
    assert_eq!(
        called("bcast", call),
        ("MPI_Bcast", vec![IN, 7, FLOAT, 0, COMM[0]])
    );
}

#[test]
fn bcast_writes_elsewhere() {
    let call = on(RANK_1)
        .ints(&[("root", 0)])
        .operand(floats(IN, &[7]))
        .result(floats(OUT, &[7]));
    assert_eq!(
        called("bcast", call),
        ("MPI_Bcast", vec![OUT, 7, FLOAT, 0, COMM[1]])
    );
}

#[test]
fn bcast_has_a_result_where_it_writes_and_only_there() {
    let without = on(RANK_1).ints(&[("root", 0)]).operand(floats(IN, &[7]));
    assert_eq!(
        refused("bcast", without),
        invalid("expected 1 result, got 0")
    );
    let with = on(RANK_0)
        .ints(&[("root", 0)])
        .operand(floats(IN, &[7]))
        .result(floats(OUT, &[7]));
    assert_eq!(refused("bcast", with), invalid("expected 0 results, got 1"));
}

#[test]
fn gather_receives_on_root_only() {
    let gather = |comm| on(comm).ints(&[("root", 1)]).operand(floats(IN, &[3]));
    assert_eq!(
        called("gather", gather(RANK_1).result(floats(OUT, &[2, 3]))),
        ("MPI_Gather", vec![IN, 3, FLOAT, OUT, 3, FLOAT, 1, COMM[1]])
    );
    assert_eq!(
        called("gather", gather(RANK_0)),
        ("MPI_Gather", vec![IN, 3, FLOAT, 0, 3, FLOAT, 1, COMM[0]])
    );
    assert_eq!(
        refused("gather", gather(RANK_1).result(floats(OUT, &[3]))),
        invalid("arrays do not match: [3] of XLA type 11 is not 2 times [3] of XLA type 11")
    );
}

#[test]
fn reduce_receives_on_root_only() {
    let reduce = |comm| {
        allreduce(comm)
            .ints(&[("root", 0)])
            .operand(floats(IN, &[3]))
    };
    assert_eq!(
        called("reduce", reduce(RANK_0).result(floats(OUT, &[3]))),
        (
            "MPI_Reduce",
            vec![IN, OUT, 3, FLOAT, SUM_HANDLE, 0, COMM[0]]
        )
    );
    assert_eq!(
        called("reduce", reduce(RANK_0).result(floats(IN, &[3]))),
        (
            "MPI_Reduce",
            vec![IN_PLACE, IN, 3, FLOAT, SUM_HANDLE, 0, COMM[0]]
        )
    );
    assert_eq!(
        called("reduce", reduce(RANK_1)),
        ("MPI_Reduce", vec![IN, 0, 3, FLOAT, SUM_HANDLE, 0, COMM[1]])
    );
}

/// MPI allows `MPI_IN_PLACE` on root only (MPI-4.1 §6.9.1), and XLA may keep an empty array at
/// the null address, which is also that of the result that is not there.
#[test]
fn reduce_of_an_empty_array_is_in_place_nowhere_but_on_root() {
    let call = allreduce(RANK_1)
        .ints(&[("root", 0)])
        .operand(floats(0, &[0]));
    assert_eq!(
        called("reduce", call),
        ("MPI_Reduce", vec![0, 0, 0, FLOAT, SUM_HANDLE, 0, COMM[1]])
    );
}

#[test]
fn reduce_scatter_receives_one_block() {
    let call = |operand: &[i64]| in_and_out(allreduce(RANK_1), operand, &[3]);
    assert_eq!(
        called("reduce_scatter", call(&[2, 3])),
        (
            "MPI_Reduce_scatter_block",
            vec![IN, OUT, 3, FLOAT, SUM_HANDLE, COMM[1]]
        )
    );
    assert_eq!(
        refused("reduce_scatter", call(&[3, 3])),
        invalid("arrays do not match: [3, 3] of XLA type 11 is not 2 times [3] of XLA type 11")
    );
}

fn scan(comm: i64) -> CallFrame {
    allreduce(comm).ints(&[("reverse", 0)])
}

#[test]
fn scans_pass_both_arrays() {
    for (operation, function) in [("exscan", "MPI_Exscan"), ("scan", "MPI_Scan")] {
        let call = in_and_out(scan(RANK_0), &[3], &[3]);
        assert_eq!(
            called(operation, call),
            (function, vec![IN, OUT, 3, FLOAT, SUM_HANDLE, COMM[0]])
        );
    }
}

/// What a reversed scan on a communicator calls.
fn reversed(operation: &str, index: i64) -> (Outcome, Vec<Recorded>) {
    let call = allreduce(index)
        .ints(&[("reverse", 1)])
        .operand(floats(IN, &[3]))
        .result(floats(IN, &[3]));
    run(operation, call)
}

#[test]
fn a_reversed_communicator_is_made_once_and_freed() {
    let (index, handle) = new_communicator();
    let arguments = vec![IN_PLACE, IN, 3, FLOAT, SUM_HANDLE, handle + REVERSED];
    let split = ("MPI_Comm_split", vec![handle, 0, 0]);
    assert_eq!(
        reversed("scan", index),
        (Ok(()), vec![split, ("MPI_Scan", arguments.clone())])
    );
    assert_eq!(
        reversed("exscan", index),
        (Ok(()), vec![("MPI_Exscan", arguments)])
    );
    ops::free_communicator::<Recorder>(index as usize);
    assert_eq!(
        recorded(),
        [("MPI_Comm_free", vec![handle + REVERSED])],
        "freed another, or none"
    );
    ops::free_communicator::<Recorder>(index as usize);
    assert_eq!(recorded(), [], "freed twice");
    assert!(reversed("scan", index).0.is_err(), "usable when freed");
}

#[test]
fn a_communicator_without_a_reversed_one_is_just_forgotten() {
    let (index, _) = new_communicator();
    called("barrier", on(index));
    ops::free_communicator::<Recorder>(index as usize);
    assert_eq!(recorded(), []);
}

/// MPI may not be called any more.
#[test]
fn nothing_is_freed_after_the_end_of_mpi() {
    let (index, _) = new_communicator();
    assert_eq!(reversed("scan", index).0, Ok(()));
    after_the_end(|| ops::free_communicator::<Recorder>(index as usize));
    assert_eq!(recorded(), []);
}

/// Fails when the error leaves a communicator behind that was never made.
#[test]
fn a_reversed_communicator_that_could_not_be_made_is_tried_again() {
    let _alone = alone();
    let (index, handle) = new_communicator();
    let (outcome, calls) = raising("MPI_Comm_split", 5, || reversed("scan", index));
    assert_eq!(
        outcome,
        internal("r1 | MPI_Comm_split returned error code 5: number 5 is wrong")
    );
    let split = ("MPI_Comm_split", vec![handle, 0, 0]);
    assert_eq!(calls, std::slice::from_ref(&split));
    assert_eq!(reversed("scan", index).1[0], split);
}

#[test]
fn scatter_sends_on_root_only() {
    let scatter = |comm| on(comm).ints(&[("root", 0)]).result(floats(OUT, &[3]));
    assert_eq!(
        called("scatter", scatter(RANK_0).operand(floats(IN, &[2, 3]))),
        ("MPI_Scatter", vec![IN, 3, FLOAT, OUT, 3, FLOAT, 0, COMM[0]])
    );
    assert_eq!(
        called("scatter", scatter(RANK_1)),
        ("MPI_Scatter", vec![0, 3, FLOAT, OUT, 3, FLOAT, 0, COMM[1]])
    );
    assert_eq!(
        refused("scatter", scatter(RANK_0).operand(floats(IN, &[4]))),
        invalid("arrays do not match: [4] of XLA type 11 is not 2 times [3] of XLA type 11")
    );
    assert_eq!(
        refused("scatter", scatter(RANK_1).operand(floats(IN, &[2, 3]))),
        invalid("expected 0 operands, got 1")
    );
}

#[test]
fn allgatherv_receives_the_rows_of_each_rank() {
    let call = on(RANK_1)
        .list("counts", &[1, 2])
        .operand(floats(IN, &[2, 5]))
        .result(floats(OUT, &[3, 5]));
    let lists = [5, 10, 0, 5];
    assert_eq!(
        called("allgatherv", call),
        (
            "MPI_Allgatherv",
            [&[IN, 10, FLOAT, OUT], &lists[..], &[FLOAT, COMM[1]]].concat()
        )
    );
}

/// All but one rank may have nothing.
#[test]
fn allgatherv_takes_no_rows() {
    let call = on(RANK_0)
        .list("counts", &[0, 2])
        .operand(floats(IN, &[0]))
        .result(floats(OUT, &[2]));
    assert_eq!(
        called("allgatherv", call),
        (
            "MPI_Allgatherv",
            vec![IN, 0, FLOAT, OUT, 0, 2, 0, 0, FLOAT, COMM[0]]
        )
    );
}

#[test]
fn alltoallv_sends_rows_to_each_rank() {
    let call = on(RANK_0)
        .list("sendcounts", &[1, 3])
        .list("recvcounts", &[2, 0])
        .operand(floats(IN, &[4, 5]))
        .result(floats(OUT, &[2, 5]));
    let (sent, received) = ([5, 15, 0, 5], [10, 0, 0, 10]);
    assert_eq!(
        called("alltoallv", call),
        (
            "MPI_Alltoallv",
            [
                &[IN],
                &sent[..],
                &[FLOAT, OUT],
                &received,
                &[FLOAT, COMM[0]]
            ]
            .concat()
        )
    );
}

#[test]
fn gatherv_receives_on_root_only() {
    let gatherv = |comm| on(comm).list("counts", &[1, 2]).ints(&[("root", 1)]);
    let on_root = gatherv(RANK_1)
        .operand(floats(IN, &[2, 5]))
        .result(floats(OUT, &[3, 5]));
    assert_eq!(
        called("gatherv", on_root),
        (
            "MPI_Gatherv",
            vec![IN, 10, FLOAT, OUT, 5, 10, 0, 5, FLOAT, 1, COMM[1]]
        )
    );
    let elsewhere = gatherv(RANK_0).operand(floats(IN, &[1, 5]));
    assert_eq!(
        called("gatherv", elsewhere),
        (
            "MPI_Gatherv",
            vec![IN, 5, FLOAT, 0, 5, 10, 0, 5, FLOAT, 1, COMM[0]]
        )
    );
}

#[test]
fn scatterv_sends_on_root_only() {
    let scatterv = |comm| on(comm).list("counts", &[1, 2]).ints(&[("root", 0)]);
    let on_root = scatterv(RANK_0)
        .operand(floats(IN, &[3, 5]))
        .result(floats(OUT, &[1, 5]));
    assert_eq!(
        called("scatterv", on_root),
        (
            "MPI_Scatterv",
            vec![IN, 5, 10, 0, 5, FLOAT, OUT, 5, FLOAT, 0, COMM[0]]
        )
    );
    let elsewhere = scatterv(RANK_1).result(floats(OUT, &[2, 5]));
    assert_eq!(
        called("scatterv", elsewhere),
        (
            "MPI_Scatterv",
            vec![0, 5, 10, 0, 5, FLOAT, OUT, 10, FLOAT, 0, COMM[1]]
        )
    );
}

/// Rank 0's part of calls in which the ranks have one and two rows.
fn vector_call(
    operation: &str,
    counts: &[i64],
    own: Buffer,
    all: Buffer,
) -> (Outcome, Vec<Recorded>) {
    let call = match operation {
        "alltoallv" => on(RANK_0)
            .list("sendcounts", counts)
            .list("recvcounts", &[0, 1])
            .operand(all)
            .result(own),
        "scatterv" => on(RANK_0).list("counts", counts).operand(all).result(own),
        _ => on(RANK_0).list("counts", counts).operand(own).result(all),
    };
    run(operation, call.ints(&[("root", 0)]))
}

const VECTOR_OPERATIONS: [&str; 4] = ["allgatherv", "alltoallv", "gatherv", "scatterv"];

#[test]
fn counts_must_be_one_for_each_rank() {
    for operation in VECTOR_OPERATIONS {
        let name = match operation {
            "alltoallv" => "sendcounts",
            _ => "counts",
        };
        for counts in [&[][..], &[1], &[1, 1, 1], &[4, -1]] {
            let (own, all) = (floats(IN, &[1, 5]), floats(OUT, &[3, 5]));
            let text = format!(
                "attribute `{name}` is {counts:?}, expected a number of rows for each of 2 ranks"
            );
            assert_eq!(
                vector_call(operation, counts, own, all),
                (invalid(&text), vec![]),
                "{operation}"
            );
        }
    }
}

/// MPI would read or write past the end of an array.
#[test]
fn arrays_must_have_the_rows_of_the_counts() {
    let text = |dims: &[i64], rows| {
        invalid(&format!(
            "an array of shape {dims:?} has not the {rows} rows that the call says"
        ))
    };
    for operation in VECTOR_OPERATIONS {
        for dims in [&[2, 5][..], &[4, 5], &[]] {
            let (own, all) = (floats(IN, &[1, 5]), floats(OUT, dims));
            let (outcome, calls) = vector_call(operation, &[1, 2], own, all);
            assert_eq!((outcome, calls), (text(dims, 3), vec![]), "{operation}");
        }
        for dims in [&[2, 5][..], &[0, 5], &[]] {
            let (own, all) = (floats(IN, dims), floats(OUT, &[3, 5]));
            let (outcome, calls) = vector_call(operation, &[1, 2], own, all);
            assert_eq!((outcome, calls), (text(dims, 1), vec![]), "{operation}");
        }
    }
}

#[test]
fn rows_must_be_alike() {
    for operation in VECTOR_OPERATIONS {
        for (all, text) in [
            (floats(OUT, &[3, 4]), "[3, 4] of XLA type 11"),
            (floats(OUT, &[3, 5, 1]), "[3, 5, 1] of XLA type 11"),
            (buffer(S64, OUT as usize, &[3, 5]), "[3, 5] of XLA type 5"),
        ] {
            let own = floats(IN, &[1, 5]);
            let (outcome, calls) = vector_call(operation, &[1, 2], own, all);
            let (first, second) = match operation {
                "alltoallv" => (text, "[1, 5] of XLA type 11"),
                _ => ("[1, 5] of XLA type 11", text),
            };
            let text = format!("arrays do not match: rows of {first} are not those of {second}");
            assert_eq!((outcome, calls), (invalid(&text), vec![]), "{operation}");
        }
    }
}

/// Sums that overflow are no way around the checks.
#[test]
fn absurd_counts_are_refused() {
    for counts in [[i64::MAX, i64::MAX], [1, i64::MAX]] {
        let (own, all) = (floats(IN, &[counts[0], 5]), floats(OUT, &[3, 5]));
        let (outcome, calls) = vector_call("gatherv", &counts, own, all);
        assert_eq!(
            (outcome, calls),
            (
                invalid(
                    "an array of shape [3, 5] has not the 9223372036854775807 rows that the call \
                     says"
                ),
                vec![]
            )
        );
    }
}

fn send() -> CallFrame {
    on(RANK_0)
        .ints(&[("dest", 1), ("tag", 9)])
        .operand(floats(IN, &[5]))
}

#[test]
fn send_reads_the_operand() {
    assert_eq!(
        called("send", send()),
        ("MPI_Send", vec![IN, 5, FLOAT, 1, 9, COMM[0]])
    );
}

fn recv(status: i64) -> CallFrame {
    on(RANK_1)
        .ints(&[("source", -2), ("tag", -1), ("status_number", status)])
        .result(floats(OUT, &[5]))
}

#[test]
fn recv_writes_the_result_and_a_status_if_there_is_one() {
    assert_eq!(
        called("recv", recv(-1)),
        (
            "MPI_Recv",
            vec![OUT, 5, FLOAT, -2, -1, COMM[1], STATUS_IGNORE]
        )
    );
    assert_eq!(
        called("recv", recv(STATUS)),
        (
            "MPI_Recv",
            vec![OUT, 5, FLOAT, -2, -1, COMM[1], STATUS_ADDRESS]
        )
    );
    assert_eq!(
        refused("recv", recv(99)),
        precondition("status 99 is unknown")
    );
}

fn sendrecv(status: i64) -> CallFrame {
    on(RANK_0).ints(&[
        ("dest", 1),
        ("sendtag", 2),
        ("source", 3),
        ("recvtag", 4),
        ("status_number", status),
    ])
}

#[test]
fn sendrecv_passes_both_arrays() {
    let call = in_and_out(sendrecv(STATUS), &[5], &[2, 3]);
    assert_eq!(
        called("sendrecv", call),
        (
            "MPI_Sendrecv",
            vec![
                IN,
                5,
                FLOAT,
                1,
                2,
                OUT,
                6,
                FLOAT,
                3,
                4,
                COMM[0],
                STATUS_ADDRESS,
            ]
        )
    );
}

#[test]
fn sendrecv_replaces_one_array() {
    let call = sendrecv(-1)
        .operand(floats(IN, &[5]))
        .result(floats(IN, &[5]));
    assert_eq!(
        called("sendrecv", call),
        (
            "MPI_Sendrecv_replace",
            vec![IN, 5, FLOAT, 1, 2, 3, 4, COMM[0], STATUS_IGNORE]
        )
    );
}

/// Empty arrays may all have the null address, and need not have equal types.
#[test]
fn sendrecv_of_nothing_replaces_nothing() {
    let call = sendrecv(-1)
        .operand(floats(0, &[0]))
        .result(floats(0, &[0]));
    assert_eq!(
        called("sendrecv", call),
        (
            "MPI_Sendrecv",
            vec![0, 0, FLOAT, 1, 2, 0, 0, FLOAT, 3, 4, COMM[0], STATUS_IGNORE]
        )
    );
}

#[test]
fn a_freed_communicator_is_an_error() {
    let text = |index| {
        format!(
            "communicator {index} was freed, or is not one of this process: a compiled function \
             can only be called while the communicator it was traced with exists"
        )
    };
    for index in [FREED, 1000, -1] {
        assert_eq!(refused("barrier", on(index)), precondition(&text(index)));
    }
}

#[test]
fn what_the_registry_does_not_know_is_an_error() {
    let no_type = on(RANK_0)
        .operand(buffer(TOKEN + 1, IN as usize, &[3]))
        .result(buffer(TOKEN + 1, OUT as usize, &[2, 3]));
    assert_eq!(
        refused("allgather", no_type),
        invalid("no MPI data type for XLA's data type 18")
    );
    let no_operator = on(RANK_0)
        .ints(&[("op_number", NO_OPERATOR)])
        .operand(floats(IN, &[3]))
        .result(floats(OUT, &[3]));
    assert_eq!(
        refused("allreduce", no_operator),
        precondition(&format!("reduction operator {NO_OPERATOR} is unknown"))
    );
}

#[test]
fn an_array_must_have_a_size() {
    for dims in [&[-1][..], &[1 << 62, 4], &[i64::MAX, 3]] {
        let call = on(RANK_0)
            .ints(&[("dest", 1), ("tag", 0)])
            .operand(floats(IN, dims));
        assert_eq!(
            refused("send", call),
            invalid(&format!(
                "an array of shape {dims:?} does not fit into memory"
            ))
        );
    }
}

/// A reduction of this operator's number on elements of 16 bits, or of 32.
fn reduction(number: i64, dtype: i32) -> CallFrame {
    on(RANK_0)
        .ints(&[("op_number", number)])
        .operand(buffer(dtype, IN as usize, &[3]))
        .result(buffer(dtype, IN as usize, &[3]))
}

/// The handle of the operator that a reduction passes, and whether it was made for that.
fn operator_of(call: CallFrame) -> (i64, bool) {
    let (outcome, mut calls) = run("allreduce", call);
    assert_eq!(outcome, Ok(()));
    let (_, arguments) = calls.pop().unwrap();
    let commutative = ("MPI_Op_create", vec![1]);
    assert!(calls.iter().all(|call| *call == commutative), "{calls:?}");
    (arguments[4], calls.len() == 1)
}

/// What MPI gets from an operator for one pair of elements.
fn reduced(op: i64, left: u16, right: u16) -> u16 {
    let (mut input, mut inout, mut len, mut datatype) = (left, right, 1, std::ptr::null_mut());
    // SAFETY: both vectors have one element.
    unsafe {
        function_of(op).unwrap()(
            std::ptr::from_mut(&mut input).cast(),
            std::ptr::from_mut(&mut inout).cast(),
            &raw mut len,
            &raw mut datatype,
        );
    }
    inout
}

/// The one test that uses them: they are made once for the whole process.
#[test]
fn half_floats_have_operators_of_their_own_made_once() {
    let operators = [
        PredefinedOp::Sum,
        PredefinedOp::Prod,
        PredefinedOp::Max,
        PredefinedOp::Min,
    ];
    // Two and a half, in both formats.
    let values = [(F16, 0x4000, 0x3800), (BF16, 0x4000, 0x3f00)];
    // Two and a half, one, two, a half.
    let expected = [
        (F16, [0x4100, 0x3c00, 0x4000, 0x3800]),
        (BF16, [0x4020, 0x3f80, 0x4000, 0x3f00]),
    ];
    let mut handles = vec![];
    for ((dtype, two, half), (_, expected)) in values.into_iter().zip(expected) {
        for (op, expected) in operators.into_iter().zip(expected) {
            let (handle, was_made) = operator_of(reduction(op.number(), dtype));
            assert!(was_made);
            assert_eq!(reduced(handle, two, half), expected);
            assert_eq!(operator_of(reduction(op.number(), dtype)), (handle, false));
            assert!(!handles.contains(&handle));
            handles.push(handle);
        }
    }
}

#[test]
fn half_floats_have_no_other_operators_of_mpi() {
    for (op, dtype) in [(PredefinedOp::Land, F16), (PredefinedOp::NoOp, BF16)] {
        let number = op.number();
        assert_eq!(
            refused("allreduce", reduction(number, dtype)),
            invalid(&format!(
                "reduction operator {number} is not for elements of XLA type {dtype}"
            ))
        );
    }
}

#[test]
fn half_floats_may_have_operators_that_users_made() {
    assert_eq!(
        operator_of(reduction(USER_MADE, BF16)),
        (USER_MADE_HANDLE, false)
    );
}

#[test]
fn other_types_have_the_operators_of_mpi() {
    for op in PredefinedOp::ALL {
        assert_eq!(
            operator_of(reduction(op.number(), F32)),
            (handle_of(*op), false)
        );
    }
}

/// As integers, which is what MPI moves them as.
#[test]
fn half_floats_are_moved() {
    for dtype in [F16, BF16] {
        let call =
            on(RANK_0)
                .ints(&[("dest", 1), ("tag", 9)])
                .operand(buffer(dtype, IN as usize, &[5]));
        assert_eq!(
            called("send", call),
            ("MPI_Send", vec![IN, 5, SHORT, 1, 9, COMM[0]])
        );
    }
}

#[test]
fn a_missing_attribute_is_an_error() {
    assert_eq!(
        refused("barrier", CallFrame::default()),
        invalid("attribute `comm_number` is missing")
    );
    assert_eq!(
        refused("send", on(RANK_0).operand(floats(IN, &[5]))),
        invalid("attribute `dest` is missing")
    );
}

#[test]
fn an_error_of_mpi_is_raised_where_asked_for() {
    let _alone = alone();
    let (outcome, calls) = raising("MPI_Send", 6, || run("send", send()));
    assert_eq!(
        outcome,
        internal("r0 | MPI_Send returned error code 6: number 6 is wrong")
    );
    assert_eq!(
        calls,
        [("MPI_Send", vec![IN, 5, FLOAT, 1, 9, COMM[0]])],
        "aborted"
    );
}

#[test]
fn an_error_of_mpi_ends_all_ranks_otherwise() {
    let _alone = alone();
    let (outcome, calls) = failing("MPI_Recv", 6, || run("recv", recv(-1)));
    assert_eq!(calls[0].0, "MPI_Recv");
    assert_eq!(calls[1..], [("MPI_Abort", vec![COMM[1], 6])]);
    // Seen only where MPI_Abort returns, which the stand-in does.
    assert_eq!(
        outcome,
        internal("r1 | MPI_Recv returned error code 6: number 6 is wrong")
    );
}

/// The lines of one call, with its id and its seconds, which differ each time, taken out after a
/// look at their form.
fn logged(operation: &str, call: CallFrame) -> Vec<String> {
    let lines = logged_lines_of(|| drop(run(operation, call)));
    let id = lines[0].split(" | ").nth(1).unwrap().to_owned();
    assert_eq!(id.len(), 8, "{lines:?}");
    assert!(
        id.bytes()
            .all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase()),
        "{lines:?}"
    );
    lines
        .iter()
        .map(|line| without_seconds(&line.replace(&format!(" | {id} | "), " | ID | ")))
        .collect()
}

/// Cuts `(1.23e-05s)` off the end of a line, where there is one.
fn without_seconds(line: &str) -> String {
    let Some((rest, seconds)) = line.split_once(" done with code ") else {
        return line.to_owned();
    };
    let (code, seconds) = seconds.split_once(' ').unwrap();
    let form: String = seconds
        .chars()
        .map(|character| {
            if character.is_ascii_digit() {
                '9'
            } else {
                character
            }
        })
        .collect();
    assert!(
        ["(9.99e-99s)", "(9.99e+99s)"].contains(&form.as_str()),
        "{line}"
    );
    format!("{rest} done with code {code}")
}

/// A call of each operation: how its two lines begin, and what the first one says further.
fn logged_calls() -> Vec<(&'static str, CallFrame, &'static str, &'static str)> {
    let at_root = |comm| on(comm).ints(&[("op_number", SUM), ("root", 0)]);
    let counts = |call: CallFrame| call.list("counts", &[1, 2]);
    let both_counts = on(RANK_0).list("sendcounts", &[1, 2]);
    let both_counts = both_counts.list("recvcounts", &[1, 0]);
    vec![
        (
            "allgather",
            in_and_out(on(RANK_0), &[3], &[2, 3]),
            "r0 | ID | MPI_Allgather",
            " (3 items)",
        ),
        (
            "allgatherv",
            in_and_out(counts(on(RANK_0)), &[1, 3], &[3, 3]),
            "r0 | ID | MPI_Allgatherv",
            " (3 items)",
        ),
        (
            "allreduce",
            in_and_out(allreduce(RANK_1), &[2, 3], &[2, 3]),
            "r1 | ID | MPI_Allreduce",
            " with 6 items",
        ),
        (
            "alltoall",
            in_and_out(on(RANK_0), &[2, 5], &[2, 5]),
            "r0 | ID | MPI_Alltoall",
            " (5 items)",
        ),
        (
            "alltoallv",
            in_and_out(both_counts, &[3, 3], &[1, 3]),
            "r0 | ID | MPI_Alltoallv",
            " (9 items sent, 3 items received)",
        ),
        ("barrier", on(RANK_1), "r1 | ID | MPI_Barrier", ""),
        (
            "bcast",
            at_root(RANK_0).operand(floats(IN, &[7])),
            "r0 | ID | MPI_Bcast",
            " (7 items, root=0)",
        ),
        (
            "exscan",
            in_and_out(scan(RANK_0), &[3], &[3]),
            "r0 | ID | MPI_Exscan",
            " (3 items)",
        ),
        (
            "gather",
            at_root(RANK_1).operand(floats(IN, &[3])),
            "r1 | ID | MPI_Gather",
            " (3 items, root=0)",
        ),
        (
            "gatherv",
            counts(at_root(RANK_1)).operand(floats(IN, &[2, 3])),
            "r1 | ID | MPI_Gatherv",
            " (6 items, root=0)",
        ),
        (
            "recv",
            recv(-1),
            "r1 | ID | MPI_Recv",
            " <- -2 (tag -1, 5 items)",
        ),
        (
            "reduce",
            at_root(RANK_1).operand(floats(IN, &[3])),
            "r1 | ID | MPI_Reduce",
            " (3 items, root=0)",
        ),
        (
            "reduce_scatter",
            in_and_out(allreduce(RANK_0), &[2, 3], &[3]),
            "r0 | ID | MPI_Reduce_scatter_block",
            " (3 items)",
        ),
        (
            "scan",
            in_and_out(scan(RANK_0), &[3], &[3]),
            "r0 | ID | MPI_Scan",
            " (3 items)",
        ),
        (
            "scatter",
            at_root(RANK_1).result(floats(OUT, &[3])),
            "r1 | ID | MPI_Scatter",
            " (3 items, root=0)",
        ),
        (
            "scatterv",
            counts(at_root(RANK_1)).result(floats(OUT, &[2, 3])),
            "r1 | ID | MPI_Scatterv",
            " (6 items, root=0)",
        ),
        (
            "send",
            send(),
            "r0 | ID | MPI_Send",
            " -> 1 (tag 9, 5 items)",
        ),
        (
            "sendrecv",
            in_and_out(sendrecv(-1), &[5], &[2, 3]),
            "r0 | ID | MPI_Sendrecv",
            " <- 3 (tag 4, 6 items) / -> 1 (tag 2, 5 items)",
        ),
    ]
}

#[test]
fn each_call_has_two_lines_in_the_log() {
    let _alone = alone();
    for (operation, call, who, what) in logged_calls() {
        assert_eq!(
            logged(operation, call),
            [format!("{who}{what}"), format!("{who} done with code 0")]
        );
    }
}

fn names(handlers: &[(&'static str, Handler)]) -> BTreeSet<&'static str> {
    handlers.iter().map(|(name, _)| *name).collect()
}

/// Fails when an operation was added that no test here calls.
#[test]
fn every_handler_is_called() {
    let called: BTreeSet<_> = logged_calls().iter().map(|call| call.0).collect();
    assert_eq!(called, names(&ops::host_handlers::<Recorder>()));
}

/// What they do with a device is tested elsewhere, with a driver. Where this machine has one, the
/// frames of these tests have no stream.
#[test]
#[cfg_attr(miri, ignore = "looks for a driver")]
fn every_handler_for_devices_asks_for_one() {
    let handlers = ops::device_handlers::<Recorder>();
    assert_eq!(names(&handlers), names(&ops::host_handlers::<Recorder>()));
    for (operation, handler) in handlers {
        let expected = match Driver::get() {
            Ok(_) => invalid("XLA has no function XLA_FFI_Stream_Get"),
            Err(why) => precondition(&format!("no driver of a GPU can be used: {why}")),
        };
        assert_eq!(on(RANK_0).run(handler), expected, "{operation}");
    }
    assert_eq!(recorded(), []);
}

#[test]
fn the_log_has_the_code_of_an_error() {
    let _alone = alone();
    let lines = raising("MPI_Send", 6, || logged("send", send()));
    assert_eq!(
        lines,
        [
            "r0 | ID | MPI_Send -> 1 (tag 9, 5 items)",
            "r0 | ID | MPI_Send done with code 6",
        ]
    );
}

/// Fails when a call pays for a log that nobody asked for.
#[test]
fn nothing_is_logged_by_default() {
    let _alone = alone();
    assert!(!log::is_enabled());
    assert_eq!(lines_of(|| drop(called("send", send()))), [""; 0]);
}
