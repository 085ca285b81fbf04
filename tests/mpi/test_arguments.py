"""Bad arguments are refused at the call, with a text that says what is wrong."""

import functools
import inspect
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import every_root
from mpi4py import MPI

from mpi4jax import notoken as mpi

X = jnp.ones(3)

BY_TYPE = {
    "allgather": (lambda: mpi.allgather(X, comm=3), "comm", r"\['NoneType', 'Intra.*int"),
    "allgatherv": (
        lambda: mpi.allgatherv(X, 3),
        "counts",
        r"\['Sequence', 'ndarray'\], got.*int",
    ),
    "allreduce": (lambda: mpi.allreduce(X, op=np.sum), "op", r"\['Op', 'Hashable.*got"),
    "alltoall": (lambda: mpi.alltoall(X, comm="world"), "comm", r".*got: <class 'str'>"),
    "alltoallv": (
        lambda: mpi.alltoallv(X, [3] * MPI.COMM_WORLD.Get_size(), "3"),
        "recvcounts",
        r"\['Sequence', 'ndarray'\], got.*str",
    ),
    "barrier": (lambda: mpi.barrier(comm=1.0), "comm", r".*got: <class 'float'>"),
    "bcast": (lambda: mpi.bcast(X, 1.5), "root", r"expected: integer, got.*float"),
    "exscan": (
        lambda: mpi.exscan(X, max),
        "op",
        r"\['Op', 'HashableMPIType'\], got.*built",
    ),
    "gather": (lambda: mpi.gather(X, None), "root", r"expected: integer, got.*None"),
    "gatherv": (
        lambda: mpi.gatherv(X, [1.5] * MPI.COMM_WORLD.Get_size(), 0),
        "counts",
        r"expected: integer, got.*float",
    ),
    "recv": (lambda: mpi.recv(X, "a"), "source", r"expected: integer, got.*str"),
    "reduce": (lambda: mpi.reduce(X, MPI.SUM, True), "root", r"expected: integer.*bool"),
    "reduce_scatterv": (
        lambda: mpi.reduce_scatterv(X, MPI.SUM, 3),
        "counts",
        r"\['Sequence', 'ndarray'\], got.*int",
    ),
    "reduce_scatter": (
        lambda: mpi.reduce_scatter(jnp.ones(MPI.COMM_WORLD.Get_size()), None),
        "op",
        r"\['Op', 'HashableMPIType'\], got.*None",
    ),
    "scan": (lambda: mpi.scan(X, "+"), "op", r"\['Op', 'HashableMPIType'\], got.*str"),
    "scatter": (lambda: mpi.scatter(X, 0, comm=[]), "comm", r".*got: <class 'list'>"),
    "scatterv": (
        lambda: mpi.scatterv(X, {0: 3}, 0),
        "counts",
        r"\['Sequence', 'ndarray'\], got.*dict",
    ),
    "send": (lambda: mpi.send(X, 0, tag="t"), "tag", r"expected: integer, got.*str"),
    "sendrecv": (
        lambda: mpi.sendrecv(X, X, 0, 0, status=0),
        "status",
        r"\['NoneType', 'Status', 'HashableMPIType'\], got.*int",
    ),
}


def test_every_operation_has_a_bad_argument():
    assert sorted(BY_TYPE) == sorted(mpi.__all__)


@pytest.mark.parametrize("name", mpi.__all__)
def test_types(name):
    call, argument, text = BY_TYPE[name]
    with pytest.raises(
        TypeError, match=f'{name} got unexpected type for argument "{argument}" .*{text}'
    ):
        call()


@pytest.mark.parametrize("x", [[1.0, 2.0], "text", None, {"a": X}], ids=repr)
def test_what_is_no_array(x):
    for transform in (lambda f: f, lambda f: jax.jit(lambda _: f(x))):
        with pytest.raises(
            TypeError, match='allgather got unexpected type for argument "x"'
        ):
            transform(mpi.allgather)(x if transform(1) == 1 else X)


def test_tracer_where_a_number_is_needed():
    with pytest.raises(TypeError, match="An abstract tracer was passed"):
        jax.jit(lambda x, root: mpi.bcast(x, root))(X, 0)


@pytest.mark.parametrize("root", [-1, 100])
@every_root
def test_root_out_of_range(case, root, size):
    wrong = case.but(root=root)
    with pytest.raises(
        ValueError,
        match=f"{case.name} got {root} for argument `root`, expected a rank of the "
        rf"communicator \(0 to {size - 1}\)",
    ):
        wrong.call(jnp.ones(wrong.shape((2,))))


def test_numpy_integers_are_accepted(size):
    assert mpi.bcast(X, np.int64(0)).shape == (3,)
    assert mpi.allgatherv(X, np.full(size, 3, np.uint8)).shape == (3 * size,)
    assert mpi.allgather(np.float32(1)).shape == (size,)


def test_first_axis(rank, size):
    for x in (jnp.ones((size + 1, 2)), jnp.float32(1)):
        with pytest.raises(
            ValueError, match=r"Alltoall input must have shape \(nproc, \.\.\.\)"
        ):
            mpi.alltoall(x)
        with pytest.raises(
            ValueError, match=r"Reduce_scatter input must have shape \(nproc, \.\.\.\)"
        ):
            mpi.reduce_scatter(x, MPI.SUM)
        if rank == 0:
            with pytest.raises(
                ValueError, match=r"Scatter input must have shape \(nproc, \.\.\.\)"
            ):
                mpi.scatter(x, 0)


