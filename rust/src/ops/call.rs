//! One call of an operation: its buffers and attributes as MPI takes them, and the calling.

use std::ffi::{c_int, c_void};
use std::io::{self, Write};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::counts::{Count, Counting, Form};
use crate::error::{Error, Failure, Result};
use crate::log;
use crate::memory::{Memory, Piece};
use crate::mpi::{
    Abi, Communicator, Datatype, Functions, Handle, PredefinedOp, REGISTRY, half_float,
};
use crate::xla::raw::XLA_FFI_DataType;
use crate::xla::{Buffer, Frame, raw};

static RAISE_ON_ERROR: AtomicBool = AtomicBool::new(false);

/// Whether an error of MPI's becomes an error of XLA's, or ends all ranks (the default).
pub fn set_raise_on_error(raise: bool) {
    RAISE_ON_ERROR.store(raise, Ordering::Relaxed);
}

/// Makes calls on a communicator an error, and frees the reversed one.
pub fn free_communicator<A: Abi>(index: usize) {
    let reversed = REGISTRY.free_communicator::<A>(index);
    let (Some(mut reversed), Some(functions)) = (reversed, A::functions().get()) else {
        return;
    };
    let mut is_finalized = 0;
    // SAFETY: may be called at any time (MPI-4.1 §11.4.1). Before the end of MPI, the communicator
    // is one that this process made, and freed once.
    unsafe {
        (functions.finalized)(&mut is_finalized);
        if is_finalized == 0 {
            (functions.comm_free)(&mut reversed);
        }
    }
}

/// `count` elements of `datatype` at an address: how MPI is told about memory.
#[derive(Clone, Copy)]
pub struct Data<P> {
    pub address: P,
    pub count: i64,
    pub datatype: Datatype,
}

/// What MPI reads.
pub type Source = Data<*const c_void>;
/// What MPI writes.
pub type Target = Data<*mut c_void>;

/// A reduction operator.
pub struct Operator<A: Abi> {
    pub handle: A::Op,
    /// Whether MPI itself defines it. Others are C functions that take the count as an int.
    pub is_predefined: bool,
}

/// A part of a reduction that one call of MPI does: `count` elements of both arrays.
pub struct Part<A: Abi> {
    pub send: *const c_void,
    pub recv: *mut c_void,
    pub count: Count,
    pub datatype: A::Datatype,
    pub piece: Piece,
}

/// The elements from `start` on that one call of MPI moves, `length` at a time.
pub fn piece_of(start: i64, count: i64, length: i64) -> Range<i64> {
    start..start.saturating_add(length).min(count)
}

/// The pieces of an array of so many elements. The last one may be shorter, or empty if it is the
/// only one.
pub fn pieces(count: i64, length: i64) -> impl Iterator<Item = Range<i64>> {
    let first = Some(piece_of(0, count, length));
    std::iter::successors(first, move |piece| {
        (piece.end < count).then(|| piece_of(piece.end, count, length))
    })
}

