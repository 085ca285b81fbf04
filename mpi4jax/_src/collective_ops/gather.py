from mpi4jax._internal.operations.gather import Gather

from .. import gather as gather

mpi_gather_p = Gather.primitive
