from mpi4jax._internal.operations.sendrecv import SendRecv

from .. import sendrecv as sendrecv

mpi_sendrecv_p = SendRecv.primitive
