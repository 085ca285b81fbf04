"""Redistribution of arrays that are divided among processes along some axes."""

from ._internal.pencil.layout import Layout
from ._internal.pencil.on_mesh import MeshLayout

__all__ = ["Layout", "MeshLayout"]
