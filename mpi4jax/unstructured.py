"""Unstructured meshes: ghost rows by index lists, one message per neighbor."""

from ._internal.unstructured.plan import Plan

__all__ = ["Plan"]
