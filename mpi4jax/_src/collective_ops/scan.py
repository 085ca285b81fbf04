from mpi4jax._internal.operations.scan import operation

from .. import scan as scan

mpi_scan_p = operation.primitive
