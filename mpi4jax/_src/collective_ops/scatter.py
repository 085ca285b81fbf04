from mpi4jax._internal.operations.scatter import Scatter

from .. import scatter as scatter

mpi_scatter_p = Scatter.primitive
