"""Output of a run: arrays that grow along the axis of time, for xarray and others."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpi4jax import _core
from mpi4jax._override import override

from ..._manifest import CHECKSUM_BYTES, Json
from ..arguments.checks import reject
from ..arguments.types import Comm, PyTree
from ..forks import at_exit
from . import zarr
from .agreement import Agreement
from .chunks import Storage, box_of, files_of, own_copy
from .folders import (
    Files,
    Lease,
    check_visible,
    file_name,
    read_box,
    replace_file,
    retire,
    writing_name,
)
from .leaves import ZARR_TYPES, Host, leaf_of, names_of
from .plans import EXPECTED, communicator_of, is_plan
from .reports import Reports
from .save import (
    SIZES,
    StoredArray,
    checked_compression,
    checked_path,
    checksum_of,
    checksums_of,
    is_chunks,
    stored_arrays,
)
from .trees import Structure, flatten, prefix_leaves

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "files.Output"
APPEND = f"{NAME}.append"

#: The dimension along which arrays grow, and its coordinate.
TIME = "time"
#: The number of times in a chunk.
TIMES = 1024
#: Steps that may be written in the background at a time.
MAX_OUTSTANDING = 2
#: Seconds that a process waits for others at its end, if it does not hear of them.
_LAST_WAIT = 60.0


class Step(NamedTuple):
    """The files that this process writes of a step, and the time of the step."""

    files: list[tuple[str, tuple[int, ...], Host, Storage]]
    time: float


class Variable(NamedTuple):
    """An array that grows along the axis of time, or one that stays: the ids of rows."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    storage: Storage
    dtype: str
    grows: bool

    @classmethod
    def of_metadata(cls, metadata: dict[str, Json]) -> Variable:
        """The array that has this metadata."""
        (*dims,), (*shape,) = metadata["dimension_names"], metadata["shape"]
        storage, grows = zarr.storage_of(metadata), dims[:1] == [TIME]
        if grows:
            del dims[0], shape[0]
            storage = storage._replace(file=storage.file[1:], chunk=storage.chunk[1:])
        return cls(tuple(dims), tuple(shape), storage, metadata["data_type"], grows)

    def metadata(self, times: int) -> dict[str, Json]:
        """The metadata of the array with a number of times."""
        if not self.grows:
            return zarr.array_metadata(self.shape, self.storage, self.dtype, self.dims, {})
        file, chunk, compression = self.storage
        return zarr.array_metadata(
            (times, *self.shape),
            Storage((1, *file), (1, *chunk), compression),
            self.dtype,
            (TIME, *self.dims),
            {},
        )


