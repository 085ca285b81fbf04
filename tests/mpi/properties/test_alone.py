"""Calls on a communicator of one process, which programs leave out."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import over
from exports import jax_export
from mpi4py import MPI

from mpi4jax import _mpi, diagnostics, extend
from mpi4jax import notoken as mpi
from mpi4jax._internal.operations._alone import set_logging
from mpi4jax._testing.cases import CASES

NULL = MPI.PROC_NULL
X = jnp.arange(6.0)


@pytest.fixture
def comm():
    """A communicator of this process, on which no test before has sent a message."""
    comm = MPI.COMM_SELF.Dup()
    yield comm
    comm.Free()


def calls(function, *arguments):
    """The handlers that the compiled program calls."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return re.findall(r'custom_call_target="mpi_(\w+)_ffi"', text)


#: Operations that are called nevertheless.
MADE = re.compile("neighbor_.*|.*-capacity")


@over(case for case in CASES.values() if case.least_size == 1)
def test_programs_hold_no_call(case, comm):
    case = case.replace(comm=comm)
    x = np.random.default_rng(0).integers(1, 9, case.shape((3, 2))).astype(np.float32)
    assert bool(calls(case.call, x)) == bool(MADE.fullmatch(case.name))
    for function in (case.call, jax.jit(case.call)):
        np.testing.assert_array_equal(function(x), case.result([x]))


def test_a_program_with_derivatives_loops_and_batches(comm):
    def step(x):
        x = mpi.allreduce(x, op=MPI.SUM, comm=comm) + mpi.bcast(x, 0, comm=comm)
        x = mpi.sendrecv(x, x, 0, 0, comm=comm) * mpi.allreduce(x, op=MPI.MAX, comm=comm)
        return mpi.scan(x, op=MPI.PROD, comm=comm)

    def loss(x, step):
        x = jax.lax.fori_loop(0, 3, lambda _, x: jax.checkpoint(step)(x), x)
        return jax.lax.cond(x.sum() > 0, step, lambda x: x, x).sum()

    def derivatives(x, step):
        gradient = jax.grad(lambda x: jax.jvp(lambda x: loss(x, step), (x,), (x,))[1])
        return jax.vmap(gradient)(x)

    def by_hand(x):
        return 4 * x * x

    x = jnp.linspace(0.1, 0.9, 6).reshape(2, 3)
    # What keeps the order with calls of other processes stays, where there are any.
    stay = set() if _mpi.is_missing(MPI.Get_library_version()) else {"in_order"}
    assert set(calls(lambda x: derivatives(x, step), x)) == stay
    actual = jax.jit(lambda x: derivatives(x, step))(x)
    np.testing.assert_allclose(actual, derivatives(x, by_hand), rtol=1e-5)


def test_messages_to_oneself(comm):
    """Each receive gets the first message of its tag, as MPI matches them."""

    def exchange(x):
        recvbuf, tags = [x, {"a": x, "b": x[:2]}, x], [7, MPI.ANY_TAG, 2]
        sendbuf = [{"a": 2 * x, "b": x[2:4]}, 3 * x, 4 * x]
        sources = [0, MPI.ANY_SOURCE, 0]
        return mpi.exchange(
            sendbuf, recvbuf, sources, [0, 0, 0], sendtag=[1, 2, 7], recvtag=tags, comm=comm
        )

    assert calls(exchange, X) == []
    first, second, third = jax.jit(exchange)(X)
    np.testing.assert_array_equal(first, 4 * X)
    np.testing.assert_array_equal(second["a"], 2 * X)
    np.testing.assert_array_equal(second["b"], X[2:4])
    np.testing.assert_array_equal(third, 3 * X)


def test_messages_to_nobody(comm):
    def call(x):
        mpi.send(x, NULL, comm=comm)
        received = mpi.sendrecv(x, 2 * x, NULL, NULL, comm=comm)
        return received, mpi.recv(3 * x, NULL, comm=comm)

    assert calls(call, X) == []
    for function in (call, jax.jit(call)):
        first, second = function(X)
        np.testing.assert_array_equal(first, 2 * X)
        np.testing.assert_array_equal(second, 3 * X)


