"""The private modules of the original mpi4jax, for programs that import them.

They are for others: nothing of mpi4jax's own imports them, and `import mpi4jax` does not
load them. What of the original's names is left out stands in
`tests/process/names_left_out.txt`, with the reasons. For new programs there are
`mpi4jax.extend`, `mpi4jax.wrap_as_hashable` and `mpi4jax.unpack_hashable`.
"""

from mpi4jax import *
from mpi4jax._internal.xla.jax_compat import check_jax_version
from mpi4jax.notoken import __all__ as __all__

# The original has imported all of its modules when it is imported itself.
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

# The original compares versions here, and its tests reload this module to see that.
if "_is_loaded" in globals():
    check_jax_version()
_is_loaded = True
