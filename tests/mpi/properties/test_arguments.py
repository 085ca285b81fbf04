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

import mpi4jax
from mpi4jax import notoken as mpi

X = jnp.ones(3)

INTEGER = "an integer, not {}(\n|$)"
WRONG_INTEGERS = [(value, INTEGER) for value in (1.5, "a", None, True, [0])]
WRONG_COUNTS = [
    (value, "a sequence of integers, not {}$") for value in (3, "3", {0: 3}, None)
]
#: Values of a wrong type for each argument that is no array, and the end of the error.
WRONG = {
    "comm": [
        (value, "an MPI communicator such as MPI.COMM_WORLD, or None, not {}$")
        for value in (3, "world", 1.0, [])
    ],
    "op": [
        (value, "an MPI operator such as MPI.SUM, not {}$")
        for value in (np.sum, max, None, "sum")
    ],
    "status": [(0, "an MPI.Status or None, not {}$")],
    **dict.fromkeys(
        ["root", "source", "dest", "tag", "sendtag", "recvtag"], WRONG_INTEGERS
    ),
    **dict.fromkeys(["counts", "sendcounts", "recvcounts"], WRONG_COUNTS),
    "capacity": [(value, text) for value, text in WRONG_INTEGERS if value is not None],
}
EAGER_AND_JITTED = pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit], ids=["eager", "jit"]
)


def shown(value):
    """How an error shows a value of a wrong type."""
    name = getattr(value, "__name__", None)
    return re.escape(repr(value) if name is None else f"the function {name}")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("sum", "'sum'"),
        ("x" * 1000, "'" + "x" * 12 + "..." + "x" * 13 + "'"),
        (np.ones((2, 3)), "an array of type float64 and shape (2, 3)"),
        (jnp.ones((2, 3)), "an array of type float32 and shape (2, 3)"),
        (jnp.sum, "the function sum"),
        (MPI.Op, "the class Op"),
        (MPI.COMM_WORLD, "an object of type mpi4py.MPI.Intracomm"),
        (object(), "an object of type builtins.object"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_in_words(value, text):
    expected = f"allreduce: `op` must be an MPI operator such as MPI.SUM, not {text}"
    with pytest.raises(TypeError, match=f"^{re.escape(expected)}$"):
        mpi.allreduce(X, op=value)


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
                    match=f"^{name}: `{argument}` must be {text.format(shown(value))}",
                ):
                    call(value)

    assert arguments
    assert calls_of(refused) == (None, Counter())


@pytest.mark.parametrize("x", ["text", {1.0, 2.0}, range(2)], ids=repr)
def test_what_is_no_array(x):
    for transform in (lambda f: f, lambda f: jax.jit(lambda _: f(x))):
        with pytest.raises(
            TypeError,
            match="^allgather: `x` must be an array or a number, not "
            rf"{re.escape(repr(x))}(\n|$)",
        ):
            transform(mpi.allgather)(x if transform(1) == 1 else X)


def test_tracer_where_a_number_is_needed():
    with pytest.raises(TypeError, match="An abstract tracer was passed"):
        jax.jit(lambda x, tag: mpi.send(x, MPI.PROC_NULL, tag=tag))(X, 0)


@pytest.mark.parametrize("root", [-1, 100])
@every_root
def test_root_out_of_range(case, root, size):
    wrong = case.replace(root=root)
    with pytest.raises(
        ValueError,
        match=f"{case.name} got {root} for argument `root`, expected a rank of the "
        rf"communicator \(0 to {size - 1}\)",
    ):
        wrong.call(jnp.ones(wrong.shape((2,))))


LAST_TAG = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
#: Numbers that are no rank, nor one that stands for any or none.
NO_RANK = [-9, MPI.COMM_WORLD.size, 2**40]
RANGE = rf"a rank of the communicator \(0 to {MPI.COMM_WORLD.size - 1}\)"
NO_TAG = [-5, LAST_TAG + 1, 2**40]
DEST = ([*NO_RANK, MPI.ANY_SOURCE], f"{RANGE} or MPI.PROC_NULL(\n|$)")
SOURCE = (NO_RANK, f"{RANGE}, MPI.PROC_NULL or MPI.ANY_SOURCE(\n|$)")
SENDTAG = ([*NO_TAG, MPI.ANY_TAG], rf"a tag \(0 to {LAST_TAG}\)(\n|$)")
RECVTAG = (NO_TAG, rf"a tag \(0 to {LAST_TAG}\) or MPI.ANY_TAG(\n|$)")
BOTH = {"source": SOURCE, "dest": DEST, "sendtag": SENDTAG, "recvtag": RECVTAG}
#: For each argument, numbers that are wrong, and the end of the error.
OUT_OF_RANGE = {
    "send": {"dest": DEST, "tag": SENDTAG},
    "recv": {"source": SOURCE, "tag": RECVTAG},
    "sendrecv": BOTH,
    "exchange": BOTH,
}


