"""Every operation once, on arrays on the GPU: a short program to run under a sanitizer.

    mpiexec -n 1 compute-sanitizer --tool memcheck python tests/gpu/sanitize.py

On one rank each operation gives back what it gets, apart from `exscan`, which has nothing
to sum.
"""

from __future__ import annotations

import os
import sys
from functools import partial

# Each array is an allocation of its own, so that the sanitizer sees where it ends.
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
# Messages between mpi4jax and mpi4py have to stay whole.
os.environ.pop("MPI4JAX_STAGING_CHUNK", None)

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import notoken as mpi

SIZES = (1, 1000, 5_000_000)
#: The one of calls without `comm` sends long arrays in pieces.
COMMUNICATORS = {"default": None, "COMM_WORLD": MPI.COMM_WORLD, "COMM_SELF": MPI.COMM_SELF}


def operations(x: jax.Array, comm: MPI.Intracomm | None) -> dict[str, jax.Array]:
    """The results of all operations that need no other call at the same time."""
    block, counts = x[None], [x.size]
    mpi.barrier(comm=comm)
    return {
        "allgather": mpi.allgather(x, comm=comm)[0],
        "allgatherv": mpi.allgatherv(x, counts, comm=comm),
        "allreduce": mpi.allreduce(x, op=MPI.SUM, comm=comm),
        "alltoall": mpi.alltoall(block, comm=comm)[0],
        "alltoallv": mpi.alltoallv(x, counts, counts, comm=comm),
        "bcast": mpi.bcast(x, 0, comm=comm),
        "exscan": mpi.exscan(x, op=MPI.SUM, comm=comm),
        "gather": mpi.gather(x, 0, comm=comm)[0],
        "gatherv": mpi.gatherv(x, counts, 0, comm=comm),
        "reduce": mpi.reduce(x, op=MPI.SUM, root=0, comm=comm),
        "reduce_scatter": mpi.reduce_scatter(block, op=MPI.SUM, comm=comm),
        "scan": mpi.scan(x, op=MPI.SUM, comm=comm),
        "scatter": mpi.scatter(block, 0, comm=comm),
        "scatterv": mpi.scatterv(x, counts, 0, comm=comm),
        "sendrecv": mpi.sendrecv(x, x, 0, 0, comm=comm),
    }


def send_and_recv(x: jax.Array, comm: MPI.Intracomm) -> dict[str, np.ndarray]:
    """The other end is mpi4py's: alone, a long `send` to oneself would wait for ever."""

    @jax.jit
    def send(x):
        mpi.send(x, 0, tag=1, comm=comm)
        return 2 * x

    @jax.jit
    def recv(x):
        return mpi.recv(x, 0, tag=2, comm=comm)

    sent, received = np.zeros(x.shape, x.dtype), np.asarray(x)
    request = comm.Irecv(sent, 0, tag=1)
    jax.block_until_ready(send(x))
    request.Wait()
    request = comm.Isend(received, 0, tag=2)
    result = np.asarray(recv(jnp.zeros_like(x)))
    request.Wait()
    return {"send": sent, "recv": result}


def main() -> None:
    if MPI.COMM_WORLD.Get_size() != 1:
        sys.exit("expected one rank")
    for name, comm in COMMUNICATORS.items():
        for size in SIZES:
            x = jnp.arange(size, dtype=jnp.float32) + 1
            results = jax.jit(partial(operations, comm=comm))(x)
            if comm is None:
                # In pieces, they would have to be in pieces at mpi4py's end as well.
                missing = set(mpi.__all__) - {*results, "barrier", "send", "recv"}
                assert not missing, f"nothing calls {missing}"
            else:
                results |= send_and_recv(x, comm)
            expected = np.asarray(x)
            for operation, result in results.items():
                np.testing.assert_array_equal(
                    result,
                    0 * expected if operation == "exscan" else expected,
                    f"{operation} of {size} on {name}",
                )
    count = len(mpi.__all__)
    print(f"ok: {count} operations of {SIZES} elements on {jax.devices()[0].device_kind}")


if __name__ == "__main__":
    main()
