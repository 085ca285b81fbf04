"""`python -m mpi4jax files PATH`: what is in a checkpoint, and whether it is whole."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from mpi4jax import _launcher, _manifest, _terminal
from mpi4jax._text import align, format_size


def run(arguments: argparse.Namespace) -> int:
    if not _launcher.is_first():
        return 0
    path = arguments.path
    try:
        if not (path / _manifest.MANIFEST).exists():
            # The newest one in a folder with checkpoints.
            path = next(iter(_manifest.checkpoints(path)), path)
        found = _manifest.info(path, verify=arguments.verify)
    except ValueError as error:
        _terminal.tell(f"mpi4jax files {error}", sys.stderr)
        return 1
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.time))
    count = found.processes
    print(f"{found.path}: {format_size(found.nbytes)}, saved {when} by {count} processes")
    for row in align([("name", "place", "type", "shape", "chunks"), *_rows(found)]):
        print("  " + "  ".join(row).rstrip())
    for text in found.damage:
        _terminal.tell(text)
    checked = "checksums" if arguments.verify else "sizes"
    print(
        f"damaged: {len(found.damage)} of the files"
        if found.damage
        else f"whole, by {checked}"
    )
    return 1 if found.damage else 0


def _rows(found: _manifest.Info) -> Iterator[tuple[str, ...]]:
    for array in found.arrays:
        shape, chunks = (" x ".join(map(str, x)) for x in (array.shape, array.chunks))
        yield array.name, array.path, array.dtype, shape, chunks
    for path, value in found.values.items():
        yield "", path, type(value).__name__, str(value), ""
