"""Saving a tree as a checkpoint, at once or in the background."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._override import override

from ..._manifest import FORMAT, Json
from ..arguments.checks import integer, reject
from ..arguments.types import Comm, Integer, PyTree
from ..forks import at_exit
from ..unstructured.plan import Plan as UnstructuredPlan
from . import zarr
from .agreement import Agreement
from .chunks import Sizes, Storage, default_sizes, files_of, own_copy
from .folders import (
    Files,
    Lease,
    check_visible,
    publish,
    writing_name,
)
from .leaves import Host, Leaf, leaf_of, names_of, own_axes, stored_type
from .places import Place, own_ids
from .plans import EXPECTED, communicator_of, host_array, is_plan, kinds_of, saved_place
from .reports import Reports
from .trees import Structure, flatten, prefix_leaves

FUNCTION = "files.save"
#: A description of an argument `chunks` for errors.
SIZES = "None or a tuple of positive sizes"

#: Checkpoints that may be written in the background at a time.
MAX_OUTSTANDING = 2
#: Largest size of a chunk in bytes that Blosc compresses.
_MAX_COMPRESSED = 2**31 - 17
#: Seconds that a process waits for others at its end, if it does not hear of them.
_LAST_WAIT = 600.0


class StoredArray(NamedTuple):
    """An array of a tree, and where and how it is stored."""

    name: str
    place: Place
    storage: Storage
    dtype: str
    #: The array of this process, or those of its devices.
    values: Any
    #: The name of the array with the ids of its rows, which may be itself.
    ids: str = ""

    def as_json(self) -> dict[str, Json]:
        """The fields of the manifest."""
        shape = self.place.shape
        dims = zarr.dims_of(shape)
        return {
            "shape": shape,
            "file_shape": self.storage.file,
            "chunks": self.storage.chunk,
            "compression": self.storage.compression,
            "dtype": self.dtype,
            "dims": [self.ids, *dims[1:]] if self.ids else dims,
            "edges": self.place.edges,
            "nbytes": math.prod(shape) * np.dtype(self.dtype).itemsize,
            "ids": self.ids,
        }


@overload
def save(
    path: str | os.PathLike[str],
    tree: PyTree,
    plan: PyTree = None,
    *,
    overwrite: bool = False,
    keep: Integer | None = None,
    chunks: PyTree = None,
    compression: str | None = None,
    comm: Comm = None,
) -> None: ...
@overload
def save(
    path: str | os.PathLike[str],
    tree: PyTree,
    plan: PyTree = None,
    *,
    overwrite: bool = False,
    keep: Integer | None = None,
    chunks: PyTree = None,
    compression: str | None = None,
    wait: bool,
    comm: Comm = None,
) -> Saving | None: ...
def save(
    path: str | os.PathLike[str],
    tree: PyTree,
    plan: PyTree = None,
    *,
    overwrite: bool = False,
    keep: Integer | None = None,
    chunks: PyTree = None,
    compression: str | None = None,
    wait: bool = True,
    comm: Comm = None,
) -> Saving | None:
    """Save a tree of arrays as a checkpoint. All processes call this together.

    A checkpoint is a folder in the format Zarr v3. It is there with all that belongs to it,
    or not at all, whenever processes are killed.

    Arguments:
        path: The folder, on a file system that all processes share.
        tree: A tree of arrays of JAX's or NumPy's, keys of :func:`jax.random.key`, numbers,
            strings and None. Nodes that are no dictionaries, lists or tuples are loaded as
            dictionaries, or by ``like``. Ghost cells at the edges of a grid that is not
            periodic are saved, too; others follow from the cells of neighbors.
        plan: How each array is divided among processes: a :class:`mpi4jax.halo.Plan`,
            :class:`mpi4jax.pencil.Layout`, :class:`mpi4jax.unstructured.Plan`,
            :class:`jax.sharding.Sharding` or :class:`Rows`; None for what all processes
            have alike. Or a prefix of the tree, with these as leaves, like ``in_axes`` of
            :func:`jax.vmap`. Numbers, arrays without axes and strings are what all have, in
            any case.
        overwrite: Whether a checkpoint of this name may be replaced, once the new one is
            whole.
        keep: The number of checkpoints in the same folder, this one included, of which
            older ones are removed afterwards (defaults to all).
        chunks: The shape of chunks, the smallest parts that can be read: sizes along the
            last axes of all arrays, or a prefix of the tree with these as leaves. Where an
            array has fewer axes, the last sizes count. By default, a divided array has one
            chunk for each process, or several of up to 64 MiB. Each process writes its
            chunks of an array into one file.
        compression: ``"lz4"``, to compress chunks by Blosc, with their bytes shuffled; None
            to store them as they are.
        wait: Whether the checkpoint is whole when this returns. Otherwise the arrays are
            copied, and written in the background.
        comm (mpi4py.MPI.Comm): The communicator of the processes (defaults to that of the
            plans, or to a clone of :obj:`COMM_WORLD`).

    Returns:
        None, or without ``wait`` a :class:`Saving`.

    """
    agreement = Agreement(FUNCTION, communicator_of(FUNCTION, plan, comm))
    try:
        saving = _started(
            agreement, path, tree, plan, overwrite, keep, chunks, compression, wait
        )
    except Exception:
        agreement.free()
        raise
    if wait:
        saving.wait()
        return None
    return saving


def _started(
    agreement: Agreement,
    path: str | os.PathLike[str],
    tree: PyTree,
    plan: PyTree,
    overwrite: bool,
    keep: Integer | None,
    chunks: PyTree,
    compression: str | None,
    wait: bool,
) -> Saving:
    _end_finished(agreement)
    with agreement.attempt():
        target = checked_path(FUNCTION, path)
        kept = None if keep is None else integer(FUNCTION, "keep", keep)
        if kept is not None and kept < 1:
            raise ValueError(
                f"{FUNCTION} got {kept} for argument `keep`, expected 1 or more checkpoints"
            )
        codec = checked_compression(FUNCTION, compression)
        structure, pairs = flatten(FUNCTION, tree)
        leaves = [leaf_of(FUNCTION, path, value) for path, value in pairs]
        plans = prefix_leaves(FUNCTION, "plan", plan, structure, is_plan, EXPECTED)
        shapes = prefix_leaves(FUNCTION, "chunks", chunks, structure, is_chunks, SIZES)
    agreement.settle()
    arrays = stored_arrays(agreement, pairs, leaves, plans, shapes, codec)
    facts = _facts(agreement, pairs, leaves, arrays)
    _make_room(agreement, target, wait=wait)
    content = _content(agreement, structure, facts, arrays)
    saving = Saving(agreement, target, content, overwrite=overwrite, keep=kept)
    try:
        saving.take(arrays, at_once=wait)
    except BaseException:
        saving.clean_up()
        raise
    if not wait:
        saving.start()
    return saving


def checked_path(function: str, path: object) -> Path:
    """The absolute path of an argument, with the name of a file at its end."""
    if not isinstance(path, (str, os.PathLike)):
        reject(function, "path", "a path", path)
    absolute = Path(os.path.abspath(os.fspath(path)))
    if not absolute.name:
        raise ValueError(
            f"{function} got {path!r} for argument `path`, expected a new folder"
        )
    return absolute


def checked_compression(function: str, compression: str | None) -> str:
    """The name of a compression, empty for none."""
    if compression not in (None, "lz4"):
        reject(function, "compression", "None or 'lz4'", compression)
    return compression or ""


def is_chunks(x: object) -> bool:
    return x is None or (
        isinstance(x, (tuple, list))
        and all(isinstance(n, (int, np.integer)) for n in x)
        and bool(x)
    )


def stored_arrays(
    agreement: Agreement,
    pairs: Sequence[tuple[str, Any]],
    leaves: Sequence[Leaf],
    plans: Sequence[Any],
    shapes: Sequence[Any],
    compression: str,
    *,
    has_edges: bool = True,
    names: Sequence[str] | None = None,
) -> list[StoredArray | None]:
    """How the arrays of a tree are stored, None for other leaves."""
    function = agreement.function
    makers, values = [], []
    with agreement.attempt():
        for (path, value), leaf, plan in zip(pairs, leaves, plans, strict=True):
            if leaf.is_array:
                values.append(host_array(function, path, leaf, value, plan))
                makers.append(
                    saved_place(agreement, path, leaf, value, plan, has_edges=has_edges)
                )
    agreement.settle()
    agreement.compare(
        [
            {"path": path, **leaf.as_json(), "plan": kind}
            for (path, _), leaf, kind in zip(pairs, leaves, kinds_of(plans), strict=True)
        ]
    )
    if names is None:
        names = names_of(path for (path, _), leaf in zip(pairs, leaves, strict=True))
    made = iter(zip(makers, values, strict=True))
    arrays: list[StoredArray | None] = []
    ids: dict[int, StoredArray] = {}
    with agreement.attempt():
        for name, leaf, plan, sizes in zip(names, leaves, plans, shapes, strict=True):
            if not leaf.is_array:
                arrays.append(None)
                continue
            maker, value = next(made)
            place, dtype = maker(), stored_type(leaf.dtype)
            behind = len(own_axes(leaf))
            storage = _storage(function, name, place, dtype, sizes, behind, compression)
            of_rows = ""
            if isinstance(plan, UnstructuredPlan) and np.ndim(value):
                of_rows = _add_ids(agreement, ids, plan, names, compression)
            arrays.append(StoredArray(name, place, storage, dtype, value, of_rows))
    agreement.settle()
    return [*arrays, *ids.values()]


def _sizes(
    function: str,
    default: Sizes,
    asked: Sequence[int] | None,
    shape: tuple[int, ...],
    behind: int,
) -> Sizes:
    """The sizes of chunks, in which those that are asked for are the last ones."""
    if asked and min(asked) < 1:
        raise ValueError(
            f"{function} got {tuple(asked)} for argument `chunks`, expected {SIZES}"
        )
    count = len(default) - behind
    asked = tuple(map(int, asked or ()))[-count:] if count else ()
    sizes = (*default[: count - len(asked)], *asked, *default[count:])
    pairs = zip(sizes, shape, strict=True)
    return tuple(max(min(size, points), 1) for size, points in pairs)


def _storage(
    function: str,
    name: str,
    place: Place,
    dtype: str,
    asked: Sequence[int] | None,
    behind: int,
    compression: str,
) -> Storage:
    """How an array is stored, whose last axes `behind` no chunk divides."""
    itemsize = np.dtype(dtype).itemsize
    default = default_sizes(place.largest, itemsize, divides_parts=place.divides_parts)
    chunk = _sizes(function, default, asked, place.shape, behind)
    place.check_sizes(chunk, f"{function} got {chunk} for argument `chunks`")
    size = math.prod(chunk) * itemsize
    if compression and size > _MAX_COMPRESSED:
        raise ValueError(
            f"{function} got chunks of {size} bytes for the array {name!r}, expected up to "
            f"{_MAX_COMPRESSED} with `compression`: choose smaller ones by `chunks`"
        )
    return Storage(place.file_sizes(chunk, default), chunk, compression)


def _add_ids(
    agreement: Agreement,
    ids: dict[int, StoredArray],
    plan: UnstructuredPlan,
    names: Sequence[str],
    compression: str,
) -> str:
    """The name of the array with the ids of a plan's rows. It is one of the arrays then."""
    own = own_ids(plan)
    if own is None:
        return ""
    if id(plan) not in ids:
        known = {*names, *(array.name for array in ids.values())}
        name = next(
            name
            for name in (f"row_ids{'_' * bool(n)}{n or ''}" for n in range(len(known) + 1))
            if name not in known
        )
        values = np.zeros(plan.size, own.dtype)
        values[plan.owned_rows] = own
        leaf = Leaf("numpy", str(own.dtype))
        place = saved_place(agreement, "", leaf, values, plan)()
        storage = _storage(
            agreement.function, name, place, str(own.dtype), None, 0, compression
        )
        ids[id(plan)] = StoredArray(name, place, storage, str(own.dtype), values, name)
    return ids[id(plan)].name


