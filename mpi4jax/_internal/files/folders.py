"""The folder of a checkpoint while it is written, and how it gets its name.

It is written under the name `.NAME.writing`, where one process holds a lock that the system
releases when that process ends, in whatever way. So a folder without a holder is what a
killed run has left. Each process reports what it has written, or that it has failed; then
one writes the manifest, and the folder gets its name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mpi4jax import _core

from ... import _manifest
from ..._manifest import CHECKSUM_BYTES, MANIFEST, Json
from . import reports, zarr
from .chunks import Storage, box_of, keys_in, part_of
from .leaves import Host
from .reports import named_errors

_LOCK = ".lock"
#: The offset and size in a file of a chunk that it does not have.
_NO_CHUNK = (1 << 64) - 1

#: Seconds between two looks for the folder that rank 0 has made.
_INTERVAL = 0.01


def writing_name(path: Path) -> Path:
    """The name of a checkpoint while it is written."""
    return path.with_name(f".{path.name}.writing")


class Lease:
    """The right to write a folder, which ends with this process at the latest.

    Arguments:
        function: The function that was called.
        path: The folder's final name.
        overwrite: Whether there may be a folder of this name.
        mark: The file that it must have then.

    """

    def __init__(
        self, function: str, path: Path, *, overwrite: bool, mark: str = MANIFEST
    ) -> None:
        _check_name(function, path, mark, overwrite=overwrite)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.folder = writing_name(path)
        self._overwrite, self._is_published, self._lock = overwrite, False, -1
        #: A random text in the folder, by which other hosts know that they see this one.
        self.token = secrets.token_hex(8)
        own = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            own.chmod(0o777 & ~_umask())
            self._lock = os.open(own / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _take_lock(self._lock)
            os.write(self._lock, self.token.encode())
            (own / reports.FOLDER).mkdir()
            while not _take_name(own, self.folder):
                # What is there may get its final name meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    self._remove_abandoned(function)
        except BaseException:
            shutil.rmtree(own, ignore_errors=True)
            if self._lock >= 0:
                os.close(self._lock)
            raise

    def _remove_abandoned(self, function: str) -> None:
        """Remove what a killed run has left. Raise FileExistsError if a run writes it."""
        lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            if not _take_lock(lock):
                raise FileExistsError(
                    f"{function} got a path for which there is {self.folder}, which "
                    "another run is writing, expected one that nobody writes (if nobody "
                    "does, as file locks don't work there, remove it)"
                )
            if not os.path.samestat(os.fstat(lock), os.stat(self.folder / _LOCK)):
                return  # it is another one already
            grave = tempfile.mkdtemp(prefix=f"{self.folder.name}.", dir=self.folder.parent)
            self.folder.rename(Path(grave, "abandoned"))
        finally:
            os.close(lock)
        shutil.rmtree(grave, ignore_errors=True)

    def publish(self, path: Path) -> list[Path]:
        """Give the folder its final name.

        Returns:
            The folder that had the name before, if any, to be removed.

        """
        replaced = []
        if path.exists():
            if not self._overwrite:
                raise FileExistsError(f"{path} exists, and did not when this call began")
            replaced.append(self._replace(path))
        else:
            self.folder.rename(path)
            self._is_published = True
        (path / _LOCK).unlink(missing_ok=True)
        return replaced

    def _replace(self, path: Path) -> Path:
        # The old folder gets the name of one that is written: by its lock, no other run
        # removes it.
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _take_lock(lock)
            if _core.swap_names(self.folder, path):
                self._is_published = True
                return _retire_checkpoint(self.folder)
            # Where names can't be swapped, the old folder has a name that `latest` finds,
            # and that no user would choose.
            old = path.with_name(f"{path.name}.replaced-by-mpi4jax")
            if (old / MANIFEST).exists():
                shutil.rmtree(_retire_checkpoint(old), ignore_errors=True)
            path.rename(old)
            self.folder.rename(path)
            self._is_published = True
            return _retire_checkpoint(old)
        finally:
            os.close(lock)

    def release(self) -> None:
        """Give the right back, and remove a folder that has not got its final name."""
        if self._lock < 0:
            return
        if not self._is_published:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _take_name(folder: Path, name: Path) -> bool:
    """Give a folder a name, and return True, unless another folder has it."""
    try:
        folder.rename(name)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _take_lock(lock: int) -> bool:
    """Lock an open file, and return whether that was possible.

    It is not if it has been opened and locked before, also by this process, nor on a file
    system without locks.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _check_name(function: str, path: Path, mark: str, *, overwrite: bool) -> None:
    """Raise an error if there is something that may not be overwritten."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise FileExistsError(
            f"{function} got {path}, which exists, expected a new path, or overwrite=True"
        )
    if not (path / mark).is_file():
        raise FileExistsError(
            f"{function} got {path}, which has no file {mark}, expected a new path, or one "
            "that an earlier call has written"
        )
    if mark != MANIFEST and (path / MANIFEST).exists():
        raise FileExistsError(
            f"{function} got {path}, which is a checkpoint, expected a new path, or output"
        )


def check_visible(function: str, folder: Path, token: str) -> None:
    """Raise OSError if this host does not see the folder that rank 0 has made."""
    end = time.monotonic() + reports.VISIBLE_AFTER
    while True:
        try:
            if (folder / _LOCK).read_text() == token:
                return
        except OSError:
            pass
        if time.monotonic() > end:
            raise OSError(
                f"{function}: host {os.uname().nodename} doesn't see {folder}, which rank "
                "0 has made, expected a file system that all hosts share"
            )
        os.listdir(folder.parent) if folder.parent.is_dir() else None
        time.sleep(_INTERVAL)


class Files:
    """The files that this process has written: sizes and checksums."""

    def __init__(self, folder: Path, *, is_synced: bool = True) -> None:
        self.folder, self._is_synced = folder, is_synced
        self.written: dict[str, tuple[int, int]] = {}
        self._unsynced: list[Path] = []
        self._folders: set[Path] = {folder}

    def write_array(
        self, array: str, at: tuple[int, ...], values: Host, storage: Storage
    ) -> None:
        """Write a file of an array: its chunks, with their checksums."""
        name = file_name(array, at)
        path = self._path(name)
        element = zarr.element_size(values.dtype) if storage.compression else 0
        entries = np.full((*storage.counts, 2), _NO_CHUNK, "<u8")
        size = checksum = 0
        self.written[name] = size, checksum  # to be removed, if there is no room for it
        with named_errors(path), path.open("wb", buffering=0) as file:

            def write(chunks: Host, count: int, element: int) -> Host:
                """Write chunks, and give the offset and size of each."""
                nonlocal size, checksum
                address, nbytes = chunks.ctypes.data, chunks.nbytes // count
                sizes, of_chunks = _core.write_chunks(
                    file.fileno(), size, address, nbytes, count, element
                )
                added = np.array(sizes, "<u8")
                offsets = size + np.cumsum(added) - added
                total = sum(sizes)
                checksum = _core.combine_checksums(checksum, of_chunks, total)
                size += total
                return np.stack([offsets, added], axis=-1)

            start = (0,) * values.ndim
            for chunks, points in storage.slabs_in(box_of(start, values.shape)):
                slab = storage.split(part_of(values, points, start))
                counts = [*map(len, chunks)]
                places = write(slab, math.prod(counts), element)
                part_of(entries, chunks, start)[...] = places.reshape(*counts, 2)
            if storage.is_sharded:
                write(entries, 1, 0)
            if self._is_synced:
                _core.start_writeback(file.fileno())
        self.written[name] = size, checksum

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file without a checksum behind it."""
        path = self._path(name)
        with named_errors(path), path.open("wb") as file:
            file.write(content)
        self.written[name] = len(content), _core.checksum(content)

    def _path(self, name: str) -> Path:
        path = self.folder / name
        if path.parent not in self._folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            parents = (self.folder / parent for parent in Path(name).parents)
            self._folders.update(parents)
        if self._is_synced:
            self._unsynced.append(path)
        return path

    def sync(self) -> None:
        """Put the files and their names on the disk."""
        for path in (*self._unsynced, *self._folders):
            _core.sync_path(path)
        self._unsynced.clear()

    def remove(self, folder: Path) -> None:
        """Remove the files of a folder that have the names of those written."""
        for name in self.written:
            with contextlib.suppress(OSError):
                (folder / name).unlink()


