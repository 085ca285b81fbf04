from mpi4jax._internal.operations.reduce import operation

from .. import reduce as reduce

mpi_reduce_p = operation.primitive
