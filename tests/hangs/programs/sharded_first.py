"""Rank 1 does not start a sharded program, which has never run."""

import jax
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
    return lax.psum(x - mpi.allreduce(x, MPI.SUM), "i")


program = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
mpi.barrier()
if jax.process_index() == 0:
    jax.block_until_ready(jax.jit(program)(x))
else:
    mpi.barrier()
