//! Tests of the library as its callers see it: by its C functions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::attributes::*;
use super::collectives::*;
use super::communicators::*;
use super::datatypes::*;
use super::environment::*;
use super::errors::*;
use super::groups::*;
use super::handles::{COMM_NULL, COMM_SELF, COMM_WORLD, DATATYPE_NULL, REQUEST_NULL};
use super::memory::{In, Out};
use super::messages::*;
use super::operators::*;
use super::requests::*;
use super::unsupported::*;

const BYTE: c_int = 0x4c00_010d;
const INT: c_int = 0x4c00_0405;
const DOUBLE: c_int = 0x4c00_080b;
const SUM: c_int = 0x5800_0003;
const RETURN: c_int = 0x5400_0001;
const ANY_SOURCE: c_int = -2;
const ANY_TAG: c_int = -1;
const IGNORED: Out<Status> = Out(ptr::without_provenance_mut(1));

/// The value that a function writes, which must succeed.
fn made<T: Copy + Default>(function: impl FnOnce(Out<T>) -> c_int) -> T {
    let mut value = T::default();
    let code = function(Out(&raw mut value));
    assert_eq!(code, 0, "{}", text(code));
    value
}

/// The address of a copy of a value.
fn copy<T>(value: &mut T) -> Out<T> {
    Out(&raw mut *value)
}

fn done(code: c_int) {
    assert_eq!(code, 0, "{}", text(code));
}

fn text(code: c_int) -> String {
    let mut text = [0 as c_char; 512];
    let mut length = 0;
    let room = Out(text.as_mut_ptr());
    assert_eq!(MPI_Error_string(code, room, Out(&raw mut length)), 0);
    // SAFETY: the function ends the text.
    unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}

fn class(code: c_int) -> c_int {
    made(|class| MPI_Error_class(code, class))
}

/// A communicator of a test's own, whose errors return.
fn comm() -> c_int {
    static START: Once = Once::new();
    START.call_once(|| {
        done(MPI_Init(0, 0));
        done(MPI_Comm_set_errhandler(COMM_WORLD, RETURN));
    });
    made(|new| MPI_Comm_dup(COMM_WORLD, new))
}

fn address<T>(values: &[T]) -> usize {
    values.as_ptr().expose_provenance()
}

fn address_mut<T>(values: &mut [T]) -> usize {
    values.as_mut_ptr().expose_provenance()
}

fn send(value: c_int, tag: c_int, comm: c_int) -> c_int {
    MPI_Send(address(&[value]), 1, INT, 0, tag, comm)
}

fn receive(tag: c_int, comm: c_int) -> (c_int, Status) {
    let (mut value, mut status) = ([0], Status::EMPTY);
    let buffer = address_mut(&mut value);
    done(MPI_Recv(
        buffer,
        1,
        INT,
        ANY_SOURCE,
        tag,
        comm,
        Out(&raw mut status),
    ));
    (value[0], status)
}

#[test]
fn messages_are_received_in_order_by_tag_and_communicator() {
    let (first, second) = (comm(), comm());
    for (value, tag, comm) in [(1, 5, first), (2, 6, first), (3, 5, second), (4, 5, first)] {
        done(send(value, tag, comm));
    }
    let (value, status) = receive(6, first);
    assert_eq!(
        (value, status.source, status.tag, status.bytes()),
        (2, 0, 6, 4)
    );
    assert_eq!(receive(ANY_TAG, first).0, 1);
    assert_eq!(receive(ANY_TAG, second).0, 3);
    assert_eq!(receive(5, first).0, 4);
    assert_eq!(made(|flag| MPI_Iprobe(0, ANY_TAG, first, flag, IGNORED)), 0);
}

