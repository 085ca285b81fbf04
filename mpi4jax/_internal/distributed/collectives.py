"""Setup of JAX's own collectives over MPI, before JAX is used."""

from __future__ import annotations

import os
import re
from pathlib import Path

import jax
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._node import XLA_THREADS, allowed_cpus

from ..arguments.checks import check
from ..arguments.hashable import handle, unpack_hashable
from ..mpi import meshes
from ..mpi.handles import COMM, members_of
from ..watch import startup, whereabouts
from ..xla.jax_compat import (
    DEVICE_BYTES,
    JAXLIB_LIBRARY,
    VERSIONS,
    Settings,
    backends_are_initialized,
)
from . import coordinator

_NAME = "mpi4jax.distributed.initialize"
#: The variable that names the library of an MPI to jaxlib's MPItrampoline.
_LIBRARY = "MPITRAMPOLINE_LIB"

#: The communicator of JAX's collectives, which no other messages use.
_comm: MPI.Intracomm | None = None


def initialize(comm: MPI.Intracomm | None = None) -> None:
    """Connect the JAX of all processes, with collectives that use MPI.

    All processes of the communicator have to call this function before they use JAX.
    Afterwards, ``jax.devices()`` contains the devices of all processes in the order of
    their ranks, arrays can be sharded over these devices, and JAX's collectives (of
    ``psum``, resharding, matrix products) use the MPI of mpi4py. On GPUs the collectives
    use NCCL, and each process takes one GPU of its node.

    Arguments:
        comm: The communicator of the processes (defaults to ``COMM_WORLD``). The rank in
            this communicator is JAX's ``process_index``.

    Raises:
        RuntimeError: if this function is called twice, after JAX has created its devices,
            with several CPU devices in a process, or with an MPI that was not initialised
            with ``THREAD_MULTIPLE``. All processes raise this error.

    """
    global _comm
    check(_NAME, "comm", *COMM, comm)
    startup.refuse_alone()
    comm = MPI.COMM_WORLD if comm is None else unpack_hashable(comm)
    _agree(comm, _problem())
    _comm = comm.Dup()
    is_world = comm.Get_size() == MPI.COMM_WORLD.Get_size()
    if is_world:
        startup.agree()
    serve_jax(_comm)
    connect(_comm, "mpi")
    meshes.set_world_ranks(members_of(comm))
    whereabouts.note_distributed(uses_mpi=True, is_world=is_world)


def _problem() -> str | None:
    """Reason why this process can't be connected, None if it can."""
    if _comm is not None:
        return f"{_NAME}() was called before"
    if jax.distributed.is_initialized():
        return f"jax.distributed.initialize() was called before; {_NAME}() calls it"
    if backends_are_initialized():
        return (
            "JAX has made its devices already. Call it before anything is computed, and "
            "before jax.devices(), jax.device_count() and the like"
        )
    setting = _several_devices()
    if setting is not None:
        return (
            f"with {setting}, JAX makes several devices in a process, but its collectives "
            "use MPI with one device for each process. Start a process for each device"
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return (
            "MPI was not initialised with THREAD_MULTIPLE, but JAX calls it from threads "
            "of its own (mpi4py asks for it, unless mpi4py.rc.thread_level says otherwise)"
        )
    return None


def _several_devices() -> str | None:
    """The setting that divides the CPU into several devices, if any and if JAX uses it."""
    if _core.device_count() > 0:
        return None
    settings: Settings = jax.config
    count = settings.jax_num_cpu_devices
    if count >= 0:
        return f"jax_num_cpu_devices={count}" if count > 1 else None
    flag = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
    flags = list(flag.finditer(os.environ.get("XLA_FLAGS", "")))
    return flags[-1][0] if flags and int(flags[-1][1]) > 1 else None


def _agree(comm: MPI.Intracomm, problem: str | None) -> None:
    """Raise on all ranks if one of them has a problem, as the others would wait for it."""
    problems = comm.allgather(problem)
    for rank, problem in enumerate(problems):
        if problem is not None:
            where = "" if all(problems) else f"on rank {rank}, "
            raise RuntimeError(f"{_NAME}() can't be called now: {where}{problem}")


def serve_jax(comm: MPI.Intracomm) -> None:
    """Connect JAX's collectives to the MPI of this process, with `comm` as their world."""
    # mpi4py lacks some Fortran types, which JAX does not use.
    names = [name.replace("2INT", "TWOINT") for name in _core.JAX_HANDLES]
    objects = [
        comm if name == "COMM_WORLD" else getattr(MPI, name, MPI.DATATYPE_NULL)
        for name in names
    ]
    members, rank = members_of(comm), comm.Get_rank()
    handles = list(map(handle, objects))
    _core.serve_jax(handles, members, rank, DEVICE_BYTES, VERSIONS, _owners)
    if os.environ.get(_LIBRARY):
        return  # jaxlib has opened this library, ours or another one that the user chose
    os.environ[_LIBRARY] = str(Path(_core.__file__).resolve())
    try:
        _core.start_trampoline(JAXLIB_LIBRARY)
    except RuntimeError as error:
        raise RuntimeError(
            f"{_NAME}() can't connect {VERSIONS} to MPI ({error}). Have it look by "
            f"itself: set {_LIBRARY}={os.environ[_LIBRARY]} where the program is started"
        ) from None
    finally:
        # The variable is for this process only: a child process may have another MPI.
        del os.environ[_LIBRARY]


def _owners() -> dict[int, int]:
    """The process of each CPU device of XLA's."""
    return {device.id: device.process_index for device in jax.devices("cpu")}


def connect(comm: MPI.Intracomm, collectives: str) -> None:
    """Connect JAX's processes, which exchange data by these collectives."""
    # XLA runs programs with its collectives one after another, and programs with our
    # operations beside them. Bound to one core, XLA would have one thread for both, and a
    # program that waits for other processes would block the program they wait for.
    if len(allowed_cpus()) < 2 and not any(map(os.environ.get, XLA_THREADS)):
        os.environ[XLA_THREADS[0]] = "2"
    jax.config.update("jax_cpu_collectives_implementation", collectives)
    address = os.environ.get("JAX_COORDINATOR_ADDRESS") or coordinator.find(comm)
    jax.distributed.initialize(
        address,
        comm.Get_size(),
        comm.Get_rank(),
        local_device_ids=_own_devices(comm),
        cluster_detection_method="deactivate",
        coordinator_bind_address=address,
    )


def _own_devices(comm: MPI.Intracomm) -> list[int] | None:
    """The index of this process's GPU on its node, None if the node has none."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    rank = node.Get_rank()
    node.Free()
    count = _core.device_count()
    if count == 0 or os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        return None
    return [rank % count]
