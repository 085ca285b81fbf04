"""`python -m mpi4jax trace folder`: a timeline of a run."""

from __future__ import annotations

import argparse
import sys

from mpi4jax import _core


def run(arguments: argparse.Namespace) -> int:
    begin, end = arguments.between
    output = arguments.output or arguments.folder / "trace.pftrace"
    try:
        lines = _core.write_timeline(arguments.folder, output, begin, end)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for line in lines:
        print(line)
    print(f"{output}: open it at https://ui.perfetto.dev")
    return 0
