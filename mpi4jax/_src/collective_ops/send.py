from mpi4jax._internal.operations.send import Send

from .. import send as send

mpi_send_p = Send.primitive
