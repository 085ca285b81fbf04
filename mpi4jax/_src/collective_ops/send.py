from mpi4jax._internal.operations.send import operation

from .. import send as send

mpi_send_p = operation.primitive