#[test]
fn receives_that_wait_are_served_in_order() {
    let comm = comm();
    let mut values = [0; 3];
    let mut requests = [5, ANY_TAG, 5].iter().zip(&mut values).map(|(tag, value)| {
        let buffer = (&raw mut *value).expose_provenance();
        made(|request| MPI_Irecv(buffer, 1, INT, 0, *tag, comm, request))
    });
    let mut requests: [c_int; 3] = std::array::from_fn(|_| requests.next().expect("three"));
    for (value, tag) in [(1, 6), (2, 5), (3, 5)] {
        done(send(value, tag, comm));
    }
    let mut statuses = [Status::EMPTY; 3];
    done(MPI_Waitall(
        3,
        Out(requests.as_mut_ptr()),
        Out(statuses.as_mut_ptr()),
    ));
    assert_eq!(
        (values, statuses.map(|status| status.tag)),
        ([2, 1, 3], [5, 6, 5])
    );
    assert_eq!(requests, [REQUEST_NULL; 3]);
}

#[test]
fn a_synchronous_send_waits_for_another_thread() {
    let comm = comm();
    static RECEIVED: AtomicUsize = AtomicUsize::new(0);
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        RECEIVED.store(1, Ordering::SeqCst);
        receive(1, comm).0
    });
    done(MPI_Ssend(address(&[7]), 1, INT, 0, 1, comm));
    assert_eq!(RECEIVED.load(Ordering::SeqCst), 1);
    assert_eq!(other.join().expect("it receives"), 7);
}

#[test]
fn threads_send_and_receive_at_once() {
    let comm = comm();
    let receivers: Vec<_> = (0..4)
        .map(|tag| {
            thread::spawn(move || (0..500).map(|_| receive(tag, comm).0).collect::<Vec<_>>())
        })
        .collect();
    let senders: Vec<_> = (0..4)
        .map(|tag| thread::spawn(move || (0..500).for_each(|value| done(send(value, tag, comm)))))
        .collect();
    for receiver in receivers {
        assert!(receiver.join().expect("it receives").into_iter().eq(0..500));
    }
    for sender in senders {
        sender.join().expect("it sends");
    }
}

#[test]
fn a_message_that_is_too_long_is_an_error() {
    let comm = comm();
    done(MPI_Send(address(&[1, 2]), 2, INT, 0, 0, comm));
    let mut values = [0, 9];
    let code = MPI_Recv(address_mut(&mut values), 1, INT, 0, 0, comm, IGNORED);
    assert_eq!((class(code), values), (TRUNCATE, [1, 9]));
    assert_eq!(
        text(code),
        "MPI_ERR_TRUNCATE: got a message of 8 bytes, expected at most 4"
    );
}

#[test]
fn a_matched_message_is_received_once() {
    let comm = comm();
    done(send(3, 1, comm));
    let mut message = made(|message| MPI_Mprobe(0, 1, comm, message, IGNORED));
    assert_eq!(made(|flag| MPI_Iprobe(0, 1, comm, flag, IGNORED)), 0);
    let again = message;
    let mut value = [0];
    done(MPI_Mrecv(
        address_mut(&mut value),
        1,
        INT,
        Out(&raw mut message),
        IGNORED,
    ));
    assert_eq!((value, message), ([3], REQUEST_NULL));
    let mut message = again;
    let code = MPI_Mrecv(
        address_mut(&mut value),
        1,
        INT,
        Out(&raw mut message),
        IGNORED,
    );
    assert_eq!(class(code), REQUEST);
}

#[test]
fn requests_are_cancelled_or_started_again() {
    let comm = comm();
    let mut value = [0];
    let buffer = address_mut(&mut value);
    let mut status = Status::EMPTY;
    let mut request = made(|request| MPI_Irecv(buffer, 1, INT, 0, 0, comm, request));
    done(MPI_Cancel(Out(&raw mut request)));
    done(MPI_Wait(Out(&raw mut request), Out(&raw mut status)));
    assert_eq!(
        made(|flag| MPI_Test_cancelled(In(&raw const status), flag)),
        1
    );
    let mut request = made(|request| MPI_Recv_init(buffer, 1, INT, 0, 0, comm, request));
    for round in 1..=3 {
        done(MPI_Start(Out(&raw mut request)));
        assert_eq!(class(MPI_Start(Out(&raw mut request))), REQUEST);
        done(send(round, 0, comm));
        done(MPI_Wait(Out(&raw mut request), IGNORED));
        assert_eq!(value, [round]);
    }
    done(MPI_Request_free(Out(&raw mut request)));
    assert_eq!(request, REQUEST_NULL);
}

