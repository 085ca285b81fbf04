//! What jaxlib calls, done by the MPI of this process.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_int, c_void};
use std::{ptr, slice};

use super::clique;
use super::communicators::Communicators;
use super::records::{self, Facts, Message, Messages};
use super::status::{TrampolineStatus, with_status};
use super::table::{Calls, HANDLES, IN_PLACE, PROC_NULL, THREAD_MULTIPLE, place, set_served};
use crate::error::Error;
use crate::mpi::{Abi, Functions, Handle, Status};
use crate::ops::{self, Comparison};
use crate::recorder::{Record, Recording};

/// What is to be known of the devices that XLA numbers.
pub struct Devices {
    /// In how many bytes jaxlib keeps a number.
    pub bytes: usize,
    /// Gives the process of JAX's that each device belongs to.
    pub owners: Box<dyn Fn() -> HashMap<i64, c_int> + Send + Sync>,
}

/// The MPI of this process, and its handles for the constants.
struct Served<A: Abi> {
    mpi: &'static Functions<A>,
    /// In the order of [`HANDLES`].
    handles: Vec<usize>,
    communicators: Communicators,
    messages: Messages,
    devices: Devices,
}

/// Has the MPI that is bound answer jaxlib. `handles` are mpi4py's numbers for those in
/// [`HANDLES`]: as `COMM_WORLD` the communicator that JAX's processes are those of, on which
/// nobody else communicates. `members` are the ranks of these in `MPI_COMM_WORLD`, and `rank` is
/// that of this process among them. MPI was initialised with `MPI_THREAD_MULTIPLE`.
pub fn serve<A: Abi>(handles: Vec<usize>, members: Vec<c_int>, rank: c_int, devices: Devices) {
    if let Some(mpi) = A::functions().get() {
        let world = handles.get(COMM_WORLD).copied().unwrap_or_default();
        set_served(Box::new(Served {
            mpi,
            handles,
            communicators: Communicators::new(world, members, rank),
            messages: Messages::default(),
            devices,
        }));
    }
}

const COMM_NULL: usize = place(HANDLES, "COMM_NULL");
const COMM_WORLD: usize = place(HANDLES, "COMM_WORLD");
const GROUP_NULL: usize = place(HANDLES, "GROUP_NULL");
const REQUEST_NULL: usize = place(HANDLES, "REQUEST_NULL");

/// The error code of a receive of which less came than was expected.
const SHORT: c_int = -(1 << 15);

/// The error code of a call that does not fit those of other processes, less the place of its
/// communicator.
const UNFIT: c_int = -(1 << 24);

/// The error code of a call on a communicator that there is not, less the place of that. All codes of
/// our own are below 0.
const REFUSED: c_int = -(1 << 16);

impl<A: Abi> Served<A> {
    /// The handle that MPI takes.
    fn real<H: Handle>(&self, handle: usize) -> H {
        H::from_raw(self.handles.get(handle).copied().unwrap_or(handle))
    }

    /// The communicator that MPI takes, or an error code: jaxlib knows those that it has made by
    /// their places.
    fn comm(&self, handle: usize) -> Result<A::Comm, c_int> {
        match handle.checked_sub(HANDLES.len()) {
            None => Ok(self.real(handle)),
            Some(place) => match self.communicators.handle(place) {
                Ok(handle) => Ok(A::Comm::from_raw(handle)),
                Err(_) => Err(REFUSED - place as c_int),
            },
        }
    }

    /// The place of a communicator among those that jaxlib has made. The first is its world.
    fn place(handle: usize) -> usize {
        handle.saturating_sub(HANDLES.len())
    }

    /// The number that jaxlib gets for a request.
    fn request(&self, real: A::Request) -> usize {
        let raw = real.into_raw();
        let is_null = self.handles.get(REQUEST_NULL) == Some(&raw);
        if is_null { REQUEST_NULL } else { raw }
    }

    fn peer(rank: c_int) -> c_int {
        if rank == PROC_NULL {
            A::PROC_NULL
        } else {
            rank
        }
    }

    /// What is sent where the result goes to `recv`. XLA may have the result take the operand's
    /// memory, which MPI wants to be told (MPI-4.1 §6.2).
    fn operand(send: *const c_void, recv: *mut c_void) -> *const c_void {
        if send == recv.cast_const() {
            ptr::without_provenance(A::IN_PLACE)
        } else {
            Self::block(send)
        }
    }

