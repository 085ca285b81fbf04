"""Marks that run a test with every case of the table, and the arguments of a case.

The marks are for tests that take a `case`.
"""

from __future__ import annotations

import functools
import inspect
import unittest.mock
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from mpi4jax import notoken as mpi
from mpi4jax._testing.cases import CASES, OPERATIONS, Case


def over(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """Run a test with these cases, if there are enough processes for them."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=case.name, marks=pytest.mark.ranks(case.least_size))
            for case in cases
        ],
    )


def every_operation_that(condition: Callable[[Case], bool]) -> pytest.MarkDecorator:
    """Run a test with one case for each operation of which this holds."""
    return over(filter(condition, OPERATIONS.values()))


#: One case for each operation.
every_operation = over(OPERATIONS.values())
every_reduction = every_operation_that(lambda case: case.is_reduction)
every_root = every_operation_that(lambda case: case.root is not None)
#: Several cases for each operation.
every_case = over(CASES.values())
every_derivative = over(case for case in CASES.values() if case.has_derivative)


def calling(case: Case, functions: dict[str, Any]) -> AbstractContextManager[Any]:
    """Replace functions of `mpi`, by name, in the call of a case."""
    namespace = type(case).call.__globals__
    return unittest.mock.patch.dict(namespace, mpi=SimpleNamespace(**functions))


def arguments_of(case: Case, x: Any) -> dict[str, dict[str, Any]]:
    """Call an operation, and return the arguments of each of its functions."""
    arguments = {}

    def recorded(name: str) -> Callable[..., Any]:
        function = getattr(mpi, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            arguments[name] = dict(bound.arguments)
            return function(*args, **kwargs)

        return call

    with calling(case, {name: recorded(name) for name in case.operations}):
        case.call(x)
    return arguments


ARRAYS = {"x", "sendbuf", "recvbuf", "edge", "fill_value"}
NO_NUMBERS = {*ARRAYS, "comm", "op", "status"}
#: The numbers that a program may compute.
RANKS = {"source", "dest", "root"}


def every_argument(
    case: Case, condition: Callable[[str], bool]
) -> Iterator[tuple[str, str, Callable[[Any], Any]]]:
    """The arguments with such names of the functions that a case calls.

    Each with the name of the function, and with a function that calls it with another value
    for this argument. All processes have to take part in finding them.
    """
    for name, defaults in arguments_of(case, jnp.ones(case.shape((2,)))).items():

        def call(
            argument: str, value: Any, name: str = name, defaults: Any = defaults
        ) -> Any:
            return getattr(mpi, name)(**{**defaults, argument: value})

        for argument in defaults:
            # The token is there to be refused.
            if argument != "token" and condition(argument):
                yield name, argument, functools.partial(call, argument)
