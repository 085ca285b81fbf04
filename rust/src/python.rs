//! What Python sees of the core.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::exceptions::{PyImportError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::c_interface::REGISTRY_INTERFACE;
use crate::diagnosis::{End, Place};
use crate::memory::kind::Kind;
use crate::memory::{Driver, POOL, gpu_aware};
use crate::mpi::{
    Abi, Communicator, Datatype, Ends, Functions, Handle, Library, Lineage, Mpich, Neighbor,
    Neighbors, OpenMpi, PredefinedOp, REGISTRY, Standard,
};
use crate::ops::Left;
use crate::recorder::{CommunicatorFacts, Identity, Run};
use crate::watch::{Objects, Settings, Start};
use crate::xla::Handler;
use crate::{log, mpi, ops, recorder, timeline, trace, trampoline, watch};

type Capsules<'py> = Vec<(&'static str, Bound<'py, PyCapsule>)>;

/// Binds the MPI whose functions are found through the shared library at `path`, and gives
/// back the XLA handlers, for host and for device memory, as pairs of name and capsule.
#[pyfunction]
pub fn load<'py>(
    py: Python<'py>,
    path: &str,
    abi: &str,
) -> PyResult<(Capsules<'py>, Capsules<'py>)> {
    let (host, device) = match abi {
        "mpich" => bind::<Mpich>(path)?,
        "openmpi" => bind::<OpenMpi>(path)?,
        "standard" => bind::<Standard>(path)?,
        _ => return Err(unknown(abi)),
    };
    log::set_sink(print);
    let capsules = |handlers: Handlers| {
        handlers
            .into_iter()
            .map(|(name, handler)| Ok((name, capsule(py, handler as *mut c_void, TARGET)?)))
            .collect::<PyResult<_>>()
    };
    Ok((capsules(host)?, capsules(device)?))
}

/// The address that stands for no status in an ABI (MPI-4.1 §3.2.6).
#[pyfunction]
pub fn status_ignore(abi: &str) -> PyResult<usize> {
    match abi {
        "mpich" => Ok(Mpich::STATUS_IGNORE),
        "openmpi" => Ok(OpenMpi::STATUS_IGNORE),
        "standard" => Ok(Standard::STATUS_IGNORE),
        _ => Err(unknown(abi)),
    }
}

fn unknown(abi: &str) -> PyErr {
    PyValueError::new_err(format!(
        "`abi` is {abi:?}, expected one of \"mpich\", \"openmpi\", \"standard\""
    ))
}

type Handlers = Vec<(&'static str, Handler)>;

fn bind<A: Abi>(path: &str) -> PyResult<(Handlers, Handlers)> {
    let library = Library::open(path).map_err(PyImportError::new_err)?;
    let functions = Functions::<A>::load(&library).map_err(PyImportError::new_err)?;
    gpu_aware::bind(&library);
    recorder::set_proc_null(A::PROC_NULL);
    // A second import in the same process finds the same MPI.
    A::functions().get_or_init(|| functions);
    START_WATCHING.get_or_init(|| watch::start::<A>);
    LINEAGE_OF.get_or_init(|| lineage_of::<A>);
    FOLLOW_COPIES.get_or_init(|| follow_copies_of::<A>);
    FREE_COMMUNICATOR.get_or_init(|| ops::free_communicator::<A>);
    FINISH.get_or_init(|| ops::finish::<A>);
    SERVE_JAX.get_or_init(|| trampoline::serve::<A>);
    Ok((ops::host_handlers::<A>(), ops::device_handlers::<A>()))
}

/// The name under which XLA takes a handler.
const TARGET: &CStr = c"xla._CUSTOM_CALL_TARGET";

/// A capsule around the address of what stays for good.
fn capsule<'py>(
    py: Python<'py>,
    address: *mut c_void,
    name: &'static CStr,
) -> PyResult<Bound<'py, PyCapsule>> {
    // SAFETY: the address is not null and needs no freeing; the name is static.
    let capsule = unsafe {
        let capsule = pyo3::ffi::PyCapsule_New(address, name.as_ptr(), None);
        Bound::from_owned_ptr_or_err(py, capsule)?
    };
    Ok(capsule.cast_into()?)
}

