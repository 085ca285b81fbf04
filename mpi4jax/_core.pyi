"""The Rust core: XLA handlers that call the MPI of this process."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ._internal.traces.reader import Description
from ._internal.watch.whereabouts import Threads

# The MPI that is loaded, and the handlers that call it.

def load(path: str, abi: str) -> tuple[list[tuple[str, object]], list[tuple[str, object]]]:
    """Bind the MPI found through the loaded shared library at `path`.

    `abi` is "mpich", "openmpi" or "standard". Returns the handlers for host memory and
    those for device memory, by the name of their operation.
    """

def set_wait_policy(path: str, has_core: bool, gives_way: bool) -> bool:
    """Set whether waits in MPI poll at first, and give way in the end to other threads.

    `has_core`: there is a core for each process. `path` is the argument of `load`. Says
    whether this MPI can.
    """

def status_ignore(abi: str) -> int:
    """`MPI_STATUS_IGNORE` in an ABI, as a number."""

def registry() -> object:
    """The registry for XLA handlers of other packages, in a capsule "mpi4jax.registry".

    It points to a struct of functions that say which MPI handles the numbers in a compiled
    program stand for; `rust/src/c_interface.rs` declares it in C.
    """

# The objects that numbers in compiled programs stand for.

def set_communicator(
    comm_number: int, handle: int, rank: int, size: int, chunk: int
) -> None:
    """Make `comm_number` stand for the communicator with this handle.

    Arrays of more than `chunk` bytes travel on it in pieces, unless that is 0.
    """

def set_neighbors(
    comm_number: int,
    sources: Sequence[tuple[int, int]],
    destinations: Sequence[tuple[int, int]],
) -> None:
    """Say which neighbors this process has in the topology of a communicator.

    The ranks and tags of those that send to it, and of those that it sends to.
    """

def describe_communicator(
    comm_number: int, handle: int, name: str, members: list[int]
) -> None:
    """Say what users call a communicator, and which ranks it has in `MPI_COMM_WORLD`."""

def free_communicator(comm_number: int) -> None:
    """Make calls on a communicator an error, and free the communicators made of it."""

def follow(world: int, comm_self: int) -> None:
    """Count the copies of `MPI_COMM_WORLD`, by its handle, and the copies of copies.

    By their counts, processes know which copy each other means. Calls are refused once MPI
    is about to be finalised, which it tells through `MPI_COMM_SELF`, and in processes that
    are forked from this one.
    """

def check_available() -> None:
    """Raise a RuntimeError where MPI may not be called."""

def share_default() -> None:
    """Say that others than mpi4jax may communicate on the default communicator."""

def set_world(comm: int) -> None:
    """Say what the handle of `MPI_COMM_WORLD` is, by which all ranks are ended."""

OPERATORS: tuple[str, ...]
"""The names of MPI's own reduction operators, in the order of their numbers."""

def set_operator(op_number: int, handle: int) -> None:
    """Make `op_number` stand for the reduction operator with this handle."""

def set_datatype(dtype: int, handle: int, size: int) -> None:
    """Make the MPI data type with this handle hold elements of XLA's type `dtype`."""

def set_status(status_number: int, address: int) -> None:
    """Make `status_number` stand for the MPI_Status at this address."""

# Settings of all calls, and operations in flight.

def set_logging(enable: bool) -> None:
    """Turn the debug lines on or off."""

def get_logging() -> bool:
    """Whether the debug lines are on."""

def set_raise_on_error(raise_: bool) -> None:
    """Make an error of MPI's raise (True) or end all ranks (False)."""

def set_check(enable: bool) -> None:
    """Set whether calls are compared between processes before MPI is called."""

def set_huge_pages(enable: bool) -> None:
    """Set whether the core asks the kernel for huge pages for large arrays on the host."""

def set_count_limit(limit: int, use_large: bool) -> None:
    """Set the limit of counts, so that small arrays test the code for large counts.

    Calls with more than `limit` elements go the ways that are meant for counts beyond an
    int: by MPI's functions for large counts, or without them.
    """

NONBLOCKING: tuple[str, ...]
"""The operations that begin something, by what the attribute `started` of a wait says."""

def in_flight() -> int:
    """The number of operations in flight."""

def set_flight_line(flight: int, line: str) -> None:
    """Say which line an eager call has that has begun the operation with this number."""

def set_pushing(is_pushed: bool) -> None:
    """Set whether a thread makes progress with operations in flight."""

def finish_flights(at_most: float) -> list[tuple[str, bool]]:
    """Wait for all operations in flight, for `at_most` seconds.

    Gives their descriptions, each with whether it is done. None can be waited for after
    that.
    """

# Device memory, and whether MPI takes it.

def device() -> str | None:
    """The platform whose driver was found and has a device: "cuda" or "rocm"."""

def device_count() -> int:
    """The number of its devices."""

def why_no_device() -> str | None:
    """The reason why there is none."""

