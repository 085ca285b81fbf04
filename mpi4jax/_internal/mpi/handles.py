"""MPI objects as the small numbers by which compiled programs know them.

A communicator carries its number as an MPI attribute (MPI-4.1 §7.7), so that every
mpi4py object around the same handle has the same number, and MPI itself says when the
communicator is freed. Numbers are given out in the order of first use and never twice,
so ranks that run the same program compile the same program.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import warnings
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from mpi4py import MPI
from mpi4py.MPI import _handleof

from mpi4jax import _core

from ..arguments.checks import check, reject
from ..arguments.dtypes import DATATYPES, OPERATORS
from ..arguments.hashable import HashableMPIType, handle, unpack_hashable
from ..arguments.types import Array, Unchecked
from ..watch import startup
from ..watch.late_ranks import LateRankReport
from ..xla.flush import flush
from ..xla.jax_compat import MeshAxes, axes_of_shard_map
from . import device
from .topology import Neighbors, neighbors_of

#: The types of the arguments that stand for MPI objects, and these types in words.
COMM = (
    (type(None), MPI.Intracomm, HashableMPIType),
    "an MPI communicator such as MPI.COMM_WORLD, or None",
)
OP = (MPI.Op, HashableMPIType), "an MPI operator such as MPI.SUM"
STATUS = (type(None), MPI.Status, HashableMPIType), "an MPI.Status or None"


class Communicator:
    """A communicator, as compiled programs know it: its number, and what never changes."""

    __slots__ = (
        "__weakref__",
        "_rank",
        "is_freed",
        "last_tag",
        "members",
        "mesh_axes",
        "neighbors",
        "number",
        "on_meshes",
        "programs",
        "size",
    )

    #: Whether it is that of a program on a mesh, which is the same program on all ranks.
    is_on_mesh: ClassVar[bool] = False
    #: The axes of that mesh along which its processes are, in the order of ranks.
    axes: tuple[Hashable, ...] = ()

    def __init__(
        self,
        comm_number: int,
        rank: int,
        size: int,
        last_tag: int,
        neighbors: Neighbors | None,
        members: Sequence[int],
    ) -> None:
        self.number = comm_number
        self._rank = rank
        self.size = size
        #: The largest tag that messages can have.
        self.last_tag = last_tag
        #: The neighbors of this process, if the communicator has a topology.
        self.neighbors = neighbors
        #: The compiled programs of eager calls, by operation and parameters. They go with
        #: the communicator.
        self.programs: dict[Hashable, Any] = {}
        #: Whether MPI has said that it is no more.
        self.is_freed = False
        #: The ranks of its processes in COMM_WORLD.
        self.members = members
        #: The axes of a mesh along which its processes are, if it was made for these.
        self.mesh_axes: tuple[Hashable, ...] | None = None
        #: What stands for it in programs on meshes.
        self.on_meshes: dict[MeshAxes, MeshCommunicator] = {}

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._rank

    def rank_in_program(self) -> int | Array:
        """The rank of the process that runs a program: a number, or a value of it."""
        return self._rank

    def check_mesh(self, function: str) -> None:
        """Raise NotImplementedError in a `shard_map`, where others stand for it."""
        if self.size > 1 and axes_of_shard_map() is not None:
            raise NotImplementedError(
                f"{function} was called in a jax.shard_map over several processes with "
                "ranks that are known when it is traced, such as those of a halo.Plan"
            )

    def on_mesh(self, function: str, mesh: MeshAxes) -> MeshCommunicator:
        """What stands for it in a program on a mesh that calls `function`."""
        on_mesh = self.on_meshes.get(mesh)
        if on_mesh is None:
            axes = self._axes_of(function, mesh)
            on_mesh = self.on_meshes[mesh] = MeshCommunicator(self, mesh, axes)
        return on_mesh

    def _axes_of(self, function: str, mesh: MeshAxes) -> tuple[Hashable, ...]:
        """The axes of a mesh along which its processes are.

        Raises ValueError where that can't be.
        """
        if self.size == 1:
            return ()
        sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
        in_words = ", ".join(f"{name!r}: {size}" for name, size in sizes.items())
        if mesh.is_partly_automatic:
            raise ValueError(
                f"{function} was called in a jax.shard_map over some axes of the mesh "
                f"({in_words}), expected one over all of them. Leave `axis_names` out, "
                "and name the axes in `in_specs` and `out_specs`"
            )
        axes = mesh.names if self.mesh_axes is None else self.mesh_axes
        unknown = [axis for axis in axes if axis not in sizes]
        if unknown:
            raise ValueError(
                f"{function} got a communicator of the mesh axis {unknown[0]!r}, and the "
                f"mesh of this jax.shard_map has no such axis ({in_words})"
            )
        count = math.prod(sizes[axis] for axis in axes)
        if count != self.size:
            along = "" if self.mesh_axes is None else f" along {', '.join(map(repr, axes))}"
            raise ValueError(
                f"{function} got a communicator of {self.size} processes in a "
                f"jax.shard_map over a mesh of {count} devices{along} ({in_words}), "
                "expected a process for each device. mpi4jax.axis_comm(mesh, axes) gives "
                "the communicator of some axes or of all"
            )
        return tuple(axis for axis in axes if axis in mesh.manual)

    def __repr__(self) -> str:
        return f"Communicator({self.number})"


class MeshCommunicator(Communicator):
    """A communicator in a program on a mesh, which is the same program on all ranks.

    So its rank is known only when the program runs.
    """

    __slots__ = ("axes", "mesh")

    is_on_mesh = True

    def __init__(
        self, communicator: Communicator, mesh: MeshAxes, axes: tuple[Hashable, ...]
    ) -> None:
        super().__init__(
            communicator.number,
            communicator.rank,
            communicator.size,
            communicator.last_tag,
            communicator.neighbors,
            communicator.members,
        )
        self.mesh = mesh
        self.axes = axes

    def check_mesh(self, function: str) -> None:
        pass

    def rank_in_program(self) -> Array:
        return jax.lax.axis_index(self.axes)

    @property
    def rank(self) -> int:
        raise NotImplementedError(
            "this can't be called in a jax.shard_map over several processes, as what it "
            "does depends on the rank when it is traced. The program has to be the same "
            "on all ranks, and knows its rank only when it runs: jax.lax.axis_index"
        )

    def __repr__(self) -> str:
        return f"Communicator({self.number}, {self.axes})"


_by_handle: dict[int, Communicator] = {}
_default_comm: MPI.Intracomm | None = None

#: The numbers of communicators that have the same one in every program, and the next one.
_DEFAULT, _WORLD, _SELF, _next_comm_number = range(4)


def default_comm(
    doing: str = "in its first call without `comm=`",
    rule: str = "all ranks of MPI.COMM_WORLD have to make their first call without `comm=` "
    "together, as it makes the default communicator, a clone of that one.",
) -> MPI.Intracomm:
    """The communicator of calls without `comm`: a clone of COMM_WORLD.

    If it has to be made and others are late for that, `doing` and `rule` are reported.
    """
    global _default_comm
    if _default_comm is None:
        _core.check_available()
        # Programs that were called before may use COMM_WORLD in other threads.
        flush()
        unknown = "What the others do is not known before they do."
        with LateRankReport(doing, f"{rule} {unknown}"):
            _default_comm = MPI.COMM_WORLD.Clone()
        _register(_default_comm, _DEFAULT)
        startup.connect()
    return _default_comm


def get_default_comm() -> MPI.Intracomm:
    """The default communicator for other packages, which may communicate on it."""
    _core.share_default()
    return default_comm()


@functools.cache
def _keyval() -> int:
    # Made on first use: MPI need not be initialised when mpi4jax is imported.
    return MPI.Comm.Create_keyval(delete_fn=_forget)


def _forget(comm: MPI.Comm, keyval: int, communicator: Communicator) -> None:
    # Programs that were called before may still be using it.
    if not sys.is_finalizing() and not MPI.Is_finalized():
        try:
            flush()
        except Exception as error:
            # Raised here, it would keep MPI from freeing the communicator.
            text = f"a program failed before a communicator was freed: {error}"
            warnings.warn(text, stacklevel=2)
    _core.free_communicator(communicator.number)
    communicator.programs.clear()
    for each in (communicator, *communicator.on_meshes.values()):
        each.is_freed = True
    _by_handle.pop(_handleof(comm), None)


def _register(comm: MPI.Intracomm, comm_number: int) -> Communicator:
    _core.check_available()
    rank, size, neighbors = comm.Get_rank(), comm.Get_size(), neighbors_of(comm)
    members = members_of(comm)
    communicator = Communicator(
        comm_number, rank, size, _last_tag(comm), neighbors, members
    )
    _by_handle[_handleof(comm)] = communicator
    chunk = device.chunk_of(comm, is_private=comm_number == _DEFAULT)
    _core.set_communicator(comm_number, handle(comm), rank, size, chunk)
    if neighbors is not None:
        _core.set_neighbors(comm_number, neighbors.sources, neighbors.destinations)
    startup.start()
    _core.describe_communicator(
        comm_number, handle(comm), _name_of(comm, comm_number), members
    )
    comm.Set_attr(_keyval(), communicator)
    return communicator


def _last_tag(comm: MPI.Intracomm) -> int:
    """The largest tag: an attribute of COMM_WORLD, at least (MPI-4.1 §9.1.2)."""
    last_tag: Any = comm.Get_attr(MPI.TAG_UB)
    if last_tag is None:
        last_tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    return int(last_tag)


def _name_of(comm: MPI.Intracomm, comm_number: int) -> str:
    """The name of a communicator in reports: the user's, if it has one."""
    predefined = {_DEFAULT: "COMM_WORLD", _WORLD: "MPI.COMM_WORLD", _SELF: "MPI.COMM_SELF"}
    # Some MPIs name the copies that they make after the original.
    name = comm.Get_name()
    is_users = bool(name) and not name.startswith("MPI")
    return predefined.get(comm_number) or (
        name if is_users else f"communicator {comm_number}"
    )