def _facts(
    agreement: Agreement,
    pairs: Sequence[tuple[str, Any]],
    leaves: Sequence[Leaf],
    arrays: Sequence[StoredArray | None],
) -> list[Json]:
    """The leaves in the manifest. Raise ValueError if processes have other values."""
    facts: list[Json] = []
    compared: list[Json] = []
    for (path, _), leaf, array in zip(pairs, leaves, arrays, strict=False):
        facts.append({"path": path, **leaf.as_json()})
        if array is None:
            continue
        facts[-1]["array"] = array.name
        more: dict[str, Json] = {
            "path": path,
            "shape": array.place.shape,
            "chunks": array.storage.chunk,
            "compression": array.storage.compression or None,
            **checksums_of(array),
        }
        compared.append(more)
    agreement.compare(compared)
    return facts


def checksums_of(array: StoredArray) -> dict[str, Json]:
    """The checksum of an array that all processes have."""
    return checksum_of(array.values) if array.place.kind == "None" else {}


def checksum_of(values: Host) -> dict[str, Json]:
    """The checksum of the bytes of an array."""
    values = np.ascontiguousarray(values)
    return {"checksum of values": _core.checksum_at(values.ctypes.data, values.nbytes)}


def _content(
    agreement: Agreement,
    structure: Structure,
    facts: list[Json],
    arrays: Sequence[StoredArray | None],
) -> dict[str, Json]:
    """The manifest, without what is known at the end only."""
    return {
        "format": FORMAT,
        "processes": agreement.size,
        "tree": structure,
        "leaves": facts,
        "arrays": {array.name: array.as_json() for array in arrays if array is not None},
    }


