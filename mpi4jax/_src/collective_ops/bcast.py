from mpi4jax._internal.operations.bcast import Bcast

from .. import bcast as bcast

mpi_bcast_p = Bcast.primitive