#: The arguments that say how many rows each process has.
COUNTS = {
    (name, argument)
    for name in mpi.__all__
    for argument in inspect.signature(getattr(mpi, name)).parameters
    if argument.endswith("counts")
}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_counts(transform, size, calls_of):
    right = [3] * size
    calls = {
        ("allgatherv", "counts"): lambda x, n: mpi.allgatherv(x, n),
        ("alltoallv", "sendcounts"): lambda x, n: mpi.alltoallv(x, n, right),
        ("alltoallv", "recvcounts"): lambda x, n: mpi.alltoallv(x, right, n),
        ("gatherv", "counts"): lambda x, n: mpi.gatherv(x, n, 0),
        ("scatterv", "counts"): lambda x, n: mpi.scatterv(x, n, 0),
    }
    assert calls.keys() == COUNTS

    def refused():
        for (name, argument), call in calls.items():
            for counts in ([], [*right, 3], np.array([-1, *right[1:]])):
                given = re.escape(str(list(map(int, counts))))
                text = (
                    f"{name} got {given} for argument `{argument}`, expected a number of "
                    f"rows, not negative, for each of the {size} processes"
                )
                with pytest.raises(ValueError, match=text):
                    transform(functools.partial(call, n=counts))(X)

    assert calls_of(refused) == (None, Counter())


def test_rows_are_what_the_counts_say(rank, size, calls_of):
    fours = [4] * size
    calls = {
        "allgatherv": (lambda x: mpi.allgatherv(x, fours), 4),
        "alltoallv": (lambda x: mpi.alltoallv(x, fours, fours), 4 * size),
        "gatherv": (lambda x: mpi.gatherv(x, fours, 0), 4),
        "scatterv": (lambda x: mpi.scatterv(x, fours, 0), 4 if rank else 4 * size),
    }
    assert calls.keys() == {name for name, _ in COUNTS}

    def refused():
        for x in (jnp.ones((5, 3)), jnp.float32(1)):
            for name, (call, rows) in calls.items():
                text = (
                    f"{name} got an array of shape {re.escape(str(x.shape))} for argument "
                    rf"`x`, expected \({rows}, \.\.\.\), as the counts say"
                )
                with pytest.raises(ValueError, match=text):
                    call(x)

    assert calls_of(refused) == (None, Counter())


def test_rows_that_stay(rank, size):
    # What a process sends to itself is what it gets from itself.
    with pytest.raises(
        ValueError,
        match="alltoallv got 2 rows in `sendcounts` and 1 in `recvcounts` for this process "
        rf"itself \(rank {rank}\), expected the same number",
    ):
        mpi.alltoallv(jnp.ones(2 * size), [2] * size, [1] * size)


@pytest.mark.ranks(2)
def test_intercommunicators(rank, size, comm):
    local = comm.Split(rank % 2)
    inter = local.Create_intercomm(0, comm, 1 - rank % 2)
    with pytest.raises(TypeError, match='argument "comm" .*Intercomm'):
        mpi.allreduce(X, MPI.SUM, comm=inter)
    inter.Free()
    local.Free()


def test_null_communicator():
    comm = MPI.COMM_WORLD.Dup()
    comm.Free()
    with pytest.raises(ValueError, match='barrier got a null communicator.*"comm"'):
        mpi.barrier(comm=comm)


def test_null_operator():
    op = MPI.Op.Create(lambda a, b, t: None)
    op.Free()
    with pytest.raises(ValueError, match='scan got a null operator.*"op"'):
        mpi.scan(X, op)


def test_compiled_function_of_a_freed_communicator(size):
    comm = MPI.COMM_WORLD.Dup()
    functions = [
        jax.jit(lambda x: mpi.allreduce(x, MPI.SUM, comm=comm)),
        lambda x: mpi.allreduce(x, MPI.SUM, comm=comm),
    ]
    for function in functions:
        assert function(X)[0] == size
    comm.Free()
    # A new communicator may get the handle of the freed one, but not its number.
    replacement = MPI.COMM_WORLD.Dup()
    with pytest.raises(Exception, match="communicator [0-9]+ was freed"):
        functions[0](X).block_until_ready()
    with pytest.raises(ValueError, match="null communicator"):
        functions[1](X)
    assert mpi.allreduce(X, MPI.SUM, comm=replacement)[0] == size
    replacement.Free()


def test_communicator_freed_while_its_programs_run(rank, size):
    comm = MPI.COMM_WORLD.Dup()

    @jax.jit
    def slow(x):
        y = jnp.ones((600, 600)) + 0 * x.sum()
        for _ in range(5):
            y = y @ y / 600
        return mpi.allreduce(x * y[0, 0], MPI.SUM, comm=comm)

    slow(X).block_until_ready()
    results = [slow(X), slow(X)]
    comm.Free()
    for result in results:
        np.testing.assert_array_equal(result, size * np.ones(3))
