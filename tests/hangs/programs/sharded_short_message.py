"""A rank of a sharded program sends fewer elements than the other one receives."""

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
mesh = Mesh(jax.devices(), "i")
rows = NamedSharding(mesh, P("i"))
x = jax.make_array_from_process_local_data(rows, np.ones((1, 3), np.float32))


def body(x):
    rank = lax.axis_index("i")
    x = lax.psum(x, "i")
    mpi.send(x[:, 1:], jnp.where(rank == 0, 1, MPI.PROC_NULL), tag=7)
    return mpi.recv(x, jnp.where(rank == 1, 0, MPI.PROC_NULL), tag=7)


program = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
jax.block_until_ready(jax.jit(program)(x))
