//! The operations, called as XLA calls them, on an MPI that only records what it is asked.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use _core::mpi::{
    Abi, Constants, CopyAttribute, DeleteAttribute, Ends, Functions, Neighbor, Neighbors,
    PredefinedOp, REGISTRY, Types, UserFunction,
};
use _core::{log, mpi_functions, ops};

use super::*;

/// An ABI of its own, with ints and pointers mixed and values that no real MPI has.
pub struct Recorder;

impl Types for Recorder {
    type Aint = isize;
    type Comm = c_int;
    type Datatype = *mut c_void;
    type Errhandler = c_int;
    type Group = c_int;
    type Info = c_int;
    type Op = c_int;
    type Request = c_int;
    type Status = c_void;
}

pub const IN_PLACE: i64 = 0x777;
pub const STATUS_IGNORE: i64 = 0x888;

impl Abi for Recorder {
    fn constants() -> &'static Constants {
        static CONSTANTS: Constants = Constants {
            in_place: IN_PLACE as usize,
            proc_null: -7,
            status_ignore: STATUS_IGNORE as usize,
            status_source: 0,
        };
        &CONSTANTS
    }

    fn functions() -> &'static OnceLock<Functions<Self>> {
        static FUNCTIONS: OnceLock<Functions<Recorder>> = OnceLock::new();
        &FUNCTIONS
    }
}

