"""Sums that are equal to the last bit, however the elements are divided and ordered.

Floating-point numbers are multiples of the smallest positive one, so they can be written in
fixed point, in *bins* of `width` bits. Each element is cut below the highest `kept` bins in
which the largest element of all has bits. The rest is added exactly, as integers, bin by
bin, with the same result in any order (after Demmel and Nguyen, "Parallel reproducible
summation", 2015, and Ahrens, Demmel and Nguyen, 2020, who keep floating-point numbers).

XLA may fuse, reorder and contract all of this: each product, difference and sum of
floating-point numbers is exact, apart from the products of elements, which are rounded once
and then multiplied by a power of two, not added.

Each process cuts below the bins of its own largest element, and the message has all bins.
So one allreduce is enough: the processes then drop the bins below those of the largest
element of all, and carry only then.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.dtypes import SUM
from ..arguments.types import Array, DType, PyTree
from ..mpi.handles import Communicator
from ..operations.allreduce import AllReduce

#: A term of a sum: an array with elements to add, or two arrays with elements to multiply.
Term: TypeAlias = tuple[Array, ...]


class _Format(NamedTuple):
    """A floating-point type, and its division into bins."""

    #: The integer type of this size.
    integer: DType
    #: The number of stored bits of the mantissa.
    mantissa: int
    #: The bias of the stored exponent, which is 0 for subnormal numbers.
    bias: int
    #: The number of bits in a bin.
    width: int
    #: The number of bins of each element.
    kept: int
    #: The number of elements that can be added exactly in a bin, as floating-point numbers.
    block: int

    @property
    def lowest(self) -> int:
        """The exponent of the smallest positive number."""
        return 1 - self.bias - self.mantissa

    @property
    def bins(self) -> int:
        return (self.bias - self.lowest) // self.width + 1

    @property
    def carries(self) -> int:
        """Number of bins above the highest one that the sum may need."""
        return math.ceil(40 / self.width)


_FORMATS = {
    np.dtype(np.float32): _Format(np.dtype(np.int32), 23, 127, 12, 5, 1 << 12),
    np.dtype(np.float64): _Format(np.dtype(np.int64), 52, 1023, 37, 3, 1 << 14),
}


def reproducible_sums(
    communicator: Communicator, sums: Sequence[Sequence[Term]]
) -> list[Array]:
    """The sums of real terms over all processes, with the derivatives of sums.

    All terms of a sum have one type, `float32` or `float64`.
    """

    @jax.custom_jvp
    def totals(sums: Sequence[Sequence[Term]]) -> list[Array]:
        sums = jax.lax.optimization_barrier(sums)
        messages = [_message(terms) for terms in sums]
        total = AllReduce(communicator, SUM).call_in_program(messages)
        dtypes = [terms[0][0].dtype for terms in sums]
        return [_value(x, dtype) for x, dtype in zip(total, dtypes, strict=True)]

    def local(sums: Sequence[Sequence[Term]]) -> list[Array]:
        return [
            functools.reduce(operator.add, [jnp.sum(_product(term)) for term in terms])
            for terms in sums
        ]

    @totals.defjvp
    def _(primals: PyTree, tangents: PyTree) -> tuple[list[Array], list[Array]]:
        _, of_process = jax.jvp(local, primals, tangents)
        total = AllReduce(communicator, SUM).call_in_program(of_process)
        return totals(*primals), total

    return totals(sums)


def _message(terms: Sequence[Term]) -> Array:
    """The summands of this process: its bins, the highest bin, and flags of inf and nan."""
    form = _FORMATS[terms[0][0].dtype]
    flat = [[x.reshape(-1) for x in term] for term in terms]
    zero = jnp.zeros((), terms[0][0].dtype)
    largest, smallest = zero, zero
    for term in flat:
        elements = _product(term)
        largest = jnp.maximum(largest, jnp.max(elements, initial=0))
        smallest = jnp.minimum(smallest, jnp.min(elements, initial=0))
    magnitude = jnp.maximum(largest, -smallest)
    bits = jax.lax.bitcast_convert_type(magnitude, form.integer) >> form.mantissa
    exponent = jnp.clip(bits, 1, 2 * form.bias) - form.bias
    highest = (exponent - form.lowest) // form.width
    bins = [_bins(form, term, highest) for term in flat]
    low, high = (functools.reduce(operator.add, parts) for parts in zip(*bins, strict=True))
    places = jnp.zeros(form.kept - 1 + form.bins, form.integer)
    highest = highest.astype(jnp.int32)
    special = [largest == jnp.inf, smallest == -jnp.inf, jnp.isnan(magnitude)]
    return jnp.concatenate(
        [
            jax.lax.dynamic_update_slice(places, low[::-1], (highest,)),
            jax.lax.dynamic_update_slice(places, high[::-1], (highest,)),
            (jnp.arange(form.bins) == highest).astype(form.integer),
            jnp.stack(special).astype(form.integer),
        ]
    )


def _product(term: Sequence[Array]) -> Array:
    return functools.reduce(operator.mul, term)


def _bins(form: _Format, term: Sequence[Array], highest: Array) -> tuple[Array, Array]:
    """The sums in the highest bins, the highest first: the bits of a bin, and a carry.

    The carries stay apart: in the next bin, they would come from bins that other processes
    may drop.
    """
    exponent = -(form.lowest + form.width * (highest + 1))
    # The power of two itself is not a finite number.
    half = exponent >> 1
    scales = _power_of_two(form, half), _power_of_two(form, exponent - half)

    def of_block(block: Sequence[Array]) -> tuple[Array, Array]:
        rest = _product(block) * scales[0] * scales[1]
        sums = []
        for _ in range(form.kept):
            rest = rest * 2.0**form.width
            digits = jnp.trunc(rest)
            rest = rest - digits
            sums.append(jnp.sum(digits))
        total = jnp.stack(sums).astype(form.integer)
        high = total >> form.width
        return total - (high << form.width), high

    size = term[0].size
    blocks = size // form.block

    def add_block(n: Array, bins: tuple[Array, Array]) -> tuple[Array, Array]:
        start = n * form.block
        block = [jax.lax.dynamic_slice(x, (start,), (form.block,)) for x in term]
        low, high = of_block(block)
        return bins[0] + low, bins[1] + high

    rest = of_block([x[blocks * form.block :] for x in term])
    if not blocks:
        return rest
    # In a loop, each block stays in the caches, and is not copied.
    bins: tuple[Array, Array] = jax.lax.fori_loop(0, blocks, add_block, rest)
    return bins


def _value(total: Array, dtype: DType) -> Array:
    """The sum as a floating-point number, from the total of all messages."""
    form = _FORMATS[dtype]
    places = form.kept - 1 + form.bins
    low, high, highest, special = jnp.split(
        total, [places, 2 * places, 2 * places + form.bins]
    )
    top = jnp.max(jnp.where(highest > 0, jnp.arange(form.bins, dtype=jnp.int32), 0))
    low = jax.lax.dynamic_slice(low, (top,), (form.kept,))
    high = jax.lax.dynamic_slice(high, (top,), (form.kept,))
    zeros = jnp.zeros(form.carries, form.integer)
    digits = list(
        jnp.concatenate([low, zeros]) + jnp.concatenate([zeros[:1], high, zeros[1:]])
    )
    digits = _carried(form, digits)
    # The digits of the magnitude are not negative, and are added without cancellation.
    sign = jnp.where(digits[-1] < 0, -1, 1).astype(form.integer)
    digits = _carried(form, [sign * digit for digit in digits])
    value = jnp.zeros((), dtype)
    for n, digit in enumerate(digits):
        value = value + digit.astype(dtype) * 2.0 ** (form.width * (n + 1 - len(digits)))
    exponent = form.lowest + form.width * (top + form.carries)
    half = exponent >> 1
    value = value * _power_of_two(form, half) * _power_of_two(form, exponent - half)
    value = sign.astype(dtype) * value
    is_above, is_below, is_nan = special > 0
    value = jnp.where(is_above, jnp.inf, jnp.where(is_below, -jnp.inf, value))
    return jnp.where(is_nan | (is_above & is_below), jnp.nan, value)


def _carried(form: _Format, digits: list[Array]) -> list[Array]:
    """The digits of a number after carrying, the lowest first. The last may be longer."""
    carry = jnp.zeros((), form.integer)
    carried = []
    for digit in digits[:-1]:
        digit = digit + carry
        carry = digit >> form.width
        carried.append(digit - (carry << form.width))
    return [*carried, digits[-1] + carry]


def _power_of_two(form: _Format, exponent: Array) -> Array:
    bits = (exponent.astype(form.integer) + form.bias) << form.mantissa
    dtype = np.dtype(f"float{8 * form.integer.itemsize}")
    return jax.lax.bitcast_convert_type(bits, dtype)