class Output:
    """Output of a run, as a folder in the format Zarr v3 that grows while it is written.

    Each :meth:`append` adds a time to all arrays. It copies them and returns: a thread
    writes them meanwhile. The folder has the times that are complete, at any moment, also
    if the run is killed: ``xarray.open_zarr(path)`` opens it. It is a context manager,
    which calls :meth:`close`.

    Arguments:
        path: The folder, on a file system that all processes share.
        plan: How the arrays are divided among processes, as for :func:`save`. Ghost cells
            are not written.
        dims: The names of the last axes of arrays, or a prefix of the tree of arrays with
            tuples of names as leaves.
        coords: For some of these names, the coordinates of the points along the axis: whole
            arrays with one axis, alike on all processes.
        attrs: Attributes of the whole, such as a title: what JSON can have.
        chunks: The shape of chunks, as for :func:`save`, without the axis of time: each
            chunk has one time.
        compression: The compression of chunks, as for :func:`save`.
        overwrite: Whether earlier output of this name may be removed.
        after: The time of the checkpoint from which a run goes on, which continues the
            output of this name: times up to this one, itself included, are kept, and later
            ones are removed by the first :meth:`append`. Without such output, it is begun.
            Arrays and coordinates have to be the same. ``chunks`` and ``compression`` stay
            what they are, and attributes that are not among ``attrs``.
        comm (mpi4py.MPI.Comm): The communicator of the processes, as for :func:`save`.

    All processes make it, append and close it together. An error of one of them, while it
    writes, is raised on all by the next call.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        plan: PyTree = None,
        *,
        dims: PyTree = None,
        coords: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Json] | None = None,
        chunks: PyTree = None,
        compression: str | None = None,
        overwrite: bool = False,
        after: float | None = None,
        comm: Comm = None,
    ) -> None:
        self._plan, self._dims, self._chunks = plan, dims, chunks
        self._agreement = agreement = Agreement(NAME, communicator_of(NAME, plan, comm))
        self._lease: Lease | None = None
        self._structure: Structure = None
        self._variables: dict[str, Variable] = {}
        self._times: list[float] = []
        #: Attributes of arrays, which others have given them.
        self._array_attrs: dict[str, dict[str, Json]] = {}
        try:
            with agreement.attempt():
                self.path = checked_path(NAME, path)
                self._folder = writing_name(self.path)
                self._compression = checked_compression(NAME, compression)
                self._coords = _coordinates(coords or {})
                self._attrs = dict(attrs or {})
                zarr.encode(self._attrs)
                last = _checked_time(after)
                if last is not None and overwrite:
                    raise ValueError(
                        f"{NAME} got `after` and overwrite=True, expected one of them"
                    )
            agreement.settle()
            facts: list[Json] = [{"path": "", "argument `after`": last}]
            facts += (
                {"path": f" {name}", "coordinate": str(values.dtype), **checksum_of(values)}
                for name, values in self._coords.items()
            )
            facts += (
                {"path": f" {name}", "attribute": value}
                for name, value in self._attrs.items()
            )
            agreement.compare(facts)
            with agreement.attempt():
                if agreement.rank == 0:
                    self._take_folder(last, overwrite=overwrite)
            agreement.settle()
            token = "" if self._lease is None else self._lease.token
            token, count, self._variables = agreement.comm.bcast(
                (token, len(self._times), self._variables)
            )
            with agreement.attempt():
                check_visible(NAME, self._folder, token)
            agreement.settle()
            self._reports = Reports(self._folder, token, agreement.comm)
        except Exception:
            self._release()
            agreement.free()
            raise
        self._appended = count
        self._is_closed = self._has_warned = False
        self._failure: Exception | None = None
        #: The steps to be written, how many have been, and how many are complete.
        self._steps: deque[Step] = deque()
        self._written = self._completed = count
        self._is_ending = self._is_cancelled = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="mpi4jax-files", daemon=True)
        self._thread.start()
        _open.append(self)

    @override
    def __repr__(self) -> str:
        return f"<{NAME}: {self.path}, {self._appended} times>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            # The other processes may be anywhere.
            self._end()

    def append(self, fields: PyTree, time: float | None = None) -> None:
        """Add a time. All processes call this together.

        The fields are copied and written in the background. With two times that are not
        yet complete, it waits for one.

        Arguments:
            fields: A dictionary of arrays, or another tree, of the same structure, shapes
                and types in each call. Types that Zarr does not name are written as
                ``float32`` or ``int8``, which have their values.
            time: The time (defaults to the number of times that there are).

        """
        agreement = self._agreement
        self._check_open(APPEND)
        agreement.enter(APPEND)
        self._settle_written(self._appended - MAX_OUTSTANDING + 1)
        with agreement.attempt():
            structure, pairs = flatten(APPEND, fields)
            if self._structure is not None and structure != self._structure:
                raise ValueError(
                    f"{APPEND} got another tree of fields than in the first call, expected "
                    f"the arrays {[*self._variables]}"
                )
            pairs = [(path, _written_as(APPEND, path, x)) for path, x in pairs]
            leaves = [leaf_of(APPEND, path, value) for path, value in pairs]
            plans = prefix_leaves(APPEND, "plan", self._plan, structure, is_plan, EXPECTED)
            sizes = prefix_leaves(
                APPEND,
                "chunks",
                self._chunks,
                structure,
                is_chunks,
                SIZES,
            )
            dims = prefix_leaves(
                APPEND, "dims", self._dims, structure, _is_dims, "None or a tuple of names"
            )
            moment = float(self._appended if time is None else time)
        agreement.settle()
        names = names_of(path for path, _ in pairs)
        stored = stored_arrays(
            agreement,
            pairs,
            leaves,
            plans,
            sizes,
            self._compression,
            has_edges=False,
            names=names,
        )
        arrays = [array for array in stored if array is not None]
        with agreement.attempt():
            variables = self._described(arrays, dims)
            if self._variables:
                _check_same(self._variables, variables)
                variables = self._variables
                for array in arrays:
                    file = variables[array.name].storage.file
                    text = f"{APPEND} got files of the sizes {file} for {array.name!r}"
                    array.place.check_sizes(file, text)
        agreement.settle()
        arrays = [array._replace(storage=variables[array.name].storage) for array in arrays]
        agreement.compare(
            [
                {
                    "path": f" {array.name}",
                    "time": moment,
                    "shape": array.place.shape,
                    "chunks": array.storage.chunk,
                    "compression": array.storage.compression or None,
                    **checksums_of(array),
                }
                for array in arrays
            ]
        )
        if self._structure is None:
            if self._variables:
                self._remove_later(arrays, moment)
            self._structure, self._variables = structure, variables
        files = []
        for array in arrays:
            grows = variables[array.name].grows
            if not (grows or self._appended == 0):
                continue
            storage = array.storage
            for block in array.place.to_files(APPEND, array.values, storage.file):
                for index, values in files_of(block, storage.file):
                    at = (self._appended, *index) if grows else index
                    files.append((array.name, at, own_copy(values), storage))
        self._appended += 1
        with self._changed:
            self._steps.append(Step(files, moment))
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all is written. All processes call this together."""
        if self._is_closed:
            return
        self._agreement.enter(f"{NAME}.close")
        try:
            self._settle_written(self._appended)
        finally:
            self._end()
        self._agreement.free()

    def _check_open(self, function: str) -> None:
        if self._is_closed:
            raise ValueError(f"{function} was called of output that is closed")

    def end(self) -> None:
        """End with the process, which can't wait for the main programs of others."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._steps or self._failure is not None, _LAST_WAIT
            )
        self._end()
        if self._failure is not None:
            text = f"mpi4jax: {self.path} is not complete: {self._failure}"
            print(text, file=sys.stderr, flush=True)

    def _end(self) -> None:
        """End the thread. What is not written yet is lost."""
        with self._changed:
            self._is_closed = self._is_ending = self._is_cancelled = True
            self._changed.notify_all()
        self._thread.join()
        self._release()
        if self in _open:
            _open.remove(self)

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()

    def _settle_written(self, count: int) -> None:
        """Wait for the first steps, and raise the errors of writing on all processes."""
        agreement, begin = self._agreement, time.monotonic()
        self._wait_for(lambda: self._written >= count)
        agreement.failure = self._failure
        agreement.settle()
        # Where all have written, rank 0 completes it.
        self._reports.expect(count)
        if agreement.rank == 0:
            self._wait_for(lambda: self._completed >= count)
            waited = time.monotonic() - begin
            if waited > 1 and not self._has_warned and not self._is_ending:
                self._has_warned = True
                warnings.warn(
                    f"{agreement.function} waited {waited:.1f} s, as {MAX_OUTSTANDING} "
                    "times were still being written, expected fewer. Append less often to "
                    "compute meanwhile",
                    stacklevel=4,
                )
        if count == self._appended:
            agreement.failure = self._failure
            agreement.settle()

    def _wait_for(self, is_done: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: is_done() or self._failure is not None)

    # The thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._steps or self._is_ending)
                if not self._steps or self._is_cancelled:
                    return
                step = self._steps[0]
            try:
                self._write(step)
            except Exception as error:
                with self._changed:
                    self._failure = error
                    self._steps.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._steps.popleft()
                self._completed += 1
                self._changed.notify_all()

    def _write(self, step: Step) -> None:
        number, rank = self._written + 1, self._agreement.rank
        files = Files(self.path, is_synced=False)
        try:
            for file in step.files:
                files.write_array(*file)
            self._reports.send({}, number)
        except Exception as error:
            with contextlib.suppress(OSError):
                files.remove(self.path)  # which makes room for the report
                self._reports.send({"failure": str(error)}, number)
            raise
        with self._changed:
            self._written = number
            self._changed.notify_all()
        if rank == 0:
            self._reports.receive(lambda: self._is_cancelled, number)
            self._complete(step.time)

    def _complete(self, moment: float) -> None:
        """Make a step, which all processes have written, a part of the output."""
        self._times.append(moment)
        first = (len(self._times) - 1) // TIMES
        times = np.zeros(TIMES)
        recent = self._times[first * TIMES :]
        times[: len(recent)] = recent
        checksum = _core.checksum(times.tobytes()).to_bytes(CHECKSUM_BYTES, "little")
        (self.path / TIME / "c").mkdir(parents=True, exist_ok=True)
        replace_file(self.path / file_name(TIME, (first,)), times.tobytes() + checksum)
        self._write_metadata(self.path)

    def _write_metadata(self, folder: Path) -> None:
        count = len(self._times)
        metadata = {name: each.metadata(count) for name, each in self._variables.items()}
        metadata[TIME] = _time_metadata(count)
        for name, values in self._coords.items():
            size, dtype = len(values), values.dtype.name
            metadata[name] = zarr.array_metadata(
                (size,), _one_chunk(size), dtype, [name], {}
            )
        for name, each in metadata.items():
            each["attributes"] = self._array_attrs.get(name, {})
            (folder / name).mkdir(exist_ok=True)
            replace_file(folder / name / zarr.METADATA, zarr.encode(each))
        group = zarr.encode(zarr.group_metadata(metadata, self._attrs))
        replace_file(folder / zarr.METADATA, group)

    # The folder at the beginning.

    def _take_folder(self, last: float | None, *, overwrite: bool) -> None:
        """Make the folder, or take that of an earlier run, to go on after a time."""
        may_exist = overwrite or last is not None
        self._lease = Lease(NAME, self.path, overwrite=may_exist, mark=zarr.METADATA)
        if last is not None and self.path.exists():
            self._read_earlier(last)
            return
        if self.path.exists():
            shutil.rmtree(retire(self.path))
        self._begin()

    def _begin(self) -> None:
        """Make the folder, with what does not grow."""
        begun = Files(self._folder / "begun", is_synced=False)
        begun.folder.mkdir()
        for name, values in self._coords.items():
            if len(values):
                begun.write_array(name, (0,), values, _one_chunk(len(values)))
        self._write_metadata(begun.folder)
        begun.folder.rename(self.path)

    def _read_earlier(self, last: float) -> None:
        """Read what there is of an earlier run, up to a time."""
        try:
            group = json.loads((self.path / zarr.METADATA).read_text())
            arrays = group["consolidated_metadata"]["metadata"]
            of_times = {**arrays[TIME], "attributes": {}}
            is_output = of_times == _time_metadata(*of_times["shape"])
        except (ValueError, TypeError, KeyError):
            is_output = False
        if not is_output:
            raise ValueError(
                f"{NAME} got {self.path} to be continued, which {NAME} has not written, "
                "expected output of an earlier run"
            )
        self._attrs = {**group["attributes"], **self._attrs}
        self._array_attrs = {name: each["attributes"] for name, each in arrays.items()}
        times = self._read(TIME, of_times).tolist()
        if any(later < time for time, later in itertools.pairwise(times)):
            raise ValueError(
                f"{NAME} got {self.path} to be continued, whose times decrease somewhere, "
                "expected that they do not"
            )
        self._times = times[: _count_until(times, last)]
        self._variables = {
            name: Variable.of_metadata(metadata)
            for name, metadata in arrays.items()
            if name not in (TIME, *self._coords)
        }
        # Ids of rows, the other arrays that don't grow, are compared when there are any.
        ids = {each.dims[:1] for each in self._variables.values() if each.grows}
        for name, each in self._variables.items():
            if not each.grows and (name,) not in ids:
                raise ValueError(
                    f"{NAME} got no coordinate {name!r}, expected that of {self.path}"
                )
        for name, values in self._coords.items():
            stored = self._read(name, arrays[name]) if name in arrays else None
            has_nan = values.dtype.kind in "fc"
            if (
                stored is None
                or stored.dtype != values.dtype
                or not np.array_equal(stored, values, equal_nan=has_nan)
            ):
                raise ValueError(
                    f"{NAME} got another coordinate {name!r} than {self.path} has, "
                    "expected the same"
                )

    def _read(self, name: str, metadata: dict[str, Json]) -> Host:
        """The values of a coordinate in the folder."""
        (size,) = metadata["shape"]
        values = np.zeros(size, metadata["data_type"])
        read_box(self.path, name, zarr.storage_of(metadata), [range(size)], values)
        return values

    def _remove_later(self, arrays: Sequence[StoredArray], moment: float) -> None:
        """Remove times of earlier output that are not kept, before the first new one."""
        agreement, count = self._agreement, self._appended
        for array in arrays:
            if not self._variables[array.name].grows:
                self._check_ids(array)
        with agreement.attempt():
            if agreement.rank == 0 and count and moment <= self._times[-1]:
                raise ValueError(
                    f"{APPEND} got the time {moment}, expected one after "
                    f"{self._times[-1]}, the last one that is kept"
                )
        agreement.settle()
        with agreement.attempt():
            if agreement.rank == 0:
                self._write_metadata(self.path)
                for name, each in self._variables.items():
                    if each.grows:
                        _remove_from(self.path / name / "c", count)
        agreement.settle()

    def _check_ids(self, array: StoredArray) -> None:
        """Raise ValueError if this process has other ids of rows than the folder."""
        blocks = array.place.to_files(APPEND, array.values, array.storage.file)
        with self._agreement.attempt():
            for start, ids in blocks:
                stored = np.zeros_like(ids)
                box = box_of(start, ids.shape)
                read_box(self.path, array.name, array.storage, box, stored)
                if not np.array_equal(stored, ids):
                    raise ValueError(
                        f"{APPEND} got rows of other ids than those of {self.path}, "
                        "expected the same points"
                    )

    # What is written.

    def _described(
        self, arrays: Sequence[StoredArray], dims: Sequence[Sequence[str] | None]
    ) -> dict[str, Variable]:
        """The arrays as variables, whose axes of one name have one size."""
        variables: dict[str, Variable] = {}
        sizes = {name: len(values) for name, values in self._coords.items()}
        owners = {name: f"the coordinate {name!r}" for name in self._coords}
        for array, names in zip(arrays, [*dims, *[None] * len(arrays)], strict=False):
            shape = array.place.shape
            known = tuple(names or ())[-len(shape) :] if shape else ()
            own = zarr.dims_of(shape[: len(shape) - len(known)])
            if array.ids:
                own[:1] = [array.ids][: len(own)]
            all_names = (*own, *known)
            if len({*all_names, TIME}) <= len(all_names):
                raise ValueError(
                    f"{APPEND} got the names {list(all_names)} for the axes of "
                    f"{array.name!r}, expected different ones, and none {TIME!r}"
                )
            for name, size in zip(all_names, shape, strict=True):
                if sizes.setdefault(name, size) != size:
                    raise ValueError(
                        f"{APPEND} got {size} points along the axis {name!r} of "
                        f"{array.name!r}, expected {sizes[name]}, as {owners[name]} has. "
                        "Give axes of other sizes other names by `dims`"
                    )
                owners.setdefault(name, repr(array.name))
            if array.name in (TIME, *self._coords):
                raise ValueError(
                    f"{APPEND} got an array of the name {array.name!r}, which is that of a "
                    "coordinate, expected another one"
                )
            grows = array.ids != array.name
            variables[array.name] = Variable(
                all_names, shape, array.storage, array.dtype, grows
            )
        return variables


def _checked_time(after: float | None) -> float | None:
    try:
        last = None if after is None else float(after)
    except (TypeError, ValueError):
        reject(NAME, "after", "None or a number", after)
    if last is not None and math.isnan(last):
        raise ValueError(f"{NAME} got nan for argument `after`, expected a time")
    return last


def _count_until(times: Sequence[float], last: float) -> int:
    """The number of times up to one, which may have been rounded, as to float32."""
    for count, moment in enumerate(times):
        rounding = 1e-7 * abs(moment)
        if count:
            rounding = min(rounding, 1e-3 * (moment - times[count - 1]))
        if moment - last > rounding:
            return count
    return len(times)


def _remove_from(folder: Path, count: int) -> None:
    """Remove the files of later times than the first ones."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.isdigit() and int(path.name) >= count:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _time_metadata(count: int) -> dict[str, Json]:
    return zarr.array_metadata((count,), _one_chunk(TIMES), "float64", [TIME], {})