    /// The same where the operand is a block of the result.
    fn block(send: *const c_void) -> *const c_void {
        if send.addr() == IN_PLACE {
            ptr::without_provenance(A::IN_PLACE)
        } else {
            send
        }
    }

    fn is_finalized(&self) -> bool {
        let mut flag = 0;
        // SAFETY: this may be asked at any time (MPI-4.1 §11.2.5).
        unsafe { (self.mpi.finalized)(&raw mut flag) };
        flag != 0
    }

    /// Makes a call on a communicator: recorded, and with debug lines if they are on.
    fn call(
        &self,
        operation: &'static records::Operation,
        comm: usize,
        facts: Facts,
        body: impl FnOnce(A::Comm) -> c_int,
    ) -> c_int {
        let real = match self.comm(comm) {
            Ok(real) => real,
            Err(code) => return code,
        };
        let place = Self::place(comm);
        let is_compared = operation.recorded.is_collective() && ops::check_is_enabled();
        self.recorded(operation, place, facts, |recording| {
            let record = recording.record().filter(|_| is_compared);
            match record.map(|record| self.compare(real, place, &record)) {
                None | Some(0) => body(real),
                Some(code) => code,
            }
        })
    }

    /// Compares a call with those of the other processes (`MPI4JAX_CHECK`), and gives an error code.
    #[cold]
    fn compare(&self, comm: A::Comm, place: usize, record: &Record) -> c_int {
        let (rank, size) = self.communicators.rank_and_size(place);
        let Some(companion) = self.communicators.companion(place).filter(|_| size > 1) else {
            return 0;
        };
        let companion = companion.get_or_init(|| {
            let mut made: A::Comm = self.real(COMM_NULL);
            // SAFETY: all processes come here before their first call on the communicator.
            unsafe { (self.mpi.comm_split)(comm, 0, rank, &raw mut made) };
            made.into_raw()
        });
        let ranks = Comparison {
            functions: self.mpi,
            comm: A::Comm::from_raw(*companion),
            rank,
            size: size as c_int,
            check: &|function, code| match code {
                0 => Ok(()),
                _ => Err(Error::internal(format!(
                    "{function}: {}",
                    self.mpi.error_text(code)
                ))),
            },
        };
        let report = match ranks.disagreement(record, None) {
            Ok(None) => return 0,
            Ok(Some(report)) => ops::refuse(self.mpi, comm, rank, report, Some(ranks.comm)),
            Err(error) => error.message,
        };
        self.communicators.set_report(place, report);
        UNFIT - place as c_int
    }

    fn recorded(
        &self,
        operation: &'static records::Operation,
        place: usize,
        facts: Facts,
        body: impl FnOnce(&Recording) -> c_int,
    ) -> c_int {
        let is_collective = operation.recorded.is_collective();
        let _lock = is_collective.then(|| self.communicators.lock(place));
        let recording = self.communicators.record(operation, place, &facts);
        let entry = self.communicators.log(operation, place, &facts);
        let code = body(&recording);
        if let Some(entry) = entry {
            entry.end(code);
        }
        code
    }

    /// What a receive comes to. MPI takes a message that is shorter than the array for right.
    fn check_length(
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
    fn members(&self, color: c_int, key: c_int) -> Result<Vec<c_int>, String> {
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
    fn create(&self, members: &[c_int], place: usize) -> Result<usize, c_int> {
        let world: A::Comm = self.real(COMM_WORLD);
        let mut made: A::Comm = self.real(COMM_NULL);
        let [mut all, mut group]: [A::Group; 2] = [self.real(GROUP_NULL); 2];
        let code = self.communicators.with_tag(place, |tag| {
            let facts = Facts::default();
            self.recorded(&records::COMM_CREATE_GROUP, place, facts, |_| {
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
                        code = (self.mpi.comm_create_group)(world, group, tag, &raw mut made);
                        (self.mpi.group_free)(&raw mut group);
                    }
                    code
                }
            })
        });
        if code == 0 {
            Ok(made.into_raw())
        } else {
            Err(code)
        }
    }
}

impl<A: Abi> Calls for Served<A> {
    fn error_text(&self, code: c_int) -> String {
        if code == SHORT {
            return "a message is shorter than the array that it is received into: the processes \
                    run programs for arrays of different shapes"
                .to_owned();
        }
        let place_below = |first: c_int| usize::try_from(first - code).ok();
        let own = match (place_below(UNFIT), place_below(REFUSED)) {
            (Some(place), _) => self.communicators.report(place),
            (None, Some(place)) => self.communicators.handle(place).err(),
            (None, None) => None,
        };
        own.unwrap_or_else(|| self.mpi.error_text(code))
    }

