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
from dataclasses import dataclass, replace
from typing import ClassVar

import jax

from mpi4jax._override import override

from ..arguments.types import Array, PyTree
from ..layout.packing import Tree, packed_groups, result_tree, unpack_groups
from ..older_api.token import LinearToken
from ..xla.dependence import depend
from ..xla.jax_compat import LoweringContext, ShapedArray, Tangent, Value, ad
from ._arguments import like
from ._lowering import Attributes
from ._operation import Operation
from ._transposes import Jvp, instantiated, is_inexact


@dataclass(frozen=True)
class LinearOperation(Operation):
    """A message with an array, and a token that is returned unchanged.

    The third operand, `origin`, is the token of the primal call where `x` and `token` are
    its tangents or cotangents. It depends on the primal array, so it is mapped over and
    differentiated whenever the array is. Tangents and cotangents need not depend on the
    array: the cotangents of a sum are constants. Without `origin`, JAX would then neither
    batch nor differentiate this side of the message, unlike the process on the other side.
    """

    #: The operation without a token.
    plain: Operation
    is_tangent: bool = False

    operands: ClassVar[tuple[str, ...]] = ("x", "token", "origin")
    is_collective = False

    def call(
        self, token: LinearToken, x: PyTree, *ranks: Array
    ) -> tuple[PyTree, LinearToken]:
        """Call MPI for a user. Returns the result, or None, and the next token."""
        tree = Tree("x", x)
        leaf = token.leaf
        results = []
        for (packed,), group in packed_groups([tree.arrays(self.name)], 0):
            assert packed is not None, "the only tree has all groups"
            leaf = depend(leaf, packed)
            *result, leaf = self.bind(packed, leaf, leaf, *ranks)
            results += [(group, x) for x in result]
        leaves = unpack_groups(results, 0, 0)
        return result_tree(tree.structure, leaves), LinearToken(leaf)

    def bind_back(
        self, x: Array, token: Array, origin: Array, *ranks: Array
    ) -> list[Array]:
        """Call MPI with cotangents, in the transpose of the call that gave `origin`."""
        # A batch of cotangents alone is allowed, unlike one of tangents: the process on
        # the other side transposes a map, too.
        return self.bind(x, token + origin, origin, *ranks)

    def tangents_operation(self) -> LinearOperation:
        """The operation on tangents."""
        return replace(self, is_tangent=True)

    @override
    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray | None:
        return self.plain.written_aval(x)

    @override
    def ranks(self) -> Sequence[int]:
        return self.plain.ranks()

    @override
    def read_operands(self) -> int:
        return self.plain.read_operands()

    @override
    def forwarded_operand(self) -> int | None:
        return self.plain.forwarded_operand()

    @override
    def attributes(self) -> Attributes:
        return self.plain.attributes()

    @override
    def result_avals(self, *avals: ShapedArray) -> list[ShapedArray]:
        _, token, *_ = avals
        return [*super().result_avals(*avals), like(token)]

    @override
    def lower(self, ctx: LoweringContext, *operands: Value) -> Sequence[Value]:
        _, token, *_ = operands
        return [*super().lower(ctx, *operands), token]

    @override
    def evaluate(self, *operands: Array) -> list[Array]:
        x, token, _, *ranks = operands
        return [*self.plain.evaluate(x, *ranks), token]

    @override
    def check_batch(self, axes: Sequence[int | None]) -> None:
        if self.is_tangent and axes[2] is None:
            raise RuntimeError(
                f"{self.name} with a token can't be used with jax.jacfwd, nor with "
                "jax.vmap over tangents alone: every process pushes a basis of its own, "
                "and what arrives is a derivative with respect to the array of another "
                "process. Use jax.jvp for one direction that all processes have in common."
            )

    @override
    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> Jvp:
        results = self.bind(*primals)
        arrays, ranks = self.split_operands(primals)
        x, token, origin = instantiated(tangents[: len(arrays)])
        # Where a tangent is differentiated, the call that it belongs to is, too.
        token = token + origin
        if not is_inexact(primals[0]):
            # Integers are constants: no message is sent for their derivative.
            zeros = [ad.Zero(ShapedArray(y.shape, jax.dtypes.float0)) for y in results[:-1]]
            return results, [*zeros, token]
        return results, self.tangents_operation().bind(x, token, results[-1], *ranks)