/// The registry for handlers that other packages write, as [`c_interface`](crate::c_interface)
/// describes it.
#[pyfunction]
pub fn registry(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    recorder::set_foreign_handlers();
    let address = ptr::from_ref(&REGISTRY_INTERFACE).cast_mut().cast();
    capsule(py, address, c"mpi4jax.registry")
}

/// Prints a line through `sys.stdout`, where pytest and notebooks look for it.
fn print(line: &str) {
    // None while the interpreter shuts down: then there is nobody to print for.
    Python::try_attach(|py| {
        let written = py
            .import("sys")
            .and_then(|sys| sys.getattr("stdout"))
            .and_then(|stdout| {
                stdout.call_method1("write", (format!("{line}\n"),))?;
                stdout.call_method0("flush")
            });
        if let Err(error) = written {
            error.write_unraisable(py, None);
        }
    });
}

/// Makes `number` stand for the communicator with this handle. On this one, what has more than
/// `chunk` bytes travels in pieces, unless that is 0.
#[pyfunction]
pub fn set_communicator(number: usize, handle: usize, rank: i32, size: i32, chunk: usize) {
    REGISTRY.set_communicator(number, Communicator::new(handle, rank, size, chunk));
}

/// Says which neighbors a process has in the topology of a communicator: the ranks and tags of those
/// that send to it, and of those that it sends to.
#[pyfunction]
pub fn set_neighbors(number: usize, sources: Vec<(i32, i32)>, destinations: Vec<(i32, i32)>) {
    let ends = |edges: Vec<(i32, i32)>| {
        let edges = edges.into_iter();
        Ends::new(edges.map(|(rank, tag)| Neighbor { rank, tag }).collect())
    };
    let neighbors = Neighbors {
        sources: ends(sources),
        destinations: ends(destinations),
    };
    REGISTRY.set_neighbors(number, neighbors);
}

/// What is to be done in the ABI that is loaded.
static FREE_COMMUNICATOR: OnceLock<fn(usize)> = OnceLock::new();

/// Makes calls on the communicator at `number` an error, and frees what was made of it.
///
/// MPI deletes the attributes of a communicator on all its ranks, so that all of them free the
/// reversed one, too. MPICH and Open MPI have nothing against that within the callback.
#[pyfunction]
pub fn free_communicator(number: usize) {
    if let Some(free) = FREE_COMMUNICATOR.get() {
        free(number);
    }
}

/// The same.
static FINISH: OnceLock<fn(Duration) -> Vec<Left>> = OnceLock::new();

/// Waits for all that is in flight, but no longer than so many seconds. Gives what there was, and
/// whether it is done. Nothing can be waited for after that.
#[pyfunction]
pub fn finish_flights(py: Python<'_>, at_most: f64) -> Vec<(String, bool)> {
    let at_most = Duration::try_from_secs_f64(at_most).unwrap_or_default();
    let left = py.detach(|| FINISH.get().map(|finish| finish(at_most)));
    let left = left.unwrap_or_default().into_iter();
    left.map(|Left { what, is_done }| (what, is_done)).collect()
}

/// How many operations are in flight.
#[pyfunction]
pub fn in_flight() -> usize {
    ops::in_flight()
}

/// Says which line an eager call has that has begun the operation with this number.
#[pyfunction]
pub fn set_flight_line(number: u32, line: &str) {
    ops::set_line(number, line);
}

/// Has a thread see to what is in flight, or not.
#[pyfunction]
pub fn set_pushing(is_pushed: bool) {
    ops::set_pushing(is_pushed);
}

/// The names of the operators that MPI predefines, each at the place that is its number.
pub fn operators(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, PredefinedOp::ALL.iter().map(|op| op.name()))
}

/// The operations that begin something, each at the place that is its number.
pub fn nonblocking(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, recorder::NONBLOCKING)
}

/// Makes `number` stand for the reduction operator with this handle.
#[pyfunction]
pub fn set_operator(number: usize, handle: usize) {
    REGISTRY.set_operator(number, handle);
}