/// A call of MPI: the function and its arguments. Pointers are their addresses, lists what is in
/// them.
pub type Recorded = (&'static str, Vec<i64>);

thread_local! {
    // Each test runs on a thread of its own, and so do the calls that it makes.
    static CALLS: RefCell<Vec<Recorded>> = const { RefCell::new(Vec::new()) };
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static ERROR: Cell<Option<(&'static str, c_int)>> = const { Cell::new(None) };
    static TYPES: Cell<i64> = const { Cell::new(0) };
    static REQUESTS: Cell<c_int> = const { Cell::new(0) };
    static IN_MPI: Cell<fn()> = const { Cell::new(|| ()) };
}

/// The result of `body` while `see` is called within every call of MPI, in this test.
pub fn seeing<R>(see: fn(), body: impl FnOnce() -> R) -> R {
    IN_MPI.set(see);
    let outcome = body();
    IN_MPI.set(|| ());
    outcome
}

/// The result of `body` while a function of MPI's returns an error code, in this test.
pub fn failing<R>(function: &'static str, code: c_int, body: impl FnOnce() -> R) -> R {
    ERROR.set(Some((function, code)));
    let outcome = body();
    ERROR.set(None);
    outcome
}

/// [`failing`] where errors raise, in all tests: one that calls this has to be [`alone`].
pub fn raising<R>(function: &'static str, code: c_int, body: impl FnOnce() -> R) -> R {
    ops::set_raise_on_error(true);
    let outcome = failing(function, code, body);
    ops::set_raise_on_error(false);
    outcome
}

/// The lines that `body` writes into the log.
pub fn lines_of(body: impl FnOnce()) -> Vec<String> {
    log::set_sink(|line| LINES.with_borrow_mut(|lines| lines.push(line.to_owned())));
    body();
    LINES.take()
}

/// The lines that `body` writes into a log that is on.
pub fn logged_lines_of(body: impl FnOnce()) -> Vec<String> {
    log::set_enabled(true);
    let lines = lines_of(body);
    log::set_enabled(false);
    lines
}

/// Records a call, and gives back the error code.
fn record(function: &'static str, arguments: Vec<i64>) -> c_int {
    CALLS.with_borrow_mut(|calls| calls.push((function, arguments)));
    IN_MPI.get()();
    match ERROR.get() {
        Some((failing, code)) if failing == function => code,
        _ => 0,
    }
}

trait Argument {
    fn words(self) -> Vec<i64>;
}

impl Argument for c_int {
    fn words(self) -> Vec<i64> {
        vec![self.into()]
    }
}

impl Argument for c_char {
    fn words(self) -> Vec<i64> {
        vec![self.into()]
    }
}

impl Argument for i64 {
    fn words(self) -> Vec<i64> {
        vec![self]
    }
}

impl Argument for isize {
    fn words(self) -> Vec<i64> {
        vec![self as i64]
    }
}

impl Argument for *const c_void {
    fn words(self) -> Vec<i64> {
        vec![self as i64]
    }
}

impl<T> Argument for *mut T {
    fn words(self) -> Vec<i64> {
        vec![self as i64]
    }
}

macro_rules! callbacks {
    ($($callback:ty),*) => {
        $(impl Argument for $callback {
            fn words(self) -> Vec<i64> {
                vec![self.map_or(0, |function| function as usize as i64)]
            }
        })*
    };
}
callbacks!(
    CopyAttribute<Recorder>,
    DeleteAttribute<Recorder>,
    UserFunction<Recorder>
);

/// A list, which always has two members, as all communicators have two ranks.
impl<T: Argument + Copy> Argument for *const T {
    fn words(self) -> Vec<i64> {
        // SAFETY: what the core passes for a list lives through the call.
        let members = unsafe { [*self, *self.add(1)] };
        members.map(Argument::words).concat()
    }
}

/// A C function with the given arguments, of the types that its place in the table gives them.
macro_rules! recorder {
    ($symbol:ident($($argument:ident),*)) => {{
        unsafe extern "C" fn called<$($argument: Argument),*>(
            $($argument: $argument),*
        ) -> c_int {
            record(stringify!($symbol), [$($argument.words()),*].concat())
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

static DELETE_ATTRIBUTE: Mutex<DeleteAttribute<Recorder>> = Mutex::new(None);

unsafe extern "C" fn comm_create_keyval(
    _: CopyAttribute<Recorder>,
    delete: DeleteAttribute<Recorder>,
    _: *mut c_int,
    _: *mut c_void,
) -> c_int {
    *DELETE_ATTRIBUTE.lock().unwrap() = delete;
    0
}

/// Begins to finalise MPI: deletes an attribute of `MPI_COMM_SELF`, of the key that was made last.
pub fn finalize() {
    let delete = DELETE_ATTRIBUTE.lock().unwrap().unwrap();
    // SAFETY: the function takes what MPI gives it.
    unsafe { delete(0, 0, ptr::null_mut(), ptr::null_mut()) };
}

/// The number that `MPI_Comm_split` adds to the handle of a communicator.
pub const REVERSED: i64 = 0x1000;

unsafe extern "C" fn comm_split(comm: c_int, color: c_int, key: c_int, new: *mut c_int) -> c_int {
    // SAFETY: the caller lends it.
    unsafe { *new = comm + REVERSED as c_int };
    record("MPI_Comm_split", [comm, color, key].map(i64::from).into())
}

unsafe extern "C" fn comm_free(comm: *mut c_int) -> c_int {
    // SAFETY: the caller lends it.
    record("MPI_Comm_free", vec![unsafe { *comm }.into()])
}

/// The first operator that [`op_create`] makes; each next one has the next number.
const MADE: c_int = 0x600;
static FUNCTIONS_MADE: Mutex<Vec<UserFunction<Recorder>>> = Mutex::new(Vec::new());

unsafe extern "C" fn op_create(
    function: UserFunction<Recorder>,
    commute: c_int,
    op: *mut c_int,
) -> c_int {
    let mut made = FUNCTIONS_MADE.lock().unwrap();
    // SAFETY: the caller lends it.
    unsafe { *op = MADE + made.len() as c_int };
    made.push(function);
    record("MPI_Op_create", vec![commute.into()])
}

/// The function of an operator that was made.
pub fn function_of(op: i64) -> UserFunction<Recorder> {
    FUNCTIONS_MADE.lock().unwrap()[(op - i64::from(MADE)) as usize]
}

/// The data types that one call makes, in their order.
pub const FIRST_TYPE: i64 = 0xd1;
pub const SECOND_TYPE: i64 = 0xd2;

fn new_type(new: *mut *mut c_void) {
    TYPES.set(TYPES.get() + 1);
    // SAFETY: the caller lends it.
    unsafe { *new = (FIRST_TYPE - 1 + TYPES.get()) as *mut c_void };
}

unsafe extern "C" fn type_contiguous(
    count: c_int,
    old: *mut c_void,
    new: *mut *mut c_void,
) -> c_int {
    new_type(new);
    record("MPI_Type_contiguous", vec![count.into(), old as i64])
}

unsafe extern "C" fn type_create_struct(
    count: c_int,
    lengths: *const c_int,
    displacements: *const isize,
    types: *const *mut c_void,
    new: *mut *mut c_void,
) -> c_int {
    new_type(new);
    let lists = [lengths.words(), displacements.words(), types.words()];
    record(
        "MPI_Type_create_struct",
        [vec![count.into()], lists.concat()].concat(),
    )
}

unsafe extern "C" fn type_commit(datatype: *mut *mut c_void) -> c_int {
    // SAFETY: the caller lends it.
    record("MPI_Type_commit", vec![unsafe { *datatype } as i64])
}

unsafe extern "C" fn type_free(datatype: *mut *mut c_void) -> c_int {
    // SAFETY: the caller lends it.
    record("MPI_Type_free", vec![unsafe { *datatype } as i64])
}

/// The functions that begin a message, of which one call makes the requests 1, 2 and so on.
macro_rules! beginner {
    ($name:ident = $int:literal, $large:literal, $buffer:ty) => {
        mod $name {
            use super::*;

            fn begin(function: &'static str, arguments: [i64; 6], request: *mut c_int) -> c_int {
                REQUESTS.set(REQUESTS.get() + 1);
                // SAFETY: the caller lends it.
                unsafe { *request = REQUESTS.get() };
                record(function, arguments.into())
            }

            pub unsafe extern "C" fn int(
                buffer: $buffer,
                count: c_int,
                datatype: *mut c_void,
                peer: c_int,
                tag: c_int,
                comm: c_int,
                request: *mut c_int,
            ) -> c_int {
                let [count, peer, tag, comm] = [count, peer, tag, comm].map(i64::from);
                let arguments = [buffer as i64, count, datatype as i64, peer, tag, comm];
                begin($int, arguments, request)
            }

            pub unsafe extern "C" fn large(
                buffer: $buffer,
                count: i64,
                datatype: *mut c_void,
                peer: c_int,
                tag: c_int,
                comm: c_int,
                request: *mut c_int,
            ) -> c_int {
                let [peer, tag, comm] = [peer, tag, comm].map(i64::from);
                let arguments = [buffer as i64, count, datatype as i64, peer, tag, comm];
                begin($large, arguments, request)
            }
        }
    };
}
beginner!(irecv = "MPI_Irecv", "MPI_Irecv_c", *mut c_void);
beginner!(isend = "MPI_Isend", "MPI_Isend_c", *const c_void);

unsafe extern "C" fn wait(request: *mut c_int, _: *mut c_void) -> c_int {
    // SAFETY: the caller lends it.
    record("MPI_Wait", vec![unsafe { *request }.into()])
}

unsafe extern "C" fn cancel(request: *mut c_int) -> c_int {
    // SAFETY: the caller lends it.
    record("MPI_Cancel", vec![unsafe { *request }.into()])
}

/// All functions record their arguments. These also give something, or are asked too often.
pub fn functions() -> Functions<Recorder> {
    let mut functions = Functions {
        cancel,
        comm_create_keyval,
        comm_free,
        comm_split,
        error_string,
        op_create,
        type_commit,
        type_contiguous,
        type_create_struct,
        type_free,
        wait,
        ..mpi_functions!(recorder)
    };
    (functions.int.irecv, functions.int.isend) = (irecv::int, isend::int);
    let large = functions.large.as_mut().unwrap();
    (large.irecv, large.isend) = (irecv::large, isend::large);
    functions
}

/// A communicator of two, by its index, as each of its ranks has it: tests are both.
pub const RANK_0: i64 = 0;
pub const RANK_1: i64 = 1;
pub const COMM: [i64; 2] = [0x440, 0x441];
pub const FREED: i64 = 2;

/// The neighbors of both: three that send, one of which is no process, and two that are sent to.
pub fn neighbors() -> Neighbors {
    Neighbors {
        sources: ends(&[(1, 0), (Recorder::constants().proc_null, 5), (0, 1)]),
        destinations: ends(&[(0, 2), (1, 3)]),
    }
}

/// Edges by the ranks at the other ends and their tags.
pub fn ends(edges: &[(c_int, c_int)]) -> Ends {
    let edges = edges.iter();
    Ends::new(edges.map(|&(rank, tag)| Neighbor { rank, tag }).collect())
}

/// The handle of an operator of MPI's own.
pub const fn handle_of(op: PredefinedOp) -> i64 {
    0x58 + op.number()
}

pub const SUM: i64 = PredefinedOp::Sum.number();
pub const SUM_HANDLE: i64 = handle_of(PredefinedOp::Sum);

/// An operator that is not MPI's own.
pub const USER_MADE: i64 = PredefinedOp::ALL.len() as i64;
pub const USER_MADE_HANDLE: i64 = 0x57;
/// A number that no operator has.
pub const NO_OPERATOR: i64 = USER_MADE + 1;

pub const STATUS: i64 = 1;
pub const STATUS_ADDRESS: i64 = 0x5000;

pub const FLOAT: i64 = 0xf32;
pub const SHORT: i64 = 0xf16;
pub const COMPLEX: i64 = 0xc64;

/// Calls an operation. Gives back how it ended and what it called.
pub fn run(operation: &str, call: CallFrame) -> (Outcome, Vec<Recorded>) {
    Recorder::functions().get_or_init(|| {
        for rank in [0, 1] {
            set_communicator(rank, COMM[rank] as usize, rank as c_int, 2);
            REGISTRY.set_neighbors(rank, neighbors());
        }
        set_communicator(FREED as usize, 0x442, 0, 2);
        let companions = REGISTRY.free_communicator::<Recorder>(FREED as usize);
        assert!(companions.is_empty());
        for op in PredefinedOp::ALL {
            set_operator(op.number() as usize, handle_of(*op) as usize);
        }
        set_operator(USER_MADE as usize, USER_MADE_HANDLE as usize);
        // SAFETY: the stand-in writes no status.
        unsafe { REGISTRY.set_status(STATUS as usize, STATUS_ADDRESS as usize) };
        set_datatype(F32, FLOAT as usize, 4);
        for dtype in [F16, BF16] {
            set_datatype(dtype, SHORT as usize, 2);
        }
        set_datatype(C64, COMPLEX as usize, 8);
        set_datatype(C128, COMPLEX as usize, 16);
        functions()
    });
    let (_, handler) = ops::host_handlers::<Recorder>()
        .into_iter()
        .find(|(name, _)| *name == operation)
        .unwrap();
    TYPES.set(0);
    REQUESTS.set(0);
    let outcome = call.run(handler);
    (outcome, recorded())
}

/// Binds this MPI, for tests that need no operation.
pub fn bind() {
    Recorder::functions().get_or_init(functions);
}

/// Another communicator, as its rank 1 has it: its index and its handle.
pub fn new_communicator() -> (i64, i64) {
    new_topology(neighbors())
}

/// One with these neighbors.
pub fn new_topology(neighbors: Neighbors) -> (i64, i64) {
    static NEXT: AtomicUsize = AtomicUsize::new(3);
    let index = NEXT.fetch_add(1, Ordering::Relaxed);
    let handle = 0x440 + index;
    set_communicator(index, handle, 1, 2);
    REGISTRY.set_neighbors(index, neighbors);
    (index as i64, handle as i64)
}

/// The calls of MPI since this was asked last.
pub fn recorded() -> Vec<Recorded> {
    CALLS.take()
}

/// The one call that an operation made, all being well.
pub fn called(operation: &str, call: CallFrame) -> Recorded {
    let (outcome, mut calls) = run(operation, call);
    assert_eq!(outcome, Ok(()));
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.remove(0)
}

/// The messages of a call, all being well: those that are received, those
/// that are sent, and how all of them are waited for.
pub fn messages(operation: &str, call: CallFrame) -> Vec<Recorded> {
    let (outcome, calls) = run(operation, call);
    assert_eq!(outcome, Ok(()));
    calls
}

/// Messages of floats, each as a function, an address, a number, a rank and a tag.
pub fn of_floats(comm: i64, messages: &[(&'static str, i64, i64, i64, i64)]) -> Vec<Recorded> {
    let begun = messages
        .iter()
        .map(|&(function, address, count, rank, tag)| {
            (function, vec![address, count, FLOAT, rank, tag, comm])
        });
    let waits = (1..=messages.len()).map(|request| ("MPI_Wait", vec![request as i64]));
    begun.chain(waits).collect()
}

/// The nonblocking form of a call, which copies its operands.
pub struct Nonblocking {
    /// The name of the operation.
    pub name: &'static str,
    /// The results of the blocking form, which `wait` gives.
    results: Vec<Buffer>,
    ticket: Box<Cell<[f32; 2]>>,
    /// The memory of all arrays.
    arrays: Vec<Vec<u64>>,
}

impl Nonblocking {
    /// Starts the nonblocking form of an operation, if it has one. Gives the functions that it calls.
    pub fn start(operation: &str, mut call: CallFrame) -> Option<(Self, Vec<Recorded>)> {
        let names = ops::nonblocking_names().into_iter();
        let mut names = names.filter(|name| name[1..] == *operation);
        let mut form = Self {
            name: names.next()?,
            results: Vec::new(),
            ticket: Box::default(),
            arrays: Vec::new(),
        };
        form.arrays = call.operands.iter_mut().map(in_memory).collect();
        let types = call.results.iter().map(|result| {
            let count: i64 = result.dims.iter().product();
            [result.dtype.into(), count]
        });
        let types: Vec<i64> = types.flatten().collect();
        form.results = std::mem::take(&mut call.results);
        let ticket = floats(form.ticket.as_ptr() as i64, &[2]);
        let call = call.list("arrays", &types).ints(&[("may_be_lost", 0)]);
        let (outcome, calls) = run(form.name, call.result(ticket));
        assert_eq!(outcome, Ok(()), "{}", form.name);
        Some((form, calls))
    }

    /// Waits for the operation. Gives the functions that this calls.
    pub fn wait(mut self) -> Vec<Recorded> {
        self.arrays.extend(self.results.iter_mut().map(in_memory));
        let call = on(RANK_0).ints(&[("may_be_zero", 0), ("started", 0)]);
        let call = call.operand(floats(self.ticket.as_ptr() as i64, &[2]));
        let (outcome, calls) = run(
            "wait",
            self.results.into_iter().fold(call, CallFrame::result),
        );
        assert_eq!(outcome, Ok(()), "{}", self.name);
        calls
    }
}

/// Gives an array memory.
fn in_memory(buffer: &mut Buffer) -> Vec<u64> {
    let bytes = 16 * buffer.dims.iter().product::<i64>();
    let mut memory = vec![0; bytes as usize / size_of::<u64>()];
    buffer.address = memory.as_mut_ptr() as usize;
    memory
}

/// Fails unless these are the calls of the two forms of an operation: the same arguments, but for
/// addresses and the request.
pub fn assert_alike(blocking: &[Recorded], nonblocking: &[Recorded]) {
    let is_address = |word: &i64| (IN..OUT + 0x1000).contains(word);
    let blocking = blocking.iter().filter(|(name, _)| *name != "MPI_Wait");
    let blocking: Vec<_> = blocking.collect();
    assert_eq!(blocking.len(), nonblocking.len(), "{nonblocking:?}");
    for ((name, words), (nonblocking_name, other_words)) in blocking.into_iter().zip(nonblocking) {
        let expected = name.replace("MPI_", "MPI_I").to_lowercase();
        let is_made = name.starts_with("MPI_Type_") || name.starts_with("MPI_I");
        assert!(
            nonblocking_name == name || nonblocking_name.to_lowercase() == expected && !is_made,
            "{name} {nonblocking_name}"
        );
        for (word, other) in words.iter().zip(other_words) {
            assert!(
                word == other || is_address(word) || *word == IN_PLACE,
                "{name}: {words:x?} {other_words:x?}"
            );
        }
    }
}

/// The error of an operation that must not have called MPI.
pub fn refused(operation: &str, call: CallFrame) -> Outcome {
    let (outcome, calls) = run(operation, call);
    assert_eq!(calls, []);
    outcome
}

/// Where operands and results lie.
pub const IN: i64 = 0x1000;
pub const OUT: i64 = 0x2000;

pub fn floats(address: i64, dims: &[i64]) -> Buffer {
    buffer(F32, address as usize, dims)
}

pub fn on(comm: i64) -> CallFrame {
    CallFrame::default().ints(&[("comm_number", comm)])
}

/// Adds an operand and a result of these shapes.
pub fn in_and_out(call: CallFrame, operand: &[i64], result: &[i64]) -> CallFrame {
    call.operand(floats(IN, operand))
        .result(floats(OUT, result))
}

/// A reduction, which wants arrays.
pub fn allreduce(comm: i64) -> CallFrame {
    on(comm).ints(&[("op_number", SUM)])
}

/// A scan, which wants arrays, and has all attributes of a reduction.
pub fn scan(comm: i64) -> CallFrame {
    allreduce(comm).ints(&[("reverse", 0)])
}

/// Of five floats, to rank 1.
pub fn send() -> CallFrame {
    on(RANK_0)
        .ints(&[("dest", 1), ("tag", 9)])
        .operand(floats(IN, &[5]))
}

/// Of five floats, from any rank.
pub fn recv(status: i64) -> CallFrame {
    on(RANK_1)
        .ints(&[("source", -2), ("tag", -1), ("status_number", status)])
        .result(floats(OUT, &[5]))
}

/// To rank 1 and from rank 3, which wants arrays.
pub fn sendrecv(status: i64) -> CallFrame {
    on(RANK_0).ints(&[
        ("dest", 1),
        ("sendtag", 2),
        ("source", 3),
        ("recvtag", 4),
        ("status_number", status),
    ])
}

/// Five floats to rank 1 and three to rank 0, and as many from both.
pub fn exchange() -> CallFrame {
    on(RANK_0)
        .list("dests", &[1, 0])
        .list("sendtags", &[2, 3])
        .list("sources", &[0, 1])
        .list("recvtags", &[3, 2])
        .operand(floats(IN, &[5]))
        .operand(floats(IN + 20, &[3]))
        .result(floats(OUT, &[3]))
        .result(floats(OUT + 12, &[5]))
}

/// Three floats to each neighbor.
pub fn neighbor_allgather(comm: i64) -> CallFrame {
    in_and_out(on(comm), &[3], &[3, 3])
}

/// Rows of three floats, two to each neighbor. From them come one, two and none.
pub fn neighbor_allgatherv(comm: i64) -> CallFrame {
    in_and_out(on(comm).list("counts", &[1, 2, 0]), &[2, 3], &[3, 3])
}

/// A row of five floats to each neighbor, or to each that these come from.
pub fn neighbor_alltoall(comm: i64, backwards: i64) -> CallFrame {
    let call = on(comm).ints(&[("backwards", backwards)]);
    let [sent, received] = if backwards == 0 { [2, 3] } else { [3, 2] };
    in_and_out(call, &[sent, 5], &[received, 5])
}

/// Rows of three floats: one and two to the neighbors, and from them two, one and two.
pub fn neighbor_alltoallv(comm: i64, backwards: i64) -> CallFrame {
    let call = on(comm).ints(&[("backwards", backwards)]);
    let forwards: [&[i64]; 2] = [&[1, 2], &[2, 1, 2]];
    let [sent, received] = match (forwards, backwards) {
        (counts, 0) => counts,
        ([sent, received], _) => [received, sent],
    };
    let rows = |counts: &[i64]| counts.iter().sum();
    let call = call.list("sendcounts", sent).list("recvcounts", received);
    in_and_out(call, &[rows(sent), 3], &[rows(received), 3])
}

/// A call of each operation.
pub fn a_call_of_each() -> Vec<(&'static str, CallFrame)> {
    let at_root = |comm| on(comm).ints(&[("op_number", SUM), ("root", 0)]);
    let counts = |call: CallFrame| call.list("counts", &[1, 2]);
    let both_counts = on(RANK_0).list("sendcounts", &[1, 2]);
    let both_counts = both_counts.list("recvcounts", &[1, 0]);
    vec![
        ("allgather", in_and_out(on(RANK_0), &[3], &[2, 3])),
        (
            "allgatherv",
            in_and_out(counts(on(RANK_0)), &[1, 3], &[3, 3]),
        ),
        ("allreduce", in_and_out(allreduce(RANK_1), &[2, 3], &[2, 3])),
        ("alltoall", in_and_out(on(RANK_0), &[2, 5], &[2, 5])),
        ("alltoallv", in_and_out(both_counts, &[3, 3], &[1, 3])),
        ("barrier", on(RANK_1)),
        ("bcast", at_root(RANK_0).operand(floats(IN, &[7]))),
        ("exchange", exchange()),
        ("exscan", in_and_out(scan(RANK_0), &[3], &[3])),
        ("gather", at_root(RANK_1).operand(floats(IN, &[3]))),
        (
            "gatherv",
            counts(at_root(RANK_1)).operand(floats(IN, &[2, 3])),
        ),
        ("neighbor_allgather", neighbor_allgather(RANK_0)),
        ("neighbor_allgatherv", neighbor_allgatherv(RANK_1)),
        ("neighbor_alltoall", neighbor_alltoall(RANK_0, 0)),
        ("neighbor_alltoallv", neighbor_alltoallv(RANK_1, 0)),
        ("recv", recv(-1)),
        ("reduce", at_root(RANK_1).operand(floats(IN, &[3]))),
        (
            "reduce_scatter",
            in_and_out(allreduce(RANK_0), &[2, 3], &[3]),
        ),
        (
            "reduce_scatterv",
            in_and_out(counts(allreduce(RANK_1)), &[3, 3], &[2, 3]),
        ),
        ("scan", in_and_out(scan(RANK_0), &[3], &[3])),
        ("scatter", at_root(RANK_1).result(floats(OUT, &[3]))),
        (
            "scatterv",
            counts(at_root(RANK_1)).result(floats(OUT, &[2, 3])),
        ),
        ("send", send()),
        ("sendrecv", in_and_out(sendrecv(-1), &[5], &[2, 3])),
    ]
}

/// Held while a test changes what holds for the whole process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