def _one_chunk(size: int) -> Storage:
    """The storage of an array with one axis, of one chunk."""
    return Storage((max(size, 1),), (max(size, 1),))


def _written_as(function: str, path: str, value: Any) -> Any:
    """An array of a type that Zarr names, with the values of a field."""
    if isinstance(value, (bool, int, float, complex)):
        return np.asarray(value)
    leaf = leaf_of(function, path, value)
    if leaf.kind not in ("jax", "numpy", "number"):
        raise TypeError(
            f"{function} got a value of type {type(value).__name__} for `fields{path}`, "
            "expected arrays or numbers"
        )
    if leaf.dtype in ZARR_TYPES:
        return value
    return value.astype("int8" if "int" in leaf.dtype else "float32")


def _coordinates(coords: Mapping[str, Any]) -> dict[str, Host]:
    result = {}
    for name, values in coords.items():
        array = np.array(values)
        is_named = isinstance(name, str) and names_of([name]) == [name]
        if (
            not is_named
            or name == TIME
            or array.ndim != 1
            or array.dtype.name not in ZARR_TYPES
        ):
            raise ValueError(
                f"{NAME} got an array of type {array.dtype} and shape {array.shape} for "
                f"the coordinate {name!r}, expected numbers along one axis, and a name of "
                f"letters that is not {TIME!r}"
            )
        result[name] = array
    return result


def _is_dims(x: object) -> bool:
    return x is None or (
        isinstance(x, (tuple, list))
        and bool(x)
        and all(isinstance(name, str) for name in x)
    )


def _check_same(before: Mapping[str, Variable], after: Mapping[str, Variable]) -> None:
    """Raise ValueError if arrays are not the same as before, however they are stored."""
    if set(before) != set(after):
        raise ValueError(
            f"{APPEND} got the arrays {[*after]}, expected {[*before]}, as before"
        )
    for name, was in before.items():
        is_now = after[name]._replace(storage=was.storage)
        if is_now != was:
            raise ValueError(
                f"{APPEND} got an array of type {is_now.dtype} and shape {is_now.shape} "
                f"for {name!r}, along the axes {list(is_now.dims)}, expected type "
                f"{was.dtype} and shape {was.shape} along {list(was.dims)}, as before"
            )


#: The output of this process that is not closed.
_open: list[Output] = []


@at_exit
def _end_all() -> None:
    for output in list(_open):
        output.end()
