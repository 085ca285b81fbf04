"""send and recv with a token that derivatives follow.

A message links two processes, and JAX sees one of them. A token that is passed from call
to call, and a loss that depends on it, make JAX transpose the calls on both. With x and y
for arrays and t for tokens, both calls are linear:

    send: x, t -> t'        transposed, recv: t' -> x, t
    recv: t -> y, t'        transposed, send: y, t' -> t

So each is transposed to its counterpart, as is the call on the other side, and the
cotangents of the tokens lead from the last call to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ..forms.token import LinearToken
from ..layout.packing import Tree, packed_groups, result_tree, unpack_groups
from ..mpi import handles
from ..xla.dependence import depend
from ..xla.jax_compat import ShapedArray, ad
from ._arguments import like
from ._transposes import is_inexact
from .primitive import Operation

_linear_operations: dict[str, LinearOperation] = {}


def get_linear(name: str) -> LinearOperation:
    """The linear form of `send` or `recv`, each of which refers to the other one."""
    return _linear_operations[name]


class LinearOperation(Operation):
    """A message with an array, and a token that is returned unchanged.

    The third operand, `origin`, is the token of the primal call where `x` and `token` are
    its tangents or cotangents. It depends on the primal array, so it is mapped over and
    differentiated whenever that is. Tangents and cotangents need not depend on it: those of
    a sum are constants. Without `origin`, JAX would then neither batch nor differentiate
    this side of the message, while the process on the other side does.
    """

    operands = ("x", "token", "origin")
    is_collective = False
    unlowered_params = ("is_tangent",)

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self._operation = operation
        _linear_operations[operation.name] = self

    def call(self, token: LinearToken, x: Any, **params: Any) -> tuple[Any, LinearToken]:
        """Call MPI for a user. Gives the result, or None, and the token that follows."""
        tree = Tree("x", x)
        leaf = token.leaf
        results = []
        for packed, group in packed_groups([tree.arrays(self.name)], 0):
            leaf = depend(leaf, *packed)
            *result, leaf = self.apply(*packed, leaf, leaf, is_tangent=False, **params)
            results += [(group, x) for x in result]
        leaves = unpack_groups(results, 0, 0)
        return result_tree(tree.structure, leaves), LinearToken(leaf)

    def apply(self, *operands: Any, **params: Any) -> Any:
        return self.primitive.bind(*operands, **params)

    def apply_back(self, x: Any, token: Any, origin: Any, **params: Any) -> Any:
        """Call MPI with cotangents, in the transpose of the call that gave `origin`."""
        # A batch of cotangents alone is allowed, unlike one of tangents: the process on
        # the other side transposes a map, too.
        return self.apply(x, token + origin, origin, is_tangent=False, **params)

    def written_aval(self, x: ShapedArray, *_: Any, **params: Any) -> ShapedArray | None:
        return self._operation.written_aval(x, **params)

    def read_operands(self, **params: Any) -> int:
        return self._operation.read_operands(**params)

    def forwarded_operand(self, **params: Any) -> int | None:
        return self._operation.forwarded_operand(**params)

    def result_avals(self, *avals: Any, **params: Any) -> list[ShapedArray]:
        _, token, _ = avals
        return [*super().result_avals(*avals, **params), like(token)]

    def lower(self, ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        _, token, _ = operands
        return [*super().lower(ctx, *operands, **params), token]

    def evaluate(self, *operands: Any, is_tangent: bool, **params: Any) -> list[Any]:
        x, token, _ = operands
        return [*self._operation.evaluate(x, **params), token]

    def check_batch(
        self, axes: Sequence[int | None], *, is_tangent: bool, **_: Any
    ) -> None:
        if is_tangent and axes[2] is None:
            raise RuntimeError(
                f"{self.name} with a token can't be used with jax.jacfwd, nor with "
                "jax.vmap over tangents alone: every process pushes a basis of its own, "
                "and what arrives is a derivative with respect to the array of another "
                "process. Use jax.jvp for one direction that all processes have in common."
            )

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        results = self.apply(*primals, **params)
        x, token, origin = map(ad.instantiate_zeros, tangents)
        # Where a tangent is differentiated, the call that it belongs to is, too.
        token = token + origin
        if not is_inexact(primals[0]):
            # Integers are constants: no message is sent for their derivative.
            zeros = [ad.Zero(ShapedArray(y.shape, jax.dtypes.float0)) for y in results[:-1]]
            return results, [*zeros, token]
        params["is_tangent"] = True
        if "status_number" in params:
            params["status_number"] = handles.NO_STATUS
        return results, self.apply(x, token, results[-1], **params)
