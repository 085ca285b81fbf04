"""Values that all processes share, and that each uses differently from here on.

Let the processes have one value x, and let each process r go on with y_r = x by itself. The
cotangents of all y_r are cotangents of x:

    ct(x) = sum_r ct(y_r),

an allreduce, whose result is one value again. As a linear map this is the transpose of an
allreduce as `operations/_shared.py` describes it, so that one is its transpose, too. The
tangent of x is one value like x, and each process goes on with it: the identity.

The map is a primitive, `shared_p`, on all leaves of a tree, of which nothing is left in a
compiled program but the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from .arguments.dtypes import SUM, avals_of, carrier_aval
from .arguments.types import Array, Comm
from .environment import settings
from .layout.packing import Tree, as_words
from .mpi import handles
from .mpi.handles import Communicator
from .operations._barrier import Barrier
from .operations._calls import Call
from .operations._eager import PlanCall, evaluate, run_named
from .operations._lowering import call_in_program, lower_everywhere
from .operations._transposes import (
    Jvp,
    Operand,
    cotangents_of,
    inexact_tangents,
    instantiated,
    tangents_of,
)
from .operations.allreduce import AllReduce
from .xla.effects import ordered_effect
from .xla.jax_compat import (
    Effect,
    LoweringContext,
    ShapedArray,
    Tangent,
    Value,
    VaryingPrimitive,
    ad,
    batching,
    lower_with,
    trace_state_clean,
    vary,
)

T = TypeVar("T")


def shared(x: T, *, comm: Comm = None) -> T:
    """Mark a value that all processes share, and that each uses differently from here on.

    Its derivative is the sum of the derivatives of all processes then. See :ref:`whose
    gradient it is <whose-gradient>`.

    .. warning::

       ``x`` must be the same on all processes, to the last bit. With ``MPI4JAX_CHECK=1``, a
       difference is an error.

    Arguments:
        x: An array, or a tree of arrays, such as the parameters of a model. Derivatives of
            small arrays are summed together. Integers have none.
        comm (mpi4py.MPI.Comm): The communicator of the processes that share the value
            (defaults to a clone of :obj:`COMM_WORLD`).

    Returns:
        The value, unchanged.

    """
    tree = Tree("x", x)
    communicator = handles.communicator("shared", comm)
    if not tree.leaves:
        return x
    names, leaves = zip(*tree.jax_arrays("shared"), strict=True)
    is_compared = settings.check and communicator.size > 1
    if trace_state_clean() and not is_compared:
        return cast(T, tree.with_leaves(leaves))
    call = _Share(communicator, names if is_compared else ())
    if is_compared:
        Call("shared", Barrier(communicator, tree.digest())).run()
    elif communicator.axes:
        return cast(T, tree.with_leaves(call.varying(leaves)))
    return cast(T, tree.with_leaves(run_named("shared", call, [leaves])))


@dataclass(frozen=True)
class _Share(PlanCall):
    """A call on the leaves of a tree, which is compiled by itself where it is eager."""

    communicator: Communicator
    #: The names of the leaves, if ranks compare these (MPI4JAX_CHECK).
    compared: tuple[str, ...]

    name = "shared"

    def varying(self, leaves: Sequence[Array]) -> list[Array]:
        """The leaves, which vary over a mesh for JAX: it sums their derivatives then."""
        return [vary(x, self.communicator.axes) for x in leaves]

    def call_in_program(self, leaves: Sequence[Array]) -> list[Array]:
        return shared_p.bind(*self.varying(leaves), call=self)

    @property
    def uncompared(self) -> _Share:
        return _Share(self.communicator, ())


shared_p: VaryingPrimitive[list[Array]] = VaryingPrimitive("shared_mpi")
shared_p.multiple_results = True


@shared_p.def_impl
def _evaluate(*leaves: Array, call: _Share) -> list[Array]:
    return evaluate(call, [list(leaves)]) if call.compared else list(leaves)


@shared_p.def_effectful_abstract_eval
def _abstract_eval(
    *avals: ShapedArray, call: _Share
) -> tuple[list[ShapedArray], set[Effect]]:
    results = [aval.update(weak_type=False) for aval in avals]
    return results, {ordered_effect} if call.compared else set()


def _jvp(primals: Sequence[Array], tangents: Sequence[Tangent], *, call: _Share) -> Jvp:
    results = shared_p.bind(*primals, call=call)
    pushed = shared_p.bind(*inexact_tangents(primals, tangents), call=call.uncompared)
    return results, tangents_of(results, pushed)


def _transpose(
    cotangents: Sequence[Tangent], *operands: Operand, call: _Share
) -> list[Array | None]:
    totals = instantiated(cotangents)
    if not call.communicator.axes:
        operation = AllReduce(call.communicator, SUM)
        totals = Call("shared", operation, Tree("the cotangent", totals)).run()
    return cotangents_of(operands, totals)


def _batch(
    operands: Sequence[Array], axes: Sequence[int | None], *, call: _Share
) -> tuple[list[Array], list[int | None]]:
    # The batch has one position in the messages of all processes.
    pairs = zip(operands, axes, strict=True)
    moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in pairs]
    return shared_p.bind(*moved, call=call), [None if n is None else 0 for n in axes]


def _lower(ctx: LoweringContext, *operands: Value, call: _Share) -> Sequence[Value]:
    if call.compared:
        (fingerprints,) = lower_with(ctx, _fingerprints, operands, ctx.avals_in)
        names = "".join(f"{name}\0" for name in call.compared).encode()
        call_in_program(
            ctx,
            call.communicator,
            "shared",
            [fingerprints],
            {
                "comm_number": np.int64(call.communicator.number),
                "names": np.frombuffer(names, np.uint8).astype(np.int64),
            },
            avals_in=[ShapedArray((len(operands), 2), np.dtype(np.int32))],
            avals_out=[],
        )
    return operands


ad.primitive_jvps[shared_p] = _jvp
ad.primitive_transposes[shared_p] = _transpose
batching.primitive_batchers[shared_p] = _batch
lower_everywhere(shared_p, _lower)

#: Odd factors, one for each fingerprint of an array.
_FACTORS = (0x9E3779B1, 0x85EBCA77)


def _fingerprints(*leaves: Array) -> list[Array]:
    """Two numbers for each leaf, which change with any of its bits."""
    return [jnp.stack(list(map(_fingerprint, leaves)))]


def _fingerprint(x: Array) -> Array:
    """Sums of an array's words, of which each is multiplied by a number of its own.

    These are odd, so no change of a single word is lost. The chance that a change of
    several words is lost is that of two random numbers of 31 bits to be zero.
    """
    (aval,) = avals_of([x])
    x = x.astype(carrier_aval(aval).dtype)
    word = np.dtype(f"uint{8 * min(4, np.zeros((), x.dtype).real.itemsize)}")
    words = as_words(x, word).astype(jnp.uint32)
    numbers = jax.lax.iota(jnp.uint32, words.size) + 1
    sums = []
    for factor in _FACTORS:
        mixed = numbers * jnp.uint32(factor)
        mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x2C1B3C6D)
        mixed = (mixed ^ (mixed >> 13)) | 1
        sums.append(jnp.sum(words * mixed, dtype=jnp.uint32))
    return jax.lax.bitcast_convert_type(jnp.stack(sums), jnp.int32)