/// A call of an operation on a communicator.
pub struct Call<'a, A: Abi, M> {
    frame: &'a Frame<'a>,
    pub(super) functions: &'static Functions<A>,
    pub(super) counting: Counting<A>,
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
            counting: Counting::new(functions),
            memory,
            communicator: REGISTRY.communicator(frame.attribute("comm_number")?)?,
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

    /// So many rows for each rank.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>> {
        self.frame.ints_attribute(name)
    }

    /// The reduction operator, as it is for elements of XLA's type `dtype`.
    pub fn operator(&self, dtype: XLA_FFI_DataType) -> Result<Operator<A>> {
        let number = self.frame.attribute("op_number")?;
        let predefined = PredefinedOp::from_number(number);
        if let (Some(op), Some(format)) = (predefined, half_float_of(dtype)) {
            return self.half_float_operator(op, format, dtype);
        }
        Ok(Operator {
            handle: REGISTRY.operator::<A>(number)?,
            is_predefined: predefined.is_some(),
        })
    }

    /// The operator that does for 16-bit floats what MPI's own does for others.
    fn half_float_operator(
        &self,
        op: PredefinedOp,
        format: half_float::Format,
        dtype: XLA_FFI_DataType,
    ) -> Result<Operator<A>> {
        let made = half_float::operator::<A>(op, format, |function| {
            let mut handle = REGISTRY.operator::<A>(op.number())?;
            // SAFETY: the function is one of MPI's form; it is commutative.
            let code = unsafe { (self.functions.op_create)(function, 1, &mut handle) };
            self.check("MPI_Op_create", code).map(|()| handle)
        });
        let made = made.ok_or_else(|| {
            Error::invalid(format!(
                "reduction operator {} is not for elements of XLA type {dtype}",
                op.number()
            ))
        })?;
        made.map(|handle| Operator {
            handle,
            is_predefined: false,
        })
    }

    /// The communicator, or with the attribute `reverse` the one with the ranks in reverse order.
    pub fn comm_in_order(&self) -> Result<A::Comm> {
        if self.int("reverse")? == 0 {
            return Ok(self.communicator.handle::<A>());
        }
        let reversed = REGISTRY.reversed(self.frame.attribute("comm_number")?)?;
        if let Some(handle) = reversed.get() {
            return Ok(A::Comm::from_raw(*handle));
        }
        // The ranks do this together, as all of them reach their first reversed scan at once.
        let key = self.communicator.size - 1 - self.communicator.rank;
        let mut handle = self.communicator.handle::<A>();
        self.mpi(
            "MPI_Comm_split",
            || format!("(color 0, key {key})"),
            // SAFETY: MPI gives the new communicator in place of this one.
            |mpi, comm| unsafe { (mpi.comm_split)(comm, 0, key, &mut handle) },
        )?;
        reversed.get_or_init(|| handle.into_raw());
        Ok(handle)
    }

    /// Where to put the status of a receive.
    pub fn status(&self) -> Result<*mut A::Status> {
        REGISTRY.status::<A>(self.frame.attribute("status_number")?)
    }

    /// An operand as MPI reads it.
    pub fn source(&self, operand: &Buffer) -> Result<Source> {
        let (datatype, bytes) = measure(operand)?;
        Ok(Data {
            address: self.in_memory(self.memory.read(operand, bytes))?,
            count: operand.count,
            datatype,
        })
    }

    /// A result as MPI writes it.
    pub fn target(&self, result: &Buffer) -> Result<Target> {
        let (datatype, bytes) = measure(result)?;
        Ok(Data {
            address: self.in_memory(self.memory.write(result, bytes))?,
            count: result.count,
            datatype,
        })
    }

    /// The result that only root has, or null where MPI does not look at it (MPI-4.1 §6.5,
    /// "significant only at root").
    pub fn result_at_root(
        &self,
        root: c_int,
        check: impl FnOnce(&Buffer) -> Result<()>,
    ) -> Result<*mut c_void> {
        if self.communicator.rank != root {
            let [] = self.results()?;
            return Ok(ptr::null_mut());
        }
        let [result] = self.results()?;
        check(&result)?;
        Ok(self.target(&result)?.address)
    }

    /// The operand that only root has, or null where MPI does not look at it.
    pub fn operand_at_root(
        &self,
        root: c_int,
        check: impl FnOnce(&Buffer) -> Result<()>,
    ) -> Result<*const c_void> {
        if self.communicator.rank != root {
            let [] = self.operands()?;
            return Ok(ptr::null());
        }
        let [operand] = self.operands()?;
        check(&operand)?;
        Ok(self.source(&operand)?.address)
    }

    /// An operand and a result of the same shape, for the calls that take `MPI_IN_PLACE`
    /// instead of an operand that is where the result goes (MPI-4.1 §6.2).
    pub fn source_and_target(&self, operand: &Buffer, result: &Buffer) -> Result<(Source, Target)> {
        check_blocks(result, operand, 1)?;
        let target = self.target(result)?;
        let mut source = self.source(operand)?;
        if source.address == target.address {
            source.address = A::IN_PLACE as *const c_void;
        }
        Ok((source, target))
    }

    /// Whether one call of MPI reduces so many elements.
    pub fn reduces(&self, count: i64, op: &Operator<A>) -> bool {
        // An operator that is not MPI's own is told the length as an int.
        count <= self.counting.limit || op.is_predefined && self.counting.takes(count)
    }

    /// The calls of MPI that reduce `send` into `recv`: one, or one for each chunk, where the
    /// communicator says so, or MPI can't count so far. Null and `MPI_IN_PLACE` are the same for
    /// every chunk.
    pub fn parts(
        &self,
        send: Source,
        recv: *mut c_void,
        op: &Operator<A>,
    ) -> impl Iterator<Item = Part<A>> + use<A, M> {
        let size = send.datatype.size;
        let mut length = self.communicator.chunk(size);
        if !self.reduces(send.count.min(length), op) {
            length = self.counting.limit;
        }
        pieces(send.count, length).map(move |elements| {
            let piece = Piece::both(&elements, length, size);
            Part {
                send: forward::<A>(send.address.cast_mut(), piece.read.start).cast_const(),
                recv: forward::<A>(recv, piece.read.start),
                count: Count(elements.end - elements.start),
                datatype: send.datatype.handle::<A>(),
                piece,
            }
        })
    }

    /// Calls a function that takes counts, of which `largest` is the largest.
    pub fn counted(
        &self,
        function: &'static str,
        largest: Count,
        details: impl FnOnce() -> String,
        body: impl FnOnce(Form<A>, A::Comm) -> c_int,
    ) -> Result<()> {
        self.counted_piece(&Piece::WHOLE, function, largest, details, body)
    }

    /// The same, for a call that is one of several.
    pub fn counted_piece(
        &self,
        piece: &Piece,
        function: &'static str,
        largest: Count,
        details: impl FnOnce() -> String,
        body: impl FnOnce(Form<A>, A::Comm) -> c_int,
    ) -> Result<()> {
        let form = self.counting.form(largest);
        self.mpi_piece(piece, function, details, |_, comm| body(form, comm))
    }

    /// Calls MPI and sees to the log and to errors. `body` gets the functions and the
    /// communicator's handle and gives back MPI's error code.
    pub fn mpi(
        &self,
        function: &'static str,
        details: impl FnOnce() -> String,
        body: impl FnOnce(&Functions<A>, A::Comm) -> c_int,
    ) -> Result<()> {
        self.mpi_piece(&Piece::WHOLE, function, details, body)
    }

    fn mpi_piece(
        &self,
        piece: &Piece,
        function: &'static str,
        details: impl FnOnce() -> String,
        body: impl FnOnce(&Functions<A>, A::Comm) -> c_int,
    ) -> Result<()> {
        self.in_memory(self.memory.before(piece))?;
        let comm = self.communicator.handle::<A>();
        let code = if log::is_enabled() {
            let entry = log::Entry::begin(self.communicator.rank, function, &details());
            let code = body(self.functions, comm);
            entry.end(code);
            code
        } else {
            body(self.functions, comm)
        };
        self.check(function, code)?;
        self.in_memory(self.memory.after(piece))
    }

    /// Says that MPI has written these elements of the result, where the piece of a call did not.
    pub fn written(&self, elements: &Range<i64>, datatype: Datatype) -> Result<()> {
        let piece = Piece::both(elements, 0, datatype.size);
        self.in_memory(self.memory.after(&piece))
    }

    fn in_memory<T>(&self, outcome: std::result::Result<T, Failure>) -> Result<T> {
        outcome.map_err(|failure| self.failed(&failure))
    }
}

