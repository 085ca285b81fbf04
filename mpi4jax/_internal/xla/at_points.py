"""Evaluation of a traced function at some points of its results only.

Most operations of JAX compute a point of their result from one point of each operand. So
the wanted points of a result are computed from points of the operands, and these from
points of theirs, back to what is known: constants, numbers of points (`iota`), and random
bits, which are a hash of a point's number. Operations that are not like that (a sort, an
index, a loop) are evaluated at all points, and points are taken of their results.

A jaxpr is read twice: backwards, to collect the points that are wanted of each variable,
and forwards, to compute them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from .jax_compat import (
    Atom,
    Equation,
    Jaxpr,
    Literal,
    Settings,
    ShapedArray,
    Var,
    eval_equation,
    hash_primitive,
    source_info_of,
    vary_alike,
)

#: For each axis of an array the position of a list of indices, or None for all indices.
Points: TypeAlias = tuple[int | None, ...]

#: The wanted points of a program's result, or of its argument, at a position.
Wanted: TypeAlias = tuple[int, Points]

#: Indices along an axis, each of which is below the axis' size.
Indices: TypeAlias = Sequence[jax.Array]


class _Constant(NamedTuple):
    """A constant of a program that is called, in place of a variable."""

    val: jax.Array

    @property
    def aval(self) -> ShapedArray:
        return ShapedArray(self.val.shape, self.val.dtype)


class _Value(NamedTuple):
    """Some points of a variable or of a constant."""

    atom: Atom | _Constant
    points: Points


class _Rule(NamedTuple):
    """The way in which a primitive computes points of its result from those of operands."""

    #: The points of each operand, for points of the result, and those of the latter that
    #: are computed from them. The others are to be taken. None if all points are needed.
    sources: Callable[[Equation, Points], tuple[Sequence[Points], Points] | None]
    #: The results of an equation at points, from the operands at theirs.
    results: Callable[[Equation, Points, Indices, Sequence[jax.Array]], Sequence[jax.Array]]


class _Step(NamedTuple):
    """The computation of some points of an equation's results."""

    equation: Equation
    compute: Callable[[Indices, Sequence[jax.Array]], Sequence[jax.Array]]
    operands: Sequence[_Value]
    results: Sequence[_Value]


