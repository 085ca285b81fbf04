//! The MPI of this process as jaxlib gets it: handles, communicators, and what is around each call.

use std::collections::{HashMap, HashSet};
use std::convert::identity;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use super::clique;
use super::communicators::{Communicators, JaxCommunicator};
use super::records::{self, CallArguments, Requests, Started};
use super::table::{HANDLES, IN_PLACE, PROC_NULL, index_of};
use crate::error::{self, Error};
use crate::lock::lock;
use crate::mpi::calls::{CallError, Mpi, Operator, Outcome, check};
use crate::mpi::{
    Abi, Communicator, Functions, Neighbor, OwnStatus, OwnedRequest, SendBuffer, SizedDatatype,
    check_available, is_available,
};
use crate::ops::{self, Comparison};
use crate::recorder::{Record, Recording};
use crate::xla::data_type_size;

/// The devices that XLA numbers.
pub struct Devices {
    /// Size in bytes of a device number in jaxlib.
    pub bytes: usize,
    /// Name of jaxlib in errors: its version, and the versions that mpi4jax was tested with.
    pub versions: String,
    /// Function that returns the process of a device.
    pub owners: Box<dyn Fn() -> HashMap<i64, c_int> + Send + Sync>,
}

/// The MPI of this process, and its handles for the constants.
pub(super) struct Served<A: Abi> {
    pub(super) functions: &'static Functions<A>,
    /// In the order of [`HANDLES`].
    handles: Vec<usize>,
    /// The types that XLA sends, in the same order.
    datatypes: Vec<Option<SizedDatatype>>,
    pub(super) communicators: Communicators,
    pub(super) requests: Requests,
    devices: Devices,
}

pub(super) const COMM_NULL: usize = index_of(HANDLES, "COMM_NULL");
const COMM_WORLD: usize = index_of(HANDLES, "COMM_WORLD");
pub(super) const REQUEST_NULL: usize = index_of(HANDLES, "REQUEST_NULL");

/// The error code of a call in a process where MPI may not be called.
pub(super) const UNAVAILABLE: c_int = -(1 << 15);

/// The error code of a call on a communicator that neither is JAX's world nor was made by jaxlib, which
/// asks for no other.
const UNKNOWN: c_int = UNAVAILABLE - 1;

/// The error code of a call that was refused, or of a message that is too short, less the index of its
/// communicator, which has the report.
const REPORTED: c_int = -(1 << 24);

/// The error code of a call on a communicator that could not be made, less the index of that. All
/// codes of our own are below 0.
const REFUSED: c_int = -(1 << 16);

impl<A: Abi> Served<A> {
    /// See [`serve`](super::serve).
    pub(super) fn new(
        functions: &'static Functions<A>,
        handles: Vec<usize>,
        members: Vec<c_int>,
        rank: c_int,
        devices: Devices,
    ) -> Self {
        let world = handles.get(COMM_WORLD).copied().unwrap_or_default();
        let datatype = |(index, handle): (usize, &usize)| {
            let size = data_type_size(records::data_type(index)?);
            // SAFETY: MPI knows the handle as that of the type, which has elements of this size.
            Some(unsafe { SizedDatatype::new(*handle, size) })
        };
        let datatypes = handles.iter().enumerate().map(datatype).collect();
        Self {
            functions,
            handles,
            datatypes,
            communicators: Communicators::new(world, members, rank),
            requests: Requests::default(),
            devices,
        }
    }

    /// mpi4py's number for a handle.
    fn real(&self, handle: usize) -> usize {
        self.handles.get(handle).copied().unwrap_or(handle)
    }

    /// A communicator of jaxlib's and the communicator of MPI for it, or an error code. It is an error where
    /// MPI may not be called.
    pub(super) fn comm(&self, handle: usize) -> Result<(&JaxCommunicator, Communicator), c_int> {
        if !is_available() {
            return Err(UNAVAILABLE);
        }
        let of_jax = self.communicator_of_jax(handle)?;
        let Some(Ok(handle)) = of_jax.handle.get() else {
            return Err(REFUSED - of_jax.index as c_int);
        };
        // SAFETY: it is JAX's world, or MPI has made it, of that many processes.
        let communicator = unsafe { Communicator::new(*handle, of_jax.rank, of_jax.size, 0) };
        Ok((of_jax, communicator))
    }

    /// One of the communicators that jaxlib has made, the first of which is its world, or an error code.
    /// MPI's other constants are none.
    pub(super) fn communicator_of_jax(&self, handle: usize) -> Result<&JaxCommunicator, c_int> {
        let index = match handle {
            COMM_WORLD => Some(0),
            _ => handle.checked_sub(HANDLES.len()),
        };
        let of_jax = index.and_then(|index| self.communicators.get(index));
        of_jax.ok_or(UNKNOWN)
    }

