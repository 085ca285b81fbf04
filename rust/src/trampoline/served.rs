//! The MPI of this process as jaxlib gets it: handles, communicators, and what is around each call.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::clique;
use super::communicators::Communicators;
use super::records::{self, Facts, Request, Requests};
use super::table::{HANDLES, IN_PLACE, PROC_NULL, index_of};
use crate::error::{self, Error};
use crate::mpi::calls::{CallError, Mpi};
use crate::mpi::{Abi, Communicator, Functions, Handle, Status, check_available, is_available};
use crate::ops::{self, Comparison};
use crate::recorder::{Record, Recording};

/// The devices that XLA numbers.
pub struct Devices {
    /// In how many bytes jaxlib keeps a number.
    pub bytes: usize,
    /// Gives the process of JAX's that each device belongs to.
    pub owners: Box<dyn Fn() -> HashMap<i64, c_int> + Send + Sync>,
}

/// The MPI of this process, and its handles for the constants.
pub(super) struct Served<A: Abi> {
    pub(super) mpi: &'static Functions<A>,
    /// In the order of [`HANDLES`].
    handles: Vec<usize>,
    pub(super) communicators: Communicators,
    pub(super) requests: Requests,
    devices: Devices,
}

pub(super) const COMM_NULL: usize = index_of(HANDLES, "COMM_NULL");
const COMM_WORLD: usize = index_of(HANDLES, "COMM_WORLD");
const GROUP_NULL: usize = index_of(HANDLES, "GROUP_NULL");
const REQUEST_NULL: usize = index_of(HANDLES, "REQUEST_NULL");

/// The error code of a receive of a message that is shorter than the array.
const SHORT: c_int = -(1 << 15);

/// The error code of a call in a process where MPI may not be called.
pub(super) const UNAVAILABLE: c_int = SHORT - 1;

/// The error code of a call that does not fit those of other processes, less the index of its
/// communicator.
const UNFIT: c_int = -(1 << 24);

/// The error code of a call on a communicator that could not be made, less the index of that. All
/// codes of our own are below 0.
const REFUSED: c_int = -(1 << 16);

impl<A: Abi> Served<A> {
    /// See [`serve`](super::serve).
    pub(super) fn new(
        mpi: &'static Functions<A>,
        handles: Vec<usize>,
        members: Vec<c_int>,
        rank: c_int,
        devices: Devices,
    ) -> Self {
        let world = handles.get(COMM_WORLD).copied().unwrap_or_default();
        Self {
            mpi,
            handles,
            communicators: Communicators::new(world, members, rank),
            requests: Requests::default(),
            devices,
        }
    }

    /// The handle that MPI takes.
    pub(super) fn real<H: Handle>(&self, handle: usize) -> H {
        H::from_raw(self.handles.get(handle).copied().unwrap_or(handle))
    }

    /// The communicator that MPI takes, or an error code: jaxlib knows those that it has made by
    /// their indices. There is none where MPI may not be called.
    pub(super) fn comm(&self, handle: usize) -> Result<A::Comm, c_int> {
        if !is_available() {
            return Err(UNAVAILABLE);
        }
        match handle.checked_sub(HANDLES.len()) {
            None => Ok(self.real(handle)),
            Some(index) => match self.communicators.handle(index) {
                Ok(handle) => Ok(A::Comm::from_raw(handle)),
                Err(_) => Err(REFUSED - index as c_int),
            },
        }
    }

    /// The index of a communicator among those that jaxlib has made. The first is its world. MPI's
    /// other constants have none.
    fn index(handle: usize) -> Option<usize> {
        match handle {
            COMM_WORLD => Some(0),
            _ => handle.checked_sub(HANDLES.len()),
        }
    }