class Program:
    """A jaxpr of which some points of some results are wanted.

    Arguments:
        jaxpr: A jaxpr. Its arguments are its constants and its inputs.
        wanted: The positions of results, each with points.

    """

    def __init__(self, jaxpr: Jaxpr, wanted: Sequence[Wanted]) -> None:
        self._wanted: dict[Var, dict[Points, None]] = {}
        # The last one is computed first.
        self._steps: list[_Step] = []
        self._results = [_Value(jaxpr.outvars[n], points) for n, points in wanted]
        self._want(self._results)
        for equation in reversed(jaxpr.eqns):
            self._add(equation)
        self._variables = [*jaxpr.constvars, *jaxpr.invars]
        #: The positions of the arguments that are needed, each with points.
        self.arguments = [
            (n, points)
            for n, variable in enumerate(self._variables)
            for points in self._wanted.get(variable, ())
        ]

    def __call__(self, indices: Indices, arguments: Sequence[jax.Array]) -> list[jax.Array]:
        """The wanted points of the results.

        Arguments:
            indices: The lists of indices.
            arguments: The values of :attr:`arguments`, at the points there.

        """
        env: dict[tuple[object, Points], jax.Array] = {}
        for (n, points), argument in zip(self.arguments, arguments, strict=True):
            env[self._variables[n], points] = argument

        def read(value: _Value) -> jax.Array:
            if isinstance(value.atom, (Literal, _Constant)):
                return take(jnp.asarray(value.atom.val), value.points, indices)
            return env[value.atom, value.points]

        for equation, compute, operands, results in reversed(self._steps):
            with source_info_of(equation):
                arrays = compute(indices, list(map(read, operands)))
            for value, array in zip(results, arrays, strict=True):
                env[value.atom, value.points] = array
        return list(map(read, self._results))

    def _want(self, values: Sequence[_Value]) -> None:
        for atom, points in values:
            if not isinstance(atom, (Literal, _Constant)):
                self._wanted.setdefault(atom, {})[points] = None

    def _add(self, equation: Equation) -> None:
        """Add the steps that compute what is wanted of an equation's results."""
        wanted = [
            _Value(variable, points)
            for variable in equation.outvars
            for points in self._wanted.get(variable, ())
        ]
        whole = [value for value in wanted if not _is_part(value.points)]
        parts = [value for value in wanted if _is_part(value.points)]
        name = equation.primitive.name
        if name in _CALLS and not equation.effects:
            self._add_call(equation, wanted)
        elif name in _RULES and not equation.effects:
            self._add_points(equation, _RULES[name], whole, parts)
        else:
            self._add_whole(equation, whole, parts)

    def _add_points(
        self,
        equation: Equation,
        rule: _Rule,
        whole: Sequence[_Value],
        parts: Sequence[_Value],
    ) -> None:
        """Add the steps that compute points of an equation's results by a rule."""
        points_of_operands: dict[Points, Sequence[Points]] = {}
        parts_of_whole = []
        for value in parts:
            sources = rule.sources(equation, value.points)
            if sources is None:
                parts_of_whole.append(value)
                continue
            operand_points, points = sources
            points_of_operands[points] = operand_points
            self._add_take(equation, value, points)
        for points, operand_points in points_of_operands.items():
            compute = functools.partial(rule.results, equation, points)
            operands = list(map(_Value, equation.invars, operand_points))
            results = [_Value(variable, points) for variable in equation.outvars]
            self._push(_Step(equation, compute, operands, results))
        self._add_whole(equation, whole, parts_of_whole)

    def _add_whole(
        self, equation: Equation, whole: Sequence[_Value], parts: Sequence[_Value]
    ) -> None:
        """Add the steps that compute an equation's results, and take parts of them."""
        if not (whole or parts or equation.effects):
            return
        for value in parts:
            self._add_take(equation, value, _all_points(value.atom))
        operands = [_Value(atom, _all_points(atom)) for atom in equation.invars]
        results = [_Value(atom, _all_points(atom)) for atom in equation.outvars]
        self._push(
            _Step(equation, lambda _, x: eval_equation(equation, x), operands, results)
        )

    def _add_call(self, equation: Equation, wanted: Sequence[_Value]) -> None:
        """Add the step that computes points of the results of a program's call."""
        if not wanted:
            return
        closed = equation.params["jaxpr"]
        positions: dict[object, int] = {
            variable: n for n, variable in enumerate(equation.outvars)
        }
        program = Program(closed.jaxpr, [(positions[x.atom], x.points) for x in wanted])
        atoms = [*map(_Constant, closed.consts), *equation.invars]
        operands = [_Value(atoms[n], points) for n, points in program.arguments]
        self._push(_Step(equation, program, operands, wanted))

    def _add_take(self, equation: Equation, value: _Value, points: Points) -> None:
        """Add the step that takes points of a result of which other points are computed."""
        if value.points == points:
            return
        remaining = tuple(
            None if position == known else position
            for position, known in zip(value.points, points, strict=True)
        )

        def compute(indices: Indices, operands: Sequence[jax.Array]) -> Sequence[jax.Array]:
            return [take(operands[0], remaining, indices)]

        self._push(_Step(equation, compute, [_Value(value.atom, points)], [value]))

    def _push(self, step: _Step) -> None:
        self._steps.append(step)
        self._want(step.operands)


def evaluate(
    jaxpr: Jaxpr, constants: Sequence[jax.Array], results: Sequence[Mapping[int, jax.Array]]
) -> list[jax.Array]:
    """Points of the results of a jaxpr without arguments.

    Arguments:
        jaxpr: The jaxpr.
        constants: The values of its constants.
        results: For each result the indices along some of its axes. They may have any
            order, and are clipped.

    """
    indices: list[jax.Array] = []
    wanted: list[Wanted] = []
    for n, (atom, by_axis) in enumerate(zip(jaxpr.outvars, results, strict=True)):
        points = [*_all_points(atom)]
        for axis, index in by_axis.items():
            points[axis] = len(indices)
            indices.append(jnp.clip(index, 0, max(shape_of(atom)[axis] - 1, 0)))
        wanted.append((n, tuple(points)))
    program = Program(jaxpr, wanted)
    arguments = [take(constants[n], points, indices) for n, points in program.arguments]
    return program(indices, arguments)


def take(x: jax.Array, points: Points, indices: Indices) -> jax.Array:
    """The points of an array."""
    for axis, position in enumerate(points):
        if position is not None:
            x = jnp.take(x, indices[position], axis, mode="clip")
    return x