def mpi_takes_device_memory() -> bool | None:
    """Whether MPI says that it takes addresses of device memory, if it can be asked."""

def is_direct() -> bool:
    """Whether MPI gets addresses of device memory, or of copies."""

def set_direct(direct: bool | None) -> None:
    """Set whether MPI gets device memory (True), copies (False), or as it says (None)."""

def set_mpi_release(text: str) -> None:
    """Tell the core the text of MPI_Get_library_version."""

def prepare_context(ordinal: int) -> None:
    """Make the context of a device current, before MPI is initialised.

    Devices have numbers among those that the driver shows. Raises RuntimeError if that is
    not possible. A driver that needs no context is left alone.
    """

def note_start_context() -> bool:
    """Note whether this thread has a context, where MPI was initialised before.

    A driver is not initialised for that.
    """

def has_start_context() -> bool:
    """Whether MPI could find a context of the GPU's when it was initialised.

    A driver that needs none counts as one.
    """

def expect_own_gpu(name: str, warning: str) -> None:
    """Look at the first call on device memory whether another process uses this GPU.

    `name` is common to the processes of a job on this node. `warning` has `{gpu}` for the
    GPU. It is printed by one of them.
    """

def memory_kind(address: int) -> str | None:
    """The kind of the device memory at an address, None without a driver.

    It is "plain", "pool", "mapped" or "unknown".
    """

def memory_kinds() -> list[tuple[str, bool | None]]:
    """The kinds of device memory, each with whether this MPI takes it, if that is known.

    Provided that MPI is CUDA-aware.
    """

def set_staging_limit(bytes: int) -> None:
    """Limit the bytes of page-locked memory for copies."""

def free_staging() -> None:
    """Free the staging buffers that no call uses."""

# The records of calls.

def set_call_site(site: int, line: str) -> None:
    """Say which line calls with this `call_site` come from: an empty one if eager."""

def set_eager_line(line: str, sites: Sequence[int] = ...) -> None:
    """Say which Python line the eager call that begins now comes from.

    Of a program with these call sites, or, without any, of one that is not known.
    """

def set_messages(
    site: int,
    sent: Sequence[tuple[int, int, int]],
    received: Sequence[tuple[int, int, int]],
) -> None:
    """Say which messages calls with this `call_site` have: their ranks, tags and bytes."""

def recent_calls() -> list[
    tuple[str, int, str, list[str], str | None, float, float | None]
]:
    """The last calls of this process, the oldest first.

    The operation of each, its sequence number among the collective calls on the
    communicator (or 0), the name of that, its arguments, its line, the seconds since it
    began, and those that it took if it is over.
    """

def call_sites(count: int) -> list[tuple[int, str]]:
    """The call sites that have become known after the first `count`, with their lines."""

def communicators() -> list[Description]:
    """All communicators of this process."""

def identify_communicators(tables: list[list[Description]]) -> list[list[int]]:
    """Give the communicators of several processes numbers that are the same in all."""

def begin_meeting(name: str, rule: str, members: Sequence[int]) -> int:
    """Record that this rank waits for others, and return the number of the call.

    `members` are their ranks in `MPI_COMM_WORLD`, and this one. `rule` is a sentence about
    who has to come to the place called `name`.
    """

def end_meeting(call: int) -> None:
    """Record that it does not wait any more."""

# Calls in files, and the timeline drawn from them.

def start_trace(path: str | os.PathLike[str], operations: list[str], capacity: int) -> None:
    """Write all calls from now on into a file.

    `operations` are the names of all of them. If there were no calls yet, `capacity` is how
    many may wait to be written.
    """

def flush_trace() -> tuple[int, int] | None:
    """Write the calls that are over into the file at once.

    Give how many are in it so far, and how many are missing, as it could not be written.
    """

def give_up_trace(reason: str) -> None:
    """Stop writing calls, for this reason."""

def stop_trace() -> tuple[int, int] | None:
    """End the trace. Give how many calls are in the file, and how many are missing."""

CALL_FIELDS: list[tuple[str, str]]
"""The fields of a call in a file, each with NumPy's name for its type."""

def read_calls(
    path: str | os.PathLike[str],
    begin: int,
    comparisons: list[tuple[int, int, int]],
    have_same_boot: bool,
) -> bytes:
    """Give the calls in a file that began at this time or later and are over.

    They have the times of rank 0's clock, in nanoseconds. A comparison of the two clocks is
    the time of this process's, by how much it was ahead, and by how much that may be wrong.
    `have_same_boot` says whether the processes run on one system.
    """

def collective_pattern(
    operation: str,
) -> Literal["all to all", "one to all", "all to one", "neighborhood"]:
    """Say which processes send to which in a collective operation (MPI-4.1 §6.2.2)."""

def match_messages(sent: list[int], received: list[int]) -> list[int]:
    """Give the index of the message that each receive gets, or -1, by the tags of both.

    The messages are all from one process to another, which receives one after another.
    """

