"""Call every operation on this installation, and compare its results with NumPy's."""

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

from mpi4jax import _launcher, _terminal
from mpi4jax._text import wrap

from .._testing.cases import CASES, NAMES, OPERATIONS, Array, Case, Shape
from .._testing.modes import MODES
from . import ranks
from .watchdog import Watchdog

#: The shape of a block. None of its sides is a likely number of processes.
BLOCK = (5, 2)

#: The value of a check, or an error.
Outcome = tuple["str | None", Any]
#: A product of a cotangent and a change, by NumPy and by a derivative.
Change = tuple[float, float]


class Check(NamedTuple):
    """One call, or its derivative, on all ranks."""

    label: str
    #: The call of each rank, which raises if the rank sees that its result is wrong.
    call: Callable[[], Any]
    #: Compares the values of all ranks, and returns the problem, if any.
    compare: Callable[[Sequence[Any]], str | None] | None = None


def run(arguments: argparse.Namespace) -> int:
    if why := _launcher.why_alone(MPI):
        return _launcher.refuse(why)
    comm, start = MPI.COMM_WORLD, time.monotonic()
    is_first = comm.Get_rank() == 0
    watchdog = Watchdog(sys.stderr.fileno(), arguments.limit)
    problems: list[str] = []
    terminal = _terminal.of()

    def tell(line: str) -> None:
        if is_first:
            print(line, flush=True)

    def tell_problems(name: str, texts: Sequence[str]) -> None:
        tell(f"{terminal.error('FAILED')}  {name}")
        for text in texts:
            tell("  " + wrap(text, terminal.width - 2, indent=4))
        problems.extend(texts or [name])

    tell(f"{_launcher.library_name(MPI.Get_library_version())}, {comm.Get_size()} rank(s)")
    tested = {name for case in OPERATIONS.values() for name in case.operations}
    if without := set(NAMES) - tested:
        text = f"no case for {', '.join(sorted(without))}"
        tell_problems(wrap(text, terminal.width - 8, indent=8), [])
    for name, case in OPERATIONS.items():
        if case.size < case.least_size:
            tell(f"{terminal.warning('skipped')} {name}: needs {case.least_size} ranks")
            continue
        kin = [other for other in CASES.values() if other.operations == case.operations]
        failures = []
        for check in checks_of(kin):
            watchdog.start(check.label)
            # All ranks know of a failure before any of them goes on.
            outcomes = comm.allgather(_outcome_of(check))
            watchdog.stop()
            failures += _failures(check, outcomes)
        if failures:
            tell_problems(name, failures)
        else:
            tell(f"{terminal.good('ok')}      {name}")
    took = f"{time.monotonic() - start:.0f} s"
    if problems:
        tell(terminal.error(f"{len(problems)} failed ({took})"))
    else:
        tell(terminal.good(f"all is well ({took})"))
    return 1 if problems else 0


def _outcome_of(check: Check) -> Outcome:
    try:
        return None, check.call()
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split()), None


def _failures(check: Check, outcomes: Sequence[Outcome]) -> list[str]:
    errors = ranks.by_value([error for error, _ in outcomes])
    lines = [
        f"{ranks.name_ranks(failed_on)}, {check.label}: {error}"
        for error, failed_on in errors.items()
        if error is not None
    ]
    if not lines and check.compare:
        difference = check.compare([value for _, value in outcomes])
        lines += [f"{check.label}: {difference}"] if difference else []
    return lines


def checks_of(cases: Sequence[Case]) -> Iterator[Check]:
    """The checks of an operation, from all of its cases."""
    for case in cases:
        for root in case.roots:
            rooted = case.replace(root=root)
            label = rooted.name if root is None else f"{rooted.name}, root {root}"
            # To compiled programs, an operator is a number: one mode is enough to check it.
            for mode in ("eager", "jit", "loop") if case.is_linear else ("jit",):
                call = functools.partial(_check_result, rooted, MODES[mode])
                yield Check(f"{label}, {mode}", call)
            if rooted.has_derivative and rooted.is_linear:
                change = functools.partial(_change, rooted)
                compare = _compare_shared if rooted.is_shared else _compare_sums
                yield Check(f"{label}, grad", change, compare)


def _numbers(rank: int, shape: Shape) -> Array:
    """Powers of two, whose sums and products have no rounding errors."""
    x: Array = np.ldexp(1, (np.arange(np.prod(shape)) + rank) % 11 - 5)
    return x.reshape(shape).astype(np.float32)


def _check_result(case: Case, transformed: Callable[..., Any]) -> None:
    xs = case.arrays(_numbers, BLOCK)
    expected = case.result(xs)
    result = np.asarray(transformed(case.call)(jnp.asarray(xs[case.rank])))
    if result.dtype != expected.dtype or not np.array_equal(result, expected):
        raise AssertionError(f"gave {result.tolist()} instead of {expected.tolist()}")


def _change(case: Case) -> Change:
    """This rank's part of <y, A v> and of <A^T y, v>, whose sums over all ranks are equal.

    A is the operation, v a change of its operands, and y a cotangent of its results. NumPy
    gives A v, and the gradient A^T y.
    """
    vs = case.arrays(_numbers, BLOCK)
    tangent = case.result(vs)
    y = _numbers(0 if case.is_shared else case.rank + 1, tangent.shape)
    gradient = jax.jit(lambda x, y: jax.vjp(case.call, x)[1](y)[0])
    cotangent = np.asarray(gradient(jnp.asarray(vs[case.rank]), jnp.asarray(y)))
    return _product(y, tangent), _product(cotangent, vs[case.rank])


def _product(x: Array, y: Array) -> float:
    return float(np.vdot(x.astype(np.float64), y.astype(np.float64)))


def _compare_sums(changes: Sequence[Change]) -> str | None:
    """Compare the sums of the parts of all ranks."""
    expected, actual = (sum(parts) for parts in zip(*changes, strict=True))
    return None if expected == actual else f"gave {actual:g} instead of {expected:g}"


def _compare_shared(changes: Sequence[Change]) -> str | None:
    """Compare the sums of a shared result, which counts once (docs/autodiff.md)."""
    return _compare_sums([changes[0], *((0.0, actual) for _, actual in changes[1:])])
