"""`python -m mpi4jax trace folder`: a timeline of a run."""

from __future__ import annotations

import argparse
import sys

from mpi4jax import _core, _terminal
from mpi4jax._text import wrap


def run(arguments: argparse.Namespace) -> int:
    begin, end = arguments.between
    output = arguments.output or arguments.folder / "trace.pftrace"
    try:
        lines = _core.write_timeline(arguments.folder, output, begin, end)
    except ValueError as error:
        terminal = _terminal.of(sys.stderr)
        print(wrap(str(error), terminal.width), file=sys.stderr)
        return 1
    for line in [*lines, f"{output}: open it at https://ui.perfetto.dev"]:
        print(wrap(line, _terminal.of().width))
    return 0
