"""Traced functions: their equations, and the arrays that they close over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from mpi4jax._override import override

from .jax_compat import (
    Atom,
    Equation,
    Jaxpr,
    Literal,
    Var,
    eval_equation,
    source_info_of,
)

T = TypeVar("T")

#: The values of the variables of a jaxpr.
Environment: TypeAlias = dict[Var, jax.Array]


class Equations:
    """The equations of a function, which compute its result from constants and arguments.

    Equal instances compute the same result. Unequal ones may do so as well, as functions
    and arrays in equations compare by identity.
    """

    def __init__(self, jaxpr: Jaxpr, structure: PyTreeDef) -> None:
        self.jaxpr = jaxpr
        self._structure = structure
        self._key = _key_of_jaxpr(jaxpr), structure
        self._hash = hash(self._key)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equations) and self._key == other._key

    @override
    def __hash__(self) -> int:
        return self._hash

    def __call__(self, constants: Sequence[jax.Array], *arguments: Any) -> Any:
        """The result, with the structure of the function's result."""
        leaves = jax.tree_util.tree_leaves(arguments)
        results = evaluate(self.jaxpr, constants, leaves)
        return jax.tree_util.tree_unflatten(self._structure, results)


class Traced(Generic[T]):
    """A function that was traced for some arguments, or for none."""

    def __init__(self, function: Callable[..., T], *arguments: Any) -> None:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        self.jaxpr: Jaxpr = closed.jaxpr
        #: The arrays that the function closes over.
        self.consts: list[jax.Array] = list(closed.consts)
        #: The types of the results.
        self.result_types: Any = shape
        self.structure: PyTreeDef = jax.tree_util.tree_structure(shape)

    def __call__(self) -> list[jax.Array]:
        """The leaves of the result of a function without arguments."""
        return evaluate(self.jaxpr, self.consts, ())

    @property
    def equations(self) -> Equations:
        return Equations(self.jaxpr, self.structure)

    def tree(self, leaves: Sequence[jax.Array]) -> T:
        """The result with these leaves."""
        result: T = jax.tree_util.tree_unflatten(self.structure, leaves)
        return result


def evaluate(
    jaxpr: Jaxpr, constants: Sequence[jax.Array], arguments: Sequence[jax.Array]
) -> list[jax.Array]:
    """The results of a jaxpr, whose equations keep their lines."""
    env: Environment = dict(zip(jaxpr.constvars, constants, strict=True))
    env.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        evaluate_equation(equation, env)
    return read(jaxpr.outvars, env)


def read(variables: Sequence[Atom], env: Environment) -> list[jax.Array]:
    """The arrays that are the values of variables."""
    return [x.val if isinstance(x, Literal) else env[x] for x in variables]


def evaluate_equation(equation: Equation, env: Environment) -> None:
    """Set the variables of an equation's results."""
    with source_info_of(equation):
        results = eval_equation(equation, read(equation.invars, env))
    env.update(zip(equation.outvars, results, strict=True))


# The keys by which equations compare.


class _ById:
    """An object that compares by identity, kept alive so that its address stays unique."""

    def __init__(self, value: object) -> None:
        self._value = value

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self._value is other._value

    @override
    def __hash__(self) -> int:
        return id(self._value)


def _key_of_jaxpr(jaxpr: Jaxpr) -> tuple[object, ...]:
    indices: dict[Var, int] = {}

    def define(variables: Sequence[Var]) -> tuple[object, ...]:
        for variable in variables:
            indices[variable] = len(indices)
        return tuple(variable.aval for variable in variables)

    def use(variables: Iterable[Atom]) -> tuple[object, ...]:
        return tuple(
            _key_of_array(x.val, x.aval) if isinstance(x, Literal) else indices[x]
            for x in variables
        )

    inputs = define(jaxpr.constvars), define(jaxpr.invars)
    equations = tuple(
        (
            equation.primitive,
            use(equation.invars),
            _key_of(equation.params),
            define(equation.outvars),
        )
        for equation in jaxpr.eqns
    )
    return inputs, equations, use(jaxpr.outvars)


def _key_of(value: Any) -> object:
    """The key of a parameter of an equation."""
    if hasattr(value, "jaxpr") and hasattr(value, "consts"):  # a closed jaxpr
        consts = tuple(_key_of_array(x, None) for x in value.consts)
        return _key_of_jaxpr(value.jaxpr), consts
    if hasattr(value, "constvars"):  # a jaxpr
        return _key_of_jaxpr(value)
    if isinstance(value, dict):
        return tuple((name, _key_of(value[name])) for name in sorted(value))
    if type(value) in (tuple, list):
        return type(value), tuple(map(_key_of, value))
    if isinstance(value, (np.ndarray, np.generic, int, float, complex)):
        return _key_of_array(value, type(value))
    try:
        hash(value)
    except TypeError:
        return _ById(value)
    return type(value), value


def _key_of_array(value: Any, kind: object) -> object:
    """The key of an array. For NumPy arrays, whose elements may change, by the elements."""
    if isinstance(value, (np.ndarray, np.generic, int, float, complex)):
        array = np.asarray(value)
        return kind, array.dtype, array.shape, array.tobytes()
    return _ById(value)
