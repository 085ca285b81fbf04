"""Programs on meshes: communicators of mesh axes, and the comparison of programs.

XLA chooses the order of its collectives and our calls, which is the same on all ranks if
the program is. So a program with operations in a `shard_map` is compared over its ranks
before its first run: programs that differ would hang, or receive messages that were sent
for other calls.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from mpi4py import MPI

from ..arguments.checks import reject
from ..watch.meetings import meeting
from ..xla.call_sites import CALL_SITE, WITH_COPIES, CallNote
from ..xla.flush import flush
from ..xla.jax_compat import axes_of_shard_map, ir
from ..xla.programs import (
    CompiledProgram,
    LoweredProgram,
    call_attribute,
    describe_attributes,
    map_call_attribute,
    on_compilation,
    program_text,
)
from . import handles

_NAME = "mpi4jax.axis_comm"
#: The devices of a mesh.
Devices: TypeAlias = "np.ndarray[Any, np.dtype[np.object_]]"

#: The rank in COMM_WORLD of each of JAX's processes, as set by `distributed.initialize`.
_world_ranks: Sequence[int] | None = None


def set_world_ranks(ranks: Sequence[int]) -> None:
    """Set the rank in COMM_WORLD of each of JAX's processes."""
    global _world_ranks
    _world_ranks = ranks


def world_rank(device: jax.Device) -> int:
    """The rank in COMM_WORLD of the process that has a device."""
    process: int = device.process_index
    return process if _world_ranks is None else _world_ranks[process]


def ranks_along(
    devices: Devices, names: Sequence[Hashable], axes: Sequence[Hashable]
) -> list[int]:
    """The ranks in COMM_WORLD of this process and the others along some axes of a mesh.

    Empty if the mesh has no device of this process.
    """
    own = MPI.COMM_WORLD.Get_rank()
    positions = [names.index(axis) for axis in axes]
    moved = np.moveaxis(devices, positions, range(-len(positions), 0))
    count = int(np.prod([devices.shape[position] for position in positions]))
    for row in moved.reshape(-1, count):
        ranks = list(map(world_rank, row))
        if own in ranks:
            return ranks
    return []


def axis_comm(
    mesh: jax.sharding.Mesh, names: Hashable | Sequence[Hashable] = None
) -> MPI.Intracomm:
    """Return the communicator of some axes of a mesh, for :func:`jax.shard_map`.

    The communicator contains the processes that differ from this one in their position
    along these axes only. In a program on the mesh, ``jax.lax.axis_index(names)`` is the
    rank. All processes of the mesh have to make the first call for the same axes together.
    Later calls return the same communicator.

    Arguments:
        mesh (jax.sharding.Mesh): A mesh with one device of each process.
        names: The name of an axis, or a sequence of names, in the order in which the axes
            count the ranks (defaults to all).

    """
    if not isinstance(mesh, jax.sharding.Mesh):
        reject(_NAME, "mesh", "a jax.sharding.Mesh", mesh)
    names = names_of(_NAME, mesh, names)
    _check_devices(_NAME, mesh.devices.flat)
    ranks = ranks_along(mesh.devices, mesh.axis_names, names)
    if not ranks:
        raise ValueError(
            f"{_NAME} got a mesh without a device of this process (rank "
            f"{MPI.COMM_WORLD.Get_rank()}), expected to be called by those of the mesh only"
        )
    return _comm_along(tuple(ranks), names)


def names_of(
    function: str, mesh: jax.sharding.Mesh, names: Hashable | Sequence[Hashable]
) -> tuple[Hashable, ...]:
    """The names of different axes of a mesh as a tuple: by default all."""
    if names is None:
        return tuple(mesh.axis_names)
    if isinstance(names, Sequence) and names not in mesh.axis_names:
        names = (names,) if isinstance(names, str) else tuple(names)
    else:
        names = (names,)
    for name in names:
        if name not in mesh.axis_names:
            raise ValueError(
                f"{function} got {name!r} for argument `names`, expected axes of the mesh "
                f"({', '.join(map(repr, mesh.axis_names))})"
            )
    if len(set(names)) < len(names):
        raise ValueError(
            f"{function} got {names} for argument `names`, which repeats an axis"
        )
    return names


