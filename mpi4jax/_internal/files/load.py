"""Loading a checkpoint, on any number of processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ... import _manifest
from ..._manifest import Info, Json
from ..arguments.types import Comm, PyTree
from ..unstructured.plan import Plan as UnstructuredPlan
from .agreement import Agreement
from .chunks import Storage
from .folders import read_box
from .leaves import Host, Leaf, check_can_be_made, from_host, from_json
from .places import Place, RowsPlace, ShardPlace, own_ids
from .plans import EXPECTED, communicator_of, is_plan, kinds_of, loaded_place
from .save import checked_path
from .trees import check_like, prefix_leaves, unflatten, unflatten_like

FUNCTION = "files.load"


def load(
    path: str | os.PathLike[str],
    plan: PyTree = None,
    *,
    like: PyTree = None,
    comm: Comm = None,
) -> PyTree:
    """Load a checkpoint that :func:`save` has written. All processes call this together.

    They may be others than those that have saved it, and more or fewer. Each of them reads
    chunks near its part, compares them with their checksums, and sends what others need.

    Arguments:
        path: The folder.
        plan: How each array is to be divided among processes, as for :func:`save`. The
            ghost cells of a :class:`mpi4jax.halo.Plan` and the ghosts of an
            :class:`mpi4jax.unstructured.Plan` are filled. At the edge of a grid that is not
            periodic, they are those that were saved, or zeros.
        like: A tree that the result has to be like: in the types of its nodes, and the
            types and shapes of its leaves on this process, which may be
            :class:`jax.ShapeDtypeStruct`. By default, whatever is in the file.
        comm (mpi4py.MPI.Comm): The communicator of the processes, as for :func:`save`.

    Returns:
        The tree. What was an array of NumPy's is one again.

    """
    agreement = Agreement(FUNCTION, communicator_of(FUNCTION, plan, comm))
    try:
        return _loaded(agreement, path, plan, like)
    finally:
        agreement.free()


def _loaded(
    agreement: Agreement, path: str | os.PathLike[str], plan: PyTree, like: PyTree
) -> PyTree:
    content: dict[str, Json] = {}
    with agreement.attempt():
        folder = checked_path(FUNCTION, path)
        if agreement.rank == 0:
            content = _read_manifest(folder)
    agreement.settle()
    content = agreement.comm.bcast(content)
    structure = content["tree"]
    leaves = [Leaf.from_json(fields) for fields in content["leaves"]]
    paths = [fields["path"] for fields in content["leaves"]]
    makers = []
    with agreement.attempt():
        plans = prefix_leaves(FUNCTION, "plan", plan, structure, is_plan, EXPECTED)
        expected = None if like is None else check_like(FUNCTION, structure, like)
        for fields, leaf, each in zip(content["leaves"], leaves, plans, strict=True):
            if leaf.is_array:
                check_can_be_made(FUNCTION, fields["path"], leaf)
                array = content["arrays"][fields["array"]]
                shape, edges = tuple(array["shape"]), tuple(map(tuple, array["edges"]))
                if shape:
                    _check_ids(fields["path"], array, each)
                makers.append(
                    loaded_place(agreement, fields["path"], leaf, shape, edges, each)
                )
    agreement.settle()
    agreement.compare(
        [
            {"path": path, "plan": kind}
            for path, kind in zip(paths, kinds_of(plans), strict=True)
        ]
    )
    with agreement.attempt():
        places = iter([maker() for maker in makers])
    agreement.settle()
    values: list[Any] = []
    checked: set[tuple[str, int]] = set()
    for fields, leaf, each in zip(content["leaves"], leaves, plans, strict=True):
        if not leaf.is_array:
            values.append(from_json(leaf))
            continue
        array, place = content["arrays"][fields["array"]], next(places)
        key = array["ids"], id(each)
        if array["ids"] and isinstance(each, UnstructuredPlan) and key not in checked:
            assert isinstance(place, RowsPlace)
            checked.add(key)
            ids = _Loading(agreement, folder, array["ids"], content).load(place.of_ids())
            _compare_ids(agreement, fields["path"], ids, each)
        loading = _Loading(agreement, folder, fields["array"], content)
        loaded = loading.load(place)
        agreement.settle()
        values.append(_value_of(leaf, place, loaded))
    with agreement.attempt():
        if expected is not None:
            _check_leaves(paths, values, expected)
    agreement.settle()
    if like is None:
        return unflatten(structure, values)
    return unflatten_like(like, structure, values)


def _read_manifest(folder: Path) -> dict[str, Json]:
    try:
        return _manifest.read(folder)
    except ValueError as error:
        raise ValueError(f"{FUNCTION} {error}") from None


class _Loading:
    """Reads an array of a checkpoint. After an error, it goes on with zeros.

    Other processes wait for what this one has.
    """

    def __init__(
        self, agreement: Agreement, folder: Path, name: str, content: dict[str, Json]
    ) -> None:
        array = content["arrays"][name]
        self._agreement, self._folder, self._name = agreement, folder, name
        sizes = tuple(array["file_shape"]), tuple(array["chunks"])
        self._storage = Storage(*sizes, array["compression"])
        self._dtype: str = array["dtype"]

    def load(self, place: Place) -> Any:
        return place.from_files(FUNCTION, self.read, self._storage.chunk, self._dtype)

    def read(self, box: Sequence[range]) -> Host:
        """The values in a box."""
        values = np.zeros(tuple(map(len, box)), self._dtype)
        with self._agreement.attempt():
            read_box(self._folder, self._name, self._storage, box, values)
        return values


def _value_of(leaf: Leaf, place: Place, loaded: Any) -> Any:
    if not isinstance(place, ShardPlace):
        return from_host(leaf, loaded)
    shape = place.shape[: len(place.shape) - len(place.behind)]
    indices = place.sharding.addressable_devices_indices_map(shape)
    shards = [
        jax.device_put(from_host(leaf, loaded(index)), device)
        for device, index in indices.items()
    ]
    return jax.make_array_from_single_device_arrays(shape, place.sharding, shards)


def _check_ids(path: str, array: dict[str, Json], plan: Any) -> None:
    """Raise ValueError if only one of a file and a plan has ids of rows."""
    if not isinstance(plan, UnstructuredPlan):
        return
    has_ids, expects_ids = bool(array["ids"]), own_ids(plan) is not None
    if has_ids != expects_ids:
        found, expected = (
            f"rows {'with' if has else 'without'} ids" for has in (has_ids, expects_ids)
        )
        raise ValueError(
            f"{FUNCTION} found {found} for `tree{path}`, expected {expected}, as those of "
            "the unstructured.Plan in `plan`"
        )


def _compare_ids(
    agreement: Agreement, path: str, found: Host, plan: UnstructuredPlan
) -> None:
    """Raise ValueError if a file has rows of other points than a plan."""
    with agreement.attempt():
        own, found = own_ids(plan), found[plan.owned_rows]
        unlike = np.flatnonzero(found != own)
        if own is not None and len(unlike):
            raise ValueError(
                f"{FUNCTION} found the row of id {found[unlike[0]]} for `tree{path}` "
                f"where the unstructured.Plan in `plan` has id {own[unlike[0]]}, expected "
                "rows of the same ids"
            )
    agreement.settle()


def _check_leaves(
    paths: Sequence[str], values: Sequence[Any], expected: Sequence[tuple[str, Any]]
) -> None:
    for path, value, (_, like) in zip(paths, values, expected, strict=True):
        found, wanted = map(_type_of, (value, like))
        if found != wanted:
            raise ValueError(
                f"{FUNCTION} found {found} for `tree{path}`, expected {wanted}, as in "
                "`like`"
            )


def _type_of(value: Any) -> str:
    """A description of an array's type, or of the type of another leaf."""
    if hasattr(value, "dtype"):
        return f"an array of type {value.dtype} and shape {np.shape(value)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The newest whole checkpoint in a folder, or None if there is none.

    It may be called by all processes, or by some. While other programs save checkpoints,
    processes may find different ones: then one of them tells the others.

    Arguments:
        folder: The folder with checkpoints, which need not exist yet.

    """
    found = _manifest.checkpoints(checked_path("files.latest", folder))
    return found[0] if found else None


def info(path: str | os.PathLike[str], *, verify: bool = False) -> Info:
    """The contents of a checkpoint, as one process finds them.

    Arguments:
        path: The checkpoint.
        verify: Whether all bytes are read and compared with their checksums, by as many
            threads as there are cores. By default, the sizes of files are.

    """
    try:
        return _manifest.info(checked_path("files.info", path), verify=verify)
    except ValueError as error:
        raise ValueError(f"files.info {error}") from None
