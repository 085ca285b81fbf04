from mpi4jax._internal.operations.scatter import operation

from .. import scatter as scatter

mpi_scatter_p = operation.primitive
