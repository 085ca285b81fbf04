"""Halo exchange: fill the ghost cells of many fields with one message per neighbor."""

from ._internal.halo.plan import Plan

__all__ = ["Plan"]
