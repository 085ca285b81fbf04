"""What runs a test with every case of the table, or every argument of a case.

The marks are for tests that take a `case`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import pytest
from cases import CASES, OPERATIONS, Case

from mpi4jax import notoken as mpi


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


ARRAYS = {"x", "sendbuf", "recvbuf"}
NO_NUMBERS = {*ARRAYS, "comm", "op", "status"}


def every_argument(
    case: Case, condition: Callable[[str], bool]
) -> Iterator[tuple[str, str, Callable[[Any], Any]]]:
    """The arguments with such names of the functions that a case calls.

    Each with the name of the function, and with a function that calls it with another value
    for this argument. All processes have to take part in finding them.
    """
    for name, given in case.arguments(jnp.ones(case.shape((2,)))).items():

        def call(argument: str, value: Any, name: str = name, given: Any = given) -> Any:
            return getattr(mpi, name)(**{**given, argument: value})

        for argument in given:
            # The token is there to be refused.
            if argument != "token" and condition(argument):
                yield name, argument, functools.partial(call, argument)
