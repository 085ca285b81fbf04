"""A program for mpi4jax 0.9: no tokens at the top level."""

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import mpi4jax
from mpi4jax import allgather, extend, notoken
from mpi4jax.experimental import auto_tokenize, tokens
from mpi4jax.typing import Comm, Op, RankTree

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


def total(x: jax.Array, comm: mpi4jax.HashableMPIType[MPI.Intracomm]) -> jax.Array:
    return mpi4jax.allreduce(x, op=MPI.SUM, comm=mpi4jax.unpack_hashable(comm))


def spread(x: jax.Array, op: Op, to: RankTree, comm: Comm = None) -> list[jax.Array]:
    total = mpi4jax.allreduce(x, op, comm=comm)
    return mpi4jax.exchange([total, total], [x, x], to, to, comm=comm)


@auto_tokenize
def shift(x: jax.Array, by: int) -> jax.Array:
    return mpi4jax.sendrecv(x, x, (rank - by) % size, (rank + by) % size)


x = jnp.ones((size, 3))
reveal_type(mpi4jax.barrier())  # None
reveal_type(mpi4jax.send(x, np.int32(0), tag=1))  # None
reveal_type(mpi4jax.recv(x, source=0, status=MPI.Status()))  # Array
reveal_type(allgather(np.ones(3), comm=comm).shape)  # tuple[int, ...]
reveal_type(mpi4jax.alltoallv(x, [1] * size, np.ones(size, int)))  # Array
counts = jnp.ones(size, int)
reveal_type(mpi4jax.alltoallv(x, counts, capacity=9))  # tuple[Array, Array]
reveal_type(mpi4jax.reduce_scatter(x, MPI.SUM))  # Array
grid = comm.Create_cart([size], [True])
reveal_type(mpi4jax.neighbor_alltoall(x[:2], fill_value=1.5, comm=grid))  # Array
reveal_type(mpi4jax.pencil.Layout(grid, (2, 2), axes=[0]).axes)  # tuple[int, ...]
reveal_type(notoken.exscan(x, MPI.SUM))  # Array
reveal_type(shift(x, 1))  # Array
reveal_type(spread(x, MPI.SUM, [0, 0]))  # list[Array]
reveal_type(spread(x, MPI.SUM, to=({"a": 0}, None)))  # list[Array]
reveal_type(total(x, mpi4jax.wrap_as_hashable(comm)))  # Array
reveal_type(mpi4jax.unpack_hashable(mpi4jax.wrap_as_hashable(MPI.SUM)))  # Op
reveal_type(extend.communicator_number(comm))  # int
reveal_type(mpi4jax.tree.allreduce({"a": x}, MPI.SUM))  # dict[str, Array]
reveal_type(notoken.tree.bcast([x], 0))  # list[Array]
request = mpi4jax.iallreduce(x, MPI.SUM)
reveal_type(request)  # Request[Array]
reveal_type(mpi4jax.wait(request))  # Array
reveal_type(mpi4jax.overlap(lambda: 1, during=lambda: x))  # tuple[int, Array]
linear = mpi4jax.create_token({"a": x})
reveal_type(tokens.recv(x, 0, token=linear))  # tuple[Array, Token]
reveal_type(mpi4jax.tie(x, linear))  # Array
reveal_type(tokens.ibcast(x, 0, token=linear)[0])  # Request[Array]

mpi4jax.alltoall()  # error
mpi4jax.allreduce(x, op=MPI.SUM, token=None)  # error
mpi4jax.gather(x, None)  # error
spread(x, MPI.SUM, MPI.SUM)  # error
spread(x, "sum", 0)  # error
mpi4jax.isend(x, 0, token=None)  # error
total(x, comm)  # error
y, token = mpi4jax.barrier()  # error
notoken.alreduce(x, op=MPI.SUM)  # error
