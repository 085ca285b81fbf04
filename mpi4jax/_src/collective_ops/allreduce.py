from mpi4jax._internal.operations.allreduce import AllReduce

from .. import allreduce as allreduce

mpi_allreduce_p = AllReduce.primitive
