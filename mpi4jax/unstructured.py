"""Unstructured meshes and particles: what moves between processes in an irregular way."""

from ._internal.unstructured.migration import Migrated, migrate

__all__ = ["Migrated", "migrate"]
