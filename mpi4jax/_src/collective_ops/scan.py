from mpi4jax._internal.operations.scan import Scan

from .. import scan as scan

mpi_scan_p = Scan.primitive
