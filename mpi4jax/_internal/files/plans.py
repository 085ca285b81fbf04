"""Plans of leaves: how they say where the arrays of a tree live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding
from mpi4py import MPI

from ..arguments.types import Comm, PyTree
from ..grids.plan import GridPlan
from ..mpi import handles
from ..mpi.handles import members_of, unpack_hashable
from ..unstructured.plan import Plan as UnstructuredPlan
from ..whole import WholePlan
from .agreement import Agreement
from .leaves import Leaf, own_axes, to_host
from .places import (
    GridPlace,
    Place,
    Rows,
    ShardPlace,
    WholePlace,
    even_count,
    rows_place,
    unstructured_place,
)

EXPECTED = (
    "None, a halo.Plan, a pencil.Layout, an unstructured.Plan, a jax.sharding.Sharding, or "
    "files.Rows, or a tree of these"
)


def is_plan(x: object) -> bool:
    """Whether an object is a plan of all leaves below it, and not a tree of plans."""
    return x is None or isinstance(x, (WholePlan, Sharding, Rows))


def kinds_of(plans: Sequence[Any]) -> list[str]:
    """The kinds of plans, with numbers that say which of them are one object.

    They have to be equal on all processes, which make the same collective calls then.
    """
    numbers: dict[int, int] = {}
    return [
        f"unstructured.Plan {numbers.setdefault(id(plan), len(numbers))}"
        if isinstance(plan, UnstructuredPlan)
        else type(plan).__name__
        for plan in plans
    ]


def communicator_of(function: str, plan: PyTree, comm: Comm) -> MPI.Intracomm:
    """The communicator of a call: an argument `comm`, or that of the plans.

    Raise ValueError if the plans have another one.
    """
    plans = [
        each
        for each in jax.tree_util.tree_leaves(plan, is_leaf=is_plan)
        if isinstance(each, WholePlan)
    ]
    for each in plans:
        if each._is_on_mesh:
            raise NotImplementedError(
                f"{function} got {each} in `plan`, which is on a mesh, expected the "
                "jax.sharding.Sharding of the arrays, or a plan on a communicator"
            )
        each._communicator_of(function)
    if comm is None:
        own = plans[0].comm if plans else handles.get_default_comm()
    else:
        handles.communicator(function, comm)  # it can be used
        own = unpack_hashable(comm)
    expected = members_of(own)
    for each in plans:
        members = members_of(each.comm)
        if members != expected:
            raise ValueError(
                f"{function} got {each} in `plan`, on a communicator of the processes "
                f"{members} (ranks in MPI.COMM_WORLD), expected one of the processes "
                f"{expected}, those of {'the first plan' if comm is None else '`comm`'}"
            )
    return own


def host_array(function: str, path: str, leaf: Leaf, value: Any, plan: Any) -> Any:
    """The array of this process: of a sharded one, the array of each of its devices."""
    if isinstance(plan, Sharding) and np.ndim(value):
        if not isinstance(value, jax.Array):
            raise ValueError(
                f"{function} got a NumPy array for `tree{path}` with a sharding in `plan`, "
                "expected an array of JAX's"
            )
        if not value.sharding.is_equivalent_to(plan, value.ndim):
            raise ValueError(
                f"{function} got an array with the sharding {value.sharding} for "
                f"`tree{path}`, expected that of `plan`, {plan}"
            )
        shards = value.addressable_shards
        return {shard.device: to_host(leaf, shard.data) for shard in shards}
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        if not value.is_fully_replicated or (plan is not None and value.ndim):
            raise ValueError(
                f"{function} got an array that JAX has divided among processes for "
                f"`tree{path}`, expected its sharding in `plan`"
            )
        value = value.addressable_data(0)
    return to_host(leaf, value)


def saved_place(
    agreement: Agreement,
    path: str,
    leaf: Leaf,
    value: Any,
    plan: Any,
    *,
    has_edges: bool = True,
) -> Callable[[], Place]:
    """The place of an array of a tree, after checks of what this process has.

    It is a function, which all processes call together.

    Arguments:
        agreement: The processes.
        path: The path of the leaf.
        leaf: Its description.
        value: Its value.
        plan: Its plan.
        has_edges: Whether a file has the ghost cells at the edges of a grid.

    """
    function, comm = agreement.function, agreement.comm
    shape, behind = np.shape(value), own_axes(leaf)
    match plan if shape else None:
        case GridPlan():
            part: Any = jax.ShapeDtypeStruct(shape, np.dtype(np.int8))
            try:
                division = plan._part_division("gather", f"tree{path}", part)
            except ValueError as error:
                raise ValueError(f"{function}: {error}") from None
            edges = [(0, 0)] * len(division.shape)
            for axis in division.axes:
                if has_edges and not axis.is_periodic:
                    edges[axis.position] = axis.lower, axis.upper
            return partial(GridPlace, comm, plan, division, behind, tuple(edges))
        case UnstructuredPlan():
            _check_rows(function, path, shape, plan.size)
            return partial(unstructured_place, comm, plan, (*shape[1:], *behind))
        case Rows(count=count):
            if count is not None and count > shape[0]:
                raise ValueError(
                    f"{function} got an array of shape {shape} for `tree{path}`, expected "
                    f"{count} rows or more along its first axis, as `plan` has files.Rows "
                    "there"
                )
            count = shape[0] if count is None else int(count)
            return partial(rows_place, comm, count, shape[0], None, (*shape[1:], *behind))
        case Sharding():
            _check_processes(function, path, plan, agreement)
            return partial(ShardPlace, plan, shape, behind)
    return partial(WholePlace, comm, (*shape, *behind))


def loaded_place(
    agreement: Agreement,
    path: str,
    leaf: Leaf,
    shape: tuple[int, ...],
    edges: tuple[tuple[int, int], ...],
    plan: Any,
) -> Callable[[], Place]:
    """The place that an array of a file is to have, after checks of what is known here.

    It is a function, which all processes call together.
    """
    function, comm = agreement.function, agreement.comm
    behind = own_axes(leaf)
    count = len(shape) - len(behind)
    pairs = zip(shape[:count], edges, strict=False)
    inner = tuple(size - sum(pair) for size, pair in pairs)
    if any(map(any, edges)) and isinstance(plan, (Rows, UnstructuredPlan)):
        raise ValueError(
            f"{function} found ghost cells at the edges of `tree{path}`, which was saved "
            "with a halo.Plan, expected a plan of a grid for it"
        )
    match plan if inner else None:
        case GridPlan():
            whole = jax.ShapeDtypeStruct(inner, np.dtype(np.int8))
            try:
                division = plan._whole_division("scatter", f"tree{path}", whole)
            except ValueError as error:
                raise ValueError(f"{function}: {error}") from None
            return partial(GridPlace, comm, plan, division, behind, edges[:count])
        case UnstructuredPlan():
            _check_rows(function, path, shape, plan._rows.total)
            return partial(unstructured_place, comm, plan, shape[1:])
        case Rows(count=rows):
            own = even_count(shape[0], comm) if rows is None else int(rows)
            return partial(rows_place, comm, own, own, shape[0], shape[1:])
        case Sharding():
            _check_processes(function, path, plan, agreement)
            return partial(ShardPlace, plan, inner, behind, edges)
    return partial(WholePlace, comm, shape, edges)


def _check_rows(function: str, path: str, shape: tuple[int, ...], rows: int) -> None:
    if shape[0] != rows:
        raise ValueError(
            f"{function} got an array of shape {shape} for `tree{path}`, expected {rows} "
            "rows along its first axis, as the unstructured.Plan in `plan` has"
        )


def _check_processes(
    function: str, path: str, sharding: Sharding, agreement: Agreement
) -> None:
    devices: Iterable[Any] = sharding.device_set
    processes = {device.process_index for device in devices}
    if len(processes) != agreement.size:
        raise ValueError(
            f"{function} got a sharding over {len(processes)} processes in `plan` for "
            f"`tree{path}`, expected one over all {agreement.size} that call it. An array "
            "that each process has for itself needs another plan"
        )
