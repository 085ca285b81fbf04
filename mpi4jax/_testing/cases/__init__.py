"""The table of operations: how to call each, its result, and the MPI functions it calls.

Each class with `operations` is an entry. It stands for a call that every process of a
communicator makes with an array of its own, so an instance is the part of one process:

    case.call(x)        the call, with an array of the shape `case.shape(block)`
    case.result(xs)     its result on this process, for the arrays `xs` of all processes
    case.log(n, m)      the MPI functions that it calls, with their debug lines

`python -m mpi4jax selftest` and the tests take their cases from here (tests/mpi/every.py),
so that an operation with an entry is tested with every type, transformation and kind of
memory. test_cases.py fails if a public operation has none. The files of tests themselves
test what is special about an operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

from mpi4jax import notoken

from . import collectives, messages, neighbors, ragged
from .case import Array, Case, Shape
from .operators import OPERATORS, SUM, Operator

__all__ = [
    "CASES",
    "NAMES",
    "OPERATIONS",
    "OPERATORS",
    "SUM",
    "Array",
    "Case",
    "Operator",
    "Shape",
]


#: The operations that have to be in the table.
NAMES = [name for name in notoken.__all__ if f"i{name}" in notoken.__all__]


def _entries(module: ModuleType) -> Iterator[type[Case]]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Case) and value.operations:
            yield value


def _table(cases: Iterable[Case]) -> dict[str, Case]:
    return {case.name: case for case in cases}


ENTRIES = [
    entry
    for module in (collectives, messages, neighbors, ragged)
    for entry in _entries(module)
]
#: One case for each operation.
OPERATIONS = _table([entry() for entry in ENTRIES if not entry.variant])
#: The cases of all entries, and reductions with the other operators that have a derivative.
CASES = OPERATIONS | _table(
    [entry() for entry in ENTRIES if entry.variant]
    + [
        # Also with another root.
        entry(operator=OPERATORS[name], root=None if entry.usual_root is None else 0)
        for entry in ENTRIES
        if entry.is_reduction
        for name in ("PROD", "MAX", "MIN")
    ]
)
