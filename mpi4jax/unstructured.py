"""Unstructured meshes and particles: ghost rows by index lists, and migration."""

from ._internal.unstructured.migration import Migrated, migrate
from ._internal.unstructured.plan import Plan

__all__ = ["Migrated", "Plan", "migrate"]