#[test]
fn a_type_that_is_freed_is_used_by_what_was_started() {
    let comm = comm();
    let mut every_other = made(|new| MPI_Type_vector(2, 1, 2, INT, new));
    let mut values = [0; 3];
    let code = MPI_Send(address(&values), 1, every_other, 0, 0, comm);
    assert_eq!(
        text(code),
        "MPI_ERR_TYPE: MPI_Send: got a datatype that is not committed"
    );
    done(MPI_Type_commit(Out(&raw mut every_other)));
    let buffer = address_mut(&mut values);
    let mut request = made(|request| MPI_Irecv(buffer, 1, every_other, 0, 0, comm, request));
    let gone = every_other;
    done(MPI_Type_free(Out(&raw mut every_other)));
    assert_eq!(every_other, DATATYPE_NULL);
    assert_eq!(class(MPI_Type_commit(copy(&mut { gone }))), TYPE);
    done(MPI_Send(address(&[1, 2]), 2, INT, 0, 0, comm));
    done(MPI_Wait(Out(&raw mut request), IGNORED));
    assert_eq!(values, [1, 0, 2]);
}

#[test]
fn a_communicator_is_freed_with_its_messages() {
    let mut comm = comm();
    done(send(1, 0, comm));
    let gone = comm;
    done(MPI_Comm_free(Out(&raw mut comm)));
    assert_eq!(comm, COMM_NULL);
    assert_eq!(class(send(1, 0, gone)), COMM);
    assert_eq!(class(MPI_Comm_free(copy(&mut { gone }))), COMM);
    assert_eq!(class(MPI_Comm_free(copy(&mut { COMM_WORLD }))), COMM);
}

#[test]
fn wrong_arguments_are_errors_that_say_what_was_given() {
    let comm = comm();
    let at = |code: c_int| text(code);
    let buffer = address(&[0]);
    assert_eq!(
        at(MPI_Send(buffer, 1, INT, 1, 0, comm)),
        "MPI_ERR_RANK: MPI_Send: got rank 1 for the destination, expected 0 in a communicator of \
         one process"
    );
    assert_eq!(
        at(MPI_Send(buffer, -1, INT, 0, 0, comm)),
        "MPI_ERR_COUNT: MPI_Send: got -1 for a count, expected 0 or more"
    );
    assert_eq!(
        at(MPI_Send(0, 1, INT, 0, 0, comm)),
        "MPI_ERR_BUFFER: MPI_Send: got a null pointer for a buffer, expected an address"
    );
    done(MPI_Send(0, 0, INT, -1, 0, comm));
    assert_eq!(class(MPI_Send(buffer, 1, INT, 0, -1, comm)), TAG);
    assert_eq!(class(MPI_Send(buffer, 1, 12345, 0, 0, comm)), TYPE);
    assert_eq!(class(MPI_Send(buffer, 1, INT, 0, 0, 12345)), COMM);
    assert_eq!(class(MPI_Bcast(buffer, 1, INT, 1, comm)), ROOT);
    assert_eq!(
        class(MPI_Allreduce(buffer, buffer, 1, INT, 12345, comm)),
        OP
    );
    assert_eq!(class(MPI_Allreduce(buffer, buffer, 1, BYTE, SUM, comm)), OP);
    assert_eq!(class(MPI_Comm_size(comm, Out(ptr::null_mut()))), ARG);
    assert_eq!(class(MPI_Wait(copy(&mut { 12345 }), IGNORED)), REQUEST);
    assert_eq!(
        class(MPI_Comm_get_attr(
            comm,
            1,
            copy(&mut { 0 }),
            copy(&mut { 0 })
        )),
        KEYVAL
    );
    let code = MPI_Win_create();
    assert_eq!(class(code), UNSUPPORTED_OPERATION);
    assert!(at(code).ends_with("MPI_Win_create: not available without an MPI library"));
}

