from mpi4jax._internal.operations.allreduce import operation

from .. import allreduce as allreduce

mpi_allreduce_p = operation.primitive
