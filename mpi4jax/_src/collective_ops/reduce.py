from mpi4jax._internal.operations.reduce import Reduce

from .. import reduce as reduce

mpi_reduce_p = Reduce.primitive