def _is_part(points: Points) -> bool:
    """Whether some points are wanted, and not all."""
    return any(position is not None for position in points)


def _all_points(atom: Atom | _Constant) -> Points:
    return (None,) * len(shape_of(atom))


def _aval(atom: Atom | _Constant) -> ShapedArray:
    return cast("ShapedArray", atom.aval)


def shape_of(atom: Atom | _Constant) -> tuple[int, ...]:
    """The shape of a variable's array."""
    shape: tuple[int, ...] = _aval(atom).shape
    return shape


def _local_shape(shape: Sequence[int], points: Points, indices: Indices) -> tuple[int, ...]:
    """The shape of an array's points."""
    pairs = zip(shape, points, strict=True)
    return tuple(n if p is None else len(indices[p]) for n, p in pairs)


# Elementwise operations.


def _alike(equation: Equation, points: Points) -> tuple[Sequence[Points], Points] | None:
    """The points of operands whose sizes are those of the result, or 1, or none."""
    shape = shape_of(equation.outvars[0])
    own_shapes = list(map(shape_of, equation.invars))
    if all(len(own) != len(shape) for own in own_shapes):
        return None  # bits of a number as an array
    operands = []
    for own in own_shapes:
        if len(own) not in (0, len(shape)):
            return None
        triples = list(zip(own, shape, points, strict=False))
        if any(n not in (1, m) for n, m, _ in triples):
            return None
        operands.append(tuple(p if n == m else None for n, m, p in triples))
    return operands, points


def _same(
    equation: Equation, points: Points, indices: Indices, operands: Sequence[jax.Array]
) -> Sequence[jax.Array]:
    return eval_equation(equation, vary_alike(operands))


# Operations that make arrays.


def _from_nothing(equation: Equation, points: Points) -> tuple[Sequence[Points], Points]:
    return list(map(_all_points, equation.invars)), points


def _iota(
    equation: Equation, points: Points, indices: Indices, operands: Sequence[jax.Array]
) -> Sequence[jax.Array]:
    dimension, dtype = equation.params["dimension"], equation.params["dtype"]
    shape = _local_shape(equation.params["shape"], points, indices)
    position = points[dimension]
    numbers = jnp.arange(shape[dimension]) if position is None else indices[position]
    numbers = jax.lax.convert_element_type(numbers, dtype)
    return [jax.lax.broadcast_in_dim(numbers, shape, (dimension,))]


def _random_points(
    equation: Equation, points: Points
) -> tuple[Sequence[Points], Points] | None:
    """All of a key whose bits are a hash of a point's number, None for other keys."""
    (key,) = equation.invars
    settings: Settings = jax.config
    is_hash = str(_aval(key).dtype) == "key<fry>" and settings.jax_threefry_partitionable
    can_hash = hash_primitive is not None and is_hash and not shape_of(key)
    return ([()], points) if can_hash else None


def _random_bits(
    equation: Equation, points: Points, indices: Indices, operands: Sequence[jax.Array]
) -> Sequence[jax.Array]:
    """The bits of `jax.random`: a hash of the number of each point, which has 64 bits."""
    numbers = point_numbers(equation.params["shape"], points, indices)
    first, second = jax.random.key_data(operands[0])
    assert hash_primitive is not None
    high, low = hash_primitive.bind(*vary_alike([first, second, *numbers]))
    width = equation.params["bit_width"]
    dtype = np.dtype(f"uint{width}")
    if width == 64:
        return [high.astype(dtype) << dtype.type(32) | low.astype(dtype)]
    return [(high ^ low).astype(dtype)]


def point_numbers(
    shape: Sequence[int], points: Points, indices: Indices
) -> tuple[jax.Array, jax.Array]:
    """The upper and lower half of the number of each point, in row-major order.

    JAX may have no integers of 64 bits.
    """
    local_shape = _local_shape(shape, points, indices)
    high = low = jnp.zeros(local_shape, jnp.uint32)
    for axis, position in enumerate(points):
        index = jnp.arange(shape[axis]) if position is None else indices[position]
        stride = math.prod(shape[axis + 1 :])
        column = index.astype(jnp.uint32).reshape(-1, *(1,) * (len(shape) - axis - 1))
        if math.prod(shape) <= 1 << 32:
            low = low + column * jnp.uint32(stride)
            continue
        upper, lower = _product(column, stride)
        low = low + lower
        high = high + upper + (low < lower).astype(jnp.uint32)
    return high, low


