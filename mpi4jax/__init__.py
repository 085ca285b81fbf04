"""MPI operations on JAX arrays, inside jax.jit."""

import importlib as _importlib
import sys as _sys
import typing as _typing
from importlib.util import find_spec as _find_spec

# Python imports this package before it runs `python -m mpi4jax`, and sets argv[0] to "-m"
# meanwhile. The commands have to start even where MPI or JAX can't be imported.
_is_for_command = getattr(_sys, "argv", [])[:1] == ["-m"] and (
    _sys.orig_argv[-len(_sys.argv)] in ("mpi4jax", "-mmpi4jax")
)

# Without mpi4py, which pip installs unless told not to, the import works, as for building
# documentation. What a program then names raises the error.
_has_mpi4py = "mpi4py" in _sys.modules or _find_spec("mpi4py") is not None

#: The modules that are imported when a program first names them.
_MODULES_ON_DEMAND = (
    "_src",
    "diagnostics",
    "distributed",
    "extend",
    "fft",
    "files",
    "pencil",
    "typing",
    "unstructured",
)

if _typing.TYPE_CHECKING:
    from . import diagnostics as diagnostics
    from . import distributed as distributed
    from . import extend as extend
    from . import fft as fft
    from . import files as files
    from . import pencil as pencil
    from . import typing as typing
    from . import unstructured as unstructured

if _typing.TYPE_CHECKING or (_has_mpi4py and not _is_for_command):
    # So that `import mpi4jax` is enough for `mpi4jax.notoken.allreduce`.
    from . import experimental as experimental
    from . import halo as halo
    from . import linalg as linalg
    from . import notoken as notoken
    from . import tree as tree
    from ._default_api import *
    from ._internal import versions as _versions
    from ._internal.arguments.hashable import HashableMPIType as HashableMPIType
    from ._internal.arguments.hashable import unpack_hashable as unpack_hashable
    from ._internal.arguments.hashable import wrap_as_hashable as wrap_as_hashable
    from ._internal.mpi.binding import MPI as MPI
    from ._internal.mpi.context import prepare_gpu as prepare_gpu
    from ._internal.mpi.device import has_cuda_support as has_cuda_support
    from ._internal.mpi.device import has_sycl_support as has_sycl_support
    from ._internal.mpi.meshes import axis_comm as axis_comm
    from ._internal.nonblocking.requests import Request as Request
    from ._internal.older_api.token import LinearToken as LinearToken
    from ._internal.older_api.token import create_token as create_token
    from ._internal.older_api.token import tie as tie

    __version__ = _versions.VERSION

if not _typing.TYPE_CHECKING and not _has_mpi4py:

    def __getattr__(name: str) -> _typing.Any:
        if not name.startswith("_"):
            from . import _mpi

            _mpi.load()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

elif not _typing.TYPE_CHECKING and not _is_for_command:
    __all__ = [name for name in dir() if not name.startswith("_")]

    def __getattr__(name: str) -> _typing.Any:
        if name in _MODULES_ON_DEMAND:
            return _importlib.import_module(f"{__name__}.{name}")
        if name in ("Allreduce", "Bcast", "Recv", "Send", "Sendrecv"):
            from ._internal.older_api.capitalised import capitalised

            return capitalised(getattr(experimental.tokens, name.lower()))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES_ON_DEMAND})