    /// The rank of this process in a communicator and how many processes that has, or an error code.
    pub(super) fn rank_and_size(&self, handle: usize) -> Result<(c_int, usize), c_int> {
        if let Some(index) = Self::index(handle) {
            return Ok(self.communicators.rank_and_size(index));
        }
        let (comm, mut rank, mut size) = (self.comm(handle)?, 0, 0);
        // SAFETY: there is room for both.
        let codes = unsafe {
            [
                (self.mpi.comm_rank)(comm, &raw mut rank),
                (self.mpi.comm_size)(comm, &raw mut size),
            ]
        };
        match codes.into_iter().find(|code| *code != 0) {
            None => Ok((rank, usize::try_from(size).unwrap_or(0))),
            Some(code) => Err(code),
        }
    }

    /// The number that jaxlib gets for a request.
    pub(super) fn request(&self, real: A::Request) -> usize {
        let raw = real.into_raw();
        let is_null = self.handles.get(REQUEST_NULL) == Some(&raw);
        if is_null { REQUEST_NULL } else { raw }
    }

    pub(super) fn peer(rank: c_int) -> c_int {
        if rank == PROC_NULL {
            A::constants().proc_null
        } else {
            rank
        }
    }

    /// The send buffer of an operation whose result goes to `recv`. XLA may have the result take the
    /// operand's memory, which MPI has to be told (MPI-4.1 §6.2).
    pub(super) fn operand(send: *const c_void, recv: *mut c_void) -> *const c_void {
        if send == recv.cast_const() {
            ptr::without_provenance(A::constants().in_place)
        } else {
            Self::block(send)
        }
    }

    /// The send buffer where the operand is a block of the result.
    pub(super) fn block(send: *const c_void) -> *const c_void {
        if send.addr() == IN_PLACE {
            ptr::without_provenance(A::constants().in_place)
        } else {
            send
        }
    }

    /// Makes a call on a communicator, after the calls of other threads, and compared if that is on.
    pub(super) fn call(
        &self,
        operation: &'static records::JaxOperation,
        comm: usize,
        facts: Facts,
        body: impl FnOnce(A::Comm) -> c_int,
    ) -> c_int {
        let real = match self.comm(comm) {
            Ok(real) => real,
            Err(code) => return code,
        };
        let Some(index) = Self::index(comm) else {
            return body(real);
        };
        let is_compared = operation.recorded.is_collective() && ops::check_is_enabled();
        self.record_call(operation, index, facts, |recording| {
            if is_compared && let Some(record) = recording.record() {
                let code = self.compare(real, index, &record);
                if code != 0 {
                    return code;
                }
            }
            body(real)
        })
    }

    /// Starts a send or a receive, which is recorded when it is waited for.
    ///
    /// # Safety
    /// There is room at `jax_request`.
    pub(super) unsafe fn start(
        &self,
        call: Request,
        jax_request: *mut usize,
        body: impl FnOnce(A::Comm, *mut A::Request) -> c_int,
    ) -> c_int {
        let comm = match self.comm(call.comm) {
            Ok(comm) => comm,
            Err(code) => return code,
        };
        let mut request: A::Request = self.real(REQUEST_NULL);
        let code = body(comm, &raw mut request);
        let request = self.request(request);
        // SAFETY: the caller's promise.
        unsafe { *jax_request = request };
        self.requests.add(request, call);
        code
    }

    /// Compares a call with those of the other processes (`MPI4JAX_CHECK`), and gives an error code.
    #[cold]
    fn compare(&self, comm: A::Comm, index: usize, record: &Record) -> c_int {
        let (rank, size) = self.communicators.rank_and_size(index);
        let Some(companion) = self.communicators.companion(index).filter(|_| size > 1) else {
            return 0;
        };
        let size = size as c_int;
        // SAFETY: MPI has made it, of so many processes.
        let communicator = unsafe { Communicator::new(comm.into_raw(), rank, size, 0) };
        let report = match self.disagreement(&communicator, companion, record) {
            Ok(None) => return 0,
            Ok(Some(report)) => report,
            Err(error) => error.message,
        };
        self.communicators.set_report(index, report);
        UNFIT - index as c_int
    }