def test_messages_under_way_come_first(comm):
    to_be_received = mpi.irecv(X, 0, tag=9, comm=comm)
    sent = mpi.isend(X, 0, tag=5, comm=comm)
    received = mpi.sendrecv(2 * X, X, 0, 0, sendtag=9, recvtag=MPI.ANY_TAG, comm=comm)
    np.testing.assert_array_equal(received, X)
    np.testing.assert_array_equal(mpi.wait(to_be_received), 2 * X)
    mpi.wait(sent)


def test_a_status_is_filled(comm):
    status = MPI.Status()
    mpi.sendrecv(X, X, MPI.ANY_SOURCE, 0, sendtag=3, comm=comm, status=status)
    assert (status.Get_source(), status.Get_tag()) == (0, 3)
    assert status.Get_count(MPI.FLOAT) == X.size


def test_debug_lines_show_calls_that_programs_left_out(comm, capsys):
    def function(x):
        return mpi.allreduce(x, op=MPI.SUM, comm=comm)

    jitted = jax.jit(function)
    jitted(X), function(X)
    assert calls(function, X) == []
    set_logging(True)
    try:
        capsys.readouterr()
        jax.block_until_ready([jitted(X), function(X)])
    finally:
        set_logging(False)
    assert capsys.readouterr().out.count("MPI_Allreduce with 6 items") == 2


def test_profiles_show_calls_that_programs_left_out(comm):
    jitted = jax.jit(lambda x: mpi.allreduce(x, op=MPI.SUM, comm=comm))
    jitted(X)
    with diagnostics.profile(quiet=True) as profile:
        jax.block_until_ready(jitted(X))
    (row,) = (row for row in profile.rows if row.operation == "allreduce")
    assert row.calls == MPI.COMM_WORLD.Get_size()
    assert calls(lambda x: mpi.allreduce(x, op=MPI.SUM, comm=comm), X) == []


def test_exported_programs_have_their_calls(comm):
    export = jax_export()
    exported = export.export(
        jax.jit(lambda x: mpi.allreduce(x, op=MPI.SUM, comm=comm)),
        disabled_checks=extend.export_checks(),
    )(X)
    assert "mpi_allreduce_ffi" in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(X), X)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed, comm):
    """Equal to the same program with NumPy in place of MPI."""
    rng = np.random.default_rng(seed)
    with_mpi = {
        "allreduce": lambda x: mpi.allreduce(x, op=MPI.SUM, comm=comm),
        "reduce": lambda x: mpi.reduce(x, op=MPI.MIN, root=0, comm=comm),
        "scan": lambda x: mpi.scan(x, op=MPI.PROD, comm=comm),
        "bcast": lambda x: mpi.bcast(x, 0, comm=comm),
        "exscan": lambda x: mpi.exscan(x, op=MPI.SUM, comm=comm),
        "allgather": lambda x: mpi.allgather(x, comm=comm)[0],
        "gather": lambda x: mpi.gather(x, 0, comm=comm)[0],
        "scatter": lambda x: mpi.scatter(x[None], 0, comm=comm),
        "alltoall": lambda x: mpi.alltoall(x[None], comm=comm)[0],
        "gatherv": lambda x: mpi.gatherv(x, [len(x)], 0, comm=comm),
        "sendrecv": lambda x: mpi.sendrecv(x, x, 0, 0, comm=comm),
        "halo": lambda x: (
            mpi.exchange([x[:1], x[-1:]], [x[:1]] * 2, 0, 0, comm=comm)[0] + x
        ),
    }
    by_hand = {name: lambda x: x for name in with_mpi}
    by_hand["exscan"] = lambda x: 0 * x
    names = rng.choice(list(with_mpi), 12)
    factors = rng.integers(-2, 3, 12)
    dtype = rng.choice([np.int32, np.float32, np.float64])
    x = rng.integers(-9, 9, (4, rng.integers(0, 3))).astype(dtype)

    def program(x, functions):
        for name, factor in zip(names, factors, strict=True):
            x = functions[name](x) + int(factor)
        return x

    assert calls(lambda x: program(x, with_mpi), x) == []
    for mode in (lambda f: f, jax.jit):
        actual = mode(lambda x: program(x, with_mpi))(jnp.asarray(x))
        np.testing.assert_array_equal(actual, program(x, by_hand))
