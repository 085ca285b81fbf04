//! One call of an operation: what is in its frame, its communicator, and the calling of MPI.

pub mod buffers;
pub mod companions;
pub mod log_text;
pub mod on_error;
pub mod operator;
pub mod pieces;

use std::borrow::Cow;
use std::ffi::c_int;
use std::ops::Range;

use crate::error::{Error, Failure, Result};
use crate::fault;
use crate::log;
use crate::memory::{Access, InBlocks, Memory};
use crate::mpi::calls::{CallError, CallWrapper, Caller, Incoming, Mpi, Outcome, Outgoing, check};
use crate::mpi::{
    Abi, Communicator, Functions, Neighbor, REGISTRY, RecvBuffer, SendBuffer, SizedDatatype,
    StatusPlace,
};
use crate::recorder::{self, Operation, Record, Recording};
use crate::xla::raw::XLA_FFI_DataType;
use crate::xla::{Buffer, Frame, ResultBuffer};

/// A call of an operation on a communicator.
pub struct Call<'a, A: Abi, M> {
    frame: &'a Frame<'a>,
    pub functions: &'static Functions<A>,
    pub mpi: Mpi<A>,
    pub memory: M,
    /// The number of the communicator.
    pub comm_number: i64,
    pub communicator: Communicator,
    pub operation: &'static Operation,
    pub recording: Recording,
    /// The record of the call, if its messages are checked.
    pub checked: Option<Box<Record>>,
}

impl<'a, A: Abi, M: Memory> Call<'a, A, M> {
    #[inline(always)]
    pub fn begin(operation: &'static Operation, frame: &'a Frame<'a>, memory: M) -> Result<Self> {
        let functions = A::functions()
            .get()
            .ok_or_else(|| Error::precondition("no MPI library is loaded"))?;
        let comm_number = frame.attributes.integer("comm_number")?;
        let communicator = REGISTRY.communicator(comm_number)?;
        Ok(Self {
            frame,
            functions,
            mpi: Mpi::new(functions, &communicator),
            memory,
            comm_number,
            communicator,
            operation,
            recording: recorder::begin(operation, frame, comm_number),
            checked: None,
        })
    }

    #[inline(always)]
    pub fn operands<const N: usize>(&self) -> Result<[Buffer<'a>; N]> {
        self.frame.operands.exactly()
    }

    #[inline(always)]
    pub fn results<const N: usize>(&self) -> Result<[ResultBuffer<'a>; N]> {
        if !self.is_nonblocking() {
            return self.frame.results.exactly();
        }
        let results = self.all_results()?;
        results.try_into().map_err(|results: Vec<_>| {
            Error::invalid(format!(
                "attribute `arrays` has {} arrays, expected {N}",
                results.len()
            ))
        })
    }

    /// The first `N` operands, of which the call has `N` or one more.
    #[inline(always)]
    pub fn first_operands<const N: usize>(&self) -> Result<[Buffer<'a>; N]> {
        self.frame.operands.first()
    }

