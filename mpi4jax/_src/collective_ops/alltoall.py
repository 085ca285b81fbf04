from mpi4jax._internal.operations.alltoall import operation

from .. import alltoall as alltoall

mpi_alltoall_p = operation.primitive
