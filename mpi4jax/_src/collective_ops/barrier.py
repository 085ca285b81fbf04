from mpi4jax._internal.operations.barrier import operation

from .. import barrier as barrier

mpi_barrier_p = operation.primitive
