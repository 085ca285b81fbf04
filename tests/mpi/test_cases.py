"""The table of cases has every operation, and no test file leaves one out by accident."""

import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest
from every import every_case

from mpi4jax import notoken as mpi
from mpi4jax._testing.cases import NAMES, OPERATIONS, Case

#: The files that test every operation, with those that they leave out, and why.
FILES = {
    "properties/test_alone": {
        "send": "has another process as its other end",
        "recv": "has another process as its other end",
    },
    "properties/test_arguments": {},
    "properties/test_autodiff": {
        "send": "has no derivative, which is tested there",
        "recv": "has no derivative, which is tested there",
    },
    "features/test_check": {},
    "features/test_nonblocking": {},
    "properties/test_counts": {},
    "properties/test_growth": {},
    "properties/test_logging": {},
    "test_operations": {},
    "properties/test_order": {},
    "properties/test_plans": {},
    "features/test_tree": {},
    "properties/test_types": {"barrier": "moves nothing of any type"},
    "properties/test_vmap": {},
}


FOLDER = Path(__file__).parent


def operations_of(file):
    """The operations that the tests of a file run with, as cases or by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend((FOLDER / file).parent)
        module = importlib.import_module(Path(file).name)
    marks = [m for f in vars(module).values() for m in getattr(f, "pytestmark", ())]
    values = [v for m in marks if m.name == "parametrize" for v in m.args[1]]
    # pytest.param() gives a tuple with a tuple of the values.
    values = [v.values[0] if isinstance(v, type(pytest.param())) else v for v in values]
    names = {v for v in values if isinstance(v, str)} & set(NAMES)
    return names.union(*(v.operations for v in values if isinstance(v, Case)))


@pytest.mark.parametrize("file", FILES)
def test_files_have_every_operation(file):
    left_out = FILES[file].keys()
    assert operations_of(file) | left_out == set(NAMES)
    assert operations_of(file) & left_out == set()


def test_no_other_file_takes_its_cases_from_the_table():
    files = {FOLDER / f"{file}.py" for file in FILES} | {Path(__file__)}
    for other in sorted(set(FOLDER.rglob("test_*.py")) - files):
        assert "from every import" not in other.read_text(), f"{other} belongs into FILES"


def test_every_operation_has_a_case():
    named = [name for case in OPERATIONS.values() for name in case.operations]
    assert sorted(named) == sorted(NAMES)


def test_roots_and_operators():
    """Where a function has them, the case has."""
    for case in OPERATIONS.values():
        for name in case.operations:
            arguments = inspect.signature(getattr(mpi, name)).parameters
            assert ("root" in arguments) == (case.root is not None)
            assert ("op" in arguments) == case.is_reduction


def random(rank, shape):
    return np.random.default_rng(rank).integers(1, 1000, shape)


@every_case
def test_who_gets_the_same(case):
    xs = case.arrays(random, (50,))
    results = [case.of(rank).result(xs) for rank in range(case.size)]
    alike = all(np.array_equal(result, results[0]) for result in results)
    assert alike == (case.is_shared or case.size == 1)


@every_case
def test_who_is_read(case):
    """Nobody's result depends on an array that is not."""
    for root in case.roots:
        rooted = case.replace(root=root)
        xs = rooted.arrays(random, (50,))
        changed = [x if rooted.of(rank).is_read else -x for rank, x in enumerate(xs)]
        for rank in range(case.size):
            part = rooted.of(rank)
            np.testing.assert_array_equal(part.result(xs), part.result(changed))
