//! What a handler costs, apart from MPI: calls as XLA makes them, on an MPI that does nothing.
//!
//!     cargo bench --bench handler
//!
//! prints one line per operation, with the nanoseconds that a call takes.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use _core::mpi::{Abi, Communicator, Counted, Datatype, Functions, PredefinedOp, REGISTRY, Types};
use _core::ops;

#[path = "../tests/common/mod.rs"]
mod common;
use common::*;

struct Idle;

impl Types for Idle {
    type Aint = isize;
    type Comm = c_int;
    type Datatype = c_int;
    type Op = c_int;
    type Status = c_void;
}

impl Abi for Idle {
    const IN_PLACE: usize = 0x777;
    const PROC_NULL: c_int = -7;
    const STATUS_IGNORE: usize = 0x888;
    const STATUS_SOURCE: usize = 0;

    fn functions() -> &'static OnceLock<Functions<Self>> {
        static FUNCTIONS: OnceLock<Functions<Idle>> = OnceLock::new();
        &FUNCTIONS
    }
}

/// A C function that takes as many arguments as there are letters, and returns at once.
macro_rules! idle {
    ($($argument:ident)*) => {{
        #[allow(non_snake_case)]
        unsafe extern "C" fn idle<$($argument),*>($(_: $argument),*) -> c_int {
            0
        }
        idle
    }};
}

fn functions() -> Functions<Idle> {
    Functions {
        abort: idle!(A B),
        alltoallw: idle!(A B C D E F G H I),
        barrier: idle!(A),
        comm_free: idle!(A),
        comm_split: idle!(A B C D),
        error_string: idle!(A B C),
        finalized: idle!(A),
        get_count: idle!(A B C),
        op_create: idle!(A B C),
        status_set_elements: idle!(A B C),
        type_commit: idle!(A),
        type_contiguous: idle!(A B C),
        type_create_struct: idle!(A B C D E),
        type_free: idle!(A),
        int: counted(),
        large: Some(counted()),
    }
}

fn counted<N: 'static, D: 'static>() -> Counted<Idle, N, D> {
    Counted {
        allgather: idle!(A B C D E F G),
        allgatherv: idle!(A B C D E F G H),
        allreduce: idle!(A B C D E F),
        alltoall: idle!(A B C D E F G),
        alltoallv: idle!(A B C D E F G H I),
        bcast: idle!(A B C D E),
        exscan: idle!(A B C D E F),
        gather: idle!(A B C D E F G H),
        gatherv: idle!(A B C D E F G H I),
        recv: idle!(A B C D E F G),
        reduce: idle!(A B C D E F G),
        reduce_scatter_block: idle!(A B C D E F),
        scan: idle!(A B C D E F),
        scatter: idle!(A B C D E F G H),
        scatterv: idle!(A B C D E F G H I),
        send: idle!(A B C D E F),
        sendrecv: idle!(A B C D E F G H I J K L),
        sendrecv_replace: idle!(A B C D E F G H I),
    }
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
    assert!(Idle::functions().set(functions()).is_ok());
    REGISTRY.set_communicator(0, Communicator::new(0x44, 0, 2, 0));
    let sum = PredefinedOp::Sum.number();
    REGISTRY.set_operator(sum as usize, 0x58);
    REGISTRY.set_datatype(F32 as usize, Datatype::new(0xf32, 4));

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
    for (operation, call) in [
        (
            "allreduce",
            unary().ints(&[("comm_number", 0), ("op_number", sum)]),
        ),
        ("sendrecv", unary().ints(messages)),
        ("barrier", CallFrame::default().ints(&[("comm_number", 0)])),
    ] {
        let call = call.operand(token()).result(token());
        let (_, handler) = ops::host_handlers::<Idle>()
            .into_iter()
            .find(|(name, _)| *name == operation)
            .unwrap();
        let time = call.lend(|frame| {
            // SAFETY: the frame lives through the call.
            nanoseconds(|| assert!(unsafe { black_box(handler)(frame) }.is_null()))
        });
        println!("{operation} {time:.1}");
    }
}
