from mpi4jax._internal.operations.allgather import operation

from .. import allgather as allgather

mpi_allgather_p = operation.primitive
