from mpi4jax._internal.operations.gather import operation

from .. import gather as gather

mpi_gather_p = operation.primitive
