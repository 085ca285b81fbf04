//! The cost of a handler, apart from MPI: calls as XLA makes them, on an MPI that does nothing.
//!
//!     cargo bench --bench handler
//!
//! prints one line per operation, with the nanoseconds that a call takes.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use _core::mpi::{Abi, Constants, Functions, PredefinedOp, Types};
use _core::{mpi_functions, ops};

#[path = "../tests/common/mod.rs"]
mod common;
use common::*;

struct Idle;

impl Types for Idle {
    type Aint = isize;
    type Comm = c_int;
    type Datatype = c_int;
    type Errhandler = c_int;
    type Group = c_int;
    type Info = c_int;
    type Op = c_int;
    type Request = c_int;
    type Status = c_void;
}

impl Abi for Idle {
    fn constants() -> &'static Constants {
        static CONSTANTS: Constants = Constants {
            in_place: 0x777,
            proc_null: -7,
            status_ignore: 0x888,
            status_source: 0,
        };
        &CONSTANTS
    }

    fn functions() -> &'static OnceLock<Functions<Self>> {
        static FUNCTIONS: OnceLock<Functions<Idle>> = OnceLock::new();
        &FUNCTIONS
    }
}

/// A C function with the given arguments that returns at once.
macro_rules! idle {
    ($symbol:ident($($argument:ident),*)) => {{
        unsafe extern "C" fn idle<$($argument),*>($(_: $argument),*) -> c_int {
            0
        }
        idle
    }};
}

const ROUNDS: usize = 15;
const CALLS: u32 = 200_000;

/// The median of several rounds, in nanoseconds per call.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    assert!(Idle::functions().set(mpi_functions!(idle)).is_ok());
    set_communicator(0, 0x44, 0, 2);
    let sum = PredefinedOp::Sum.number();
    set_operator(sum as usize, 0x58);
    set_datatype(F32, 0xf32, 4);

    let x = || buffer(F32, 0x1000, &[2]);
    let y = || buffer(F32, 0x2000, &[2]);
    let unary = || CallFrame::default().operand(x()).result(y());
    let messages: &[(&str, i64)] = &[
        ("comm_number", 0),
        ("dest", 1),
        ("recvtag", -1),
        ("sendtag", 0),
        ("source", 1),
        ("status_number", -1),
    ];
    let mut memory = [[0.0; 8]; 12];
    for (name, call) in [
        (
            "allreduce",
            unary().ints(&[("comm_number", 0), ("op_number", sum)]),
        ),
        ("sendrecv", unary().ints(messages)),
        ("barrier", CallFrame::default().ints(&[("comm_number", 0)])),
        ("exchange of halos", exchange_of_halos(&mut memory)),
    ] {
        let call = call.operand(token()).result(token());
        let operation = name.split(' ').next().unwrap();
        let (_, handler) = ops::host_handlers::<Idle>()
            .into_iter()
            .find(|(name, _)| *name == operation)
            .unwrap();
        let time = call.lend(|frame| {
            // SAFETY: the frame lives through the call.
            nanoseconds(|| assert!(unsafe { black_box(handler)(frame) }.is_null()))
        });
        println!("{name} {time:.1}");
    }
}

/// An exchange of blocks (`blocks/one_call.py`): both edges of a field of 8 x 8, in the first
/// rows of `memory`, go through messages, in the others, to the ghost cells of neighbors.
fn exchange_of_halos(memory: &mut [[f32; 8]; 12]) -> CallFrame {
    // The operand has index 0.
    let [field, left, right, from_left, from_right] = [1, 2, 3, 4, 5];
    let column = |source, from, result, to, steps: [i64; 2]| {
        [source, from, result, to, 1, 8, steps[0], steps[1]]
    };
    let packing = [
        column(field, 1, left, 0, [8, 1]),
        column(field, 6, right, 0, [8, 1]),
    ];
    let unpacking = [
        column(from_left, 0, field, 0, [1, 8]),
        column(from_right, 0, field, 7, [1, 8]),
    ];
    let lists: [&[i64]; 8] = [
        &[left, 0, 8, right, 0, 8],
        &[from_left, 0, 8, from_right, 0, 8],
        packing.as_flattened(),
        &[2],
        &[],
        unpacking.as_flattened(),
        &[2],
        &[],
    ];
    let call = CallFrame::default().ints(&[("comm_number", 0)]);
    let call = call.list("dests", &[0, 1]).list("sendtags", &[0, 1]);
    let call = call.list("sources", &[0, 1]).list("recvtags", &[1, 0]);
    let call = call.with_copies(1, lists);
    let rows = memory.as_mut_ptr();
    let row = |index, dims: &[i64]| buffer(F32, rows.wrapping_add(index) as usize, dims);
    let call = call.operand(row(0, &[8, 8])).result(row(0, &[8, 8]));
    (8..12).fold(call, |call, index| call.result(row(index, &[8])))
}