    /// A type of MPI's that XLA sends.
    pub(super) fn datatype(&self, handle: usize) -> error::Result<SizedDatatype> {
        let datatype = self.datatypes.get(handle).copied().flatten();
        datatype.ok_or_else(|| {
            let name = HANDLES.get(handle).copied().unwrap_or("?");
            Error::invalid(format!(
                "MPI_{name} is not among the types of JAX's collectives that mpi4jax knows"
            ))
        })
    }

    /// An operator of MPI's own.
    pub(super) fn operator(&self, handle: usize) -> Operator<A> {
        // SAFETY: jaxlib makes none, so it is one of MPI's.
        unsafe { Operator::predefined(self.real(handle)) }
    }

    /// The other side of a message.
    pub(super) fn peer(rank: c_int, tag: c_int) -> Neighbor {
        let rank = match rank {
            PROC_NULL => A::constants().proc_null,
            rank => rank,
        };
        Neighbor { rank, tag }
    }

    /// The send buffer of an operation with the receive buffer `recv`: `MPI_IN_PLACE` where XLA gives both
    /// the same memory (MPI-4.1 §6.2).
    ///
    /// # Safety
    /// As for [`block`](Self::block).
    pub(super) unsafe fn operand<'b>(
        send: *const c_void,
        recv: *mut c_void,
        count: i64,
        datatype: SizedDatatype,
    ) -> SendBuffer<'b> {
        if send == recv.cast_const() {
            SendBuffer::in_place(count, datatype)
        } else {
            // SAFETY: the caller's promise.
            unsafe { Self::block(send, count, datatype) }
        }
    }

    /// The send buffer where the operand is a block of the result.
    ///
    /// # Safety
    /// The elements are there, or marked to be in place, and nobody writes to them for `'b`.
    pub(super) unsafe fn block<'b>(
        send: *const c_void,
        count: i64,
        datatype: SizedDatatype,
    ) -> SendBuffer<'b> {
        if send.addr() == IN_PLACE {
            SendBuffer::in_place(count, datatype)
        } else {
            // SAFETY: the caller's promise.
            unsafe { SendBuffer::new(send, count, datatype) }
        }
    }

    /// Makes a call on a communicator, after the calls of other threads, and compared if that is on.
    pub(super) fn call(
        &self,
        operation: &'static records::JaxOperation,
        comm: usize,
        arguments: CallArguments,
        body: impl FnOnce(&Mpi<A>) -> Outcome,
    ) -> c_int {
        let (of_jax, communicator) = match self.comm(comm) {
            Ok(found) => found,
            Err(code) => return code,
        };
        let is_compared = operation.recorded.is_collective() && ops::check_is_enabled();
        self.record_call(operation, of_jax, arguments, |recording| {
            if is_compared && let Some(record) = recording.record() {
                let code = self.compare(of_jax, &communicator, &record);
                if code != 0 {
                    return code;
                }
            }
            code_of(of_jax, body(&Mpi::new(self.functions, &communicator)))
        })
    }

    /// Starts a send or a receive, and gives its number, or an error code.
    pub(super) fn start(
        &self,
        comm: usize,
        begin: impl FnOnce(&Mpi<A>, &mut Vec<OwnedRequest>) -> Result<c_int, CallError>,
        started: impl FnOnce(OwnedRequest) -> Started,
    ) -> Result<usize, c_int> {
        let (of_jax, communicator) = self.comm(comm)?;
        let mut requests = Vec::new();
        let begun = begin(&Mpi::new(self.functions, &communicator), &mut requests);
        match (begun, requests.pop()) {
            (Ok(_), Some(request)) => Ok(self.requests.add(started(request))),
            (Ok(code), None) => Err(code),
            (Err(error), _) => Err(code_of(of_jax, Err(error))),
        }
    }

    /// Compares a call among the processes (`MPI4JAX_CHECK`), and returns an error code.
    #[cold]
    fn compare(
        &self,
        of_jax: &JaxCommunicator,
        communicator: &Communicator,
        record: &Record,
    ) -> c_int {
        if communicator.size == 1 {
            return 0;
        }
        match self.disagreement(communicator, &of_jax.companion, record) {
            Ok(None) => 0,
            Ok(Some(report)) => refused(of_jax, report),
            Err(error) => refused(of_jax, error.message),
        }
    }

    /// The report of a call that differs among the processes, if it does. The processes compare calls on a
    /// companion of the communicator, made before the first call.
    fn disagreement(
        &self,
        communicator: &Communicator,
        companion: &OnceLock<Communicator>,
        record: &Record,
    ) -> error::Result<Option<String>> {
        let fail = |error| match error {
            CallError::Impossible(error) => *error,
            CallError::Mpi(failure) => {
                Error::internal(format!("{}: {}", failure.function, failure.text))
            }
        };
        let mpi = Mpi::new(self.functions, communicator);
        let companion = match companion.get() {
            Some(companion) => companion,
            None => {
                let made = mpi.blocking(fail).comm_split(false)?;
                companion.get_or_init(|| made)
            }
        };
        let mpi = mpi.on(companion);
        let ranks = Comparison {
            mpi: &mpi,
            fail: &fail,
        };
        let report = ranks.disagreement(record, None)?;
        Ok(report.map(|report| ops::refuse(self.functions, communicator, report, Some(&mpi))))
    }

    /// Makes a call: recorded, and with debug lines if they are on.
    fn record_call(
        &self,
        operation: &'static records::JaxOperation,
        of_jax: &JaxCommunicator,
        arguments: CallArguments,
        body: impl FnOnce(&Recording) -> c_int,
    ) -> c_int {
        let is_collective = operation.recorded.is_collective();
        let _lock = is_collective.then(|| lock(&of_jax.collective));
        let recording = of_jax.record(operation, &arguments);
        let entry = self.communicators.log(operation, of_jax, &arguments);
        let code = body(&recording);
        if let Some(entry) = entry {
            entry.end(code);
        }
        code
    }

    /// Checks that all of an array has come. MPI accepts a message that is shorter.
    pub(super) fn check_length(
        &self,
        status: &mut OwnStatus,
        datatype: SizedDatatype,
        expected: c_int,
    ) -> Outcome {
        let count = status.count(self.functions, datatype.handle::<A>());
        if let Err(code) = count {
            return check(self.functions, "MPI_Get_count", code);
        }
        if count != Ok(expected) {
            return Err(CallError::from(Error::invalid(
                "a message is shorter than the array that it is received into: the processes run \
                 programs for arrays of different shapes",
            )));
        }
        Ok(())
    }

    /// The processes of a communicator that XLA asks for, by their ranks in JAX's world.
    pub(super) fn members(&self, color: c_int, key: c_int) -> Result<Vec<c_int>, String> {
        let rank = usize::try_from(key).map_err(|_| format!("the key {key}"))?;
        let devices = clique::devices(color.into(), rank, self.devices.bytes).ok_or_else(|| {
            format!(
                "mpi4jax does not find which devices a program runs on in {}. Use a version of \
                 JAX that it was tested with",
                self.devices.versions
            )
        })?;
        let owners = (self.devices.owners)();
        let owner = |device: &i64| owners.get(device).copied();
        let members: Vec<c_int> = devices
            .iter()
            .map(|device| owner(device).ok_or_else(|| format!("there is no device {device}")))
            .collect::<Result<_, _>>()?;
        let mut distinct = HashSet::new();
        if let Some(process) = members.iter().find(|process| !distinct.insert(**process)) {
            return Err(format!(
                "a program runs on several devices of process {process}, but JAX's collectives \
                 use MPI with one device for each process. Start a process for each device \
                 (jax_num_cpu_devices=1)"
            ));
        }
        if members.get(rank) != Some(&self.communicators.own_rank) {
            return Err(format!("device {color} has others beside it than XLA says"));
        }
        Ok(members)
    }

    /// A new communicator of these processes, made by them alone (MPI-4.1 §7.4.2).
    pub(super) fn create(&self, members: &[c_int], new: &JaxCommunicator) -> Result<usize, c_int> {
        let (_, world) = self.comm(COMM_WORLD)?;
        let mpi = Mpi::new(self.functions, &world);
        let mut made = None;
        let code = self.communicators.with_tag(new, |tag| {
            let arguments = CallArguments::default();
            self.record_call(&records::COMM_CREATE_GROUP, new, arguments, |_| {
                let call = mpi.blocking(identity);
                let outcome = call.comm_create_group(members, tag);
                let outcome = outcome.map(|communicator| made = Some(communicator.raw_handle()));
                code_of(new, outcome)
            })
        });
        made.ok_or(code)
    }

    /// The text of an error code of our own.
    pub(super) fn own_error_text(&self, code: c_int) -> Option<String> {
        if code == UNKNOWN {
            return Some(
                "JAX's collectives have no other communicators of MPI's than their world"
                    .to_owned(),
            );
        }
        if code == UNAVAILABLE {
            return check_available().err().map(|error| error.message);
        }
        let below = |first: c_int| {
            let index = usize::try_from(first.checked_sub(code)?).ok()?;
            self.communicators.get(index)
        };
        if let Some(of_jax) = below(REPORTED) {
            return lock(&of_jax.report).clone();
        }
        let reason = below(REFUSED)?.handle.get().cloned();
        reason
            .unwrap_or_else(|| Err("a communicator that was not made".to_owned()))
            .err()
    }
}

/// The error code of a call on a communicator.
pub(super) fn code_of(of_jax: &JaxCommunicator, outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(CallError::Mpi(failure)) => failure.code,
        Err(CallError::Impossible(error)) => refused(of_jax, error.message),
    }
}

/// Stores the reason why a call on a communicator fails, and returns the error code.
#[cold]
fn refused(of_jax: &JaxCommunicator, report: String) -> c_int {
    *lock(&of_jax.report) = Some(report);
    REPORTED - of_jax.index as c_int
}
