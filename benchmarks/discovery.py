"""The time in which `unstructured.Plan` finds owners and neighbors of distributed ids.

    mpiexec -n 2 python benchmarks/discovery.py [ROWS ...]

Each rank owns that many ids of a square grid of points, a strip of its lines, and has the
next line of each neighboring strip as ghosts. The ids are ascending, or in a random order.
Prints the best time of the slowest rank, and what a row costs.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from mpi4py import MPI

from mpi4jax._commands.tables import table
from mpi4jax._internal.unstructured import discovery

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
ROUNDS = 3


def strip(rows: int, *, shuffled: bool) -> tuple[np.ndarray, np.ndarray]:
    """The ids of this rank, and which of them it owns."""
    width = int(rows**0.5)
    begin, end = RANK * rows, (RANK + 1) * rows
    ids = np.arange(max(0, begin - width), min(SIZE * rows, end + width))
    if shuffled:
        ids = np.random.default_rng(RANK).permutation(ids)
    return ids, (begin <= ids) & (ids < end)


def seconds(ids: np.ndarray, owned: np.ndarray | None) -> float:
    """The time of the slowest rank, in the best round."""
    times = []
    for _ in range(ROUNDS):
        COMM.Barrier()
        start = time.perf_counter()
        discovery.from_global(ids, owned, COMM)
        times.append(COMM.allreduce(time.perf_counter() - start, op=MPI.MAX))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sizes = [100_000, 1_000_000, 10_000_000]
    parser.add_argument("rows", nargs="*", type=int, default=sizes, metavar="ROWS")
    discovery.from_global([], None, COMM)
    rows = []
    for count in parser.parse_args().rows:
        for order in ("ascending", "random"):
            ids, owned = strip(count, shuffled=order == "random")
            for owners in ("known", "elected"):
                time = seconds(ids, owned if owners == "known" else None)
                rows.append(
                    {
                        "rows a rank": f"{count:,}",
                        "order": order,
                        "owners": owners,
                        "seconds": f"{time:.3f}",
                        "ns a row": f"{time / count * 1e9:.0f}",
                    }
                )
    if RANK == 0:
        print(f"{SIZE} ranks\n{table(rows)}")


if __name__ == "__main__":
    main()
