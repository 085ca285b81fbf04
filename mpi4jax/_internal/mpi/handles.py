"""Numbers of MPI objects in compiled programs.

A communicator carries its number in an MPI attribute (MPI-4.1 §7.7). So all mpi4py objects
with the same handle have the same number, and MPI reports when the communicator is freed.
Numbers are assigned in the order of first use and never twice, so ranks that run the same
program compile the same program.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from mpi4py import MPI
from mpi4py.MPI import _handleof

from mpi4jax import _core
from mpi4jax._override import override

from ..arguments.checks import check, reject
from ..arguments.dtypes import DATATYPES, OPERATORS
from ..arguments.hashable import HashableMPIType, handle, unpack_hashable
from ..arguments.types import Array, Unchecked
from ..watch import startup, whereabouts
from ..watch.meetings import meeting
from ..xla.flush import flush
from ..xla.jax_compat import MeshAxes, axes_of_shard_map
from . import device
from .topology import Neighbors, neighbors_of

#: Types of the arguments for MPI objects, and descriptions of these types for errors.
COMM = (
    (type(None), MPI.Intracomm, HashableMPIType),
    "an MPI communicator such as MPI.COMM_WORLD, or None",
)
OP = (MPI.Op, HashableMPIType), "an MPI operator such as MPI.SUM"
STATUS = (type(None), MPI.Status, HashableMPIType), "an MPI.Status or None"


class Communicator:
    """A communicator in compiled programs: its number, and its constant properties."""

    __slots__ = (
        "__weakref__",
        "_rank",
        "has_messages",
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

    #: Whether the communicator belongs to a program on a mesh with several processes, which
    #: is the same on all ranks and knows its rank only when it runs.
    is_on_mesh: bool = False
    #: The axes of that mesh along which the processes are, in the order of ranks.
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
        #: The largest tag of a message.
        self.last_tag = last_tag
        #: The neighbors of this process, if the communicator has a topology.
        self.neighbors = neighbors
        #: The compiled programs of eager calls, by operation and parameters. They are
        #: dropped when the communicator is freed.
        self.programs: dict[Hashable, Any] = {}
        #: Whether MPI has freed the communicator.
        self.is_freed = False
        #: Whether a program sends or receives messages on the communicator.
        self.has_messages = False
        #: The ranks in COMM_WORLD of the communicator's processes.
        self.members = members
        #: The axes of a mesh for which the communicator was made, if it was.
        self.mesh_axes: tuple[Hashable, ...] | None = None
        #: The mesh communicators of this communicator, by the mesh.
        self.on_meshes: dict[MeshAxes, MeshCommunicator] = {}

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._rank

    def rank_in_program(self) -> int | Array:
        """The rank of the process that runs a program: an integer, or a traced value."""
        return self._rank

    def check_mesh(self, function: str) -> None:
        """Raise NotImplementedError in a `shard_map`, which needs a mesh communicator."""
        mesh = axes_of_shard_map()
        if self.size > 1 and mesh is not None and mesh.size > 1:
            raise NotImplementedError(
                f"{function} was called in a jax.shard_map over several processes with "
                "ranks that are known when it is traced, such as those of a halo.Plan"
            )

    def on_mesh(self, function: str, mesh: MeshAxes) -> MeshCommunicator:
        """The mesh communicator for a program on a mesh that calls `function`."""
        on_mesh = self.on_meshes.get(mesh)
        if on_mesh is None:
            axes = self._axes_of(function, mesh)
            on_mesh = self.on_meshes[mesh] = MeshCommunicator(self, mesh, axes)
        return on_mesh

    def _axes_of(self, function: str, mesh: MeshAxes) -> tuple[Hashable, ...]:
        """The axes of a mesh along which the communicator's processes are.

        Raise ValueError if the communicator does not fit the mesh.
        """
        if self.size == 1 and self.mesh_axes is None:
            # Along the axes of a mesh in one process, all values are equal. In a mesh of
            # several processes, this communicator has one of them.
            return mesh.manual if mesh.size == 1 else ()
        sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
        described = ", ".join(f"{name!r}: {size}" for name, size in sizes.items())
        if mesh.is_partly_automatic and self.size > 1:
            raise ValueError(
                f"{function} was called in a jax.shard_map over some axes of the mesh "
                f"({described}), expected one over all of them. Leave `axis_names` out, "
                "and name the axes in `in_specs` and `out_specs`"
            )
        axes = mesh.names if self.mesh_axes is None else self.mesh_axes
        unknown = [axis for axis in axes if axis not in sizes]
        if unknown:
            raise ValueError(
                f"{function} got a communicator of the mesh axis {unknown[0]!r}, and the "
                f"mesh of this jax.shard_map has no such axis ({described})"
            )
        count = math.prod(sizes[axis] for axis in axes)
        if count != self.size:
            along = "" if self.mesh_axes is None else f" along {', '.join(map(repr, axes))}"
            raise ValueError(
                f"{function} got a communicator of {self.size} processes in a "
                f"jax.shard_map over a mesh of {count} devices{along} ({described}), "
                "expected a process for each device. mpi4jax.axis_comm(mesh, names) gives "
                "the communicator of some axes or of all"
            )
        return tuple(axis for axis in axes if axis in mesh.manual)

    @override
    def __repr__(self) -> str:
        return f"Communicator({self.number})"


class MeshCommunicator(Communicator):
    """A communicator in a program on a mesh.

    The program is the same on all ranks, so with several processes the rank is known only
    when the program runs.
    """

    __slots__ = ("axes", "is_on_mesh", "mesh")

    def __init__(
        self, communicator: Communicator, mesh: MeshAxes, axes: tuple[Hashable, ...]
    ) -> None:
        super().__init__(
            communicator.number,
            communicator._rank,
            communicator.size,
            communicator.last_tag,
            communicator.neighbors,
            communicator.members,
        )
        self.mesh = mesh
        self.axes = axes
        self.is_on_mesh = self.size > 1

    @override
    def check_mesh(self, function: str) -> None:
        pass

    @override
    def rank_in_program(self) -> int | Array:
        return jax.lax.axis_index(self.axes) if self.is_on_mesh else self._rank

    @property
    @override
    def rank(self) -> int:
        if not self.is_on_mesh:
            return self._rank
        raise NotImplementedError(
            "this can't be called in a jax.shard_map over several processes, as what it "
            "does depends on the rank when it is traced. The program has to be the same "
            "on all ranks, and knows its rank only when it runs: jax.lax.axis_index"
        )

    @override
    def __repr__(self) -> str:
        return f"Communicator({self.number}, {self.axes})"


_by_handle: dict[int, Communicator] = {}
_default_comm: MPI.Intracomm | None = None

#: Fixed numbers of predefined communicators, and the next free number.
_DEFAULT, _WORLD, _SELF, _next_comm_number = range(4)


def _check_available() -> None:
    """Raise an error if MPI can't be called, or does not know the launcher's processes."""
    _core.check_available()
    startup.refuse_alone()


def default_comm(
    doing: str = "its first call without `comm=`",
    rule: str = "all ranks have to make their first call without `comm=` together, as it "
    "makes the default communicator.",
) -> MPI.Intracomm:
    """The communicator of calls without `comm`: a clone of COMM_WORLD.

    The first call makes it. If other ranks are late for that, the hang report has the texts
    `doing` and `rule`.
    """
    global _default_comm
    if _default_comm is None:
        _check_available()
        startup.start()
        # Programs that were called before may use COMM_WORLD in other threads.
        flush()
        with meeting(doing, rule):
            _default_comm = MPI.COMM_WORLD.Clone()
            startup.agree()
        _register(_default_comm, _DEFAULT)
    return _default_comm


def get_default_comm() -> MPI.Intracomm:
    """The default communicator, for other packages that may communicate on it."""
    _core.share_default()
    return default_comm()


#: Number of attributes that MPICH has without allocating memory for more.
_PREALLOCATED_ATTRIBUTES = 32


@functools.cache
def _keyval() -> int:
    # Made at the first use, as MPI need not be initialised when mpi4jax is imported.
    _allocate_attributes()
    return MPI.Comm.Create_keyval(delete_fn=_forget)


def _allocate_attributes() -> None:
    """Make MPICH allocate more attributes, once.

    MPICH 5.0.2 frees a communicator's attributes one by one (`MPIR_Attr_delete_list`).
    Before mpi4py calls a delete function, it asks for the communicator's topology, and
    MPICH looks for that among the freed attributes, too. If the last preallocated attribute
    is one of these, the process crashes, also without mpi4jax.
    """
    comm = MPI.COMM_SELF
    keyvals = [MPI.Comm.Create_keyval() for _ in range(_PREALLOCATED_ATTRIBUTES)]
    for keyval in keyvals:
        comm.Set_attr(keyval, None)
    for keyval in keyvals:
        comm.Delete_attr(keyval)
        MPI.Comm.Free_keyval(keyval)


def _forget(comm: MPI.Comm, keyval: int, communicator: Communicator) -> None:
    # Programs that were called before may still use the communicator.
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
    _check_available()
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
    """The largest tag: an attribute of at least COMM_WORLD (MPI-4.1 §9.1.2)."""
    last_tag: Any = comm.Get_attr(MPI.TAG_UB)
    if last_tag is None:
        last_tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    return int(last_tag)


def _name_of(comm: MPI.Intracomm, comm_number: int) -> str:
    """The name of a communicator in reports: the user's name, if any."""
    predefined = {_DEFAULT: "COMM_WORLD", _WORLD: "MPI.COMM_WORLD", _SELF: "MPI.COMM_SELF"}
    # Some MPIs name a copy of a communicator after the original.
    name = comm.Get_name()
    is_users = bool(name) and not name.startswith("MPI")
    return predefined.get(comm_number) or (
        name if is_users else f"communicator {comm_number}"
    )


