"""A program for mpi4jax 0.7: tokens at the top level."""

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import mpi4jax
from mpi4jax.typing import Comm, Op, Token

comm = MPI.COMM_WORLD
status = MPI.Status()
rank, size = comm.Get_rank(), comm.Get_size()


@jax.jit
def mean(x: jax.Array) -> jax.Array:
    total, token = mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)
    reveal_type(total)  # Array
    reveal_type(token)  # Token
    total, token = mpi4jax.bcast(total, 0, comm=comm, token=token)
    return total / size


def add(
    x: jax.Array, op: Op, token: Token | None = None, comm: Comm = None
) -> tuple[jax.Array, Token]:
    total, token = mpi4jax.allreduce(x, op, comm=comm, token=token)
    return total, mpi4jax.send(total, 0, token=token)


x = jnp.ones((size, 3))
token = mpi4jax.barrier()
reveal_type(add(x, MPI.SUM, token)[1])  # Token
token.block_until_ready()
reveal_type(token)  # Token
reveal_type(mpi4jax.send(x, np.int32(0), tag=1, token=token))  # Token
reveal_type(mpi4jax.recv(x, source=0, status=status))  # tuple[Array, Token]
reveal_type(mpi4jax.allgather(np.ones(3), comm=comm)[0])  # Array
reveal_type(mpi4jax.alltoallv(x, [1] * size, np.ones(size, int))[0])  # Array
counts = jnp.ones(size, int)
reveal_type(mpi4jax.alltoallv(x, counts, capacity=9)[0])  # tuple[Array, Array]
grid = MPI.COMM_WORLD.Create_cart([size], [True])
reveal_type(mpi4jax.neighbor_alltoall(x[:2], fill_value=1.5, comm=grid)[0])  # Array
reveal_type(mpi4jax.sendrecv(1.0, 2, 0, 0, token=None)[0])  # Array
reveal_type(mpi4jax.reduce(x, MPI.SUM, 0, token=None)[0])  # Array
reveal_type(mpi4jax.has_cuda_support())  # bool
reveal_type(mpi4jax.wrap_as_hashable(comm))  # HashableMPIType[Intracomm]
reveal_type(mpi4jax.unpack_hashable(mpi4jax.wrap_as_hashable(comm)))  # Intracomm
reveal_type(mpi4jax.scan(x, mpi4jax.wrap_as_hashable(MPI.MAX))[0])  # Array
reveal_type(mpi4jax.notoken.scatter(x, root=0))  # Array
reveal_type(mpi4jax.tree.allreduce({"a": x}, MPI.SUM)[0])  # dict[str, Array]
reveal_type(mpi4jax.allreduce([x], MPI.SUM)[0])  # list[Array]
reveal_type(mpi4jax.allgatherv((x,), 1, capacity=9)[0])  # tuple[tuple[Array], Array]
reveal_type(mpi4jax.notoken.tree.bcast([x], 0))  # list[Array]
reveal_type(mpi4jax.notoken.sendrecv(x, {"a": x}, 0, 0))  # dict[str, Array]
reveal_type(mpi4jax.unstructured.Plan.from_global(x).size)  # int
linear = mpi4jax.create_token({"a": x})
reveal_type(mpi4jax.send(x, 0, token=linear))  # Token
reveal_type(mpi4jax.tie(x, linear))  # Array
request = mpi4jax.iallreduce(x, MPI.SUM)
reveal_type(request)  # Request[Array]
reveal_type(mpi4jax.wait(request))  # Array
reveal_type(mpi4jax.isend(x, 0, token=token))  # tuple[Request[None], Token]
reveal_type(mpi4jax.wait(request, token=token)[0])  # Array
reveal_type(mpi4jax.overlap(lambda: 1, during=lambda: x))  # tuple[int, Array]
reveal_type(mpi4jax.notoken.irecv(x, 0))  # Request[Array]

mpi4jax.alltoall()  # error
mpi4jax.allreduce(x, op=sum)  # error
mpi4jax.allreduce(x, op=MPI.SUM, token=3)  # error
mpi4jax.bcast(x, "0")  # error
mpi4jax.barrier(comm="world")  # error
add(x, MPI.SUM, token=3)  # error
mpi4jax.isend(x, 0, token=3)  # error
mpi4jax.alreduce(x, op=MPI.SUM)  # error