def members_of(comm: MPI.Intracomm) -> list[int]:
    """The ranks in COMM_WORLD of a communicator's processes."""
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    try:
        # In mpi4py 3.1, this is a method of the class, with the same arguments.
        return list(MPI.Group.Translate_ranks(group, range(group.Get_size()), world))
    finally:
        group.Free()
        world.Free()


def communicator(function: str, comm: object) -> Communicator:
    """What `comm` stands for in a call of `function`: on a mesh, or a communicator."""
    registered = registered_communicator(function, comm)
    mesh = axes_of_shard_map()
    return registered if mesh is None else registered.on_mesh(function, mesh)


def registered_communicator(function: str, comm: object) -> Communicator:
    """The communicator `comm`, whatever program calls `function`."""
    if comm is None:
        comm = _default_comm
    try:
        return _by_handle[_handleof(comm)]
    except (KeyError, TypeError):
        return _find_communicator(function, comm)


def check_not_freed(function: str, communicator: Communicator) -> None:
    """Refuse a plan when its communicator is gone, on each process that communicates.

    MPI may have given its handle to another one by then.
    """
    if communicator.is_freed:
        raise ValueError(
            f"{function} got a plan whose communicator was freed, expected one with a "
            "valid communicator"
        )


def _find_communicator(function: str, comm: object) -> Communicator:
    """The communicator for a `comm` that is new, wrapped, or no communicator at all."""
    comm = default_comm() if comm is None else _unwrap_comm(function, comm)
    registered = _by_handle.get(_handleof(comm))
    if registered is not None:
        return registered
    if comm == MPI.COMM_WORLD:
        return _register(comm, _WORLD)
    if comm == MPI.COMM_SELF:
        return _register(comm, _SELF)
    global _next_comm_number
    _next_comm_number += 1
    return _register(comm, _next_comm_number - 1)


