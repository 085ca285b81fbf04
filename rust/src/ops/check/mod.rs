//! `MPI4JAX_CHECK`: whether calls are compared before MPI is called, and what becomes of those that
//! do not fit.

pub mod claims;
pub mod labels;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::diagnosis::{DEADLOCK, WIDTH, fit};
use crate::error::{Error, Result};
use crate::log;
use crate::memory::Memory;
use crate::mpi::calls::Mpi;
use crate::mpi::{Abi, Communicator, Functions, REGISTRY, SizedDatatype, abort};
use crate::ops::call::Call;
use crate::recorder::{self, Record, Scope};
use crate::xla::raw::{XLA_FFI_DataType_S64, XLA_FFI_DataType_U8};

use crate::ops::call::on_error;

static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// Sets whether calls are compared from now on. All processes set the same.
pub fn set_check(enable: bool) {
    IS_ENABLED.store(enable, Ordering::Relaxed);
}

/// Whether calls are compared.
#[inline(always)]
pub fn check_is_enabled() -> bool {
    IS_ENABLED.load(Ordering::Relaxed)
}

/// The rank in `MPI_COMM_WORLD` of a process, by its rank in the communicator of a call.
pub fn world_rank(record: &Record, rank: i32) -> i32 {
    recorder::world_rank(record.communicator(), rank).unwrap_or(rank)
}

/// The data type of the numbers that ranks tell each other.
pub fn number_type() -> Result<SizedDatatype> {
    REGISTRY.datatype(XLA_FFI_DataType_S64)
}

/// The data type of the texts that ranks tell each other: bytes.
pub fn byte_type() -> Result<SizedDatatype> {
    REGISTRY.datatype(XLA_FFI_DataType_U8)
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// Compares the call with those of the other ranks. Messages, also those between neighbors, are
    /// compared when they are sent or received.
    #[cold]
    pub fn check_before(&mut self) -> Result<()> {
        let Some(record) = self.recording.record() else {
            return Ok(());
        };
        if record.operation.is_collective() {
            self.check_collective(&record)?;
        }
        if record.operation.scope != Scope::All {
            self.checked = Some(Box::new(record));
        }
        Ok(())
    }

    /// Ends all ranks with a report, or makes an error of it.
    #[cold]
    pub fn refuse(&self, report: Vec<String>, together: Option<&Mpi<A>>) -> Error {
        let communicator = &self.communicator;
        Error::invalid(refuse(self.functions, communicator, report, together))
    }
}

/// The largest width of a report's table, which is not limited in an error of Python's.
fn table_width() -> usize {
    if on_error::raises() {
        usize::MAX
    } else {
        WIDTH
    }
}

/// Ends all ranks with a report, or gives that. If the ranks do so together, the first of them prints the
/// report, and the others wait for it.
#[cold]
pub fn refuse<A: Abi>(
    functions: &Functions<A>,
    communicator: &Communicator,
    mut report: Vec<String>,
    together: Option<&Mpi<A>>,
) -> String {
    if !on_error::raises() {
        report.push(format!("ending all ranks with exit code {DEADLOCK}"));
        if together.is_none() || communicator.rank == 0 {
            log::print_error(&fit(&report));
        }
        if let Some(together) = together {
            // The end comes with or without them.
            let _ = together
                .blocking(|_| Error::internal("no barrier"))
                .barrier();
        }
        abort(functions, Some(communicator), DEADLOCK);
    }
    report.join("\n")
}
