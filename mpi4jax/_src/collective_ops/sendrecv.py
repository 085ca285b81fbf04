from mpi4jax._internal.operations.sendrecv import operation

from .. import sendrecv as sendrecv

mpi_sendrecv_p = operation.primitive