def members_of(comm: MPI.Intracomm) -> list[int]:
    """The ranks in COMM_WORLD of a communicator's processes."""
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    try:
        # mpi4py 3.1 has this as a class method, with the same arguments.
        return list(MPI.Group.Translate_ranks(group, range(group.Get_size()), world))
    finally:
        group.Free()
        world.Free()


def _known_members(comm: MPI.Comm) -> Sequence[int] | None:
    """The ranks in COMM_WORLD of a communicator's processes, without asking MPI."""
    if comm == MPI.COMM_WORLD:
        return range(comm.Get_size())
    known = _by_handle.get(_handleof(comm))
    return None if known is None else known.members


whereabouts.set_known_members(_known_members)


def communicator(function: str, comm: object) -> Communicator:
    """The communicator `comm` in a call of `function`, or its mesh communicator."""
    registered = registered_communicator(function, comm)
    mesh = axes_of_shard_map()
    if mesh is None or (mesh.size == 1 and registered.size > 1):
        return registered
    return registered.on_mesh(function, mesh)


def registered_communicator(function: str, comm: object) -> Communicator:
    """The communicator `comm`, independent of the program that calls `function`."""
    if comm is None:
        comm = _default_comm
    try:
        return _by_handle[_handleof(comm)]
    except (KeyError, TypeError):
        return _find_communicator(function, comm)


