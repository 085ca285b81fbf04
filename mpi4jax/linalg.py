"""Sums and linear solvers on vectors that are divided among the processes."""

from ._internal.linalg.bicgstab import bicgstab
from ._internal.linalg.cg import cg
from ._internal.linalg.gmres import gmres
from ._internal.linalg.norms import max_norm, rms_norm
from ._internal.linalg.products import norm, sum, vdot
from ._internal.linalg.solve import Info, Reason

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
