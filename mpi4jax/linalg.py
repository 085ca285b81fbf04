"""Sums and linear solvers on vectors that are divided among the processes."""

from __future__ import annotations

import typing as _typing

from ._internal.linalg.bicgstab import bicgstab
from ._internal.linalg.cg import cg
from ._internal.linalg.gmres import gmres
from ._internal.linalg.norms import max_norm, rms_norm
from ._internal.linalg.products import norm, sum, vdot
from ._internal.linalg.solve import Info, Reason

if _typing.TYPE_CHECKING:
    from ._internal.linalg.for_lineax import CG as CG
    from ._internal.linalg.for_lineax import GMRES as GMRES
    from ._internal.linalg.for_lineax import BiCGStab as BiCGStab

__all__ = [
    "Info",
    "Reason",
    "bicgstab",
    "cg",
    "gmres",
    "max_norm",
    "norm",
    "rms_norm",
    "sum",
    "vdot",
]

#: The solvers for lineax, which need it: they are made when a program first names them.
_FOR_LINEAX = ("BiCGStab", "CG", "GMRES")

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any:
        if name in _FOR_LINEAX:
            from ._internal.linalg import for_lineax

            return getattr(for_lineax, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_FOR_LINEAX})