def check_program(function: str, names: Sequence[Hashable]) -> None:
    """Raise ValueError if the calling program does not run along these axes of a mesh."""
    mesh = axes_of_shard_map()
    if mesh is None or mesh.size == 1 or not set(names) <= set(mesh.manual):
        raise ValueError(
            f"{function} was called outside of a program on the plan's mesh, expected a "
            f"call in a jax.shard_map over its axes ({', '.join(map(repr, names))})"
        )


@functools.cache
def _comm_along(ranks: tuple[int, ...], axes: tuple[Hashable, ...]) -> MPI.Intracomm:
    """The communicator of these ranks, which lie along axes of a mesh."""
    plural = "axis" if len(axes) == 1 else "axes"
    name = f"mesh {plural} {', '.join(map(str, axes)) or 'none'}"
    comm = _create(ranks, f"mpi4jax.axis_comm, for {name}")
    comm.Set_name(name)
    handles.registered_communicator(_NAME, comm).mesh_axes = axes
    return comm


def _create(ranks: Sequence[int], doing: str) -> MPI.Intracomm:
    """Make a communicator of some ranks in COMM_WORLD. All of these ranks call this."""
    world = MPI.COMM_WORLD.Get_group()
    group = world.Incl(ranks)
    rule = "all processes of the mesh have to come there together."
    try:
        with meeting(doing, rule, ranks):
            return MPI.COMM_WORLD.Create_group(group)
    finally:
        group.Free()
        world.Free()


def _check_devices(function: str, devices: Iterable[jax.Device]) -> None:
    """Raise ValueError if a process has several devices, or JAX and MPI count differently.

    The number of a process in JAX has to belong to its rank in MPI.
    """
    processes = [device.process_index for device in devices]
    if len(set(processes)) < len(processes):
        raise ValueError(
            f"{function} got a mesh of {len(processes)} devices in {len(set(processes))} "
            "processes, expected one device in each. Start a process for each device, and "
            "call mpi4jax.distributed.initialize() in it"
        )
    own, rank = jax.process_index(), MPI.COMM_WORLD.Get_rank()
    expected = own if _world_ranks is None else _world_ranks[own]
    if expected != rank:
        raise ValueError(
            f"{function} was called in process {own} of JAX, which is rank {rank} of MPI: "
            "start JAX by mpi4jax.distributed.initialize(), by which the two are the same"
        )


class _Program(NamedTuple):
    """A program on a mesh, as this process has lowered it."""

    text: str
    #: The operations of the program, with their parameters, and their lines.
    calls: list[tuple[str, str]]


#: The attribute with the number of a communicator.
_COMM = "comm_number"
#: Programs that were lowered and not yet compiled, with their calls, by their module.
_uncompared: dict[object, tuple[_Program, Sequence[CallNote]]] = {}
#: Largest number of such programs. A program that is never compiled is dropped in the end.
_MAX_UNCOMPARED = 16


def note_program(
    program: LoweredProgram, calls: Sequence[ir.Operation], notes: Sequence[CallNote]
) -> None:
    """Note a lowered program for comparison over its ranks, if it is on a mesh."""
    key = program.module.operation
    _uncompared.pop(key, None)
    if not any(isinstance(note.communicator, handles.MeshCommunicator) for note in notes):
        return
    # Processes may have different numbers for a communicator.
    numbers = list(dict.fromkeys(call_attribute(call, _COMM) for call in calls))
    for call in calls:
        map_call_attribute(call, _COMM, numbers.index)
    described = []
    for call in calls:
        note = notes[call_attribute(call, CALL_SITE)]
        parameters = describe_attributes(call, without=(CALL_SITE, _COMM, WITH_COPIES))
        described.append((f"{note.name} ({parameters})", note.line))
    _uncompared[key] = _Program(program_text(program), described), notes
    for call in calls:
        map_call_attribute(call, _COMM, numbers.__getitem__)
    while len(_uncompared) > _MAX_UNCOMPARED:
        _uncompared.pop(next(iter(_uncompared)))