static DELETED: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());

extern "C" fn copy_doubled(
    _: c_int,
    _: c_int,
    _: *mut c_void,
    value: *mut c_void,
    copied: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    Out(copied.cast())
        .put(2 * value.addr())
        .expect("there is room");
    Out(flag).put(1).expect("there is room");
    0
}

/// Notes the value, and calls MPI again.
extern "C" fn delete_noted(comm: c_int, _: c_int, value: *mut c_void, extra: *mut c_void) -> c_int {
    assert_eq!(made(|size| MPI_Comm_size(comm, size)), 1);
    DELETED.lock().expect("no panic").push(value.addr());
    extra.addr() as c_int
}

#[test]
fn attributes_are_copied_and_deleted_by_callbacks() {
    let mut comm = comm();
    let create = |extra| {
        made(|key| MPI_Comm_create_keyval(Some(copy_doubled), Some(delete_noted), key, extra))
    };
    let keys = [create(0), create(0)];
    for (key, value) in keys.into_iter().zip([11, 12]) {
        done(MPI_Comm_set_attr(comm, key, value));
    }
    done(MPI_Comm_free_keyval(copy(&mut { keys[0] })));
    let mut copy = made(|new| MPI_Comm_dup(comm, new));
    let get = |comm, key| {
        let (mut value, mut flag) = (0, 0);
        let code = MPI_Comm_get_attr(comm, key, Out(&raw mut value), Out(&raw mut flag));
        (code == 0 && flag == 1).then_some(value)
    };
    assert_eq!([get(copy, keys[0]), get(copy, keys[1])], [None, Some(24)]);
    done(MPI_Comm_free(Out(&raw mut copy)));
    done(MPI_Comm_free(Out(&raw mut comm)));
    assert_eq!(*DELETED.lock().expect("no panic"), [24, 22, 12, 11]);
    // A callback that fails keeps the communicator.
    let mut comm = self::comm();
    done(MPI_Comm_set_attr(comm, create(15), 0));
    assert_eq!(class(MPI_Comm_free(Out(&raw mut comm))), OTHER);
    assert_eq!(made(|size| MPI_Comm_size(comm, size)), 1);
}

static RAISED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note_error(comm: *mut c_int, code: *mut c_int) {
    let code = Out(code).get().expect("it is given");
    let comm = Out(comm).get().expect("it is given");
    assert_eq!(made(|size| MPI_Comm_size(comm, size)), 1);
    RAISED.store(class(code) as usize, Ordering::SeqCst);
}

#[test]
fn errors_are_raised_by_the_handler_of_the_communicator() {
    let comm = comm();
    let mut handler = made(|new| MPI_Comm_create_errhandler(Some(note_error), new));
    let same = handler;
    done(MPI_Comm_set_errhandler(comm, handler));
    done(MPI_Errhandler_free(Out(&raw mut handler)));
    let code = MPI_Bcast(0, 0, INT, 3, comm);
    assert_eq!(
        (class(code), RAISED.load(Ordering::SeqCst)),
        (ROOT, ROOT as usize)
    );
    assert_eq!(made(|found| MPI_Comm_get_errhandler(comm, found)), same);
    let copy = made(|new| MPI_Comm_dup(comm, new));
    assert_eq!(made(|found| MPI_Comm_get_errhandler(copy, found)), same);
}

