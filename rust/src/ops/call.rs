//! One call of an operation: its buffers and attributes as MPI takes them, and the calling.

use std::ffi::{c_int, c_void};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log;
use crate::memory::Memory;
use crate::mpi::{Abi, Communicator, Datatype, Functions, REGISTRY};
use crate::xla::{Buffer, Error, Frame, Result};

static RAISE_ON_ERROR: AtomicBool = AtomicBool::new(false);

/// Whether an error of MPI's becomes an error of XLA's, or ends all ranks (the default).
pub fn set_raise_on_error(raise: bool) {
    RAISE_ON_ERROR.store(raise, Ordering::Relaxed);
}

/// `count` elements of `datatype` at an address: how MPI is told about memory.
#[derive(Clone, Copy)]
pub struct Data<P, A: Abi> {
    pub address: P,
    pub count: c_int,
    pub datatype: A::Datatype,
}

/// What MPI reads.
pub type Source<A> = Data<*const c_void, A>;
/// What MPI writes.
pub type Target<A> = Data<*mut c_void, A>;

/// A call of an operation on a communicator.
pub struct Call<'a, A: Abi, M> {
    frame: &'a Frame<'a>,
    functions: &'static Functions<A>,
    memory: M,
    pub communicator: Communicator,
}

impl<'a, A: Abi, M: Memory> Call<'a, A, M> {
    pub fn new(frame: &'a Frame<'a>, memory: M) -> Result<Self> {
        let functions = A::functions()
            .get()
            .ok_or_else(|| Error::precondition("no MPI library is loaded"))?;
        Ok(Self {
            frame,
            functions,
            memory,
            communicator: REGISTRY.communicator(frame.attribute("comm")?)?,
        })
    }

    #[inline(always)]
    pub fn operands<const N: usize>(&self) -> Result<[Buffer<'a>; N]> {
        self.frame.operands()
    }

    #[inline(always)]
    pub fn results<const N: usize>(&self) -> Result<[Buffer<'a>; N]> {
        self.frame.results()
    }

    /// A rank or a tag.
    pub fn int(&self, name: &str) -> Result<c_int> {
        self.frame.int_attribute(name)
    }

    /// The reduction operator.
    pub fn operator(&self) -> Result<A::Op> {
        REGISTRY.operator::<A>(self.frame.attribute("op")?)
    }

    /// Where to put the status of a receive.
    pub fn status(&self) -> Result<*mut A::Status> {
        REGISTRY.status::<A>(self.frame.attribute("status")?)
    }

    /// An operand as MPI reads it.
    pub fn source(&self, operand: &Buffer) -> Result<Source<A>> {
        let (count, datatype) = elements(operand)?;
        Ok(Data {
            address: self.memory.read(operand)?,
            count,
            datatype: datatype.handle::<A>(),
        })
    }

    /// A result as MPI writes it.
    pub fn target(&self, result: &Buffer) -> Result<Target<A>> {
        let (count, datatype) = elements(result)?;
        Ok(Data {
            address: self.memory.write(result, count as usize * datatype.size)?,
            count,
            datatype: datatype.handle::<A>(),
        })
    }

    /// An operand and a result of the same shape, for the calls that take `MPI_IN_PLACE`
    /// instead of an operand that is where the result goes (MPI-4.1 §6.2).
    pub fn source_and_target(
        &self,
        operand: &Buffer,
        result: &Buffer,
    ) -> Result<(Source<A>, Target<A>)> {
        check_blocks(result, operand, 1)?;
        let target = self.target(result)?;
        let mut address = self.memory.read(operand)?;
        if address == target.address {
            address = A::IN_PLACE as *const c_void;
        }
        let source = Data {
            address,
            count: target.count,
            datatype: target.datatype,
        };
        Ok((source, target))
    }

    /// Calls MPI and sees to the log and to errors. `body` gets the functions and the
    /// communicator's handle and gives back MPI's error code.
    pub fn mpi(
        &self,
        function: &str,
        details: impl FnOnce() -> String,
        body: impl FnOnce(&Functions<A>, A::Comm) -> c_int,
    ) -> Result<()> {
        let comm = self.communicator.handle::<A>();
        let code = if log::is_enabled() {
            let entry = log::Entry::begin(self.communicator.rank, function, &details());
            let code = body(self.functions, comm);
            entry.end(code);
            code
        } else {
            body(self.functions, comm)
        };
        if code != 0 {
            return Err(self.failed(function, code));
        }
        self.memory.finish()
    }

    /// Ends all ranks with a line on stderr, or makes an error of it.
    #[cold]
    fn failed(&self, function: &str, code: c_int) -> Error {
        let message = format!(
            "r{} | {function} returned error code {code}: {}",
            self.communicator.rank,
            self.functions.error_text(code)
        );
        if !RAISE_ON_ERROR.load(Ordering::Relaxed) {
            // Written at once, so that the lines of ranks don't mix, and not by eprintln!, which
            // panics where stderr is closed: the abort must happen.
            let _ = io::stderr().write_all(format!("{message} - aborting\n").as_bytes());
            // SAFETY: a communicator that the registry holds is valid.
            unsafe { (self.functions.abort)(self.communicator.handle::<A>(), code) };
        }
        Error::internal(message)
    }
}

/// The elements of an array, as MPI counts them: how many, and of which type.
fn elements(buffer: &Buffer) -> Result<(c_int, Datatype)> {
    match c_int::try_from(buffer.count) {
        Ok(count) if count >= 0 => Ok((count, REGISTRY.datatype(buffer.dtype)?)),
        _ => Err(Error::invalid(format!(
            "an array of {} elements, more than MPI takes in one call ({})",
            buffer.count,
            c_int::MAX
        ))),
    }
}

/// Checks that `whole` holds `blocks` times what `block` does, which is what keeps MPI from
/// writing past the end of a result.
pub fn check_blocks(whole: &Buffer, block: &Buffer, blocks: c_int) -> Result<()> {
    if whole.dtype == block.dtype && whole.count == block.count.saturating_mul(i64::from(blocks)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "arrays do not match: {:?} of XLA type {} is not {blocks} times {:?} of XLA type {}",
        whole.dims, whole.dtype, block.dims, block.dtype
    )))
}
