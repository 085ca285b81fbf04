"""JAX's own programs over several processes, with MPI for all that they exchange.

`docs/distributed.md` has an example.
"""

from ._internal.distributed.collectives import initialize as initialize

__all__ = ["initialize"]
