"""In a turn of a sharded loop, rank 0 waits for a message, and the other one in a sum."""

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


def step(turn, x):
    is_receiver = (lax.axis_index("i") == 0) & (turn == 1)
    x = mpi.recv(x, source=jnp.where(is_receiver, 1, MPI.PROC_NULL), tag=5)
    return lax.psum(x, "i")


def body(x):
    return lax.fori_loop(0, 3, step, x)


program = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
jax.block_until_ready(jax.jit(program)(x))