/// Makes the MPI data type with this handle hold elements of XLA's type `dtype`, which take
/// `size` bytes each.
#[pyfunction]
pub fn set_datatype(dtype: usize, handle: usize, size: usize) {
    REGISTRY.set_datatype(dtype, Datatype::new(handle, size));
}

/// Makes `number` stand for the `MPI_Status` at this address.
#[pyfunction]
pub fn set_status(number: usize, address: usize) {
    REGISTRY.set_status(number, address);
}

/// Has tests of large counts do with small arrays: what is done for counts beyond an int's is done
/// for more elements than `limit`, with MPI's functions for large counts, or without them.
#[pyfunction]
pub fn set_count_limit(limit: i64, use_large: bool) {
    ops::set_count_limit(limit, use_large);
}

/// The platform whose driver was found and has a device: "cuda" or "rocm".
#[pyfunction]
pub fn device() -> Option<&'static str> {
    Driver::get().ok().map(|driver| driver.vendor.name())
}

/// How many devices it has.
#[pyfunction]
pub fn device_count() -> i32 {
    Driver::get().map_or(0, |driver| driver.devices)
}

/// Why there is none.
#[pyfunction]
pub fn why_no_device() -> Option<&'static str> {
    Driver::get().err()
}

/// Whether MPI says that it takes addresses of device memory, if it can be asked.
#[pyfunction]
pub fn mpi_takes_device_memory() -> Option<bool> {
    let driver = Driver::get().ok()?;
    gpu_aware::mpi_says(driver.vendor)
}

/// Whether MPI gets addresses of device memory, or of copies.
#[pyfunction]
pub fn is_direct() -> bool {
    Driver::get().is_ok_and(|driver| gpu_aware::is_direct(driver.vendor))
}

/// Has MPI get addresses of device memory (True), of copies (False), or as it says (None).
#[pyfunction]
#[pyo3(signature = (direct))]
pub fn set_direct(direct: Option<bool>) {
    gpu_aware::set_direct(direct);
}

/// Says what `MPI_Get_library_version` gives.
#[pyfunction]
pub fn set_mpi_release(text: &str) {
    gpu_aware::set_release(text);
}

/// Makes the context of a device current, by its number among those that the driver shows, before
/// MPI is initialised.
#[pyfunction]
pub fn prepare_context(ordinal: i32) -> PyResult<()> {
    gpu_aware::prepare(ordinal).map_err(PyRuntimeError::new_err)
}

/// Notes what context this thread has, where MPI was initialised before, and says whether it has one.
/// A driver is not initialised for that.
#[pyfunction]
pub fn note_start_context() -> bool {
    gpu_aware::note_start()
}

/// Whether MPI could find a context of the GPU's when it was initialised. A driver that needs none
/// counts as one.
#[pyfunction]
pub fn has_start_context() -> bool {
    Driver::get().is_ok_and(|driver| gpu_aware::has_start_context(driver.vendor))
}

/// The kind of the device memory at an address.
#[pyfunction]
pub fn memory_kind(address: usize) -> Option<&'static str> {
    Driver::get()
        .ok()
        .map(|driver| Kind::of(driver, address).name())
}

/// The kinds of device memory, and whether this MPI takes each, if it is CUDA-aware.
#[pyfunction]
pub fn memory_kinds() -> Vec<(&'static str, Option<bool>)> {
    let taken = |kind: Kind| (kind.name(), gpu_aware::takes(kind));
    Kind::NAMED.map(taken).to_vec()
}

/// Says how many bytes of page-locked memory there may be for copies.
#[pyfunction]
pub fn set_staging_limit(bytes: usize) {
    POOL.set_limit(bytes);
}

/// Frees the memory for copies, so far as no call uses it.
#[pyfunction]
pub fn free_staging(py: Python<'_>) {
    // It waits for copies, and a stream may be waiting for a function in Python.
    py.detach(|| POOL.clear());
}