class Saving:
    """A checkpoint that is being written, as :func:`save` returns it without ``wait``.

    If :meth:`wait` is not called, an error is raised by a later call of :func:`save`, or
    printed at the end of the program.
    """

    #: The folder of the checkpoint.
    path: Path

    def __init__(
        self,
        agreement: Agreement,
        path: Path,
        content: dict[str, Json],
        *,
        overwrite: bool,
        keep: int | None,
    ) -> None:
        self.path, self._content = path, content
        self._agreement, self._keep = agreement, keep
        self._lease: Lease | None = None
        with agreement.attempt():
            if agreement.rank == 0:
                self._lease = Lease(agreement.function, path, overwrite=overwrite)
        agreement.settle()
        try:
            folder = writing_name(path)
            token = agreement.comm.bcast(self._lease and self._lease.token)
            with agreement.attempt():
                check_visible(agreement.function, folder, token)
            agreement.settle()
            self._files = Files(folder)
            self._reports = Reports(folder, token, agreement.comm)
        except BaseException:
            self._release()
            raise
        self._pending: list[tuple[str, tuple[int, ...], Host, Storage]] = []
        self._thread: threading.Thread | None = None
        #: The thread of the checkpoint begun before, if that is still being written.
        self._earlier = _outstanding[-1]._thread if _outstanding else None
        #: Whether this process has written its part, or failed to.
        self._has_written = threading.Event()
        self._is_cancelled = threading.Event()
        self._failure: Exception | None = None
        self._was_awaited = False
        #: Folders of replaced and outdated checkpoints, which are removed at the end.
        self._retired: list[Path] = []

    @override
    def __repr__(self) -> str:
        return f"<files.Saving: {self.path}>"

    def take(self, arrays: Sequence[StoredArray | None], *, at_once: bool) -> None:
        """Write the arrays at once, or take copies of what this process will write."""
        agreement = self._agreement
        for array in arrays:
            if array is None:
                continue
            storage, function = array.storage, agreement.function
            for block in array.place.to_files(function, array.values, storage.file):
                for index, values in files_of(block, storage.file):
                    if at_once and not agreement.has_failed:
                        with agreement.attempt():
                            self._files.write_array(array.name, index, values, storage)
                    elif not at_once:
                        copied = own_copy(values)
                        self._pending.append((array.name, index, copied, storage))
        if at_once:
            self._failure, agreement.failure = agreement.failure, None

    def start(self) -> None:
        """Write in the background from now on."""
        _outstanding.append(self)
        self._thread = threading.Thread(target=self._run, name="mpi4jax-files", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._pending:
                self._files.write_array(*self._pending.pop(0))
        except Exception as error:
            self._failure = error
            self._pending.clear()
        self._end_own()
        self._has_written.set()
        if self._agreement.rank == 0 and self._failure is None:
            self._publish()
            self._remove_retired()

    def _end_own(self) -> None:
        """Report the files that this process has written, or the reason of its failure."""
        try:
            if self._failure is None:
                self._files.sync()
                self._reports.send({"files": self._files.written})
        except Exception as error:
            self._failure = error
        if self._failure is not None:
            with contextlib.suppress(OSError):
                self._files.remove(self._files.folder)  # which makes room for the report
                self._reports.send({"failure": str(self._failure)})

    def _publish(self) -> None:
        """Complete the checkpoint once all processes have written their parts."""
        assert self._lease is not None
        try:
            written: dict[str, tuple[int, int]] = {}
            for content in self._reports.receive(self._is_cancelled.is_set):
                written.update(content["files"])
            if self._earlier is not None:
                # Names in another order than the calls would make an older checkpoint the
                # newest, and two threads would remove the same one.
                self._earlier.join()
            self._write_metadata()
            self._content["time"] = time.time_ns()
            self._content["files"] = {**written, **self._files.written}
            self._retired = publish(
                self._files, self._lease, self.path, self._content, self._keep
            )
        except Exception as error:
            self._failure = error

    def _write_metadata(self) -> None:
        files = self._files
        leaves = {
            leaf["array"]: leaf for leaf in self._content["leaves"] if "array" in leaf
        }
        metadata = {}
        for name, array in self._content["arrays"].items():
            leaf = leaves.get(name, {})
            attributes = {
                key: leaf[key] for key in ("path", "kind", "generator") if key in leaf
            }
            if leaf and leaf["dtype"] != array["dtype"]:
                attributes["bits_of"] = leaf["dtype"]
            shape, dtype, dims, *storage = (
                array[key]
                for key in ("shape", "dtype", "dims", "file_shape", "chunks", "compression")
            )
            metadata[name] = zarr.array_metadata(
                shape, Storage(*storage), dtype, dims, attributes
            )
            files.write_bytes(f"{name}/{zarr.METADATA}", zarr.encode(metadata[name]))
        group = zarr.encode(zarr.group_metadata(metadata, {}))
        files.write_bytes(zarr.METADATA, group)

    def _remove_retired(self) -> None:
        """Remove earlier checkpoints: files named like own ones, and rank 0 the rest."""
        for folder in self._retired:
            self._files.remove(folder)
            if self._agreement.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def is_over(self) -> bool:
        """Whether this process has nothing more to do."""
        assert self._thread is not None
        return not self._thread.is_alive()

    def is_of(self, agreement: Agreement) -> bool:
        """Whether the same processes write it that call a function now."""
        return self._agreement.members == agreement.members

    def wait(self) -> None:
        """Wait until the checkpoint is whole. All processes call this together."""
        if self._was_awaited:
            return
        self._was_awaited = True
        agreement = self._agreement
        agreement.enter(agreement.function)
        try:
            if self._thread is None:
                self._end_own()
            else:
                self._has_written.wait()
            agreement.failure = self._failure
            agreement.settle()
            self._reports.expect()
            if self._thread is not None:
                self._thread.join()
            elif agreement.rank == 0:
                self._publish()
            agreement.failure = self._failure
            agreement.settle()
            if self._thread is None:
                self._retired = agreement.comm.bcast(self._retired)
                self._remove_retired()
        finally:
            self.clean_up()
        # Not in a finally clause: after an interrupt, others may be anywhere.
        agreement.free()

    def clean_up(self) -> None:
        """Remove the folder, unless it has its final name, and release it."""
        self._is_cancelled.set()
        if self._thread is not None:
            self._thread.join()
        self._release()
        if self in _outstanding:
            _outstanding.remove(self)

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()

    def end(self) -> None:
        """Wait for the thread at exit, and for the reports of others only for a while."""
        assert self._thread is not None
        self._thread.join(_LAST_WAIT)
        self._is_cancelled.set()
        self._thread.join()
        if self._failure is not None:
            text = f"mpi4jax: {self.path} was not saved: {self._failure}"
            print(text, file=sys.stderr, flush=True)


#: The checkpoints of this process that are being written in the background.
_outstanding: list[Saving] = []
_has_warned = False


def _end_finished(agreement: Agreement) -> None:
    """Raise the errors of checkpoints that have failed in the background."""
    savings = [saving for saving in _outstanding if saving.is_of(agreement)]
    are_over = np.array([saving.is_over for saving in savings], np.int8)
    if savings:
        agreement.comm.Allreduce(MPI.IN_PLACE, are_over, op=MPI.MIN)
    for saving, is_over in zip(savings, are_over, strict=True):
        if is_over:
            saving.wait()


def _make_room(agreement: Agreement, path: Path, *, wait: bool) -> None:
    """Wait for checkpoints that are being written. All processes call this together.

    Arguments:
        agreement: The processes.
        path: The next checkpoint. An earlier one of this name has to be whole first.
        wait: Whether the next one is written at once: it becomes whole after all others.

    """
    global _has_warned
    begin = time.monotonic()
    savings = [saving for saving in _outstanding if saving.is_of(agreement)]
    count = 0 if wait else MAX_OUTSTANDING - 1
    for n, saving in enumerate(savings):
        if n < len(savings) - count or any(each.path == path for each in savings[n:]):
            saving.wait()
    waited = time.monotonic() - begin
    if not wait and waited > 1 and not _has_warned and agreement.rank == 0:
        _has_warned = True
        warnings.warn(
            f"{agreement.function} waited {waited:.1f} s, as {MAX_OUTSTANDING} "
            "checkpoints were still being written, expected fewer. Save less often to "
            "compute meanwhile",
            stacklevel=4,
        )


@at_exit
def _end() -> None:
    for saving in list(_outstanding):
        saving.end()
