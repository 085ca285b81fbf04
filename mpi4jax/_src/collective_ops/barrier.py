from mpi4jax._internal.operations.barrier import Barrier

from .. import barrier as barrier

mpi_barrier_p = Barrier.primitive
