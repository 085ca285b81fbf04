//! One call of an operation: what is in its frame, its communicator, and the calling of MPI.

pub mod buffers;
pub mod companions;
mod copies;
pub mod counts;
pub mod derived;
pub mod in_flight;
pub mod log_text;
pub mod on_error;
pub mod operator;
pub mod pieces;
pub mod requests;

use std::cell::RefCell;
use std::ffi::c_int;
use std::ops::Range;

use self::counts::{Collective, Count, Counting, Form};
use self::in_flight::InFlight;
use crate::error::{Error, Failure, Result};
use crate::log;
use crate::memory::{Access, Memory, fault};
use crate::mpi::{Abi, Communicator, Datatype, Functions, Handle, REGISTRY, Request};
use crate::recorder::{self, Operation, Progress, Record, Recording};
use crate::xla::{Buffer, Frame};

/// A call of an operation on a communicator.
pub struct Call<'a, A: Abi, M> {
    frame: &'a Frame<'a>,
    pub functions: &'static Functions<A>,
    pub counting: Counting<A>,
    pub memory: M,
    /// The number of the communicator.
    pub comm_number: i64,
    pub communicator: Communicator,
    pub operation: &'static Operation,
    recording: Recording,
    /// The record of the call, if messages are to be checked.
    pub checked: Option<Box<Record>>,
    /// The memory and the requests that the call leaves to the one that waits, if it is nonblocking.
    pub departure: Option<Box<RefCell<InFlight>>>,
}

impl<'a, A: Abi, M: Memory> Call<'a, A, M> {
    #[inline(always)]
    pub fn begin(operation: &'static Operation, frame: &'a Frame<'a>, memory: M) -> Result<Self> {
        let functions = A::functions()
            .get()
            .ok_or_else(|| Error::precondition("no MPI library is loaded"))?;
        let comm_number = frame.attribute("comm_number")?;
        Ok(Self {
            frame,
            functions,
            counting: Counting::new(functions),
            memory,
            comm_number,
            communicator: REGISTRY.communicator(comm_number)?,
            operation,
            recording: recorder::begin(operation, frame, comm_number),
            checked: None,
            departure: None,
        })
    }

    /// The record of the call, unless it is not kept any more.
    pub fn record(&self) -> Option<Record> {
        self.recording.record()
    }

    /// For a collective operation, its place among those on the communicator; else 0.
    pub fn sequence(&self) -> u64 {
        self.recording.sequence()
    }

    /// Records the flight that the call has started, or waits for, and its place among the
    /// collective operations, if the call itself has none.
    pub fn set_flight(&self, flight_id: u32, sequence: Option<u64>) {
        self.recording.set_flight(flight_id, sequence);
    }

    #[inline(always)]
    pub fn operands<const N: usize>(&self) -> Result<[Buffer<'a>; N]> {
        self.frame.operands()
    }

    #[inline(always)]
    pub fn results<const N: usize>(&self) -> Result<[Buffer<'a>; N]> {
        self.frame.results()
    }

