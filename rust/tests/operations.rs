//! The operations, called as XLA calls them, on an MPI that only records what it is asked. Those on
//! rows are in `rows.rs`.

use std::collections::BTreeSet;

use _core::memory::Driver;
use _core::mpi::set_world;
use _core::ops;
use _core::xla::Handler;

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
fn bcast_has_a_result_where_it_writes() {
    let without = on(RANK_1).ints(&[("root", 0)]).operand(floats(IN, &[7]));
    assert_eq!(
        refused("bcast", without),
        invalid("expected 1 result, got 0")
    );
}

/// The result of a call that has one on every rank, after MPI has done nothing. It begins as nines.
fn result_everywhere(operation: &str, call: CallFrame, operand: &[f32], count: usize) -> Vec<f32> {
    let mut result = vec![9.0; count];
    let operand = floats(operand.as_ptr() as i64, &[operand.len() as i64]);
    let mut dims = vec![count as i64];
    if operation == "gather" {
        dims = vec![2, count as i64 / 2];
    }
    let call = call.operand(operand);
    called(
        operation,
        call.result(floats(result.as_mut_ptr() as i64, &dims)),
    );
    result
}

#[test]
fn what_mpi_does_not_write_has_a_value() {
    let root_0 = |comm| allreduce(comm).ints(&[("root", 0)]);
    let operand = [1.0, 2.0, 3.0];
    let nines = [9.0; 3];
    // MPI writes the others, and this one does nothing.
    for (operation, on_root, elsewhere) in [
        ("bcast", &operand[..], &nines[..]),
        ("reduce", &nines, &operand),
        ("gather", &[9.0; 6], &[0.0; 6]),
        ("gatherv", &[9.0; 6], &[0.0; 6]),
    ] {
        for (comm, expected) in [(RANK_0, on_root), (RANK_1, elsewhere)] {
            let call = match operation {
                "gatherv" => root_0(comm).list("counts", &[3, 3]),
                _ => root_0(comm),
            };
            let result = result_everywhere(operation, call, &operand, expected.len());
            assert_eq!(result, expected, "{operation}");
        }
    }
    // What has no elements may be anywhere, and nothing is copied in place.
    for (address, count) in [(0, 0), (IN, 5)] {
        let array = || floats(address, &[count]);
        called("bcast", root_0(RANK_0).operand(array()).result(array()));
        called("reduce", root_0(RANK_1).operand(array()).result(array()));
    }
}

/// Fails if MPI has been called, or memory has been written, before that is found.
#[test]
fn results_that_mpi_does_not_write_have_the_right_shape() {
    let root = |comm, root| allreduce(comm).ints(&[("root", root)]);
    for (operation, call, count) in [
        ("bcast", root(RANK_0, 0), 1),
        ("reduce", root(RANK_1, 0), 1),
        ("gather", root(RANK_1, 0), 2),
    ] {
        assert_eq!(
            refused(operation, in_and_out(call, &[3], &[4])),
            invalid(&format!(
                "arrays do not match: [4] of XLA type 11 is not {count} times [3] of XLA type 11"
            ))
        );
    }
    let two = in_and_out(root(RANK_1, 0), &[3], &[3]).result(floats(OUT, &[3]));
    assert_eq!(
        refused("reduce", two),
        invalid("expected 0 or 1 results, got 2")
    );
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

/// The calls of a reversed scan on a communicator.
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
    // Elsewhere, an operand has the shape of that on root, and is not read.
    assert_eq!(
        called("scatter", scatter(RANK_1).operand(floats(IN, &[2, 3]))),
        ("MPI_Scatter", vec![0, 3, FLOAT, OUT, 3, FLOAT, 0, COMM[1]])
    );
    assert_eq!(
        refused("scatter", scatter(RANK_1).operand(floats(IN, &[2, 4]))),
        invalid("arrays do not match: [2, 4] of XLA type 11 is not 2 times [3] of XLA type 11")
    );
}

#[test]
fn send_reads_the_operand() {
    assert_eq!(
        called("send", send()),
        ("MPI_Send", vec![IN, 5, FLOAT, 1, 9, COMM[0]])
    );
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
        .operand(buffer(S32, IN as usize, &[3]))
        .result(buffer(S32, OUT as usize, &[2, 3]));
    assert_eq!(
        refused("allgather", no_type),
        invalid("no MPI data type for XLA's data type 4")
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
    for dims in [[1 << 62, 4], [i64::MAX, 3]] {
        let call = on(RANK_0)
            .ints(&[("dest", 1), ("tag", 0)])
            .operand(floats(IN, &dims));
        assert_eq!(
            refused("send", call),
            invalid(&format!(
                "an array of shape {dims:?} does not fit into memory"
            ))
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
    // MPICH would wait for ranks that are gone if it was told of another communicator.
    let world = 77_i64;
    // SAFETY: the stand-in takes any handle.
    unsafe { set_world(world as usize) };
    let (_, calls) = failing("MPI_Recv", 6, || run("recv", recv(-1)));
    assert_eq!(calls[1..], [("MPI_Abort", vec![world, 6])]);
}

/// Handlers for devices are tested elsewhere, with a driver. Where this machine has one, the
/// frames of these tests have no stream.
#[test]
#[cfg_attr(miri, ignore = "looks for a driver")]
fn every_handler_for_devices_asks_for_one() {
    let names = |handlers: &[(&'static str, Handler)]| {
        let names = handlers.iter().map(|(name, _)| *name);
        names.collect::<BTreeSet<_>>()
    };
    let handlers = ops::device_handlers::<Recorder>();
    let on_host = names(&ops::host_handlers::<Recorder>());
    let left_to_xla = BTreeSet::from(["concatenate", "copy", "copy_transposed", "split"]);
    assert_eq!(names(&handlers), &on_host - &left_to_xla);
    for (operation, handler) in handlers {
        if operation == "in_order" || operation == "order" {
            continue; // They touch no memory.
        }
        let expected = match Driver::get() {
            Ok(_) => invalid("XLA has no function XLA_FFI_Stream_Get"),
            Err(why) => precondition(&format!("no driver of a GPU can be used: {why}")),
        };
        assert_eq!(on(RANK_0).run(handler), expected, "{operation}");
    }
    assert_eq!(recorded(), []);
}
