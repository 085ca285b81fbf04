"""Unstructured meshes and particles: ghost rows by index lists, and migration."""

from ._internal.unstructured.migration import Migrated, migrate
from ._internal.unstructured.on_mesh import MeshPlan
from ._internal.unstructured.plan import Plan

__all__ = ["MeshPlan", "Migrated", "Plan", "migrate"]