/// Says what users call the communicator with this number and handle, and which ranks it has in
/// `MPI_COMM_WORLD`.
#[pyfunction]
pub fn describe_communicator(number: i64, handle: usize, name: String, members: Vec<i32>) {
    let lineage = LINEAGE_OF.get().and_then(|lineage_of| lineage_of(handle));
    let facts = CommunicatorFacts {
        name,
        group: Arc::new(members.into_iter().collect()),
        identity: match lineage {
            _ if number == recorder::DEFAULT_COMMUNICATOR => Identity::Default,
            Some(0) => Identity::World,
            Some(lineage) => Identity::Copy(lineage),
            None => Identity::Unknown,
        },
    };
    recorder::set_communicator_facts(number, facts);
}

static LINEAGE_OF: OnceLock<fn(usize) -> Option<Lineage>> = OnceLock::new();

fn lineage_of<A: Abi>(comm: usize) -> Option<Lineage> {
    mpi::lineage_of(A::functions().get()?, A::Comm::from_raw(comm))
}

/// Follows the copies of `MPI_COMM_WORLD`, by its handle, so that ranks know which copy each other
/// means.
#[pyfunction]
pub fn follow_copies(world: usize) {
    if let Some(follow) = FOLLOW_COPIES.get() {
        follow(world);
    }
}

static FOLLOW_COPIES: OnceLock<fn(usize)> = OnceLock::new();

fn follow_copies_of<A: Abi>(world: usize) {
    if let Some(functions) = A::functions().get() {
        mpi::follow_copies(functions, A::Comm::from_raw(world));
    }
}

/// Says that others than mpi4jax may communicate on the default communicator.
#[pyfunction]
pub fn share_default() {
    recorder::share_default();
}

/// Says which Python line the calls with this `call_site` come from: none (an empty one) if they
/// are eager.
#[pyfunction]
pub fn set_call_site(site: i64, line: &str) {
    recorder::set_call_site(site, line);
}

/// Says which messages calls with this `call_site` send and receive, each by rank, tag and bytes.
#[pyfunction]
pub fn set_messages(site: i64, sent: Vec<(i64, i64, u64)>, received: Vec<(i64, i64, u64)>) {
    let message = |(rank, tag, bytes)| recorder::Message { rank, tag, bytes };
    let messages = recorder::Messages {
        sent: sent.into_iter().map(message).collect(),
        received: received.into_iter().map(message).collect(),
    };
    recorder::set_messages(site, messages);
}

/// The last calls of this process, the oldest first: the operation of each, its place among the collective calls on the communicator (or 0), the name of that, its arguments,
/// its line, the seconds since it began, and those that it took if it is over.
#[pyfunction]
pub fn recent_calls() -> Vec<RecentCall> {
    let now = recorder::exactly_now();
    recorder::recent()
        .into_iter()
        .map(|call| {
            (
                call.operation.name,
                call.sequence,
                call.communicator_name(),
                call.arguments(),
                call.line(),
                now.seconds_since(call.begin),
                call.end.map(|end| end.seconds_since(call.begin)),
            )
        })
        .collect()
}

type RecentCall = (
    &'static str,
    u64,
    String,
    Vec<String>,
    Option<String>,
    f64,
    Option<f64>,
);

/// The names of the handles that JAX's collectives may use.
pub fn jax_handles(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, trampoline::HANDLES)
}

/// Has the MPI that is bound answer JAX's collectives, with these handles for the names in
/// `JAX_HANDLES`. JAX's processes have these ranks in `MPI_COMM_WORLD`, and this one is that with
/// `rank` among them. `owners` gives the process of each device, by the device's number, which jaxlib
/// keeps in `device_bytes`.
#[pyfunction]
pub fn serve_jax(
    handles: Vec<usize>,
    members: Vec<i32>,
    rank: i32,
    device_bytes: usize,
    owners: Py<PyAny>,
) {
    let owners = Box::new(move || {
        let known: Option<PyResult<HashMap<i64, i32>>> =
            Python::try_attach(|py| owners.call0(py)?.extract(py));
        known.and_then(Result::ok).unwrap_or_default()
    });
    let devices = trampoline::Devices {
        bytes: device_bytes,
        owners,
    };
    if let Some(serve) = SERVE_JAX.get() {
        serve(handles, members, rank, devices);
    }
}

