"""Marks that run a test, which takes a `case`, with every case of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from cases import CASES, OPERATIONS, Case


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
