from mpi4jax._internal.operations.recv import operation

from .. import recv as recv

mpi_recv_p = operation.primitive