    /// The operands of an operation that takes any number of them.
    pub fn all_operands(&self) -> Result<Vec<Buffer<'a>>> {
        self.frame.all_operands()
    }

    /// The results of one that gives any number of them.
    pub fn all_results(&self) -> Result<Vec<Buffer<'a>>> {
        self.frame.all_results()
    }

    /// A rank or a tag.
    pub fn int(&self, name: &str) -> Result<c_int> {
        self.frame.int_attribute(name)
    }

    /// The number by which the registry knows an object.
    pub fn number(&self, name: &str) -> Result<i64> {
        self.frame.attribute(name)
    }

    /// So many rows for each rank.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>> {
        self.frame.ints_attribute(name)
    }

    /// Ranks or tags.
    pub fn int_list(&self, name: &str) -> Result<Vec<c_int>> {
        let to_int = |value: i64| {
            c_int::try_from(value).map_err(|_| {
                Error::invalid(format!(
                    "attribute `{name}` has {value}, not an int of MPI's"
                ))
            })
        };
        self.ints(name)?.into_iter().map(to_int).collect()
    }

    /// Where to put the status of a receive.
    pub fn status(&self) -> Result<*mut A::Status> {
        REGISTRY.status::<A>(self.number("status_number")?)
    }

    /// Calls a function that takes counts, of which `largest` is the largest, with no access to more
    /// than that.
    pub fn counted(
        &self,
        access: &Access,
        function: &'static str,
        largest: Count,
        details: impl FnOnce() -> String,
        body: impl FnOnce(Form<A>, A::Comm) -> c_int,
    ) -> Result<()> {
        let form = self.counting.form(largest);
        self.mpi_with(access, function, details, |_, comm| body(form, comm))
    }

    /// Calls a collective function that takes counts, of which `largest` is the largest, or its
    /// nonblocking form, with no access to more than that.
    pub fn collective(
        &self,
        access: &Access,
        [blocking, nonblocking]: [&'static str; 2],
        largest: Count,
        details: impl FnOnce() -> String,
        body: impl FnOnce(Collective<A>, A::Comm) -> c_int,
    ) -> Result<()> {
        let form = self.counting.form(largest);
        let mut request = A::Request::from_raw(0);
        let (function, slot) = match self.departure {
            None => (blocking, None),
            Some(_) => (nonblocking, Some(&raw mut request)),
        };
        self.mpi_with(access, function, details, |functions, comm| {
            let code = body(
                Collective {
                    form,
                    request: slot,
                },
                comm,
            );
            if code == 0
                && let Some(departure) = &self.departure
            {
                // SAFETY: MPI has given the request. A nonblocking call has no buffers but those of
                // its departure.
                unsafe {
                    let request = Request::new(functions, request);
                    departure.borrow_mut().requests().push(request);
                }
            }
            code
        })
    }

    /// Calls MPI and sees to the log and to errors. `body` gets the functions and the
    /// communicator's handle and gives back MPI's error code.
    pub fn mpi(
        &self,
        function: &'static str,
        details: impl FnOnce() -> String,
        body: impl FnOnce(&'static Functions<A>, A::Comm) -> c_int,
    ) -> Result<()> {
        self.mpi_with(&Access::WHOLE, function, details, body)
    }

    fn mpi_with(
        &self,
        access: &Access,
        function: &'static str,
        details: impl FnOnce() -> String,
        body: impl FnOnce(&'static Functions<A>, A::Comm) -> c_int,
    ) -> Result<()> {
        self.in_memory(|memory| memory.before(access))?;
        let crash_line = M::IS_DIRECT.then(|| self.crash_line(function));
        let _guard = crash_line.as_deref().map(fault::Guard::new);
        let comm = self.communicator.handle::<A>();
        let code = if log::is_enabled() {
            let entry = log::LoggedCall::begin(self.communicator.rank, function, &details());
            let code = body(self.functions, comm);
            entry.end(code);
            code
        } else {
            body(self.functions, comm)
        };
        self.check(function, code)?;
        self.in_memory(|memory| memory.after(access))
    }

    /// The line on stderr if MPI crashes on device memory.
    fn crash_line(&self, function: &str) -> String {
        let record = self.recording.record();
        let line = record.and_then(|record| record.line());
        let line = line.filter(|line| !line.is_empty());
        let line = line.map(|line| format!(" at {line}")).unwrap_or_default();
        format!(
            "r{} | {function} crashed on the memory of a GPU, in {}{line}. \
             MPI4JAX_USE_CUDA_MPI=0 has arrays copied to host memory; `python -m mpi4jax doctor` \
             says what this MPI can do\n",
            self.communicator.rank, self.operation.name
        )
    }

    /// Says that MPI has written these elements of the result, where the access of a call did not.
    pub fn store_elements(&self, elements: &Range<i64>, datatype: Datatype) -> Result<()> {
        let access = Access::both(elements, 0, datatype.size);
        self.in_memory(|memory| memory.after(&access))
    }

    /// Does something with the memory of the arrays, which may have to wait for the device.
    #[inline(always)]
    pub fn in_memory<T>(
        &self,
        body: impl FnOnce(&M) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        if M::IS_ON_DEVICE {
            self.recording.set_reached_mpi(false);
        }
        let outcome = body(&self.memory);
        if M::IS_ON_DEVICE {
            self.recording.set_reached_mpi(true);
        }
        outcome.map_err(|failure| self.failed(&failure))
    }
}

impl<A: Abi, M> Call<'_, A, M> {
    /// Where to say how far the call has got.
    pub fn progress(&self) -> Progress {
        self.recording.progress()
    }

    /// Sees to an error code of MPI's.
    pub fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(self.failed(&Failure {
            function,
            code,
            text: self.functions.error_text(code),
        }))
    }

    #[cold]
    fn failed(&self, failure: &Failure) -> Error {
        let record = self.recording.record();
        on_error::failed(self.functions, &self.communicator, failure, record.as_ref())
    }
}
