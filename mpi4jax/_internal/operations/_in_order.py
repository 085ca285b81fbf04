"""A call without effect, in order with all calls of MPI, whose results are its operands.

What is computed of the results comes after all earlier calls, and what the operands are
computed of before all later ones. JAX takes it for an effect: it is never made twice, and
`jax.checkpoint` saves its results.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import _mpi

from ..arguments.types import Array, ArrayLike
from ..xla.effects import custom_call_target, leave_out, lower_in_order, ordered_effect
from ..xla.jax_compat import (
    LoweringContext,
    Primitive,
    Value,
    Zero,
    ad,
    batching,
    def_eager,
)
from ._alone import leaves_out_calls
from ._lowering import lower_everywhere

ordering_barrier_p = Primitive("ordering_barrier_mpi")
ordering_barrier_p.multiple_results = True
def_eager(ordering_barrier_p)


def _lower(ctx: LoweringContext, *operands: Value) -> list[Value]:
    # With an MPI, one process may have others that it has spawned, or was spawned by.
    if _mpi.is_missing(MPI.Get_library_version()) and leaves_out_calls(ctx, 1):
        leave_out(ctx, "in_order")
        return list(operands)
    target = custom_call_target("in_order")
    aliases = {n: n for n in range(len(operands))}
    return lower_in_order(ctx, target, operands, {}, aliases=aliases, takes_slices=False)


def _bind_nonzero(values: Sequence[Array | Zero]) -> list[Array | Zero]:
    """A barrier for those tangents or cotangents that are not symbolic zeros."""
    nonzero = [x for x in values if type(x) is not ad.Zero]
    results = iter(ordering_barrier_p.bind(*nonzero) if nonzero else ())
    return [x if type(x) is ad.Zero else next(results) for x in values]


ordering_barrier_p.def_effectful_abstract_eval(
    # All else of a type stays: what it varies over inside of a `shard_map`.
    lambda *avals: ([x.update(weak_type=False) for x in avals], {ordered_effect})
)
ad.primitive_jvps[ordering_barrier_p] = lambda primals, tangents: (
    ordering_barrier_p.bind(*primals),
    _bind_nonzero(tangents),
)
ad.primitive_transposes[ordering_barrier_p] = lambda cotangents, *_: _bind_nonzero(
    cotangents
)
batching.primitive_batchers[ordering_barrier_p] = lambda operands, axes: (
    ordering_barrier_p.bind(*operands),
    axes,
)
lower_everywhere(ordering_barrier_p, _lower)


def in_order(leaves: Collection[ArrayLike]) -> list[Array]:
    """The values themselves, in order with the calls of MPI."""
    return list(ordering_barrier_p.bind(*map(jnp.asarray, leaves))) if leaves else []
