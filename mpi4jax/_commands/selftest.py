"""Call every operation on this installation, and compare the results with NumPy's."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from .._testing.cases import CASES, NAMES, OPERATIONS, Array, Case, Shape
from .._testing.modes import MODES
from . import facts, launcher, ranks
from .watchdog import Watchdog

#: The shape of a block. None of its sides is a likely number of processes.
BLOCK = (5, 2)

#: An error, or else what a check gave.
Outcome = tuple["str | None", Any]
#: What a change does, by NumPy and by a derivative.
Change = tuple[float, float]


class Check(NamedTuple):
    """One call, or its derivative, on all ranks."""

    label: str
    #: What each rank does. It raises if the rank sees that something is wrong.
    call: Callable[[], Any]
    #: Says what is wrong with what it gave on all ranks.
    compare: Callable[[Sequence[Any]], str | None] | None = None


def run(arguments: argparse.Namespace) -> int:
    if why := facts.why_alone(MPI):
        return launcher.refuse(why)
    comm, start = MPI.COMM_WORLD, time.monotonic()
    is_first = comm.Get_rank() == 0
    watchdog = Watchdog(sys.stderr.fileno(), arguments.limit)
    problems: list[str] = []

    def tell(line: str) -> None:
        if is_first:
            print(line, flush=True)

    tell(f"{facts.library_name(MPI.Get_library_version())}, {comm.Get_size()} rank(s)")
    tested = {name for case in OPERATIONS.values() for name in case.operations}
    if without := set(NAMES) - tested:
        problems.append(f"FAILED  no case for {', '.join(sorted(without))}")
        tell(problems[-1])
    for name, case in OPERATIONS.items():
        if case.size < case.least_size:
            tell(f"skipped {name}: needs {case.least_size} ranks")
            continue
        kin = [other for other in CASES.values() if other.operations == case.operations]
        failures = []
        for check in checks_of(kin):
            watchdog.start(check.label)
            # All ranks know of a failure before any of them goes on.
            outcomes = comm.allgather(_outcome_of(check))
            watchdog.stop()
            failures += [f"  {line}" for line in _failures(check, outcomes)]
        tell("\n".join([f"{'FAILED' if failures else 'ok':7} {name}", *failures]))
        problems += failures
    took = f"{time.monotonic() - start:.0f} s"
    tell(f"{len(problems)} failed ({took})" if problems else f"all is well ({took})")
    return 1 if problems else 0


def _outcome_of(check: Check) -> Outcome:
    try:
        return None, check.call()
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split()), None


def _failures(check: Check, outcomes: Sequence[Outcome]) -> list[str]:
    errors = ranks.by_value([error for error, _ in outcomes])
    lines = [
        f"{ranks.named(those)}, {check.label}: {error}"
        for error, those in errors.items()
        if error is not None
    ]
    if not lines and check.compare:
        difference = check.compare([value for _, value in outcomes])
        lines += [f"{check.label}: {difference}"] if difference else []
    return lines


def checks_of(cases: Sequence[Case]) -> Iterator[Check]:
    """What is to be checked of an operation."""
    for case in cases:
        for root in case.roots:
            one = case.replace(root=root)
            label = one.name if root is None else f"{one.name}, root {root}"
            # An operator is a number to all that follows: one mode shows if it is right.
            for mode in ("eager", "jit", "loop") if case.is_linear else ("jit",):
                call = functools.partial(_check_result, one, MODES[mode])
                yield Check(f"{label}, {mode}", call)
            if one.has_derivative and one.is_linear:
                change = functools.partial(_change, one)
                compare = _compare_shared if one.is_shared else _compare_sums
                yield Check(f"{label}, grad", change, compare)


def _numbers(rank: int, shape: Shape) -> Array:
    """Powers of two, whose sums and products have no rounding errors."""
    x: Array = np.ldexp(1, (np.arange(np.prod(shape)) + rank) % 11 - 5)
    return x.reshape(shape).astype(np.float32)


def _check_result(case: Case, transformed: Callable[..., Any]) -> None:
    xs = case.arrays(_numbers, BLOCK)
    expected = case.result(xs)
    found = np.asarray(transformed(case.call)(jnp.asarray(xs[case.rank])))
    if found.dtype != expected.dtype or not np.array_equal(found, expected):
        raise AssertionError(f"gave {found.tolist()} instead of {expected.tolist()}")


def _change(case: Case) -> Change:
    """What a change of all arrays does to a function of all results: two ways to it.

    If A is the operation and y the derivative by its results, <y, A v> = <A^T y, v>. NumPy
    gives A v, and the gradient A^T y. The sums are over all ranks.
    """
    vs = case.arrays(_numbers, BLOCK)
    moved = case.result(vs)
    y = _numbers(0 if case.is_shared else case.rank + 1, moved.shape)
    gradient = jax.jit(lambda x, y: jax.vjp(case.call, x)[1](y)[0])
    pulled = np.asarray(gradient(jnp.asarray(vs[case.rank]), jnp.asarray(y)))
    return _product(y, moved), _product(pulled, vs[case.rank])


def _product(x: Array, y: Array) -> float:
    return float(np.vdot(x.astype(np.float64), y.astype(np.float64)))


def _compare_sums(changes: Sequence[Change]) -> str | None:
    """Compare what the ranks' parts of a change add up to."""
    expected, found = (sum(part) for part in zip(*changes, strict=True))
    return None if expected == found else f"gave {found:g} instead of {expected:g}"


def _compare_shared(changes: Sequence[Change]) -> str | None:
    """The same where all share the result, which then counts once (docs/autodiff.md)."""
    return _compare_sums([changes[0], *((0.0, found) for _, found in changes[1:])])
