"""All functions of plans and of divided vectors, in one table.

What holds for each of them: which types it takes, on all processes alike, that a second
call compiles nothing, what reports say of it, and what it says of a freed communicator.
"""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import every_operation
from mpi4py import MPI

import mpi4jax
from mpi4jax import _core, fft, halo, linalg, pencil, unstructured
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.jax_compat import Tracer

COMM = MPI.COMM_WORLD
SIZE, RANK = COMM.Get_size(), COMM.Get_rank()


class Plans:
    """A plan of each kind on a communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.size = size = comm.Get_size()
        self.rank = rank = comm.Get_rank()
        self.comm = comm
        self.grid = comm.Create_cart([size], [True])
        self.halo = halo.Plan(self.grid, shape=[4 * size])
        ids = (np.arange(4) + 3 * rank) % (3 * size)
        self.rows = unstructured.Plan.from_global(ids, np.arange(4) < 3, comm=comm)
        self.layout = pencil.Layout(self.grid, (4 * size, 6), [0])
        self.other_layout = self.layout.with_axes([1])
        self.fft = fft.Plan(self.layout)

    @property
    def all(self) -> list[Any]:
        return [self.halo, self.rows, self.layout, self.fft]

    def free(self) -> None:
        self.grid.Free()
        self.comm.Free()

    def shape(self, kind: str) -> tuple[int, ...]:
        return {
            "cells": (6,),
            "own cells": (4,),
            "all cells": (4 * self.size,),
            "rows": (4,),
            "own rows": (3,),
            "all rows": (3 * self.size,),
            "part": (4, 6),
            "whole": (4 * self.size, 6),
            "spectral": self.fft.spectral.local_shape,
        }[kind]


class Function(NamedTuple):
    """A public function, and a call of it."""

    #: Of which shape its array is.
    takes: str
    call: Callable[[Plans, Any], Any]
    #: Whether it needs no other process, nor a communicator.
    is_local: bool = False


def as_modes(x: Any) -> Any:
    is_real = getattr(x, "dtype", None) in (np.float32, np.float64)
    return x + 0j if is_real else x


def minus_half(x: Any) -> Any:
    return x - x / 2


def solver(name: str) -> Function:
    function = getattr(linalg, name)
    return Function("cells", lambda p, x: function(minus_half, x, plan=p.halo))


#: By its name, and words about the call if there are several.
FUNCTIONS = {
    "halo.Plan.exchange": Function("cells", lambda p, x: p.halo.exchange(x)),
    "halo.Plan.exchange during": Function(
        "cells", lambda p, x: p.halo.exchange(x, during=lambda _: ())
    ),
    "halo.Plan.start": Function("cells", lambda p, x: p.halo.finish(p.halo.start(x))),
    "halo.Plan.accumulate": Function("cells", lambda p, x: p.halo.accumulate(x)),
    "halo.Plan.accumulate of maxima": Function(
        "cells", lambda p, x: p.halo.accumulate(x, op=MPI.MAX)
    ),
    "halo.Plan.with_ghosts": Function("own cells", lambda p, x: p.halo.with_ghosts(x)),
    "halo.Plan.without_ghosts": Function(
        "cells", lambda p, x: p.halo.without_ghosts(x), is_local=True
    ),
    "halo.Plan.scatter": Function(
        "all cells", lambda p, x: p.halo.scatter(x), is_local=True
    ),
    "halo.Plan.scatter from 0": Function(
        "all cells", lambda p, x: p.halo.scatter(x, root=0)
    ),
    "halo.Plan.scatter of a function": Function(
        "all cells", lambda p, x: p.halo.scatter(lambda: x), is_local=True
    ),
    "halo.Plan.gather": Function("cells", lambda p, x: p.halo.gather(x)),
    "halo.Plan.gather to 0": Function("cells", lambda p, x: p.halo.gather(x, root=0)),
    "unstructured.Plan.exchange": Function("rows", lambda p, x: p.rows.exchange(x)),
    "unstructured.Plan.start": Function(
        "rows", lambda p, x: p.rows.finish(p.rows.start(x))
    ),
    "unstructured.Plan.accumulate": Function("rows", lambda p, x: p.rows.accumulate(x)),
    "unstructured.Plan.accumulate of maxima": Function(
        "rows", lambda p, x: p.rows.accumulate(x, op=MPI.MAX)
    ),
    "unstructured.Plan.sum_shared": Function("rows", lambda p, x: p.rows.sum_shared(x)),
    "unstructured.Plan.with_ghosts": Function(
        "own rows", lambda p, x: p.rows.with_ghosts(x)
    ),
    "unstructured.Plan.without_ghosts": Function(
        "rows", lambda p, x: p.rows.without_ghosts(x), is_local=True
    ),
    "unstructured.Plan.gather": Function("rows", lambda p, x: p.rows.gather(x)),
    "unstructured.Plan.gather to 0": Function(
        "rows", lambda p, x: p.rows.gather(x, root=0)
    ),
    "unstructured.Plan.scatter": Function("all rows", lambda p, x: p.rows.scatter(x)),
    "unstructured.Plan.scatter from 0": Function(
        "all rows", lambda p, x: p.rows.scatter(x, root=0)
    ),
    "unstructured.Plan.scatter of a function": Function(
        "all rows", lambda p, x: p.rows.scatter(lambda: x)
    ),
    "unstructured.migrate": Function(
        "rows",
        lambda p, x: (
            unstructured.migrate(
                x, np.full(4, (p.rank + 1) % p.size), comm=p.comm
            ).particles
        ),
    ),
    "pencil.Layout.redistribute": Function(
        "part", lambda p, x: p.layout.redistribute(x, to=p.other_layout)
    ),
    "pencil.Layout.scatter": Function(
        "whole", lambda p, x: p.layout.scatter(x), is_local=True
    ),
    "pencil.Layout.scatter from 0": Function(
        "whole", lambda p, x: p.layout.scatter(x, root=0)
    ),
    "pencil.Layout.scatter of a function": Function(
        "whole", lambda p, x: p.layout.scatter(lambda: x), is_local=True
    ),
    "pencil.Layout.gather": Function("part", lambda p, x: p.layout.gather(x)),
    "pencil.Layout.gather to 0": Function("part", lambda p, x: p.layout.gather(x, root=0)),
    "fft.Plan.forward": Function("part", lambda p, x: p.fft.forward(x)),
    "fft.Plan.backward": Function("spectral", lambda p, x: p.fft.backward(as_modes(x))),
    "linalg.sum": Function("cells", lambda p, x: linalg.sum(x, plan=p.halo)),
    "linalg.sum, reproducible": Function(
        "cells", lambda p, x: linalg.sum(x, plan=p.halo, reproducible=True)
    ),
    "linalg.norm": Function("rows", lambda p, x: linalg.norm(x, plan=p.rows)),
    "linalg.rms_norm": Function("rows", lambda p, x: linalg.rms_norm(p.rows)(x)),
    "linalg.max_norm": Function("rows", lambda p, x: linalg.max_norm(p.rows)(x)),
    "linalg.vdot": Function("rows", lambda p, x: linalg.vdot(x, x, comm=p.comm)),
    **{f"linalg.{name}": solver(name) for name in ("cg", "bicgstab", "gmres")},
}
#: The public methods that are called for no arrays, or need what a test of its own has.
OTHERS = {
    "halo.Plan.finish",
    "halo.Plan.shares_points",
    "unstructured.Plan.blocked",
    "unstructured.Plan.describe",
    "unstructured.Plan.finish",
    "unstructured.Plan.from_global",
    "unstructured.Plan.from_neighbors",
    "unstructured.Plan.renumber",
    "unstructured.Plan.spread",
    "unstructured.Plan.tree_flatten",
    "unstructured.Plan.tree_unflatten",
    "pencil.Layout.part",
    "pencil.Layout.sharding",
    "pencil.Layout.with_axes",
    "pencil.Layout.with_shape",
    "fft.Plan.part",
    "fft.Plan.wavenumbers",
    "fft.Plan.weights",
    # They take sharded arrays.
    *(f"fft.{name}" for name in fft.__all__ if name != "Plan"),
}


def name_of(key: str) -> str:
    """The name of a function, from the name of a call."""
    return re.split("[, ]", key)[0]


@pytest.fixture(scope="module")
def plans():
    return Plans(COMM.Dup())


def test_the_table_has_all_functions():
    public = set()
    for module in (halo, unstructured, pencil, fft, linalg):
        name = module.__name__.removeprefix("mpi4jax.")
        for member in module.__all__:
            value = getattr(module, member)
            if member == "Plan" or member == "Layout":
                methods = inspect.getmembers(value, callable)
                public |= {f"{name}.{member}.{x}" for x, _ in methods if x[0] != "_"}
            elif not inspect.isclass(value):
                public.add(f"{name}.{member}")
    assert public == {*map(name_of, FUNCTIONS), *OTHERS}


#: Values, and whether they have a type that some functions take.
VALUES = {
    "shortest": (
        lambda shape: [jnp.ones(shape, x) for x in (jnp.int4, jnp.float8_e4m3fn)],
        True,
    ),
    "key": (lambda shape: jax.random.split(jax.random.key(0), shape), False),
    "text": (lambda shape: "text", False),
    "objects": (lambda shape: np.full(shape, None), False),
}


@pytest.mark.parametrize("kind", VALUES)
def test_types(kind, plans):
    """All processes take a value or refuse it, in words that begin with the function."""
    value_of, is_array = VALUES[kind]
    outcomes = {}
    for key, (takes, call, _) in FUNCTIONS.items():
        try:
            result = call(plans, value_of(plans.shape(takes)))
        except (TypeError, ValueError) as error:
            outcomes[key] = str(error)
        else:
            leaves = jax.tree_util.tree_leaves(result)
            is_jax = all(isinstance(x, jax.Array) for x in leaves)
            outcomes[key] = f"{name_of(key)} got it, and gave arrays of JAX: {is_jax}"
    of_others = COMM.allgather(outcomes)
    for key, outcome in outcomes.items():
        assert re.match(rf"{re.escape(name_of(key))}( got |: `)", outcome), key
        assert not outcome.endswith("False"), key
        assert {others[key] for others in of_others} == {outcome}, key
    assert any(outcome.endswith("True") for outcome in outcomes.values()) == is_array


class Compilations(logging.Handler):
    """The names of the programs that JAX compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Compiling "):
            self.names.append(text.split()[1])


