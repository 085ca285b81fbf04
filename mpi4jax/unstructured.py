"""Unstructured meshes: ghost rows by index lists, one message per neighbor."""

from ._internal.unstructured.on_mesh import MeshPlan
from ._internal.unstructured.plan import Plan

__all__ = ["MeshPlan", "Plan"]