def file_name(array: str, index: tuple[int, ...]) -> str:
    """The name of a file of an array."""
    return "/".join([array, "c", *map(str, index)])


#: Reads chunks of a file, those in ranges of indices, into an array.
Reader: TypeAlias = Callable[[Sequence[range], Host], None]


@contextlib.contextmanager
def open_array(
    folder: Path, array: str, index: tuple[int, ...], storage: Storage
) -> Iterator[Reader]:
    """Open a file of an array, and give the function that reads its chunks.

    Errors name the file, and are a ValueError if it is damaged.
    """
    path = folder / file_name(array, index)
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing, expected a file of an array") from None
    size = os.fstat(file.fileno()).st_size
    entries = np.empty((*storage.counts, 2), "<u8")
    entries[...] = 0, size

    def read(places: Host, values: Host, *, is_compressed: bool) -> None:
        address, nbytes = values.ctypes.data, values.nbytes // len(places)
        try:
            _core.read_chunks(
                file.fileno(), places.tolist(), address, nbytes, is_compressed
            )
        except ValueError as error:
            raise ValueError(f"{path} {error}") from None

    def read_chunks(chunks: Sequence[range], values: Host) -> None:
        firsts = (k * count for k, count in zip(index, storage.counts, strict=True))
        places = part_of(entries, chunks, firsts)
        read(places.reshape(-1, 2), values, is_compressed=bool(storage.compression))

    with file, named_errors(path):
        if storage.is_sharded:
            stored = entries.nbytes + CHECKSUM_BYTES
            place = np.array([[max(size - stored, 0), stored]])
            read(place, entries, is_compressed=False)
        yield read_chunks


