"""Checkpoints as files: their manifest, the newest one of a folder, what is in one.

Imports nothing but Python's own modules and the core: the command `files` uses it where
neither MPI nor JAX can be imported.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from mpi4jax import _core

#: The file that makes a folder a checkpoint.
MANIFEST = "mpi4jax.json"
#: The file with metadata of an array or a group, in the format Zarr v3.
METADATA = "zarr.json"
#: The number of the format.
FORMAT = 1
#: The size of the checksum behind the bytes of a chunk.
CHECKSUM_BYTES = 4

#: What stands in a manifest between a text and its checksum.
_END = b',\n "crc32c": '

Json: TypeAlias = Any
"""What a JSON file has: dictionaries, lists, strings, numbers."""


def encode(content: dict[str, Json]) -> bytes:
    """The text of a manifest, with its checksum at the end."""
    text = json.dumps(content, indent=1)[:-2].encode()
    return text + _END + b"%d\n}\n" % _core.checksum(text)


def read(path: Path) -> dict[str, Json]:
    """The manifest of a checkpoint. Raise ValueError if there is none, or it is damaged."""
    file = path / MANIFEST
    try:
        encoded = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        is_there = os.path.lexists(path)
        found = f"which has no file {MANIFEST}" if is_there else "which is not there"
        raise ValueError(f"got {path}, {found}, expected a whole checkpoint") from None
    text, _, end = encoded.rpartition(_END)
    if end != b"%d\n}\n" % _core.checksum(text):
        raise ValueError(f"got {file}, which is damaged: its checksum is another one")
    content: dict[str, Json] = json.loads(text + b"\n}")
    if content["format"] != FORMAT:
        raise ValueError(
            f"got {file} of format {content['format']}, expected format {FORMAT}: it is of "
            "another version of mpi4jax"
        )
    return content


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in a folder, the newest one first."""
    found: list[tuple[int, str, Path]] = []
    for path in folder.iterdir() if folder.is_dir() else ():
        # Names with a dot are those of checkpoints that are written or removed.
        if not path.name.startswith(".") and (path / MANIFEST).exists():
            try:
                found.append((read(path)["time"], path.name, path))
            except ValueError:
                continue
    return [path for *_, path in sorted(found, reverse=True)]


class Array(NamedTuple):
    """An array of a checkpoint."""

    #: The name of its folder, under which xarray and others know it.
    name: str
    #: Its place in the tree, as an expression of Python's.
    path: str
    shape: tuple[int, ...]
    dtype: str
    #: The shape of its chunks, the smallest parts that can be read.
    chunks: tuple[int, ...]
    nbytes: int


class Info(NamedTuple):
    """The contents of a checkpoint."""

    path: Path
    #: Seconds since 1970 at which it was complete.
    time: float
    #: The number of processes that wrote it.
    processes: int
    arrays: tuple[Array, ...]
    #: Leaves of the tree that are no arrays, by their place.
    values: dict[str, Json]
    #: Size of all files in bytes.
    nbytes: int
    #: The reasons why it is not whole: none if it is.
    damage: tuple[str, ...]


def info(path: Path, *, verify: bool = False) -> Info:
    """The contents of a checkpoint.

    Arguments:
        path: The checkpoint.
        verify: Whether all bytes are read and compared with their checksums, in place of
            the sizes of files.

    """
    content = read(path)
    arrays = tuple(
        Array(
            leaf["array"],
            leaf["path"],
            tuple(content["arrays"][leaf["array"]]["shape"]),
            leaf.get("dtype", leaf["kind"]),
            tuple(content["arrays"][leaf["array"]]["chunks"]),
            content["arrays"][leaf["array"]]["nbytes"],
        )
        for leaf in content["leaves"]
        if "array" in leaf
    )
    values = {leaf["path"]: leaf["value"] for leaf in content["leaves"] if "value" in leaf}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        jobs = [
            threads.submit(_damage, path / name, size, checksum, verify)
            for name, (size, checksum) in content["files"].items()
        ]
        damage = tuple(text for job in jobs if (text := job.result()))
    nbytes = sum(size for size, _ in content["files"].values())
    time, processes = content["time"] / 1e9, content["processes"]
    return Info(path, time, processes, arrays, values, nbytes, damage)


def _damage(path: Path, size: int, checksum: int, verify: bool) -> str:
    """What is wrong with a file, or nothing."""
    try:
        found = path.stat().st_size
        if found != size:
            return f"{path} has {found} bytes, expected {size}"
        actual = _core.file_checksum(path) if verify else checksum
        if actual != checksum:
            return f"{path} is damaged: its checksum is {actual:08x}, not {checksum:08x}"
    except FileNotFoundError:
        return f"{path} is missing"
    return ""
