"""Sends and adds up more than 2^31 elements, for real. The tests do not run it.

    mpiexec -n 2 python tests/large.py

It takes some 11 GiB of memory and two minutes. It prints a line for each operation, and the
most memory that each process had, added up.
"""

from __future__ import annotations

import resource
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import notoken as mpi

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()

#: A row is no divisor of 2^31, so that what is misplaced by 2^31 elements has other values.
ROW = 1021
ROWS = 2**31 // ROW + 1000
ELEMENTS = ROWS * ROW
MEMORY = 20 * 2**30


@jax.jit
def array_of(rank):
    """Elements that differ along rows, from row to row, and from rank to rank."""
    row = jnp.arange(ROWS, dtype=jnp.int32)[:, None]
    return ((row * 7 + jnp.arange(ROW, dtype=jnp.int32)) % 61 - rank).astype(jnp.int8)


def expected(rank, first, last):
    """The rows, by NumPy."""
    row = np.arange(first, last, dtype=np.int32)[:, None]
    return ((row * 7 + np.arange(ROW, dtype=np.int32)) % 61 - rank).astype(np.int8)


def check(name, actual, value, start):
    """Compare an array with the rows that `value` gives, at chosen places and all over."""
    seconds = time.perf_counter() - start
    actual = np.asarray(actual)
    assert (actual.shape, actual.dtype) == ((ROWS, ROW), np.int8)
    flat = actual.reshape(-1)
    for index in (0, 2**31 - 1, 2**31, 2**31 + 1, ELEMENTS - 1):
        row, column = divmod(index, ROW)
        assert flat[index] == value(row, row + 1)[0, column], index
    checksum = 0
    for first in range(0, ROWS, 2**15):
        rows = actual[first : first + 2**15]
        wanted = value(first, first + len(rows))
        assert np.array_equal(rows, wanted), f"{name}: rows from {first}"
        checksum += int(rows.sum(dtype=np.int64)) * (first + 1)
    if RANK == 0:
        print(
            f"{name}: {ELEMENTS} elements in {seconds:.1f} s, checksum {checksum}",
            flush=True,
        )


def main() -> int:
    assert SIZE == 2, "takes 2 ranks"
    other = 1 - RANK
    x = array_of(RANK).block_until_ready()

    COMM.Barrier()
    start = time.perf_counter()
    received = mpi.sendrecv(x, x, source=other, dest=other).block_until_ready()
    check("sendrecv", received, lambda *rows: expected(other, *rows), start)
    del received

    COMM.Barrier()
    start = time.perf_counter()
    total = mpi.allreduce(x, op=MPI.SUM).block_until_ready()
    check("allreduce", total, lambda *rows: expected(0, *rows) + expected(1, *rows), start)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    together = COMM.allreduce(peak)
    if RANK == 0:
        print(f"memory of both processes: {together / 2**30:.1f} GiB at most", flush=True)
    assert together < MEMORY
    return 0


if __name__ == "__main__":
    sys.exit(main())