    /// The report of a call that does not fit those of the other processes. They compare it on a
    /// communicator of its own, which they make before their first call.
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
        let mpi = Mpi::new(self.mpi, communicator);
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
        Ok(report.map(|report| ops::refuse(self.mpi, communicator, report, Some(&mpi))))
    }

    /// Makes a call: recorded, and with debug lines if they are on.
    fn record_call(
        &self,
        operation: &'static records::JaxOperation,
        index: usize,
        facts: Facts,
        body: impl FnOnce(&Recording) -> c_int,
    ) -> c_int {
        let is_collective = operation.recorded.is_collective();
        let _lock = is_collective.then(|| self.communicators.lock(index));
        let recording = self.communicators.record(operation, index, &facts);
        let entry = self.communicators.log(operation, index, &facts);
        let code = body(&recording);
        if let Some(entry) = entry {
            entry.end(code);
        }
        code
    }

    /// The error code of a receive. MPI accepts a message that is shorter than the array.
    pub(super) fn check_length(
        &self,
        code: c_int,
        status: &mut Status,
        datatype: usize,
        expected: c_int,
    ) -> c_int {
        let mut count = expected;
        if code != 0 {
            return code;
        }
        // SAFETY: MPI has filled the status.
        let code = unsafe {
            (self.mpi.get_count)(status.address::<A>(), self.real(datatype), &raw mut count)
        };
        if code == 0 && count != expected {
            return SHORT;
        }
        code
    }

    /// The processes of a communicator that XLA asks for, by their ranks in JAX's world.
    pub(super) fn members(&self, color: c_int, key: c_int) -> Result<Vec<c_int>, String> {
        let rank = usize::try_from(key).map_err(|_| format!("the key {key}"))?;
        let devices = clique::devices(color.into(), rank, self.devices.bytes).ok_or_else(|| {
            "mpi4jax does not find in this jaxlib which devices a program runs on. Use a version \
             of JAX that mpi4jax was tested with"
                .to_owned()
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
        if members.get(rank) != Some(&self.communicators.own_rank()) {
            return Err(format!("device {color} has others beside it than XLA says"));
        }
        Ok(members)
    }

    /// A new communicator of these processes, made by them alone (MPI-4.1 §7.4.2).
    pub(super) fn create(&self, members: &[c_int], index: usize) -> Result<usize, c_int> {
        let world = self.comm(COMM_WORLD)?;
        let mut new_comm: A::Comm = self.real(COMM_NULL);
        let [mut all, mut group]: [A::Group; 2] = [self.real(GROUP_NULL); 2];
        let code = self.communicators.with_tag(index, |tag| {
            let facts = Facts::default();
            self.record_call(&records::COMM_CREATE_GROUP, index, facts, |_| {
                // SAFETY: JAX's world has these members, and there is room for the handles, which
                // are MPI's own then.
                unsafe {
                    let code = (self.mpi.comm_group)(world, &raw mut all);
                    if code != 0 {
                        return code;
                    }
                    let count = members.len() as c_int;
                    let mut code =
                        (self.mpi.group_incl)(all, count, members.as_ptr(), &raw mut group);
                    (self.mpi.group_free)(&raw mut all);
                    if code == 0 {
                        code = (self.mpi.comm_create_group)(world, group, tag, &raw mut new_comm);
                        (self.mpi.group_free)(&raw mut group);
                    }
                    code
                }
            })
        });
        if code == 0 {
            Ok(new_comm.into_raw())
        } else {
            Err(code)
        }
    }

    /// The text of an error code of our own.
    pub(super) fn own_error_text(&self, code: c_int) -> Option<String> {
        if code == SHORT {
            return Some(
                "a message is shorter than the array that it is received into: the processes run \
                 programs for arrays of different shapes"
                    .to_owned(),
            );
        }
        if code == UNAVAILABLE {
            return check_available().err().map(|error| error.message);
        }
        let index_below = |first: c_int| usize::try_from(first - code).ok();
        match (index_below(UNFIT), index_below(REFUSED)) {
            (Some(index), _) => self.communicators.report(index),
            (None, Some(index)) => self.communicators.handle(index).err(),
            (None, None) => None,
        }
    }
}