@pytest.fixture
def compilations():
    handler, logger = Compilations(), logging.getLogger("jax")
    handler.setLevel(logging.DEBUG)
    old = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    with jax.log_compiles():
        yield handler
    logger.removeHandler(handler)
    logger.propagate = old


@pytest.mark.parametrize("key", FUNCTIONS)
def test_calls(key, plans, compilations, monkeypatch):
    """A second call compiles nothing, and a report would name the function and the line."""
    told = [""]
    monkeypatch.setattr(_core, "set_eager_line", lambda line, *_: told.append(line))
    monkeypatch.setattr(_core, "set_flight_line", lambda _, line: told.append(line))
    takes, call, is_local = FUNCTIONS[key]
    values = np.random.default_rng(RANK).normal(size=plans.shape(takes))
    x = values.astype(np.float32)
    first = jax.block_until_ready(call(plans, values))
    # JAX 0.12 compiles for an array what it has compiled for one of NumPy's.
    jax.block_until_ready(call(plans, jnp.asarray(x)))
    compilations.names.clear()
    second = jax.block_until_ready(call(plans, jnp.asarray(x)))
    assert compilations.names == []
    leaves = jax.tree_util.tree_leaves(second)
    assert all(isinstance(leaf, jax.Array) and leaf is not x for leaf in leaves)
    jax.tree.map(np.testing.assert_array_equal, first, second)
    if SIZE > 1 and not is_local:
        name = re.escape(name_of(key))
        # A start is followed by a wait with a line of its own.
        lines = told if key.endswith(".start") else told[-1:]
        pattern = rf"test_plans.py:\d+ in .* \({name}\), from "
        assert any(re.search(pattern, line) for line in lines), told