#[test]
fn groups_have_the_process_or_nobody() {
    let comm = comm();
    let group = made(|group| MPI_Comm_group(comm, group));
    let empty = made(|new| MPI_Group_excl(group, 1, In([0].as_ptr()), new));
    let size = |group| made(|size| MPI_Group_size(group, size));
    assert_eq!([size(group), size(empty)], [1, 0]);
    let operations = [
        MPI_Group_union,
        MPI_Group_intersection,
        MPI_Group_difference,
    ];
    let sizes = [
        (group, group),
        (group, empty),
        (empty, group),
        (empty, empty),
    ]
    .map(|(first, second)| operations.map(|of| size(made(|new| of(first, second, new)))));
    assert_eq!(sizes, [[1, 1, 0], [1, 0, 1], [1, 0, 0], [0, 0, 0]]);
    let incl = |group, ranks: &[c_int]| {
        let ranks = (ranks.len() as c_int, In(ranks.as_ptr()));
        class(MPI_Group_incl(group, ranks.0, ranks.1, copy(&mut { 0 })))
    };
    assert_eq!(
        [incl(group, &[0, 0]), incl(group, &[1]), incl(empty, &[0])],
        [RANK; 3]
    );
    let none = made(|new| MPI_Comm_create(comm, empty, new));
    assert_eq!(none, COMM_NULL);
}

extern "C" fn own_sum(of: *mut c_void, to: *mut c_void, count: *mut c_int, _: *mut c_int) {
    let count = Out(count).get().expect("it is given") as usize;
    let (of, to) = (In(of.cast::<c_int>()), Out(to.cast::<c_int>()));
    for index in 0..count {
        let sum = of.at(index).expect("there") + In(to.0.cast_const()).at(index).expect("there");
        to.put_at(index, sum).expect("there");
    }
}

#[test]
fn operations_reduce_two_buffers() {
    comm();
    let own = made(|op| MPI_Op_create(Some(own_sum), 1, op));
    for (op, expected) in [
        (0x5800_0001, [5, 7]),
        (0x5800_0002, [3, -2]),
        (SUM, [8, 5]),
        (0x5800_0004, [15, -14]),
        (0x5800_0005, [1, 1]),
        (0x5800_0006, [1, 6]),
        (0x5800_000a, [6, -7]),
        (own, [8, 5]),
    ] {
        let mut values = [5, -2];
        done(MPI_Reduce_local(
            address(&[3, 7]),
            address_mut(&mut values),
            2,
            INT,
            op,
        ));
        assert_eq!(values, expected, "{op:#x}");
    }
    let (double_int, mut pairs) = (
        0x8c00_0001_u32.cast_signed(),
        [(2.0, 5), (3.0, 5), (4.0, 1)],
    );
    let given = [(2.0, 4), (2.0, 9), (5.0, 9)];
    done(MPI_Reduce_local(
        address(&given),
        address_mut(&mut pairs),
        3,
        double_int,
        0x5800_000b,
    ));
    assert_eq!(pairs, [(2.0, 4), (2.0, 9), (4.0, 1)]);
    let mut complex = [3.0, 4.0];
    done(MPI_Reduce_local(
        address(&[1.0, 2.0]),
        address_mut(&mut complex),
        1,
        0x4c00_1041,
        0x5800_0004,
    ));
    assert_eq!(complex, [-5.0, 10.0]);
}

/// A type as the standard defines it: offsets of bytes in order, and bounds.
#[derive(Clone, Debug)]
struct Model {
    bytes: Vec<isize>,
    lower: isize,
    extent: isize,
}

impl Model {
    fn of(parts: impl IntoIterator<Item = isize>, old: &Self) -> Self {
        let starts: Vec<isize> = parts.into_iter().collect();
        let bytes = starts
            .iter()
            .flat_map(|at| old.bytes.iter().map(move |byte| byte + at));
        let lower = starts.iter().map(|at| at + old.lower).min().unwrap_or(0);
        let upper = starts
            .iter()
            .map(|at| at + old.lower + old.extent)
            .max()
            .unwrap_or(0);
        Self {
            bytes: bytes.collect(),
            lower,
            extent: upper - lower,
        }
    }
}