def write_timeline(
    folder: str | os.PathLike[str], output: str | os.PathLike[str], begin: float, end: float
) -> list[str]:
    """Write the traces of all processes, in a folder, into one file for Perfetto.

    `begin` and `end` are the part to show, in seconds from the beginning of the run. Give
    a summary, line by line.

    Raises:
        ValueError: If the traces can't be read, or the file can't be written.

    """

# The thread that explains a hang.

DEADLOCK: int
"""The exit code where no rank's own says more."""

def start_watching(
    rank: int,
    size: int,
    host: str,
    whereabouts: Callable[[Sequence[int]], Threads],
    *,
    all_hosts: bool,
    names: tuple[int, int, int, int] | str,
    has_threads: bool,
    compares_traffic: bool,
    report_after: float,
    timeout: float | None,
    end_deadlocks: bool,
) -> None:
    """Start to watch the calls of this process, which has this rank in `MPI_COMM_WORLD`.

    `host` is the name of its machine; other processes may be on other ones (`all_hosts`) or
    not. `whereabouts` says where Python's threads are: it gets the system's numbers of
    those that are in calls. `names` has the handles of `MPI_COMM_WORLD`, `MPI_COMM_SELF`,
    `MPI_INFO_NULL` and `MPI_ERRORS_RETURN`, or says why MPI's name service can't be called.
    With `has_threads`, any thread may call MPI; with `compares_traffic`, rank 0 reports
    messages that were never received.
    """

def isolation() -> str | None:
    """Why this rank can't ask others what they do, if it can't. Waits for the answer."""

def mailbox_address() -> str | None:
    """The address at which other ranks ask this one what it does, if it has one."""

def set_mailbox_addresses(addresses: Sequence[str]) -> None:
    """Say at which address to ask each rank, where they can't find these out themselves."""

def end_with(code: int, reason: str) -> None:
    """Say how this process ends: its exit code, and the reason in words."""

def call_uncollected(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function that runs no Python code, and collect no garbage meanwhile.

    Python < 3.12 may read freed memory if it collects garbage while it reads the frame of
    another thread.
    """

# JAX's own collectives.

JAX_HANDLES: tuple[str, ...]
"""The names of the handles that JAX's collectives may use, without the prefix `MPI_`."""

def serve_jax(
    handles: list[int],
    members: list[int],
    rank: int,
    device_bytes: int,
    versions: str,
    owners: Callable[[], dict[int, int]],
) -> None:
    """Serve JAX's collectives with the MPI that is bound.

    `handles` are those for the names in `JAX_HANDLES`. JAX's processes have the ranks
    `members` in `MPI_COMM_WORLD`; this one is that with `rank` among them.
    Errors call jaxlib `versions`.
    """

def start_trampoline(path: str) -> None:
    """Make jaxlib load the library that `MPITRAMPOLINE_LIB` names now.

    `path` is the shared library with its MPItrampoline. Raises RuntimeError if that is not
    found there.
    """

# Files with a checksum.

def checksum(bytes: bytes) -> int:
    """The CRC-32C of some bytes."""

def checksum_at(address: int, size: int) -> int:
    """The CRC-32C of the bytes at an address."""

def combine_checksums(first: int, second: int, size: int) -> int:
    """The CRC-32C of some bytes and `size` more, by the checksums of both."""

def file_checksum(path: str | os.PathLike[str]) -> int:
    """The CRC-32C of all bytes of a file."""

def read_chunks(
    file: int,
    places: Sequence[Sequence[int]],
    address: int,
    size: int,
    is_compressed: bool,
) -> None:
    """Read chunks of an open file to an address, where each has `size` bytes.

    Arguments:
        file: The file's descriptor.
        places: The offset of each chunk, and its size in the file.
        address: The address of the first one, which the others follow.
        size: The size of a chunk in bytes, uncompressed, not 0.
        is_compressed: Whether they are compressed.

    Raises a ValueError if one has another size, or another checksum than that behind it.
    The text goes on behind the name of the file.
    """

def start_writeback(file: int) -> None:
    """Let the system put an open file on the disk while the program goes on."""

def swap_names(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    """Swap two names in one step. Gives whether the file system can do this."""

def sync_path(path: str | os.PathLike[str]) -> None:
    """Put a file, or the names of the files in a folder, on the disk."""

def write_chunks(
    file: int, offset: int, address: int, size: int, count: int, element: int
) -> tuple[list[int], int]:
    """Write chunks, which follow each other, each with its checksum behind it.

    They are compressed if `element` is the size of their elements, and not 0. Returns the
    size that each has in the file, and the checksum of what was written.

    Arguments:
        file: The descriptor of a file that is open.
        offset: Where the first one goes in the file.
        address: The address of the first one.
        size: The size of a chunk in bytes, not 0.
        count: The number of chunks.
        element: The size of an element in bytes, or 0.

    """