@every_operation
def test_operations(case, compilations):
    x = jnp.ones(case.shape((4,)))
    jax.block_until_ready(case.call(x))
    compilations.names.clear()
    jax.block_until_ready(case.call(x))
    assert compilations.names == []


def test_a_freed_communicator():
    plans = Plans(COMM.Dup())
    plans.free()
    text = "got a (plan whose communicator was freed|null communicator for argument)"
    for key, (takes, call, is_local) in FUNCTIONS.items():
        if not is_local:
            with pytest.raises(ValueError, match=rf"^{re.escape(name_of(key))} {text}"):
                call(plans, np.ones(plans.shape(takes)))
    for name, other in {
        "halo.Plan": lambda: halo.Plan(plans.grid),
        "pencil.Layout": lambda: pencil.Layout(plans.grid, (4, 4), [0]),
        "pencil.Layout.with_axes": lambda: plans.layout.with_axes([1]),
        "pencil.Layout.with_shape": lambda: plans.layout.with_shape([3]),
        "fft.Plan": lambda: fft.Plan(plans.layout),
        "unstructured.Plan.from_global": lambda: unstructured.Plan.from_global(
            [RANK], comm=plans.comm
        ),
        "unstructured.Plan.from_neighbors": lambda: unstructured.Plan.from_neighbors(
            {}, 3, comm=plans.comm
        ),
        "unstructured.Plan.blocked": lambda: plans.rows.blocked(2),
        "unstructured.Plan.renumber": plans.rows.renumber,
    }.items():
        with pytest.raises(ValueError, match=f"^{name} {text}"):
            other()


