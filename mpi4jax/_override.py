"""`typing.override`, which Python has from 3.12 on.

Imports nothing but Python's own modules: commands use it where neither MPI nor JAX can be
imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["override"]

if TYPE_CHECKING:
    from typing_extensions import override
else:
    F = TypeVar("F", bound=Callable[..., Any])

    def override(method: F) -> F:
        """Mark a method that overrides one of a base class, for type checkers."""
        return method