/// How a type is made of another.
#[derive(Clone, Debug)]
enum Step {
    Contiguous(c_int),
    Vector(c_int, c_int, c_int),
    Bytes(c_int, c_int, isize),
    Indexed(Vec<(c_int, c_int)>),
    Subarray([(c_int, c_int); 2], bool),
    Resized(isize, isize),
    Dup,
}

impl Step {
    /// The type and its model.
    fn apply(&self, old: c_int, model: &Model) -> (c_int, Model) {
        let extent = model.extent;
        let block =
            |at: isize, length: c_int| (0..length as isize).map(move |index| at + index * extent);
        match self {
            Self::Contiguous(count) => (
                made(|new| MPI_Type_contiguous(*count, old, new)),
                Model::of(block(0, *count), model),
            ),
            Self::Vector(count, length, stride) => (
                made(|new| MPI_Type_vector(*count, *length, *stride, old, new)),
                Model::of(
                    (0..*count as isize)
                        .flat_map(|index| block(index * *stride as isize * extent, *length)),
                    model,
                ),
            ),
            Self::Bytes(count, length, stride) => (
                made(|new| MPI_Type_create_hvector(*count, *length, *stride, old, new)),
                Model::of(
                    (0..*count as isize).flat_map(|index| block(index * stride, *length)),
                    model,
                ),
            ),
            Self::Indexed(blocks) => {
                let (lengths, at): (Vec<_>, Vec<_>) = blocks.iter().copied().unzip();
                let count = blocks.len() as c_int;
                let (lengths_at, at_at) = (In(lengths.as_ptr()), In(at.as_ptr()));
                (
                    made(|new| MPI_Type_indexed(count, lengths_at, at_at, old, new)),
                    Model::of(
                        blocks
                            .iter()
                            .flat_map(|(length, at)| block(*at as isize * extent, *length)),
                        model,
                    ),
                )
            }
            Self::Subarray(parts, is_fortran) => {
                let sizes = parts.map(|(start, part)| start + part + 1);
                let (starts, subsizes) = (parts.map(|part| part.0), parts.map(|part| part.1));
                let arrays = [sizes, subsizes, starts];
                let [sizes_at, subsizes_at, starts_at] =
                    [0, 1, 2].map(|index| In(arrays[index].as_ptr()));
                let order = if *is_fortran { 57 } else { 56 };
                let new = made(|new| {
                    MPI_Type_create_subarray(2, sizes_at, subsizes_at, starts_at, order, old, new)
                });
                let [slow, fast] = if *is_fortran { [1, 0] } else { [0, 1] };
                let rows = starts[slow]..starts[slow] + subsizes[slow];
                let places = rows.flat_map(|row| {
                    (starts[fast]..starts[fast] + subsizes[fast])
                        .map(move |column| (row * sizes[fast] + column) as isize * extent)
                });
                let whole = Model::of(places, model);
                let extent = (sizes[0] * sizes[1]) as isize * extent;
                (
                    new,
                    Model {
                        lower: 0,
                        extent,
                        ..whole
                    },
                )
            }
            Self::Resized(lower, extent) => (
                made(|new| MPI_Type_create_resized(old, *lower, *extent, new)),
                Model {
                    lower: *lower,
                    extent: *extent,
                    ..model.clone()
                },
            ),
            Self::Dup => (made(|new| MPI_Type_dup(old, new)), model.clone()),
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let small = 0..4_i32;
    let step = prop_oneof![
        small.clone().prop_map(Step::Contiguous),
        (small.clone(), small.clone(), -3..5_i32).prop_map(|(a, b, c)| Step::Vector(a, b, c)),
        (small.clone(), small.clone(), -40..60_isize).prop_map(|(a, b, c)| Step::Bytes(a, b, c)),
        prop::collection::vec((small, -3..5_i32), 0..4).prop_map(Step::Indexed),
        ([(0..2_i32, 1..3_i32), (0..2_i32, 1..3_i32)], any::<bool>())
            .prop_map(|(parts, order)| Step::Subarray(parts, order)),
        (-20..20_isize, 0..50_isize).prop_map(|(a, b)| Step::Resized(a, b)),
        Just(Step::Dup),
    ];
    prop::collection::vec(step, 0..4)
}

proptest! {
    #[test]
    fn types_select_the_bytes_that_the_standard_says(steps in steps(), count in 0..3_i32) {
        comm();
        let mut datatype = INT;
        let mut model = Model { bytes: (0..4).collect(), lower: 0, extent: 4 };
        for step in &steps {
            (datatype, model) = step.apply(datatype, &model);
        }
        done(MPI_Type_commit(Out(&raw mut datatype)));
        let (mut lower, mut extent) = (0, 0);
        done(MPI_Type_get_extent(datatype, Out(&raw mut lower), Out(&raw mut extent)));
        prop_assert_eq!((lower, extent), (model.lower, model.extent));
        prop_assert_eq!(made(|size| MPI_Type_size(datatype, size)), model.bytes.len() as c_int);
        let whole = Model::of((0..count as isize).map(|index| index * model.extent), &model);
        let start = -whole.bytes.iter().copied().min().unwrap_or(0);
        let end = whole.bytes.iter().copied().max().unwrap_or(-1) + 1;
        let buffer: Vec<u8> = (0..start + end).map(|index| (index % 251) as u8 + 1).collect();
        let expected: Vec<u8> =
            whole.bytes.iter().map(|at| buffer[(at + start) as usize]).collect();
        let mut packed = vec![0; expected.len()];
        let mut position = 0;
        let from = address(&buffer).wrapping_add_signed(start);
        let room = packed.len() as c_int;
        let to = address_mut(&mut packed);
        done(MPI_Pack(from, count, datatype, to, room, Out(&raw mut position), COMM_WORLD));
        prop_assert_eq!((&packed, position), (&expected, room));
        // The other way, where no byte is selected twice.
        let mut distinct = whole.bytes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() == whole.bytes.len() {
            let mut received = vec![0; buffer.len()];
            let to = address_mut(&mut received).wrapping_add_signed(start);
            let mut position = 0;
            let from = address(&packed);
            let at = Out(&raw mut position);
            done(MPI_Unpack(from, room, at, to, count, datatype, COMM_WORLD));
            let mut expected = vec![0; buffer.len()];
            for at in &whole.bytes {
                let index = (at + start) as usize;
                expected[index] = buffer[index];
            }
            prop_assert_eq!(received, expected);
        }
        let status = Status::of_message(0, packed.len());
        let elements = made(|count| MPI_Get_elements(In(&raw const status), datatype, count));
        prop_assert_eq!(elements, room / 4);
    }
}

#[test]
fn a_struct_is_as_long_as_in_c() {
    comm();
    let (lengths, at, types) = ([1, 1], [0, 8], [DOUBLE, BYTE]);
    let (lengths, at, types) = (In(lengths.as_ptr()), In(at.as_ptr()), In(types.as_ptr()));
    let datatype = made(|new| MPI_Type_create_struct(2, lengths, at, types, new));
    let (mut lower, mut extent) = (0, 0);
    done(MPI_Type_get_extent(
        datatype,
        Out(&raw mut lower),
        Out(&raw mut extent),
    ));
    assert_eq!((lower, extent), (0, 16));
}

#[test]
fn self_is_a_communicator_of_its_own() {
    comm();
    assert_eq!(
        made(|result| MPI_Comm_compare(COMM_WORLD, COMM_SELF, result)),
        1
    );
    assert_eq!(made(|rank| MPI_Comm_rank(COMM_SELF, rank)), 0);
}