    unsafe fn allgather(
        &self,
        send: *const c_void,
        send_count: c_int,
        send_type: usize,
        recv: *mut c_void,
        recv_count: c_int,
        recv_type: usize,
        comm: usize,
    ) -> c_int {
        let facts = Facts::sending(send_type, send_count);
        // SAFETY: the caller's arguments, with MPI's handles.
        self.call(&records::ALLGATHER, comm, facts, |comm| unsafe {
            (self.mpi.int.allgather)(
                Self::block(send),
                send_count,
                self.real(send_type),
                recv,
                recv_count,
                self.real(recv_type),
                comm,
            )
        })
    }

    unsafe fn allreduce(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: c_int,
        datatype: usize,
        op: usize,
        comm: usize,
    ) -> c_int {
        let facts = Facts::sending(datatype, count).with_op(op);
        // SAFETY: the caller's arguments, with MPI's handles.
        self.call(&records::ALLREDUCE, comm, facts, |comm| unsafe {
            (self.mpi.int.allreduce)(
                Self::operand(send, recv),
                recv,
                count,
                self.real(datatype),
                self.real(op),
                comm,
            )
        })
    }

    /// XLA frees its communicators when the process ends, which may be after MPI has ended.
    unsafe fn comm_free(&self, comm: *mut usize) -> c_int {
        // SAFETY: the caller lends the handle.
        let code = match self.comm(unsafe { *comm }) {
            // SAFETY: it is one of the communicators that the caller has made.
            Ok(mut real) if !self.is_finalized() => unsafe { (self.mpi.comm_free)(&raw mut real) },
            _ => 0,
        };
        // SAFETY: as above.
        unsafe { *comm = COMM_NULL };
        code
    }

    unsafe fn comm_rank(&self, comm: usize, rank: *mut c_int) -> c_int {
        // SAFETY: the caller lends room for the rank.
        unsafe { *rank = self.communicators.rank_and_size(Self::place(comm)).0 };
        0
    }

    unsafe fn comm_size(&self, comm: usize, size: *mut c_int) -> c_int {
        let (_, processes) = self.communicators.rank_and_size(Self::place(comm));
        // SAFETY: the caller lends room for the size.
        unsafe { *size = processes as c_int };
        0
    }

    /// XLA does not look at the error code. Where there can be no communicator, it gets one on which
    /// every call fails.
    unsafe fn comm_split(&self, _: usize, color: c_int, key: c_int, new_comm: *mut usize) -> c_int {
        let place = match self.members(color, key) {
            Ok(members) => {
                let place = self.communicators.add(key, &members);
                let made = self.create(&members, place);
                let handle = made.map_err(|code| self.mpi.error_text(code));
                self.communicators.set_handle(place, handle);
                place
            }
            Err(reason) => {
                let place = self.communicators.add(0, &[self.communicators.own_rank()]);
                self.communicators.set_handle(place, Err(reason));
                place
            }
        };
        // SAFETY: the caller lends room for the handle.
        unsafe { *new_comm = HANDLES.len() + place };
        0
    }

    /// mpi4py finalises MPI, after all that runs at exit.
    unsafe fn finalize(&self) -> c_int {
        0
    }

    /// mpi4py has initialised MPI.
    unsafe fn init_thread(
        &self,
        _: *mut c_int,
        _: *mut *mut *mut c_char,
        _: c_int,
        provided: *mut c_int,
    ) -> c_int {
        // SAFETY: the caller lends room for the level.
        unsafe { *provided = THREAD_MULTIPLE };
        0
    }

    unsafe fn irecv(
        &self,
        buffer: *mut c_void,
        count: c_int,
        datatype: usize,
        source: c_int,
        tag: c_int,
        comm: usize,
        request: *mut usize,
    ) -> c_int {
        let mut real: A::Request = self.real(REQUEST_NULL);
        let real_comm = match self.comm(comm) {
            Ok(real_comm) => real_comm,
            Err(code) => return code,
        };
        // SAFETY: the caller's arguments, with MPI's handles.
        unsafe {
            let code = (self.mpi.int.irecv)(
                buffer,
                count,
                self.real(datatype),
                Self::peer(source),
                tag,
                real_comm,
                &raw mut real,
            );
            *request = self.request(real);
            let facts = Facts::default()
                .receiving(datatype, count)
                .from(source, tag);
            let message = Message {
                operation: &records::RECV,
                comm,
                facts,
                expected: Some((datatype, count)),
            };
            self.messages.add(*request, message);
            code
        }
    }

