"""Every operation in both forms, on arrays on the GPU: a short program for a sanitizer.

    mpiexec -n 1 compute-sanitizer --tool memcheck python tests/gpu/sanitize.py

The calls and their results are those of the table of operations in
mpi4jax/_testing/cases.
"""

from __future__ import annotations

import os
import sys

# Each array is an allocation of its own, so that the sanitizer sees where it ends.
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
# Messages between mpi4jax and mpi4py have to stay whole.
os.environ.pop("MPI4JAX_STAGING_CHUNK", None)

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._testing.cases import OPERATIONS, Case
from mpi4jax._testing.modes import eager, nonblocking

SIZES = (1, 1000, 5_000_000)
#: The one of calls without `comm` sends long arrays in pieces.
COMMUNICATORS = {"default": None, "COMM_WORLD": MPI.COMM_WORLD, "COMM_SELF": MPI.COMM_SELF}
#: The operations that need another call at the same time.
HALVES = {"send", "recv", "isend", "irecv"}
#: The functions that make no calls of their own.
OTHERS = {"wait", "overlap", "ordering_barrier"}


def array(rank: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def call_all(cases: list[Case], size: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The actual and the expected results of cases, in one program."""
    xs = {case.name: case.arrays(array, (size,)) for case in cases}
    operands = {name: jnp.asarray(x) for name, (x,) in xs.items()}
    pairs = {}
    for form in (eager, nonblocking):
        program = jax.jit(lambda x, f=form: {c.name: f(c.call)(x[c.name]) for c in cases})
        results = program(operands)
        for case in cases:
            pair = np.asarray(results[case.name]), case.result(xs[case.name])
            pairs[f"{case.name}, {form.__name__}"] = pair
    return pairs


def call_halves(comm: MPI.Intracomm, size: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The other end is mpi4py's: alone, a long `send` to oneself would wait for ever."""

    @jax.jit
    def send(x):
        mpi.send(x, 0, tag=1, comm=comm)
        return 2 * x

    @jax.jit
    def recv(x):
        return mpi.recv(x, 0, tag=2, comm=comm)

    expected = array(0, (size,))
    x = jnp.asarray(expected)
    sent = np.zeros_like(expected)
    request = comm.Irecv(sent, 0, tag=1)
    jax.block_until_ready(send(x))
    request.Wait()
    request = comm.Isend(expected, 0, tag=2)
    received = np.asarray(recv(jnp.zeros_like(x)))
    request.Wait()
    return {"send": (sent, expected), "recv": (received, expected)}


def main() -> None:
    if MPI.COMM_WORLD.Get_size() != 1:
        sys.exit("expected one rank")
    whole = [case for case in OPERATIONS.values() if case.least_size == 1]
    called = {name for case in whole for name in case.operations}
    called |= {f"i{name}" for name in called} | OTHERS
    missing = set(mpi.__all__) - called
    assert missing == HALVES, f"{sorted(missing)} have no call, expected {sorted(HALVES)}"
    for name, comm in COMMUNICATORS.items():
        for size in SIZES:
            pairs = call_all([case.replace(comm=comm) for case in whole], size)
            if comm is not None:
                # In pieces, they would have to be in pieces at mpi4py's end as well.
                pairs |= call_halves(comm, size)
            for operation, (result, expected) in pairs.items():
                text = f"{operation} of {size} on {name}"
                np.testing.assert_array_equal(result, expected, text)
    count = len(mpi.__all__)
    print(f"ok: {count} operations of {SIZES} elements on {jax.devices()[0].device_kind}")


if __name__ == "__main__":
    main()