def test_arguments_of_a_wrong_type(plans):
    rows, field = plans.rows, np.ones(4)
    for text, call in {
        "unstructured.Plan.exchange: `axis` must be an integer, not 0.0": (
            lambda: rows.exchange(field, axis=0.0)
        ),
        "linalg.cg: `rtol` must be a number, not an array of type float64 and shape (2,)": (
            lambda: linalg.cg(minus_half, field, rtol=np.ones(2), comm=COMM)
        ),
    }.items():
        with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
            call()
    modes = fft.Plan(plans.layout, real=True).forward(np.ones((4, 6), np.float16))
    assert modes.dtype == np.complex64
    for name in ("rtol", "atol"):
        with pytest.raises(
            ValueError, match=f"got -1 for argument `{name}`, expected 0 or"
        ):
            linalg.cg(minus_half, field, comm=COMM, **{name: -1})


def test_copies(plans):
    """A plan doesn't change, and belongs to this process."""
    for plan in plans.all:
        assert copy.copy(plan) is plan
        assert copy.deepcopy([plan]) == [plan]
        with pytest.raises(TypeError, match="can't be pickled, as it belongs to a commun"):
            pickle.dumps(plan)


def test_plans_that_are_made_while_a_program_is_traced():
    """Fails if a plan keeps an array of the trace."""
    made = []

    def program():
        plans = Plans(COMM.Dup())
        made.append(plans)
        arrays = {key: np.ones(plans.shape(f.takes)) for key, f in FUNCTIONS.items()}
        for key, function in FUNCTIONS.items():
            function.call(plans, arrays[key])

    jax.make_jaxpr(program)()
    (plans,) = made
    for plan in (*plans.all, plans.rows._rows):
        leaves = jax.tree_util.tree_leaves(list(vars(plan).values()))
        assert not any(isinstance(leaf, Tracer) for leaf in leaves)
    x = np.arange(4.0, dtype=np.float32) + 4 * RANK
    np.testing.assert_array_equal(plans.rows.gather(x)[:3], [0, 1, 2])
    np.testing.assert_array_equal(plans.rows.exchange(x)[:3], x[:3])
    y = np.ones((4, 6), np.complex64)
    np.testing.assert_allclose(plans.fft.backward(plans.fft.forward(y)), y, rtol=1e-5)
    plans.free()


def test_an_exception_while_an_update_is_in_flight(plans):
    """It is finished: the others, where nothing was raised, get all of it."""

    def during(*_):
        if RANK == 0:
            raise KeyError("on purpose")

    x = np.arange(6.0) + RANK
    for call, expected in (
        (lambda: plans.halo.exchange(x, during=during), plans.halo.exchange(x)),
        (lambda: plans.rows.exchange(x[:4], during=during), plans.rows.exchange(x[:4])),
        (
            lambda: mpi4jax.overlap(lambda: mpi.allreduce(x, MPI.SUM), during=during),
            mpi.allreduce(x, MPI.SUM),
        ),
    ):
        if RANK == 0:
            with pytest.raises(KeyError, match="on purpose"):
                call()
        else:
            np.testing.assert_array_equal(call()[0], expected)
    assert mpi.allreduce(1, MPI.SUM) == SIZE
