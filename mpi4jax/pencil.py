"""Arrays that are divided among processes along some axes, and then along others."""

from ._internal.pencil.layout import Layout

__all__ = ["Layout"]
