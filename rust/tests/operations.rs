//! The operations, called as XLA calls them, on an MPI that only records what it is asked.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use _core::mpi::{Abi, Communicator, Datatype, Functions, REGISTRY, Types};
use _core::{log, ops};

mod common;
use common::*;

/// An ABI of its own, with ints and pointers mixed and values that no real MPI has.
struct Recorder;

impl Types for Recorder {
    type Comm = c_int;
    type Datatype = *mut c_void;
    type Op = c_int;
    type Status = c_void;
}

const IN_PLACE: i64 = 0x777;
const STATUS_IGNORE: i64 = 0x888;

impl Abi for Recorder {
    const IN_PLACE: usize = IN_PLACE as usize;
    const STATUS_IGNORE: usize = STATUS_IGNORE as usize;

    fn functions() -> &'static OnceLock<Functions<Self>> {
        static FUNCTIONS: OnceLock<Functions<Recorder>> = OnceLock::new();
        &FUNCTIONS
    }
}

/// A call of MPI: the function and its arguments, pointers as their addresses.
type Recorded = (&'static str, Vec<i64>);

thread_local! {
    // Each test runs on a thread of its own, and so do the calls that it makes.
    static CALLS: RefCell<Vec<Recorded>> = const { RefCell::new(Vec::new()) };
    static CODE: Cell<c_int> = const { Cell::new(0) };
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

trait Word {
    fn word(self) -> i64;
}

impl Word for c_int {
    fn word(self) -> i64 {
        self.into()
    }
}

impl<T> Word for *const T {
    fn word(self) -> i64 {
        self as i64
    }
}

impl<T> Word for *mut T {
    fn word(self) -> i64 {
        self as i64
    }
}

/// A C function of as many arguments as there are letters, of the types that its place in the
/// table gives them.
macro_rules! recorder {
    ($name:literal $($argument:ident)*) => {{
        #[allow(non_snake_case)]
        unsafe extern "C" fn called<$($argument: Word),*>($($argument: $argument),*) -> c_int {
            let arguments = vec![$($argument.word()),*];
            CALLS.with_borrow_mut(|calls| calls.push(($name, arguments)));
            CODE.get()
        }
        called
    }};
}

unsafe extern "C" fn error_string(code: c_int, text: *mut c_char, length: *mut c_int) -> c_int {
    let message = format!("number {code} is wrong");
    // SAFETY: MPI may write MPI_MAX_ERROR_STRING bytes.
    unsafe {
        ptr::copy_nonoverlapping(message.as_ptr(), text.cast(), message.len());
        *length = message.len() as c_int;
    }
    0
}

fn functions() -> Functions<Recorder> {
    Functions {
        abort: recorder!("MPI_Abort" A B),
        allgather: recorder!("MPI_Allgather" A B C D E F G),
        allreduce: recorder!("MPI_Allreduce" A B C D E F),
        alltoall: recorder!("MPI_Alltoall" A B C D E F G),
        barrier: recorder!("MPI_Barrier" A),
        bcast: recorder!("MPI_Bcast" A B C D E),
        error_string,
        gather: recorder!("MPI_Gather" A B C D E F G H),
        recv: recorder!("MPI_Recv" A B C D E F G),
        reduce: recorder!("MPI_Reduce" A B C D E F G),
        scan: recorder!("MPI_Scan" A B C D E F),
        scatter: recorder!("MPI_Scatter" A B C D E F G H),
        send: recorder!("MPI_Send" A B C D E F),
        sendrecv: recorder!("MPI_Sendrecv" A B C D E F G H I J K L),
        sendrecv_replace: recorder!("MPI_Sendrecv_replace" A B C D E F G H I),
    }
}

/// A communicator of two, by its index, as each of its ranks has it: tests are both.
const RANK_0: i64 = 0;
const RANK_1: i64 = 1;
const COMM: [i64; 2] = [0x440, 0x441];
const FREED: i64 = 2;

const SUM: i64 = 3;
const SUM_HANDLE: i64 = 0x58;

const STATUS: i64 = 1;
const STATUS_ADDRESS: i64 = 0x5000;

const FLOAT: i64 = 0xf32;

/// Calls an operation. Gives back how it ended and what it called.
fn run(operation: &str, call: Call) -> (Outcome, Vec<Recorded>) {
    Recorder::functions().get_or_init(|| {
        for rank in [0, 1] {
            let communicator = Communicator::new(COMM[rank] as usize, rank as c_int, 2);
            REGISTRY.set_communicator(rank, communicator);
        }
        REGISTRY.set_communicator(FREED as usize, Communicator::new(0x442, 0, 2));
        REGISTRY.free_communicator(FREED as usize);
        REGISTRY.set_operator(SUM as usize, SUM_HANDLE as usize);
        REGISTRY.set_status(STATUS as usize, STATUS_ADDRESS as usize);
        REGISTRY.set_datatype(F32 as usize, Datatype::new(FLOAT as usize, 4));
        functions()
    });
    let (_, handler) = ops::host_handlers::<Recorder>()
        .into_iter()
        .find(|(name, _)| *name == operation)
        .unwrap();
    let outcome = call.run(handler);
    (outcome, CALLS.take())
}

/// The one call that an operation made, all being well.
fn called(operation: &str, call: Call) -> Recorded {
    let (outcome, mut calls) = run(operation, call);
    assert_eq!(outcome, Ok(()));
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.remove(0)
}

/// The error of an operation that must not have called MPI.
fn refused(operation: &str, call: Call) -> Outcome {
    let (outcome, calls) = run(operation, call);
    assert_eq!(calls, []);
    outcome
}

/// Where operands and results lie.
const IN: i64 = 0x1000;
const OUT: i64 = 0x2000;

fn floats(address: i64, dims: &[i64]) -> Array {
    array(F32, address as usize, dims)
}

fn on(comm: i64) -> Call {
    Call::default().ints(&[("comm", comm)])
}

#[test]
fn allgather_receives_a_block_from_each_rank() {
    let call = on(RANK_0)
        .operand(floats(IN, &[3]))
        .result(floats(OUT, &[2, 3]));
    assert_eq!(
        called("allgather", call),
        ("MPI_Allgather", vec![IN, 3, FLOAT, OUT, 3, FLOAT, COMM[0]])
    );
}

/// MPI would write past the end of the result.
#[test]
fn allgather_needs_room_for_each_rank() {
    let call = on(RANK_0)
        .operand(floats(IN, &[3]))
        .result(floats(OUT, &[1, 3]));
    assert_eq!(
        refused("allgather", call),
        invalid("arrays do not match: [1, 3] of XLA type 11 is not 2 times [3] of XLA type 11")
    );
}

fn allreduce(comm: i64) -> Call {
    on(comm).ints(&[("op", SUM)])
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
    for (operation, function) in [("allreduce", "MPI_Allreduce"), ("scan", "MPI_Scan")] {
        let call = allreduce(RANK_0)
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
    let call = allreduce(RANK_0)
        .operand(floats(IN, &[4]))
        .result(floats(OUT, &[5]));
    assert_eq!(
        refused("allreduce", call),
        invalid("arrays do not match: [5] of XLA type 11 is not 1 times [4] of XLA type 11")
    );
    let call = allreduce(RANK_0)
        .operand(floats(IN, &[4]))
        .result(array(S64, OUT as usize, &[4]));
    assert_eq!(
        refused("allreduce", call),
        invalid("arrays do not match: [4] of XLA type 5 is not 1 times [4] of XLA type 11")
    );
}

#[test]
fn alltoall_sends_a_block_to_each_rank() {
    let call = on(RANK_0)
        .operand(floats(IN, &[2, 5]))
        .result(floats(OUT, &[2, 5]));
    assert_eq!(
        called("alltoall", call),
        ("MPI_Alltoall", vec![IN, 5, FLOAT, OUT, 5, FLOAT, COMM[0]])
    );
}

#[test]
fn alltoall_needs_a_block_for_each_rank() {
    let call = on(RANK_0)
        .operand(floats(IN, &[4, 5]))
        .result(floats(OUT, &[4, 5]));
    assert_eq!(
        refused("alltoall", call),
        invalid(
            "an array of shape [4, 5] can't be sent to 2 ranks: its first axis must have size 2"
        )
    );
    let call = on(RANK_0).operand(floats(IN, &[])).result(floats(OUT, &[]));
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
fn scan_passes_both_arrays() {
    let call = allreduce(RANK_0)
        .operand(floats(IN, &[3]))
        .result(floats(OUT, &[3]));
    assert_eq!(
        called("scan", call),
        ("MPI_Scan", vec![IN, OUT, 3, FLOAT, SUM_HANDLE, COMM[0]])
    );
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

fn send() -> Call {
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

fn recv(status: i64) -> Call {
    on(RANK_1)
        .ints(&[("source", -2), ("tag", -1), ("status", status)])
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

fn sendrecv(status: i64) -> Call {
    on(RANK_0).ints(&[
        ("dest", 1),
        ("sendtag", 2),
        ("source", 3),
        ("recvtag", 4),
        ("status", status),
    ])
}

#[test]
fn sendrecv_passes_both_arrays() {
    let call = sendrecv(STATUS)
        .operand(floats(IN, &[5]))
        .result(floats(OUT, &[2, 3]));
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
        .operand(array(TOKEN + 1, IN as usize, &[3]))
        .result(array(TOKEN + 1, OUT as usize, &[2, 3]));
    assert_eq!(
        refused("allgather", no_type),
        invalid("no MPI data type for XLA's data type 18")
    );
    let no_operator = on(RANK_0)
        .ints(&[("op", 50)])
        .operand(floats(IN, &[3]))
        .result(floats(OUT, &[3]));
    assert_eq!(
        refused("allreduce", no_operator),
        precondition("reduction operator 50 is unknown")
    );
}

#[test]
fn a_missing_attribute_is_an_error() {
    assert_eq!(
        refused("barrier", Call::default()),
        invalid("attribute `comm` is missing")
    );
    assert_eq!(
        refused("send", on(RANK_0).operand(floats(IN, &[5]))),
        invalid("attribute `dest` is missing")
    );
}

/// A count that is cut off to 32 bits would send a part only.
#[test]
fn a_count_must_fit_a_c_int() {
    let huge = on(RANK_0)
        .ints(&[("dest", 1), ("tag", 0)])
        .operand(floats(IN, &[2, 1 << 30]));
    assert_eq!(
        refused("send", huge),
        invalid("an array of 2147483648 elements, more than MPI takes in one call (2147483647)")
    );
    let largest = on(RANK_0)
        .ints(&[("dest", 1), ("tag", 0)])
        .operand(floats(IN, &[(1 << 31) - 1]));
    assert_eq!(
        called("send", largest),
        ("MPI_Send", vec![IN, 2147483647, FLOAT, 1, 0, COMM[0]])
    );
}

/// Held while a test changes what holds for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn an_error_of_mpi_is_raised_where_asked_for() {
    let _alone = alone();
    ops::set_raise_on_error(true);
    CODE.set(6);
    let (outcome, calls) = run("send", send());
    CODE.set(0);
    ops::set_raise_on_error(false);
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
    CODE.set(6);
    let (outcome, calls) = run("recv", recv(-1));
    CODE.set(0);
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
fn logged(operation: &str, call: Call) -> Vec<String> {
    log::set_sink(|line| LINES.with_borrow_mut(|lines| lines.push(line.to_owned())));
    log::set_enabled(true);
    let _ = run(operation, call);
    log::set_enabled(false);
    let lines = LINES.take();
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

#[test]
fn each_call_has_two_lines_in_the_log() {
    let _alone = alone();
    let floats_in_and_out = |call: Call, operand: &[i64], result: &[i64]| {
        call.operand(floats(IN, operand))
            .result(floats(OUT, result))
    };
    let at_root = |comm| on(comm).ints(&[("op", SUM), ("root", 0)]);
    for (operation, call, first, last) in [
        (
            "allgather",
            floats_in_and_out(on(RANK_0), &[3], &[2, 3]),
            "r0 | ID | MPI_Allgather (3 items)",
            "r0 | ID | MPI_Allgather done with code 0",
        ),
        (
            "allreduce",
            floats_in_and_out(allreduce(RANK_1), &[2, 3], &[2, 3]),
            "r1 | ID | MPI_Allreduce with 6 items",
            "r1 | ID | MPI_Allreduce done with code 0",
        ),
        (
            "alltoall",
            floats_in_and_out(on(RANK_0), &[2, 5], &[2, 5]),
            "r0 | ID | MPI_Alltoall (5 items)",
            "r0 | ID | MPI_Alltoall done with code 0",
        ),
        (
            "barrier",
            on(RANK_1),
            "r1 | ID | MPI_Barrier",
            "r1 | ID | MPI_Barrier done with code 0",
        ),
        (
            "reduce",
            at_root(RANK_1).operand(floats(IN, &[3])),
            "r1 | ID | MPI_Reduce (3 items, root=0)",
            "r1 | ID | MPI_Reduce done with code 0",
        ),
        (
            "recv",
            recv(-1),
            "r1 | ID | MPI_Recv <- -2 (tag -1, 5 items)",
            "r1 | ID | MPI_Recv done with code 0",
        ),
        (
            "send",
            send(),
            "r0 | ID | MPI_Send -> 1 (tag 9, 5 items)",
            "r0 | ID | MPI_Send done with code 0",
        ),
        (
            "sendrecv",
            floats_in_and_out(sendrecv(-1), &[5], &[2, 3]),
            "r0 | ID | MPI_Sendrecv <- 3 (tag 4, 6 items) / -> 1 (tag 2, 5 items)",
            "r0 | ID | MPI_Sendrecv done with code 0",
        ),
    ] {
        assert_eq!(logged(operation, call), [first, last]);
    }
}

#[test]
fn the_log_has_the_code_of_an_error() {
    let _alone = alone();
    ops::set_raise_on_error(true);
    CODE.set(6);
    let lines = logged("send", send());
    CODE.set(0);
    ops::set_raise_on_error(false);
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
    log::set_sink(|line| LINES.with_borrow_mut(|lines| lines.push(line.to_owned())));
    called("send", send());
    assert_eq!(LINES.take(), Vec::<String>::new());
}
