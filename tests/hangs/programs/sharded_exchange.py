"""In a sharded program, all messages but one are sent."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from mpi4jax import distributed
from mpi4jax import notoken as mpi

distributed.initialize()
size = jax.process_count()
mesh = Mesh(jax.devices(), "i")
rows = NamedSharding(mesh, P("i"))
x = jax.make_array_from_process_local_data(rows, np.ones((1, 3), np.float32))


def body(x):
    rank = lax.axis_index("i")
    left, right = (rank - 1) % size, (rank + 1) % size
    dest = jnp.where(rank == 0, MPI.PROC_NULL, right)
    first = mpi.wait(mpi.iexchange([x], [x], [left], [right]))
    second = mpi.exchange(
        [x, x], [x, x], [left, right], [dest, left], sendtag=[1, 2], recvtag=[1, 2]
    )
    return lax.psum(first[0] + second[0], "i")


program = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
jax.block_until_ready(jax.jit(program)(x))
