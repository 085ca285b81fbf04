"""send and recv with a token that derivatives follow.

A message links two processes, and JAX does not see how. A token that goes from call to
call, and a loss that depends on it, tell JAX on each of them that there is something to
come back to. With x and y for arrays and t for tokens, both calls are linear:

    send: x, t -> t'        transposed, recv: t' -> x, t
    recv: t -> y, t'        transposed, send: y, t' -> t

So each is transposed to its counterpart, as is the call on the other side, and the
cotangents of the tokens lead from the last call to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.checks import array
from ..forms.token import LinearToken, leaf_after
from ..mpi import handles
from ..xla.jax_compat import ShapedArray, ad
from .primitive import Operation

_found: dict[str, Linear] = {}


def linear(name: str) -> Linear:
    """The form of an operation that has a token: each of the two refers to the other."""
    return _found[name]


class Linear(Operation):
    """An operation on an array, with a token beside it, which comes out as it went in.

    The third operand is the token of the call itself, when the others are tangents or
    cotangents. It depends on the call's array, and so is mapped over and differentiated
    where that is. A tangent or a cotangent need not be: that of a sum is a constant, say.
    The process on the other side would still wait for a batch, or for its derivative.

    Arguments:
        operation: The operation.
        transpose: Gives the cotangents of the array and of the token, from those of the
            results, an array of zeros like the operand, the call's token, and the
            parameters.

    """

    def __init__(self, operation: Operation, transpose: Callable[..., Any]) -> None:
        super().__init__(
            operation.name,
            operands=("x", "token", "origin"),
            result=lambda x, *_, **params: operation._result(x, **params),
            sent=operation._sent,
            kept=operation._kept,
            not_lowered=("is_tangent",),
        )
        self._operation = operation
        self._transpose = transpose
        self.def_jvp(self._jvp)
        ad.primitive_transposes[self.primitive] = self._transposed
        _found[operation.name] = self

    def on(self, token: LinearToken, x: Any, **params: Any) -> tuple[Any, LinearToken]:
        """Call MPI for a user. Gives the result, or None, and the token that follows."""
        x = jnp.asarray(array(self.name, "x", x))
        leaf = leaf_after(token.leaf, x)
        *results, leaf = self.apply(x, leaf, leaf, is_tangent=False, **params)
        return (results[0] if results else None), LinearToken(leaf)

    def apply(self, *operands: Any, **params: Any) -> Any:
        return self.primitive.bind(*operands, **params)

    def _evaluate(self, *operands: Any, is_tangent: bool, **params: Any) -> list[Any]:  # type: ignore[override]
        x, token, _ = operands
        return [*self._operation._evaluate(x, **params), token]

    def _abstract_eval(self, *avals: Any, **params: Any) -> Any:
        results, effects = super()._abstract_eval(*avals, **params)
        _, token, _ = avals
        return [*results, ShapedArray(token.shape, token.dtype)], effects

    def _lower(self, ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        _, token, _ = operands
        return [*super()._lower(ctx, *operands, **params), token]

    def _jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        results = self.apply(*primals, **params)
        x, token, origin = map(ad.instantiate_zeros, tangents)
        # Where a tangent is differentiated, the call that it belongs to is, too.
        token = token + origin
        if not jnp.issubdtype(primals[0].dtype, jnp.inexact):
            # What is sent is a constant: nothing comes with its derivative.
            zeros = [ad.Zero(ShapedArray(y.shape, jax.dtypes.float0)) for y in results[:-1]]
            return results, [*zeros, token]
        params["is_tangent"] = True
        if "status_number" in params:
            params["status_number"] = handles.NO_STATUS
        return results, self.apply(x, token, results[-1], **params)

    def _transposed(
        self, cotangents: Sequence[Any], *operands: Any, **params: Any
    ) -> list[Any]:
        x, _, origin = operands
        aval = x.aval if ad.is_undefined_primal(x) else x
        params["is_tangent"] = False  # A cotangent may be mapped over by itself.
        *given, token = map(ad.instantiate_zeros, cotangents)
        zeros = jnp.zeros(aval.shape, aval.dtype)
        found = self._transpose(*given, token + origin, zeros, origin, **params)
        pairs = zip(found, operands[:2], strict=True)
        return [*(y if ad.is_undefined_primal(x) else None for y, x in pairs), None]

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        if params["is_tangent"] and axes[2] is None:
            raise RuntimeError(
                f"{self.name} with a token can't be used with jax.jacfwd, nor with "
                "jax.vmap over tangents alone: every process pushes a basis of its own, "
                "and what arrives is a derivative with respect to the array of another "
                "process. Use jax.jvp for one direction that all processes have in common."
            )
        return super()._batch(operands, axes, **params)
