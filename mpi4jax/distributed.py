"""JAX's own programs over several processes, which exchange their data by MPI.

`docs/distributed.md` has an example.
"""

from ._internal.distributed.collectives import initialize as initialize

__all__ = ["initialize"]
