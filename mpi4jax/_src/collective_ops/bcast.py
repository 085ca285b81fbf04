from mpi4jax._internal.operations.bcast import operation

from .. import bcast as bcast

mpi_bcast_p = operation.primitive
