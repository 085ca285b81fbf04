"""`python -m mpi4jax trace folder`: a timeline of a run."""

from __future__ import annotations

import argparse
import sys

from mpi4jax import _core, _terminal


def run(arguments: argparse.Namespace) -> int:
    begin, end = arguments.between
    output = arguments.output or arguments.folder / "trace.pftrace"
    try:
        lines = _core.write_timeline(arguments.folder, output, begin, end)
    except ValueError as error:
        _terminal.tell(str(error), sys.stderr)
        return 1
    for line in [*lines, f"{output}: open it at https://ui.perfetto.dev"]:
        _terminal.tell(line)
    return 0