type ServeJax = fn(Vec<usize>, Vec<i32>, i32, trampoline::Devices);
static SERVE_JAX: OnceLock<ServeJax> = OnceLock::new();

/// Has the MPItrampoline in jaxlib's library at `path` look for the library that the environment
/// names.
#[pyfunction]
pub fn start_trampoline(path: PathBuf) -> PyResult<()> {
    trampoline::start(&path).map_err(PyRuntimeError::new_err)
}

/// Says what the handle of `MPI_COMM_WORLD` is, by which all ranks are ended.
#[pyfunction]
pub fn set_world(comm: usize) {
    mpi::set_world(comm);
}

/// What Python says of its threads: the lines of those that are in calls; those that are elsewhere, by
/// name, activity and line; those that wait, by the system's number and what they wait in; whether
/// one waits for JAX, and why that may be for something else than a call, if it may; whether the main
/// thread waits at exit for the JAX of all processes; whether an interrupt raises `KeyboardInterrupt`.
type Whereabouts = (
    BTreeMap<u32, String>,
    Vec<(String, String, String)>,
    Vec<(u32, u64)>,
    bool,
    String,
    bool,
    bool,
);

/// Starts to watch the calls of this process, which has this rank in `MPI_COMM_WORLD`. `own` is the
/// handle of `MPI_COMM_SELF`. `whereabouts` says where Python's threads are; it gets the system's
/// numbers of those that are in calls.
#[pyfunction]
#[pyo3(signature = (rank, size, own, whereabouts, *, report_after, timeout, end_deadlocks))]
pub fn start_watching(
    rank: i32,
    size: i32,
    own: usize,
    whereabouts: Py<PyAny>,
    report_after: f64,
    timeout: Option<f64>,
    end_deadlocks: bool,
) {
    // The thread that asks is none of Python's.
    watch::set_ask(Box::new(move |in_calls| {
        let answer =
            Python::try_attach(|py| whereabouts.call1(py, (in_calls,)).ok()?.extract(py).ok());
        let answer: Whereabouts = answer??;
        let (lines, elsewhere, waiting, wait_for_jax, doubt, is_in_shutdown, has_default_interrupt) =
            answer;
        let place = |(thread, activity, line)| Place {
            thread,
            activity,
            line,
        };
        Some(watch::Python {
            lines,
            elsewhere: elsewhere.into_iter().map(place).collect(),
            waiting,
            wait_for_jax,
            doubt,
            is_in_shutdown,
            has_default_interrupt,
        })
    }));
    let settings = Settings {
        report_after,
        timeout,
        end_deadlocks,
    };
    let start = Start {
        rank,
        size,
        settings,
    };
    if let Some(begin) = START_WATCHING.get() {
        begin(start, own);
    }
}

static START_WATCHING: OnceLock<fn(Start, usize)> = OnceLock::new();

/// Gives the watchers of all processes a communicator to talk on, by its handle. The others are
/// `MPI_BYTE` and `MPI_ANY_SOURCE`. Rank 0 knows the host of each rank.
#[pyfunction]
pub fn connect_watchers(comm: usize, byte: usize, any_source: i32, hosts: Vec<String>) {
    let objects = Objects {
        comm,
        byte,
        any_source,
    };
    watch::connect(objects, hosts);
}

/// Says how this process ends: its exit code, and the reason in words.
#[pyfunction]
pub fn end_with(code: i32, reason: String) {
    watch::end_with(End { code, reason });
}

/// The call sites that have become known after the first `count`, with their lines.
#[pyfunction]
pub fn call_sites(count: usize) -> Vec<(i64, String)> {
    recorder::call_sites_since(count)
}

/// A communicator: its number, its name, its members as runs of first, stride and count, and the
/// copies that lead to it from `MPI_COMM_WORLD`, each by its place and how many there are, if it is
/// one.
type CommunicatorEntry = (i64, String, Vec<(i32, i32, i32)>, Option<Vec<(u32, u32)>>);

