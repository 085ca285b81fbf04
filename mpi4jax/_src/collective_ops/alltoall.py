from mpi4jax._internal.operations.alltoall import AllToAll

from .. import alltoall as alltoall

mpi_alltoall_p = AllToAll.primitive