impl<A: Abi, M> Call<'_, A, M> {
    /// Sees to an error code of MPI's.
    pub(super) fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(self.failed(&Failure {
            function,
            code,
            text: self.functions.error_text(code),
        }))
    }

    /// Ends all ranks with a line on stderr, or makes an error of it.
    #[cold]
    fn failed(&self, failure: &Failure) -> Error {
        let message = format!("r{} | {failure}", self.communicator.rank);
        if !RAISE_ON_ERROR.load(Ordering::Relaxed) {
            // Written at once, so that the lines of ranks don't mix, and not by eprintln!, which
            // panics where stderr is closed: the abort must happen.
            let _ = io::stderr().write_all(format!("{message} - aborting\n").as_bytes());
            // SAFETY: a communicator that the registry holds is valid.
            unsafe { (self.functions.abort)(self.communicator.handle::<A>(), failure.code) };
        }
        Error::internal(message)
    }
}

/// The elements that each rank sends or receives, in the words of the log.
pub fn items(count: i64) -> String {
    format!("({count} items)")
}

pub fn items_and_root(count: i64, root: c_int) -> String {
    format!("({count} items, root={root})")
}

/// The address that is `bytes` further on, unless it is null or `MPI_IN_PLACE`.
fn forward<A: Abi>(address: *mut c_void, bytes: usize) -> *mut c_void {
    if address.is_null() || address as usize == A::IN_PLACE {
        return address;
    }
    address.wrapping_byte_add(bytes)
}

/// The format of XLA's type `dtype`, if it is one of 16-bit floats.
fn half_float_of(dtype: XLA_FFI_DataType) -> Option<half_float::Format> {
    match dtype {
        raw::XLA_FFI_DataType_F16 => Some(half_float::Format::Float16),
        raw::XLA_FFI_DataType_BF16 => Some(half_float::Format::Bfloat16),
        _ => None,
    }
}

/// The type of an array's elements, and its bytes.
fn measure(array: &Buffer) -> Result<(Datatype, usize)> {
    let datatype = REGISTRY.datatype(array.dtype)?;
    match usize::try_from(array.count).map(|count| count.checked_mul(datatype.size)) {
        Ok(Some(bytes)) => Ok((datatype, bytes)),
        _ => Err(Error::invalid(format!(
            "an array of shape {:?} does not fit into memory",
            array.dims
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