def _check_communicator(note: CallNote, devices: Sequence[jax.Device]) -> None:
    """Raise ValueError if a call's communicator does not belong to the mesh axes."""
    communicator = note.communicator
    # A call that was traced outside of the mesh's `shard_map` was refused before.
    assert isinstance(communicator, handles.MeshCommunicator), note
    mesh, axes = communicator.mesh, communicator.axes
    if not axes:
        return
    ranks = ranks_along(np.array(devices, object).reshape(mesh.sizes), mesh.names, axes)
    if ranks != list(communicator.members):
        names = ", ".join(map(repr, axes))
        raise ValueError(
            f"{note.name} at {note.line} got a communicator of the processes "
            f"{_listed(communicator.members)} (ranks in MPI.COMM_WORLD), in a "
            f"jax.shard_map over a mesh with the processes {_listed(ranks)} along {names}. "
            f"Pass comm=mpi4jax.axis_comm(mesh, ({names},))"
        )


#: Number of ranks that an error lists.
_MAX_LISTED = 8


def _listed(ranks: Sequence[int]) -> str:
    more = ", ..." if len(ranks) > _MAX_LISTED else ""
    return f"{', '.join(map(str, ranks[:_MAX_LISTED]))}{more}"


#: Name in reports of the place where programs are compared.
_FIRST_RUN = "the first run of a program on a mesh"


@functools.cache
def _comm_for_comparison(ranks: tuple[int, ...]) -> MPI.Intracomm:
    return _create(ranks, _FIRST_RUN)


def _compare(compiled: CompiledProgram) -> None:
    """Raise RuntimeError on all ranks if a program on a mesh differs between them."""
    entry = _uncompared.pop(compiled.module.operation, None)
    if entry is None:
        return
    (program, notes), devices = entry, list(compiled.devices)
    if len(devices) < 2:
        return
    _check_devices("a program with operations of mpi4jax", devices)
    for note in notes:
        _check_communicator(note, devices)
    flush()  # earlier programs of other ranks may wait for a call of this process
    ranks = tuple(map(world_rank, devices))
    comm = _comm_for_comparison(ranks)
    digest = hashlib.blake2b(program.text.encode(), digest_size=16).digest()
    rule = "all processes of a mesh have to start its programs, in the same order."
    with meeting(_FIRST_RUN, rule, ranks):
        digests = comm.allgather(digest)
        unlike_first = [n for n, each in enumerate(digests) if each != digests[0]]
        if not unlike_first:
            return
        rank = unlike_first[0]
        first, second = (comm.bcast(program, root) for root in (0, rank))
    raise RuntimeError(
        "A program with operations of mpi4jax in a jax.shard_map is not the same on all "
        f"ranks. {_difference(first, second, rank)}\n"
        "Ranks have to be values of the program, such as jax.lax.axis_index: as Python's "
        "integers, they make another program on each rank, whose collectives XLA may put "
        "in another order. Nothing was run"
    )


def _difference(first: _Program, second: _Program, rank: int) -> str:
    """The difference between the programs of a mesh's first rank and another rank."""
    for index, calls in enumerate(itertools.zip_longest(first.calls, second.calls)):
        if calls[0] != calls[1]:
            on_first, on_second = (
                f"{call[0]} at {call[1]}" if call else "not there" for call in calls
            )
            where = f"\n  on rank 0: {on_first}\n  on rank {rank}: {on_second}"
            return f"Call {index + 1} is{where}"
    texts = first.text.splitlines(), second.text.splitlines()
    pairs = itertools.zip_longest(*texts, fillvalue="nothing")
    lines = next(pair for pair in pairs if pair[0] != pair[1])
    return (
        "The calls are the same, but not\n"
        f"  on rank 0: {lines[0].strip()}\n  on rank {rank}: {lines[1].strip()}"
    )


on_compilation(_compare)
