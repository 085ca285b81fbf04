//! An MPI that moves bytes: its processes are threads of one test.
//!
//! - `types`: data types, operators, buffers.
//! - `memory`: the memory that MPI may touch.
//! - `network`: processes, communicators, requests; when things happen.
//! - `functions`: the C functions.
//!
//! A *violation* fails the test: memory that is freed, or that a handler
//! leaves, or that another request writes to, while MPI may touch it; a request that is used after its
//! end, or never completed; collective calls that differ; calls after the end of MPI.

pub mod functions;
pub mod memory;
pub mod network;
mod types;

use std::collections::HashMap;
use std::ffi::c_int;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{MutexGuard, OnceLock};
use std::thread;
use std::time::Duration;

use _core::mpi::{Abi, IntHandles, Neighbors, PredefinedOp, REGISTRY};
use _core::ops;
use _core::xla::Handler;

use self::network::{Lateness, wait_until, with};
use self::types::{Element, Operator};
use crate::common::recorder::{self, alone, ends, floats};
use crate::common::*;

/// All messages are copied at once, and what can be completed is.
pub const EARLY: Lateness = Lateness {
    eager: usize::MAX,
    looks: 0,
};
/// Messages of more than 16 bytes are read when they are received, and all is completed late.
pub const LATE: Lateness = Lateness {
    eager: 16,
    looks: 3,
};

/// Binds the MPI, once in a test program.
fn bind() {
    IntHandles::functions().get_or_init(|| {
        let types = [
            (F32, Element::Float),
            (S32, Element::Int),
            (S64, Element::Long),
            (U8, Element::Byte),
            (F16, Element::Short),
            (BF16, Element::Short),
        ];
        for (dtype, element) in types {
            set_datatype(dtype, element.handle() as usize, element.size());
        }
        for op in PredefinedOp::ALL {
            let handle = with(|network| {
                let handle = network.new_handle();
                network.operators.insert(handle, Operator::Predefined(*op));
                handle
            });
            set_operator(op.number() as usize, handle as usize);
        }
        functions::functions()
    });
}

fn handler(operation: &str) -> Handler {
    static HANDLERS: OnceLock<HashMap<&str, Handler>> = OnceLock::new();
    HANDLERS.get_or_init(|| ops::host_handlers::<IntHandles>().into_iter().collect())[operation]
}

/// Some processes, and a communicator of all of them. No other test runs as long as it lives.
pub struct World {
    pub ranks: Vec<Rank>,
    /// Whether a test leaves requests that nobody completes, as after an error.
    pub is_left_untidy: bool,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    pub fn new(size: usize, lateness: Lateness) -> Self {
        Self::in_pieces(size, lateness, 0)
    }

    /// A world in which messages travel in pieces of `piece_bytes` bytes.
    pub fn in_pieces(size: usize, lateness: Lateness, piece_bytes: usize) -> Self {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        let alone = alone();
        bind();
        ops::finish(Duration::ZERO);
        memory::freed_too_early();
        let handles = with(|network| {
            network.take_violations();
            network.set_lateness(lateness);
            let context = network.new_context((0..size).collect());
            network.contexts[context].handles.clone()
        });
        let ranks = handles.into_iter().enumerate().map(|(rank, handle)| {
            let comm = NEXT.fetch_add(1, Ordering::Relaxed);
            let own = (handle as usize, rank as c_int, size as c_int);
            set_communicator_in_pieces(comm as usize, own, piece_bytes);
            REGISTRY.set_neighbors(comm as usize, on_ring(rank, size));
            Rank { rank, size, comm }
        });
        Self {
            ranks: ranks.collect(),
            is_left_untidy: false,
            _alone: alone,
        }
    }

