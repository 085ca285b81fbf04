"""Redistribution of arrays that are divided among processes along some axes."""

from ._internal.pencil.layout import Layout

__all__ = ["Layout"]