@EAGER_AND_JITTED
@pytest.mark.parametrize("kind", OUT_OF_RANGE)
def test_ranks_and_tags_out_of_range(kind, transform, calls_of):
    arguments = OUT_OF_RANGE[kind]
    nobody = {name: MPI.PROC_NULL for name in ("source", "dest") if name in arguments}

    def call(function, changed, x):
        function(*[x] * len(nobody), **{**nobody, **changed})
        return x

    def refused():
        for function in (getattr(mpi, kind), getattr(mpi4jax, f"i{kind}")):
            for argument, (numbers, expected) in arguments.items():
                for value in numbers:
                    text = (
                        f"^{function.__name__} got {value} for argument `{argument}`, "
                        f"expected {expected}"
                    )
                    with pytest.raises(ValueError, match=text):
                        transform(functools.partial(call, function, {argument: value}))(X)

    assert calls_of(refused) == (None, Counter())


def test_the_last_tag(rank, size):
    left, right = (rank - 1) % size, (rank + 1) % size
    tags = {"sendtag": LAST_TAG, "recvtag": LAST_TAG}
    np.testing.assert_array_equal(mpi.sendrecv(X * rank, X, left, right, **tags), X * left)


def test_numpy_integers_are_accepted(size):
    assert mpi.bcast(X, np.int64(0)).shape == (3,)
    assert mpi.allgatherv(X, np.full(size, 3, np.uint8)).shape == (3 * size,)
    assert mpi.allgather(np.float32(1)).shape == (size,)


def test_first_axis(rank, size):
    calls = {
        "Alltoall": mpi.alltoall,
        "Ialltoall": mpi4jax.ialltoall,
        "Reduce_scatter": lambda x: mpi.reduce_scatter(x, MPI.SUM),
        "Scatter": lambda x: mpi.scatter(x, rank),
    }
    for x in (jnp.ones((size + 1, 2)), jnp.float32(1)):
        for name, call in calls.items():
            text = (
                f"{name} input must have shape (nproc, ...): got shape {x.shape}, and "
                f"nproc is {size}"
            )
            with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
                call(x)


@EAGER_AND_JITTED
@every_operation
def test_counts(case, transform, calls_of):
    arguments = list(every_argument(case, lambda name: name.endswith("counts")))
    given_counts = arguments_of(case, jnp.ones(case.shape((2,))))

    def refused():
        for name, argument, call in arguments:
            length = len(given_counts[name][argument])
            right = [3] * length
            for counts in ([], [*right, 3], np.array([-1, *right[1:]])):
                shown = re.escape(str(list(map(int, counts))))
                text = (
                    f"{name} got {shown} for argument `{argument}`, expected a number of "
                    f"rows, not negative, for each of the {length} (processes|neighbors)"
                )
                with pytest.raises(ValueError, match=text):
                    transform(functools.partial(call, counts))()
            with pytest.raises(
                TypeError, match=f"`{argument}` must be {INTEGER.format(1.5)}"
            ):
                transform(functools.partial(call, [1.5] * length))()

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
    for argument in (inter, mpi4jax.wrap_as_hashable(inter), MPI.Comm(inter)):
        with pytest.raises(
            TypeError,
            match=r"`comm` must be .*\. Intercommunicators are not supported: pass what "
            r"their Merge\(\) gives",
        ):
            mpi.allreduce(X, MPI.SUM, comm=argument)
    inter.Free()
    local.Free()


def test_null_communicator():
    comm = MPI.COMM_WORLD.Dup()
    comm.Free()
    for null in (comm, MPI.COMM_NULL):
        with pytest.raises(
            ValueError,
            match=r'barrier got a null communicator for argument "comm" \(was it freed, or '
            r"is this process not one of its members\?\), expected a valid one",
        ):
            mpi.barrier(comm=null)


def test_communicator_of_the_base_class():
    text = r"not an object of type mpi4py.MPI.Comm. Pass MPI.Intracomm\(comm\)"
    comm = MPI.COMM_WORLD.Dup()  # one that is not known by its handle
    with pytest.raises(TypeError, match=text):
        mpi.barrier(comm=MPI.Comm(comm))
    comm.Free()


def test_null_operator():
    op = MPI.Op.Create(lambda a, b, t: None)
    op.Free()
    with pytest.raises(ValueError, match='scan got a null operator.*"op"'):
        mpi.scan(X, op)


@pytest.mark.usefixtures("every_call")
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