    /// The operand, if the call has one.
    #[inline(always)]
    pub fn optional_operand(&self) -> Result<Option<Buffer<'a>>> {
        self.frame.operands.optional()
    }

    /// The result, if the call has one.
    #[inline(always)]
    pub fn optional_result(&self) -> Result<Option<ResultBuffer<'a>>> {
        match self.is_nonblocking() {
            true => Ok(self.all_results()?.pop()),
            false => self.frame.results.optional(),
        }
    }

    /// All operands.
    pub fn all_operands(&self) -> Result<Vec<Buffer<'a>>> {
        self.frame.operands.all()
    }

    /// All results. The results of a nonblocking call are nowhere yet.
    pub fn all_results(&self) -> Result<Vec<ResultBuffer<'a>>> {
        if !self.is_nonblocking() {
            return self.frame.results.all();
        }
        let numbers = self.ints("arrays")?;
        let arrays = numbers.chunks_exact(2);
        let to_come =
            arrays.map(|array| ResultBuffer::nowhere(array[0] as XLA_FFI_DataType, array[1]));
        Ok(to_come.collect())
    }

    /// The result of a nonblocking call: its ticket.
    pub fn ticket(&self) -> Result<ResultBuffer<'a>> {
        let [ticket] = self.frame.results.exactly()?;
        Ok(ticket)
    }

    /// Whether the call starts an operation, and another one waits for it.
    #[inline(always)]
    pub fn is_nonblocking(&self) -> bool {
        self.memory.in_flight().is_some()
    }

    /// The nonblocking form of the call, with blocks for its arrays.
    pub fn in_blocks(self) -> Call<'a, A, InBlocks<M>> {
        Call {
            frame: self.frame,
            functions: self.functions,
            mpi: self.mpi,
            memory: InBlocks::new(self.memory),
            comm_number: self.comm_number,
            communicator: self.communicator,
            operation: self.operation,
            recording: self.recording,
            checked: self.checked,
        }
    }

    /// Number of elements of a call of MPI. A nonblocking operation is not one of pieces: nothing is
    /// copied while these are under way.
    #[inline(always)]
    pub fn piece_length(&self, datatype: SizedDatatype) -> i64 {
        match self.is_nonblocking() {
            true => i64::MAX,
            false => self.communicator.piece_length(datatype.size),
        }
    }

    /// A rank or a tag.
    pub fn int(&self, name: &str) -> Result<c_int> {
        self.frame.attributes.int(name)
    }

    /// The number by which the registry knows an object.
    pub fn number(&self, name: &str) -> Result<i64> {
        self.frame.attributes.integer(name)
    }

    /// A list of integers, such as the number of rows for each rank.
    pub fn ints(&self, name: &str) -> Result<Cow<'a, [i64]>> {
        self.frame.attributes.integers(name)
    }

    /// A list of integers that only some calls have.
    pub fn optional_ints(&self, name: &str) -> Result<Option<Cow<'a, [i64]>>> {
        self.frame.attributes.optional_integers(name)
    }

    /// The place for the status of a receive.
    pub fn status(&self) -> Result<StatusPlace<'static, A>> {
        REGISTRY.status::<A>(self.number("status_number")?)
    }

    /// One blocking call of MPI, with no access to more than that.
    #[inline(always)]
    pub fn blocking<'c, D: FnOnce() -> String>(
        &'c self,
        access: &'c Access,
        details: D,
    ) -> Caller<'c, A, Logged<'c, 'a, A, M, D>> {
        self.mpi.blocking(Logged::new(self, access, details))
    }

    /// One call of a collective function, or of its nonblocking form, with no access to more than
    /// that.
    #[inline(always)]
    pub fn collective<'c, D: FnOnce() -> String>(
        &'c self,
        access: &'c Access,
        details: D,
    ) -> Caller<'c, A, Logged<'c, 'a, A, M, D>> {
        self.collective_on(&self.mpi, access, details)
    }

    /// One call of a collective function on another communicator of the same ranks.
    #[inline(always)]
    pub fn collective_on<'c, D: FnOnce() -> String>(
        &'c self,
        mpi: &'c Mpi<A>,
        access: &'c Access,
        details: D,
    ) -> Caller<'c, A, Logged<'c, 'a, A, M, D>> {
        let logged = Logged::new(self, access, details);
        match self.memory.in_flight() {
            None => mpi.blocking(logged),
            // SAFETY: all buffers of a nonblocking call are its blocks in flight.
            Some(in_flight) => unsafe { mpi.nonblocking(logged, in_flight) },
        }
    }

    /// A message to be sent.
    pub fn outgoing<'b>(&self, peer: Neighbor, send: SendBuffer<'b>) -> Result<Outgoing<'b, A>> {
        let message = self.mpi.outgoing(peer, send);
        message.map_err(|error| self.error(error))
    }

    /// A message to be received.
    pub fn incoming<'b>(&self, peer: Neighbor, recv: RecvBuffer<'b>) -> Result<Incoming<'b, A>> {
        let message = self.mpi.incoming(peer, recv);
        message.map_err(|error| self.error(error))
    }

    /// A call of MPI between ranks, without debug lines, and with no array of the operation.
    pub fn unlogged(&self) -> Caller<'_, A, impl CallWrapper<Error = Error>> {
        self.mpi.blocking(|error| self.error(error))
    }

    /// Makes MPI calls with `body`, which gives MPI's error code, under the name of one function in the
    /// log and in errors.
    pub fn logged(
        &self,
        function: &'static str,
        details: impl FnOnce() -> String,
        body: impl FnOnce() -> std::result::Result<c_int, CallError>,
    ) -> Result<()> {
        let logged = Logged::new(self, &Access::WHOLE, details);
        logged.call(function, || check(self.functions, function, body()?))
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

    /// Moves elements that MPI has written to the result, where the access of the call left them out.
    pub fn store_elements(&self, elements: &Range<i64>, datatype: SizedDatatype) -> Result<()> {
        let access = Access::both(elements, 0, datatype.size);
        self.in_memory(|memory| memory.after(&access))
    }

    /// Calls `body` with the memory of the arrays, which may wait for the device.
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

/// The work around a call of MPI: debug lines, copies of device memory, errors.
pub struct Logged<'c, 'a, A: Abi, M, D> {
    call: &'c Call<'a, A, M>,
    access: &'c Access,
    details: D,
}

impl<'c, 'a, A: Abi, M, D> Logged<'c, 'a, A, M, D> {
    #[inline(always)]
    fn new(call: &'c Call<'a, A, M>, access: &'c Access, details: D) -> Self {
        Self {
            call,
            access,
            details,
        }
    }
}

impl<A: Abi, M: Memory, D: FnOnce() -> String> CallWrapper for Logged<'_, '_, A, M, D> {
    type Error = Error;

    #[inline(always)]
    fn call(self, function: &'static str, body: impl FnOnce() -> Outcome) -> Result<()> {
        let Self { call, access, .. } = self;
        call.in_memory(|memory| memory.before(access))?;
        let crash_line = M::IS_DIRECT.then(|| call.crash_line(function));
        let _guard = crash_line.as_deref().map(fault::Guard::new);
        let outcome = if log::is_enabled() {
            let rank = call.communicator.rank;
            let entry = log::LoggedCall::begin(rank, function, &(self.details)());
            let outcome = body();
            entry.end(code_of(&outcome));
            outcome
        } else {
            body()
        };
        outcome.map_err(|error| call.error(error))?;
        call.in_memory(|memory| memory.after(access))
    }
}

/// MPI's error code, or -1 if MPI was not called.
fn code_of(outcome: &Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(CallError::Mpi(failure)) => failure.code,
        Err(CallError::Impossible(_)) => -1,
    }
}

impl<A: Abi, M> Call<'_, A, M> {
    /// Makes an error of a failed call, or ends all ranks.
    #[cold]
    pub fn error(&self, error: CallError) -> Error {
        match error {
            CallError::Mpi(failure) => self.failed(&failure),
            CallError::Impossible(error) => *error,
        }
    }

    /// Checks an error code of MPI's.
    pub fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        let outcome = check(self.functions, function, code);
        outcome.map_err(|error| self.error(error))
    }

    #[cold]
    fn failed(&self, failure: &Failure) -> Error {
        let record = self.recording.record();
        on_error::failed(self.functions, &self.communicator, failure, record.as_ref())
    }
}