def _unwrap_comm(function: str, comm: object) -> MPI.Intracomm:
    """An argument `comm`, unwrapped. Raises if one can't communicate on it."""
    comm = unpack_hashable(comm)
    hint = ""
    if isinstance(comm, MPI.Comm):
        if not comm:
            raise ValueError(
                f'{function} got a null communicator for argument "comm" (was it freed, or '
                "is this process not one of its members?), expected a valid one"
            )
        if comm.Is_inter():
            hint = "Intercommunicators are not supported: pass what their Merge() gives."
        elif not isinstance(comm, MPI.Intracomm):
            hint = "Pass MPI.Intracomm(comm)."
    if hint or not isinstance(comm, MPI.Intracomm):
        reject(function, "comm", COMM[1], comm, hint)
    return comm


_op_numbers: dict[int, int] = {}
# Keeps user-made operators alive for the compiled programs that refer to them.
_user_operators: list[MPI.Op] = []


def operator_number(function: str, op: object) -> int:
    """The number of a reduction operator."""
    try:
        return _op_numbers[_handleof(op)]
    except (KeyError, TypeError):
        return _find_operator(function, op)


def _find_operator(function: str, op: Unchecked) -> int:
    """The number of an `op` that is new, wrapped, or no operator at all."""
    check(function, "op", *OP, op)
    op = unpack_hashable(op)
    op_number = _op_numbers.get(_handleof(op))
    if op_number is not None:
        return op_number
    if op == MPI.OP_NULL:
        raise ValueError(
            f'{function} got a null operator for argument "op" (was it freed?), '
            "expected a valid one"
        )
    _user_operators.append(op)
    return _add_operator(op)


def _add_operator(op: MPI.Op) -> int:
    op_number = _op_numbers[_handleof(op)] = len(_op_numbers)
    _core.set_operator(op_number, handle(op))
    return op_number


NO_STATUS = -1

# Statuses that compiled programs fill: kept alive, as the programs hold their number.
_statuses: list[MPI.Status] = []
_status_numbers: dict[int, int] = {}
# Numbers for calls that are over when they return, to be used again.
_free_status_numbers: list[int] = []
_next_status_number = itertools.count()


def status_number(function: str, status: Unchecked) -> int:
    """The number of a status that a compiled program fills whenever it runs."""
    if status is None:
        return NO_STATUS
    check(function, "status", *STATUS, status)
    status = unpack_hashable(status)
    address = MPI._addressof(status)
    if address not in _status_numbers:
        _statuses.append(status)
        _status_numbers[address] = next(_next_status_number)
        _core.set_status(_status_numbers[address], address)
    return _status_numbers[address]


def borrow_status_number(function: str, status: object) -> int:
    """A number for a status that is filled once, and is then to be returned."""
    check(function, "status", *STATUS, status)
    free = _free_status_numbers
    status_number = free.pop() if free else next(_next_status_number)
    _core.set_status(status_number, MPI._addressof(unpack_hashable(status)))
    return status_number


def return_status_number(status_number: int) -> None:
    _free_status_numbers.append(status_number)


def _fill_tables() -> None:
    for dtype, (code, name) in DATATYPES.items():
        size = np.dtype(dtype).itemsize
        _core.set_datatype(code, handle(getattr(MPI, name)), size)
    for name in OPERATORS:
        _add_operator(getattr(MPI, name))


_fill_tables()