    /// XLA makes communicators on the thread that asks for this only. It asks on threads of its
    /// own for a collective operation that runs beside other work, and would refuse to run it. With
    /// `MPI_THREAD_MULTIPLE`, any thread may.
    unsafe fn is_thread_main(&self, flag: *mut c_int) -> c_int {
        // SAFETY: the caller lends the flag.
        unsafe { *flag = 1 };
        0
    }

    unsafe fn isend(
        &self,
        buffer: *const c_void,
        count: c_int,
        datatype: usize,
        dest: c_int,
        tag: c_int,
        comm: usize,
        request: *mut usize,
    ) -> c_int {
        let mut real: A::Request = self.real(REQUEST_NULL);
        let real_comm = match self.comm(comm) {
            Ok(real_comm) => real_comm,
            Err(code) => return code,
        };
        // SAFETY: the caller's arguments, with MPI's handles.
        unsafe {
            let code = (self.mpi.int.isend)(
                buffer,
                count,
                self.real(datatype),
                Self::peer(dest),
                tag,
                real_comm,
                &raw mut real,
            );
            *request = self.request(real);
            let facts = Facts::sending(datatype, count).to(dest, tag);
            let message = Message {
                operation: &records::SEND,
                comm,
                facts,
                expected: None,
            };
            self.messages.add(*request, message);
            code
        }
    }

    unsafe fn reduce_scatter(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        recv_counts: *const c_int,
        datatype: usize,
        op: usize,
        comm: usize,
    ) -> c_int {
        let (_, size) = self.communicators.rank_and_size(Self::place(comm));
        // SAFETY: the caller has a count for each process.
        let count = unsafe { slice::from_raw_parts(recv_counts, size) }
            .iter()
            .sum();
        let facts = Facts::sending(datatype, count).with_op(op);
        // SAFETY: the caller's arguments, with MPI's handles.
        self.call(&records::REDUCE_SCATTER, comm, facts, |comm| unsafe {
            (self.mpi.int.reduce_scatter)(
                Self::operand(send, recv),
                recv,
                recv_counts,
                self.real(datatype),
                self.real(op),
                comm,
            )
        })
    }

    unsafe fn sendrecv(
        &self,
        send: *const c_void,
        send_count: c_int,
        send_type: usize,
        dest: c_int,
        send_tag: c_int,
        recv: *mut c_void,
        recv_count: c_int,
        recv_type: usize,
        source: c_int,
        recv_tag: c_int,
        comm: usize,
        status: *mut TrampolineStatus,
    ) -> c_int {
        let facts = Facts::sending(send_type, send_count)
            .receiving(recv_type, recv_count)
            .to(dest, send_tag)
            .from(source, recv_tag);
        self.call(&records::SENDRECV, comm, facts, |comm| {
            // SAFETY: the caller's arguments, with MPI's handles.
            let body = |status: *mut A::Status| unsafe {
                (self.mpi.int.sendrecv)(
                    send,
                    send_count,
                    self.real(send_type),
                    Self::peer(dest),
                    send_tag,
                    recv,
                    recv_count,
                    self.real(recv_type),
                    Self::peer(source),
                    recv_tag,
                    comm,
                    status,
                )
            };
            // SAFETY: the caller lends room for the status unless it wants none.
            let (code, mut status) = unsafe { with_status::<A>(status, body) };
            self.check_length(code, &mut status, recv_type, recv_count)
        })
    }

    unsafe fn wait(&self, request: *mut usize, status: *mut TrampolineStatus) -> c_int {
        // SAFETY: the caller lends the handle.
        let number = unsafe { *request };
        let mut real: A::Request = self.real(number);
        // SAFETY: the request is the caller's.
        let body = |status: *mut A::Status| unsafe { (self.mpi.wait)(&raw mut real, status) };
        // SAFETY: the caller lends room for the status unless it wants none.
        let wait = || unsafe { with_status::<A>(status, body) };
        let code = match self.messages.take(number) {
            Some(message) => self.call(message.operation, message.comm, message.facts, |_| {
                let (code, mut status) = wait();
                match message.expected {
                    Some((datatype, count)) => {
                        self.check_length(code, &mut status, datatype, count)
                    }
                    None => code,
                }
            }),
            None => wait().0,
        };
        // SAFETY: as above.
        unsafe { *request = self.request(real) };
        code
    }
}