def _product(x: jax.Array, factor: int) -> tuple[jax.Array, jax.Array]:
    """The upper and lower half of the product of 32 and 64 bits, modulo 2^64."""
    half, mask = jnp.uint32(16), jnp.uint32(0xFFFF)
    digits = [jnp.uint32(factor >> shift & 0xFFFF) for shift in (0, 16)]
    parts = [x & mask, x >> half]
    middle = (parts[0] * digits[0] >> half) + (parts[0] * digits[1] & mask)
    middle = middle + (parts[1] * digits[0] & mask)
    upper = parts[1] * digits[1] + (parts[0] * digits[1] >> half)
    upper = upper + (parts[1] * digits[0] >> half) + (middle >> half)
    upper = upper + x * jnp.uint32(factor >> 32 & 0xFFFFFFFF)
    return upper, middle << half | parts[0] * digits[0] & mask


# Operations that move axes.


def _broadcast_points(
    equation: Equation, points: Points
) -> tuple[Sequence[Points], Points]:
    (operand, *_), shape = equation.invars, shape_of(equation.outvars[0])
    dimensions = equation.params["broadcast_dimensions"]
    pairs = zip(shape_of(operand), dimensions, strict=True)
    return [tuple(points[n] if size == shape[n] else None for size, n in pairs)], points


def _broadcast(
    equation: Equation, points: Points, indices: Indices, operands: Sequence[jax.Array]
) -> Sequence[jax.Array]:
    shape = _local_shape(shape_of(equation.outvars[0]), points, indices)
    dimensions = equation.params["broadcast_dimensions"]
    return [jax.lax.broadcast_in_dim(operands[0], shape, dimensions)]


def _transposed_points(
    equation: Equation, points: Points
) -> tuple[Sequence[Points], Points]:
    by_axis = dict(zip(equation.params["permutation"], points, strict=True))
    return [tuple(by_axis[axis] for axis in range(len(points)))], points


def _reshaped_points(
    equation: Equation, points: Points
) -> tuple[Sequence[Points], Points] | None:
    """The points of an operand that has the same axes, but for those of size 1."""
    (operand, *_), shape = equation.invars, shape_of(equation.outvars[0])
    long = [axis for axis, size in enumerate(shape) if size != 1]
    if [size for size in shape_of(operand) if size != 1] != [shape[axis] for axis in long]:
        return None
    remaining = iter(long)
    own = [None if size == 1 else points[next(remaining)] for size in shape_of(operand)]
    known = [position if axis in long else None for axis, position in enumerate(points)]
    return [tuple(own)], tuple(known)


def _reshape(
    equation: Equation, points: Points, indices: Indices, operands: Sequence[jax.Array]
) -> Sequence[jax.Array]:
    shape = _local_shape(shape_of(equation.outvars[0]), points, indices)
    return [operands[0].reshape(shape)]


def _joined_points(equation: Equation, points: Points) -> tuple[Sequence[Points], Points]:
    """The points along other axes than that along which arrays are joined."""
    dimension = equation.params["dimension"]
    known = tuple(None if n == dimension else p for n, p in enumerate(points))
    return [known for _ in equation.invars], known


def _reduced_points(equation: Equation, points: Points) -> tuple[Sequence[Points], Points]:
    remaining, axes = iter(points), equation.params["axes"]
    ndim = len(shape_of(equation.invars[0]))
    return [tuple(None if n in axes else next(remaining) for n in range(ndim))], points


#: Primitives that call a program.
_CALLS = ("jit", "pjit")

_ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
bitcast_convert_type cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos
cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag
integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or
polygamma population_count pow real reduce_precision regularized_incomplete_beta rem round
rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt
square sub tan tanh threefry2x32 xor zeta
""".split()

_REDUCTIONS = "reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum".split()

_RULES = {
    **dict.fromkeys(_ELEMENTWISE, _Rule(_alike, _same)),
    **dict.fromkeys(_REDUCTIONS, _Rule(_reduced_points, _same)),
    "broadcast_in_dim": _Rule(_broadcast_points, _broadcast),
    "concatenate": _Rule(_joined_points, _same),
    "iota": _Rule(_from_nothing, _iota),
    "random_bits": _Rule(_random_points, _random_bits),
    "reshape": _Rule(_reshaped_points, _reshape),
    "squeeze": _Rule(_reshaped_points, _reshape),
    "transpose": _Rule(_transposed_points, _same),
}
