"""Makes communicators, uses and frees them, and sees that nothing of them stays.

    mpiexec -n 2 python tests/soak.py 10000

prints the memory of rank 0 eleven times on the way, in a quarter of an hour. The tests run
it with fewer. It fails if the memory of a process grows, or the numbers of MPI's handles.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path

os.environ["MPI4JAX_CHECK"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from mpi4jax import distributed
from mpi4jax import notoken as mpi
from mpi4jax.halo import Plan

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()

#: What each communicator may leave, in bytes. A compiled program takes some 100 KiB.
MOST_LEFT = 10 * 2**10
#: What the allocator may need more, as it finds no room between blocks.
ROOM = 4 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def exchange_ghost_cells(comm: MPI.Cartcomm) -> None:
    row = np.arange(6.0, dtype=np.float32)
    field = Plan(comm, corners=False).exchange(jnp.asarray(row + 10 * RANK))
    lower, upper = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    expected = [10 * lower + 4, *(row[1:-1] + 10 * RANK), 10 * upper + 1]
    np.testing.assert_array_equal(field, expected)


def add_up(comm: MPI.Cartcomm) -> None:
    total = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM, comm=comm))(jnp.ones(3))
    request = mpi.iallreduce(total, MPI.SUM, comm=comm)
    np.testing.assert_array_equal(mpi.wait(request), [SIZE**2] * 3)


def add_up_on_a_mesh(devices: list[jax.Device]) -> None:
    """JAX makes a communicator for the first of equal meshes, and keeps it."""
    sharding = NamedSharding(Mesh(np.array(devices), ("i",)), P("i"))
    own = jax.device_put(jnp.ones(1), jax.local_devices()[0])
    x = jax.make_array_from_single_device_arrays((len(devices),), sharding, [own])
    (total,) = sum_on_mesh(x).addressable_shards
    np.testing.assert_array_equal(total.data, len(devices))


@jax.jit
def sum_on_mesh(x: jax.Array) -> jax.Array:
    return jnp.sum(x)


def use_a_communicator(is_alone: bool) -> int:
    """Gives the number of MPI's handle for it."""
    comm = WORLD.Create_cart([SIZE], [True])
    exchange_ghost_cells(comm)
    add_up(comm)
    add_up_on_a_mesh(jax.local_devices() if is_alone else jax.devices())
    handle: int = comm.py2f()
    comm.Free()
    return handle


def main(count: int) -> None:
    distributed.initialize()
    # Python's collector knows little of a compiled program, however large that is, and may
    # look for it much later.
    gc.disable()
    handles: list[int] = []
    memory: list[int] = []
    start = time.perf_counter()
    for index in range(count + 1):
        if index % (count // 10) == 0:
            memory.append(resident_bytes())
            if RANK == 0:
                seconds = time.perf_counter() - start
                print(
                    f"{index} in {seconds:.0f} s: {memory[-1] / 2**20:.1f} MiB", flush=True
                )
        handles.append(use_a_communicator(is_alone=index % 2 == 0))
    first, last = handles[: count // 2], handles[count // 2 :]
    assert max(last) <= max(first), f"{max(first)} handles, then {max(last)}"
    # The first half fills caches.
    growth = memory[-1] - memory[5]
    assert growth < ROOM + MOST_LEFT * (count // 2), f"{growth} bytes"


if __name__ == "__main__":
    main(int(sys.argv[1]))
