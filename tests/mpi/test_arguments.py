"""Bad arguments are refused at the call, with a text that says what is wrong."""

import functools
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import ARRAYS, arguments_of, every_argument, every_operation, every_root
from mpi4py import MPI

from mpi4jax import notoken as mpi

X = jnp.ones(3)

INTEGER = "expected: integer, got: {}"
WRONG_INTEGERS = [(value, INTEGER) for value in (1.5, "a", None, True, [0])]
WRONG_COUNTS = [
    (value, r"expected: \['Sequence', 'ndarray'\], got: {}")
    for value in (3, "3", {0: 3}, None)
]
#: Values of a wrong type for each argument that is no array, and the end of the error.
WRONG = {
    "comm": [
        (value, r"expected: \['NoneType', 'Intracomm', .*, got: {}")
        for value in (3, "world", 1.0, [])
    ],
    "op": [
        (value, r"expected: \['Op', 'HashableMPIType'\], got: {}")
        for value in (np.sum, max, None, "+")
    ],
    "status": [(0, r"expected: \['NoneType', 'Status', 'HashableMPIType'\], got: {}")],
    **dict.fromkeys(
        ["root", "source", "dest", "tag", "sendtag", "recvtag"], WRONG_INTEGERS
    ),
    **dict.fromkeys(["counts", "sendcounts", "recvcounts"], WRONG_COUNTS),
    "capacity": [(value, text) for value, text in WRONG_INTEGERS if value is not None],
}
EAGER_AND_JITTED = pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit], ids=["eager", "jit"]
)


@every_operation
def test_types(case, calls_of):
    arguments = list(every_argument(case, lambda name: name not in ARRAYS))

    def refused():
        for name, argument, call in arguments:
            for value, text in WRONG[argument]:
                if name == "exchange" and isinstance(value, list) and argument != "comm":
                    continue  # a tree of ranks or tags
                with pytest.raises(
                    TypeError,
                    match=f'{name} got unexpected type for argument "{argument}" '
                    rf"\({text.format(re.escape(str(type(value))))}",
                ):
                    call(value)

    assert arguments
    assert calls_of(refused) == (None, Counter())


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


@EAGER_AND_JITTED
@every_operation
def test_counts(case, transform, calls_of):
    arguments = list(every_argument(case, lambda name: name.endswith("counts")))
    given_counts = arguments_of(case, jnp.ones(case.shape((2,))))

    def refused():
        for name, argument, call in arguments:
            number = len(given_counts[name][argument])
            right = [3] * number
            for counts in ([], [*right, 3], np.array([-1, *right[1:]])):
                given = re.escape(str(list(map(int, counts))))
                text = (
                    f"{name} got {given} for argument `{argument}`, expected a number of "
                    f"rows, not negative, for each of the {number} (processes|neighbors)"
                )
                with pytest.raises(ValueError, match=text):
                    transform(functools.partial(call, counts))()
            with pytest.raises(TypeError, match=rf'"{argument}" \({INTEGER.format(float)}'):
                transform(functools.partial(call, [1.5] * number))()

    assert calls_of(refused) == (None, Counter())


@every_operation
def test_rows_are_what_the_counts_say(case, calls_of):
    has_counts = any(every_argument(case, lambda name: name.endswith("counts")))
    rows, *_ = case.shape((3,))
    [name, *_] = case.operations

    def refused():
        for x in (jnp.ones((rows + 1, 3)), jnp.float32(1)):
            text = (
                f"{name} got an array of shape {re.escape(str(x.shape))} for argument "
                rf"`x`, expected \({rows}, \.\.\.\), as the counts say"
            )
            with pytest.raises(ValueError, match=text):
                case.call(x)

    if has_counts:
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
