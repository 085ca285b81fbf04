"""The private modules of the original mpi4jax, for programs that import them.

mpi4jax itself does not import them. `tests/package/names_left_out.txt` lists the names of
the original that are missing, with the reasons. New programs can use `mpi4jax.extend`,
`mpi4jax.wrap_as_hashable` and `mpi4jax.unpack_hashable`.
"""

from mpi4jax import *
from mpi4jax._internal.xla.jax_compat import check_jax_version
from mpi4jax.notoken import __all__ as __all__

# The original imports all of its modules, too.
from . import (
    collective_ops,
    comm,
    decorators,
    flush,
    jax_compat,
    utils,
    validation,
    xla_bridge,
)

# The original checks JAX's version here, and its tests reload this module to test that.
if "_is_loaded" in globals():
    check_jax_version()
_is_loaded = True
