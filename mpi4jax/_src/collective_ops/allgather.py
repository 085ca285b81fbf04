from mpi4jax._internal.operations.allgather import AllGather

from .. import allgather as allgather

mpi_allgather_p = AllGather.primitive
