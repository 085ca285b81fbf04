"""MPI operations as primitives of JAX."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..xla.jax_compat import ad, batching
from ._batching import batch
from ._eager import EagerCalls
from ._lowering import lower, lower_everywhere
from ._transposes import transpose


class Operation(EagerCalls):
    """An MPI operation on arrays, with its primitive and all of JAX's rules for that.

    A subclass is the declaration of an operation, by what it overrides of
    :class:`Declaration`. An instance calls it for users.
    """

    def __init__(self) -> None:
        super().__init__()
        self.primitive.multiple_results = True
        self.primitive.def_impl(self.evaluate)
        self.primitive.def_effectful_abstract_eval(self.abstract_eval)
        lower_everywhere(self.primitive, self.lower)
        batching.primitive_batchers[self.primitive] = functools.partial(batch, self)
        ad.primitive_jvps[self.primitive] = self.jvp
        ad.primitive_transposes[self.primitive] = functools.partial(transpose, self)

    def lower(self, ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        """The results of the handler's call in a program that is being lowered."""
        return lower(self, ctx, *operands, **params)