    /// Runs `body` on a thread for each process.
    pub fn run(&self, body: impl Fn(Rank) + Sync) {
        thread::scope(|scope| {
            let start = |rank: &Rank| {
                let (rank, body) = (*rank, &body);
                scope.spawn(move || body(rank))
            };
            let threads: Vec<_> = self.ranks.iter().map(start).collect();
            for thread in threads {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
    }

    /// [`run`](Self::run), where errors of MPI's raise.
    pub fn run_raising(&self, body: impl Fn(Rank) + Sync) {
        ops::set_raise_on_error(true);
        self.run(body);
        ops::set_raise_on_error(false);
    }

    /// Ends MPI, as the program does.
    pub fn finalize(&self) {
        functions::finalize();
    }

    /// Waits until all requests of all processes are over.
    pub fn until_complete(&self) {
        wait_until((usize::MAX, "a test"), |network| {
            network.incomplete().is_empty().then_some(())
        });
    }

    /// The violations since this was asked last.
    pub fn violations(&self) -> Vec<String> {
        let mut violations = with(network::Network::take_violations);
        let (count, request) = memory::freed_too_early();
        if count > 0 {
            violations.push(format!(
                "memory that MPI may touch was freed, {count} times: of request {request:x}"
            ));
        }
        violations
    }
}

impl Drop for World {
    fn drop(&mut self) {
        ops::set_raise_on_error(false);
        ops::set_check(false);
        ops::set_count_limit(i32::MAX.into(), true);
        ops::set_pushing(false);
        let incomplete = with(|network| {
            network.forget_faults();
            network.is_finalized = false;
            let incomplete = network.incomplete();
            network.forget_requests();
            incomplete
        });
        let violations = self.violations();
        if !thread::panicking() {
            assert_eq!(violations, [""; 0]);
            assert!(
                self.is_left_untidy || incomplete.is_empty(),
                "{incomplete:?}"
            );
        }
    }
}

/// The neighbors on a ring: one that sends, and one that is sent to.
fn on_ring(rank: usize, size: usize) -> Neighbors {
    let at = |rank: usize| (rank % size) as c_int;
    Neighbors {
        sources: ends(&[(at(rank + size - 1), 0)]),
        destinations: ends(&[(at(rank + 1), 0)]),
    }
}

/// A process.
#[derive(Clone, Copy)]
pub struct Rank {
    pub rank: usize,
    pub size: usize,
    /// The number of its communicator.
    pub comm: i64,
}

impl Rank {
    /// A frame for a call.
    pub fn on(&self) -> CallFrame {
        recorder::on(self.comm)
    }

    /// Calls an operation, as XLA does. MPI has to leave the arrays alone when it returns.
    pub fn call(&self, operation: &str, call: CallFrame) -> Outcome {
        let buffers = call.operands.iter().chain(&call.results);
        let arrays: Vec<_> = buffers.map(bytes_of).collect();
        let outcome = call.run(handler(operation));
        let here = (&raw const arrays) as usize;
        // The stack grows downwards, on all processors that there are.
        let stack = here - (256 << 10)..here;
        for range in arrays.iter().chain([&stack]) {
            if let Some(request) = memory::user_of(range) {
                let memory_name = if range == &stack {
                    "its stack"
                } else {
                    "an array"
                };
                with(|network| {
                    network.note(format!(
                        "{operation} leaves {memory_name} to MPI: {request:x}"
                    ));
                });
            }
        }
        outcome
    }

    /// [`call`](Self::call), all being well.
    pub fn succeed(&self, operation: &str, call: CallFrame) {
        assert_eq!(self.call(operation, call), Ok(()), "{operation}");
    }

    /// Starts a nonblocking operation, and gives its ticket.
    pub fn start(&self, operation: &str, call: CallFrame) -> Ticket {
        self.try_to_start(operation, call).unwrap()
    }

    pub fn try_to_start(
        &self,
        operation: &str,
        call: CallFrame,
    ) -> Result<Ticket, (c_int, String)> {
        let mut ticket = Box::new([0.0; 2]);
        let call = call.ints(&[("may_be_lost", 0)]);
        self.call(operation, call.result(array_mut(&mut *ticket)))?;
        Ok(Ticket(ticket))
    }

    /// Waits for an operation, and has its results written.
    pub fn wait(&self, ticket: &Ticket, results: &mut [&mut [f32]]) -> Outcome {
        let call = self.on().ints(&[("may_be_zero", 0), ("started", 0)]);
        let call = call.operand(array(&*ticket.0));
        let results = results.iter_mut();
        let call = results.fold(call, |call, result| call.result(array_mut(result)));
        self.call("wait", call)
    }

    /// Lets MPI go on with all requests of this process, as any call does.
    pub fn progress(&self) {
        with(|network| while network.progress(self.rank) {});
    }

    /// Makes a function return an error to this process, after `after` calls without an error.
    pub fn fail(&self, function: &'static str, after: usize) {
        with(|network| network.fail(self.rank, function, after));
    }

    /// Waits until a process waits in MPI behind the errors that were asked for, or `is_over`.
    pub fn until_waiting(&self, rank: usize, is_over: &AtomicBool) {
        wait_until((self.rank, "a test"), |network| {
            let is_waiting = network.has_failed() && network.is_waiting(rank);
            (is_waiting || is_over.load(Ordering::SeqCst)).then_some(())
        });
    }
}

/// The ticket of an operation in flight, as a program holds it.
pub struct Ticket(pub Box<[f32; 2]>);

/// The bytes of an array of a call.
fn bytes_of(buffer: &Buffer) -> Range<usize> {
    let size = match buffer.dtype {
        S64 => 8,
        F16 | BF16 => 2,
        U8 => 1,
        _ => 4,
    };
    let count: i64 = buffer.dims.iter().product();
    buffer.address..buffer.address + count as usize * size
}

/// An operand.
pub fn array(values: &[f32]) -> Buffer {
    floats(values.as_ptr() as i64, &[values.len() as i64])
}

/// A result.
pub fn array_mut(values: &mut [f32]) -> Buffer {
    floats(values.as_mut_ptr() as i64, &[values.len() as i64])
}

/// An array of rows.
pub fn rows(values: &[f32], rows: usize) -> Buffer {
    let dims = [
        rows as i64,
        values.len().checked_div(rows).unwrap_or(5) as i64,
    ];
    floats(values.as_ptr() as i64, &dims)
}

/// A result of rows.
pub fn rows_mut(values: &mut [f32], count: usize) -> Buffer {
    Buffer {
        address: values.as_mut_ptr() as usize,
        ..rows(values, count)
    }
}