def read_box(
    folder: Path, array: str, storage: Storage, box: Sequence[range], values: Host
) -> None:
    """Read a box of an array. Raise ValueError if a file of it is damaged."""
    start = tuple(points.start for points in box)
    for index, part in keys_in(box, storage.file):
        with open_array(folder, array, index, storage) as read_chunks:
            for chunks, points in storage.slabs_in(part):
                target = part_of(values, points, start)
                counts = [*map(len, chunks)]
                is_chunk = math.prod(counts) == 1 and target.shape == storage.chunk
                if is_chunk and target.flags.c_contiguous:
                    read_chunks(chunks, target)
                    continue
                slab = np.empty((*counts, *storage.chunk), values.dtype)
                read_chunks(chunks, slab)
                pairs = zip(chunks, storage.chunk, strict=True)
                first = [indices.start * size for indices, size in pairs]
                target[...] = part_of(storage.join(slab), points, first)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step: others see it as it was, or as it is then.

    It is not synced: if the host crashes, it may be empty.
    """
    temporary = path.with_name(f"{path.name}.new")
    with named_errors(path):
        temporary.write_bytes(content)
        temporary.rename(path)


def publish(
    files: Files, lease: Lease, path: Path, content: dict[str, Json], keep: int | None
) -> list[Path]:
    """Write the manifest of a checkpoint, and give its folder the final name.

    Returns:
        The folders to be removed: the replaced checkpoint, and those in the same folder
        that are older than the `keep` newest ones.

    """
    shutil.rmtree(files.folder / reports.FOLDER)
    files.write_bytes(MANIFEST, _manifest.encode(content))
    files.sync()
    replaced = lease.publish(path)
    _core.sync_path(path.parent)
    lease.release()
    older = [] if keep is None else _manifest.checkpoints(path.parent)[keep:]
    return [*replaced, *(_retire_checkpoint(other) for other in older if other != path)]


def _retire_checkpoint(path: Path) -> Path:
    """Remove the manifest of a checkpoint, and rename the folder, which is then removed."""
    (path / MANIFEST).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another run removes it, too
        return retire(path)
    return path


def retire(path: Path) -> Path:
    """Rename a folder that will be removed, and return the new name."""
    name = path.with_name(f".{path.name.strip('.')}.removed")
    shutil.rmtree(name, ignore_errors=True)
    return path.rename(name)
