"""Arrays that are divided among processes along some axes, and then along others."""

from ._internal.pencil.layout import Layout
from ._internal.pencil.on_mesh import MeshLayout

__all__ = ["Layout", "MeshLayout"]
