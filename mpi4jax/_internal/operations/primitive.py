"""MPI operations as primitives of JAX."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..xla.jax_compat import ad, batching
from ._batching import batch
from ._declaration import Declaration
from ._eager import EagerCalls
from ._lowering import lower, lower_everywhere
from ._transposes import transpose


class Operation(Declaration):
    """An MPI operation on arrays, with its primitive and all of JAX's rules for that.

    A subclass is the declaration of an operation, by what it overrides of
    :class:`Declaration`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.eager = EagerCalls(self.name, self._apply_in_program, self.forwarded_operand)
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

    def evaluate(self, *operands: Any, **params: Any) -> list[Any]:
        """The results of a primitive that is bound outside of a trace."""
        result = self.eager.evaluate(params["communicator"], operands, params)
        return [] if result is None else [result]

    def _apply_in_program(self, *operands: Any, **params: Any) -> Any:
        # A list has the leaves of a tree.
        is_list = bool(operands) and type(operands[0]) is list
        apply = self.apply_to_leaves if is_list else self.apply
        return apply(*operands, **params)