/// Gives the communicators of several processes numbers that are the same in all of them.
#[pyfunction]
pub fn identify_communicators(tables: Vec<Vec<CommunicatorEntry>>) -> Vec<Vec<usize>> {
    let run = |(first, stride, count)| Run {
        first,
        stride,
        count,
    };
    let entry = |(number, name, members, copies): CommunicatorEntry| recorder::CommunicatorEntry {
        number,
        name,
        members: members.into_iter().map(run).collect(),
        copies,
    };
    let table = |table: Vec<CommunicatorEntry>| table.into_iter().map(entry).collect();
    let tables: Vec<Vec<_>> = tables.into_iter().map(table).collect();
    recorder::identify(&tables)
}

/// All communicators.
#[pyfunction]
pub fn communicators() -> Vec<CommunicatorEntry> {
    let run = |run: &Run| (run.first, run.stride, run.count);
    let copy = |copy: mpi::Copy| (copy.place, copy.of);
    recorder::communicators()
        .into_iter()
        .map(|(number, facts)| {
            let path = match facts.identity {
                Identity::Copy(lineage) => Some(mpi::path(lineage)),
                _ => None,
            };
            let path = path.map(|path| path.into_iter().map(copy).collect());
            let members = facts.group.runs().iter().map(run).collect();
            (number, facts.name, members, path)
        })
        .collect()
}

/// Records that this rank waits for all others, in what is called "profile" or "trace".
/// Gives a number for it.
#[pyfunction]
pub fn begin_meeting(name: &str) -> PyResult<u64> {
    let unknown = || PyValueError::new_err(format!("there is no meeting {name:?}"));
    recorder::begin_meeting(name).ok_or_else(unknown)
}

/// Records that it does not wait any more.
#[pyfunction]
pub fn end_meeting(number: u64) {
    recorder::end_meeting(number);
}

/// Writes all calls from now on into a file. `operations` are the names of all of them. If there
/// were no calls yet, `capacity` is how many may wait to be written.
#[pyfunction]
pub fn start_trace(path: PathBuf, operations: Vec<String>, capacity: usize) -> PyResult<()> {
    recorder::set_capacity(capacity);
    Ok(trace::start(&path, operations)?)
}

/// Writes the calls that are over into the file at once. Gives how many calls are in it so far, and
/// how many are missing.
#[pyfunction]
pub fn flush_trace(py: Python<'_>) -> Option<(u64, u64)> {
    py.detach(trace::flush).map(counts)
}

/// Has no more calls be written, for this reason.
#[pyfunction]
pub fn give_up_trace(py: Python<'_>, reason: &str) {
    py.detach(|| trace::give_up(reason));
}

/// Ends that. Gives how many calls are in the file, and how many are missing.
#[pyfunction]
pub fn stop_trace(py: Python<'_>) -> Option<(u64, u64)> {
    py.detach(trace::stop).map(counts)
}

/// Writes the traces in a folder into one file, from `begin` to `end`, in seconds. Gives what there is
/// to say of it, line by line.
#[pyfunction]
pub fn write_timeline(
    py: Python<'_>,
    folder: PathBuf,
    output: PathBuf,
    begin: f64,
    end: f64,
) -> PyResult<Vec<String>> {
    py.detach(|| timeline::merge(&folder, &output, begin..end))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

fn counts(summary: trace::Summary) -> (u64, u64) {
    (summary.count, summary.lost)
}

/// Turns the debug lines on or off.
#[pyfunction]
pub fn set_logging(enable: bool) {
    log::set_enabled(enable);
}

/// Whether the debug lines are on.
#[pyfunction]
pub fn get_logging() -> bool {
    log::is_enabled()
}

/// Has calls compared between processes before MPI is called, or not.
#[pyfunction]
pub fn set_check(enable: bool) {
    ops::set_check(enable);
}

/// Says which Python line the eager call that begins now comes from.
#[pyfunction]
pub fn set_eager_line(line: &str) {
    recorder::set_eager_line(line);
}

/// Whether an error of MPI's raises (True) or ends all ranks (False).
#[pyfunction]
pub fn set_raise_on_error(raise_: bool) {
    ops::set_raise_on_error(raise_);
}