def check_not_freed(function: str, communicator: Communicator) -> None:
    """Raise ValueError if the communicator of a plan was freed.

    MPI may have given the handle to another communicator. Each process that communicates
    raises.
    """
    if communicator.is_freed:
        raise ValueError(
            f"{function} got a plan whose communicator was freed, expected one with a "
            "valid communicator"
        )


def _find_communicator(function: str, comm: object) -> Communicator:
    """The communicator for a `comm` that is new or wrapped. Raise for anything else."""
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
    """The unwrapped argument `comm`. Raise if it is not a communicator we support."""
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
# User-made operators, kept alive for the compiled programs that refer to them.
_user_operators: list[MPI.Op] = []


def operator_number(function: str, op: object) -> int:
    """The number of a reduction operator."""
    try:
        return _op_numbers[_handleof(op)]
    except (KeyError, TypeError):
        return _find_operator(function, op)


def _find_operator(function: str, op: Unchecked) -> int:
    """The number of an `op` that is new or wrapped. Raise for anything else."""
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

# Statuses that compiled programs fill, kept alive as the programs hold their numbers.
_statuses: list[MPI.Status] = []
_status_numbers: dict[int, int] = {}
# Numbers that `borrow_status_number` can give out again.
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
    """A number for a status that one call fills, to be returned after the call."""
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
