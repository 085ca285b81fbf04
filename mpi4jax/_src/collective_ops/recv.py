from mpi4jax._internal.operations.recv import Recv

from .. import recv as recv

mpi_recv_p = Recv.primitive
