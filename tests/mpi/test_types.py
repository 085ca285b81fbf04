"""Every data type: what moves, bit by bit, what is reduced, and what is refused."""

import functools
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import ring
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax import wrap_as_hashable
from mpi4jax._internal.dtypes import CARRIERS, DATATYPES

pytestmark = pytest.mark.usefixtures("enable_x64")

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LAST = SIZE - 1
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
TYPES = (*DATATYPES, *CARRIERS)

#: Elements of an array: odd, as XLA packs several of the smallest types into a byte.
N = 21
#: Rows of each process, and rows that process r sends to process s.
COUNTS = [3 * rank + 1 for rank in range(SIZE)]
TABLE = [[r + s for s in range(SIZE)] for r in range(SIZE)]
#: Where the part for each process begins, in what process r sends.
STARTS = [np.cumsum([0, *row]) for row in TABLE]


def is_packed(dtype):
    return dtype in CARRIERS


def bits(x):
    """An array's elements as bytes, equal only where the elements are in all their bits."""
    x = np.asarray(x)
    as_bytes = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.dtype.itemsize)
    # NumPy has a whole byte for a small element, and what else is in it is no part of it.
    return as_bytes & used_bits(str(x.dtype))


def used_bits(dtype):
    """The bits of a byte that belong to an element."""
    return 2 ** int(re.search(r"\d+", dtype)[0]) - 1 if is_packed(dtype) else 255


def special(dtype):
    """The values that would not outlive an arithmetic that nobody asked for."""
    if dtype == "bool":
        return np.array([False, True])
    if "int" in dtype:
        limits = jnp.iinfo(dtype)
        return np.array([int(limits.min), int(limits.max), 0, 1], dtype)
    if "complex" in dtype:
        return special({"complex64": "float32", "complex128": "float64"}[dtype]).view(dtype)
    limits = jnp.finfo(dtype)
    least = limits.tiny, limits.smallest_subnormal
    return np.array([limits.max, *least, 0.0, -0.0, np.inf, -np.inf, np.nan]).astype(dtype)


def values(dtype, rank, *shape):
    """The special values of a type, and then any bits, on a rank."""
    array = np.zeros(shape, dtype)
    if dtype == "bool":
        array.flat = np.random.default_rng(rank).integers(0, 2, array.size)
    else:
        generator = np.random.default_rng([rank, *dtype.encode()])
        any_bits = generator.integers(0, 256, array.nbytes, np.uint8) & used_bits(dtype)
        array = any_bits.view(dtype).reshape(shape)
    known = special(dtype)[: array.size]
    array.flat[: known.size] = known
    return np.roll(array, rank)


def slice_of(rank, x, starts):
    return x[starts[rank] : starts[rank + 1]]


#: Each operation, the shape of what this process sends, and what it gets: from what a rank
#: sends, in an array of a shape.
MOVES = {
    "allgather": (mpi.allgather, (N,), lambda x: np.stack([x(r, N) for r in range(SIZE)])),
    "allgatherv": (
        lambda x: mpi.allgatherv(x, COUNTS),
        (COUNTS[RANK], 3),
        lambda x: np.concatenate([x(r, n, 3) for r, n in enumerate(COUNTS)]),
    ),
    "alltoall": (
        mpi.alltoall,
        (SIZE, N),
        lambda x: np.stack([x(r, SIZE, N)[RANK] for r in range(SIZE)]),
    ),
    "alltoallv": (
        lambda x: mpi.alltoallv(x, TABLE[RANK], TABLE[RANK]),
        (sum(TABLE[RANK]), 3),
        lambda x: np.concatenate(
            [slice_of(RANK, x(r, sum(TABLE[r]), 3), STARTS[r]) for r in range(SIZE)]
        ),
    ),
    "bcast": (lambda x: mpi.bcast(x, LAST), (N,), lambda x: x(LAST, N)),
    "gather": (
        lambda x: mpi.gather(x, LAST),
        (N,),
        lambda x: np.stack([x(r, N) for r in range(SIZE)]) if RANK == LAST else x(RANK, N),
    ),
    "gatherv": (
        lambda x: mpi.gatherv(x, COUNTS, 0),
        (COUNTS[RANK], 3),
        lambda x: (
            np.concatenate([x(r, n, 3) for r, n in enumerate(COUNTS)])
            if RANK == 0
            else x(RANK, COUNTS[RANK], 3)
        ),
    ),
    "scatter": (
        lambda x: mpi.scatter(x, 0),
        (SIZE, N) if RANK == 0 else (N,),
        lambda x: x(0, SIZE, N)[RANK],
    ),
    "scatterv": (
        lambda x: mpi.scatterv(x, COUNTS, LAST),
        (sum(COUNTS) if RANK == LAST else COUNTS[RANK], 3),
        lambda x: slice_of(RANK, x(LAST, sum(COUNTS), 3), np.cumsum([0, *COUNTS])),
    ),
    "sendrecv": (lambda x: mpi.sendrecv(x, x, LEFT, RIGHT), (N,), lambda x: x(LEFT, N)),
}
if LAST:
    MOVES["send and recv"] = (ring, (N,), lambda x: x(LEFT, N))


def receive_all(call, sent):
    return {dtype: call(x) for dtype, x in sent.items()}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", MOVES)
def test_all_bits_arrive(name, compiled):
    call, shape, expected = MOVES[name]
    if compiled:
        dtypes = TYPES
        # No argument of the program, so that the result may take its memory.
        move = jax.jit(lambda sent: receive_all(call, jax.lax.optimization_barrier(sent)))
    else:
        # Each of these is a program of its own, so a few types for each operation must do.
        dtypes = TYPES[list(MOVES).index(name) % 6 :: 6]
        move = functools.partial(receive_all, call)
    sent = {dtype: jnp.asarray(values(dtype, RANK, *shape)) for dtype in dtypes}
    received = move(sent)
    for dtype in dtypes:
        assert received[dtype].dtype == dtype
        wanted = expected(functools.partial(values, dtype))
        np.testing.assert_array_equal(bits(received[dtype]), bits(wanted), err_msg=dtype)
        np.testing.assert_array_equal(bits(sent[dtype]), bits(values(dtype, RANK, *shape)))


#: The operators with what NumPy does, and the types that they are for.
INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
REALS = [*INTEGERS, "float16", "bfloat16", "float32", "float64"]
NUMBERS = [*REALS, "complex64", "complex128"]
OPERATORS = {
    "SUM": (np.add, NUMBERS),
    "PROD": (np.multiply, NUMBERS),
    "MAX": (np.maximum, REALS),
    "MIN": (np.minimum, REALS),
    "LAND": (np.logical_and, ["bool", *INTEGERS]),
    "LOR": (np.logical_or, ["bool", *INTEGERS]),
    "LXOR": (np.logical_xor, ["bool", *INTEGERS]),
    "BAND": (np.bitwise_and, INTEGERS),
    "BOR": (np.bitwise_or, INTEGERS),
    "BXOR": (np.bitwise_xor, INTEGERS),
}


def reduce_all(x, op):
    """What each of the reductions gives."""
    parts = jnp.stack([jnp.roll(x, rank) for rank in range(SIZE)])
    return {
        "allreduce": mpi.allreduce(x, op),
        "reduce": mpi.reduce(x, op, LAST),
        "scan": mpi.scan(x, op),
        "exscan": mpi.exscan(x, op),
        "reduce_scatter": mpi.reduce_scatter(parts, op),
    }


def reduced(function, arrays, identity):
    """The same from the arrays of all ranks, one pair after the other."""

    @np.errstate(all="ignore")
    def fold(arrays):
        # Arrays of 16-bit floats are added in single precision and rounded, in NumPy, too.
        return functools.reduce(lambda a, b: function(a, b).astype(a.dtype), arrays)

    total = fold(arrays)
    return {
        "allreduce": total,
        "reduce": total if RANK == LAST else arrays[RANK],
        "scan": fold(arrays[: RANK + 1]),
        "exscan": fold(arrays[:RANK]) if RANK > 0 else np.full_like(total, identity),
        "reduce_scatter": np.roll(total, RANK),
    }


def check_all(actual, expected):
    for name, wanted in expected.items():
        found = np.asarray(actual[name])
        assert found.dtype == wanted.dtype
        if wanted.dtype == jnp.bfloat16:
            # NumPy does not know that a NaN may be in their place.
            found, wanted = found.astype(float), wanted.astype(float)
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def identity(name, dtype):
    """What is reduced on rank 0 by exscan: nothing."""
    limits = jnp.iinfo(dtype) if "int" in dtype else None
    return {
        "PROD": 1,
        "LAND": 1,
        "BAND": limits and (-1 if limits.min < 0 else limits.max),
        "MAX": limits.min if limits else -np.inf,
        "MIN": limits.max if limits else np.inf,
    }.get(name, 0)


def compares_as_signed(dtype):
    """Whether the MPI takes the largest of these numbers for negative (MPICH 4.0 does)."""
    if not dtype.startswith("uint"):
        return False
    zero, largest = np.zeros(1, dtype), np.full(1, jnp.iinfo(dtype).max, dtype)
    MPI.MAX.Reduce_local(largest, zero)
    return zero[0] == 0


@pytest.mark.parametrize("dtype", ["bool", *NUMBERS])
def test_reductions(dtype):
    names = [name for name, (_, dtypes) in OPERATORS.items() if dtype in dtypes]
    if compares_as_signed(dtype):
        names = [name for name in names if name not in ("MAX", "MIN")]

    def mine(rank):
        """Integers of any bits, and other numbers of which every product is exact."""
        if "int" in dtype or dtype == "bool":
            return values(dtype, rank, N)
        numbers = np.random.default_rng(rank).integers(-3, 4, (2, N))
        return (numbers[0] + 1j * numbers[1] if "complex" in dtype else numbers[0]).astype(
            dtype
        )

    def taken(name, x):
        # Sums of short integers may stop at their limits, as Open MPI's do.
        return x % 4 if name in ("SUM", "PROD") and x.dtype.itemsize < 4 else x

    @jax.jit
    def function(x):
        return {name: reduce_all(taken(name, x), getattr(MPI, name)) for name in names}

    arrays = list(map(mine, range(SIZE)))
    for name, results in function(arrays[RANK]).items():
        wanted = [taken(name, array) for array in arrays]
        check_all(results, reduced(OPERATORS[name][0], wanted, identity(name, dtype)))


short_floats = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


@short_floats
def test_short_floats_are_rounded_to_even(dtype):
    # The first integers that have no float of their own are odd ones after these.
    first = {"float16": 2048, "bfloat16": 256}[dtype]
    parts = [[first, first + 2, -first - 2, first], [1, 1, 1, 3], [0, 0, 0, 0]]
    sums = [first, first + 4, -first, first + 4]
    arrays = [np.array(parts[min(rank, 2)], dtype) for rank in range(SIZE)]
    if SIZE > 1:
        assert reduced(np.add, arrays, 0)["allreduce"].tolist() == sums
    check_all(
        jax.jit(lambda x: reduce_all(x, MPI.SUM))(arrays[RANK]), reduced(np.add, arrays, 0)
    )


@short_floats
def test_short_floats_that_are_not_finite(dtype):
    limits = jnp.finfo(dtype)

    def mine(rank):
        opposite = np.inf if rank == 0 else -np.inf
        zero = 0 if rank == 0 else np.inf
        return np.array(
            [np.nan, np.inf, opposite, zero, limits.max, -limits.max, limits.tiny]
        ).astype(dtype)

    @jax.jit
    def function(x):
        return {
            name: reduce_all(x, getattr(MPI, name))
            for name in ("SUM", "PROD", "MAX", "MIN")
        }

    arrays = list(map(mine, range(SIZE)))
    for name, results in function(arrays[RANK]).items():
        check_all(results, reduced(OPERATORS[name][0], arrays, identity(name, dtype)))
    # A NaN of one process makes the sum one.
    x = jnp.asarray(np.nan if RANK == LAST else 1, dtype)
    assert np.isnan(mpi.allreduce(x, MPI.SUM))
    # XLA's threads take the smallest float32 for zero, and a bfloat16 is just as small.
    least = np.full(1, limits.smallest_subnormal, dtype)
    single = mpi.allreduce(least.astype(np.float32), MPI.SUM)
    np.testing.assert_array_equal(
        mpi.allreduce(least, MPI.SUM), np.asarray(single).astype(dtype)
    )


@short_floats
def test_many_short_floats(dtype):
    # MPI takes other ways with many elements, which hand an operator parts of the array.
    arrays = [np.arange(100_003) % 64 + rank for rank in range(SIZE)]
    arrays = [array.astype(dtype) for array in arrays]
    for name in ("SUM", "MAX"):
        results = jax.jit(reduce_all, static_argnums=1)(
            arrays[RANK], wrap_as_hashable(getattr(MPI, name))
        )
        check_all(results, reduced(OPERATORS[name][0], arrays, identity(name, dtype)))


@pytest.mark.parametrize("dtype", ["float16", "int16"])
def test_user_made_operator(dtype):
    def larger_magnitude(a, b, datatype):
        a, b = np.frombuffer(a, dtype), np.frombuffer(b, dtype)
        b[...] = np.where(abs(a) > abs(b), a, b)

    op = MPI.Op.Create(larger_magnitude, commute=True)
    arrays = [(np.arange(N) + r) * (-1) ** r for r in range(SIZE)]
    arrays = [array.astype(dtype) for array in arrays]
    results = jax.block_until_ready(jax.jit(lambda x: reduce_all(x, op))(arrays[RANK]))
    check_all(results, reduced(lambda a, b: np.where(abs(a) > abs(b), a, b), arrays, 0))
    op.Free()


INTEGER_TYPES = "int8, int16, int32, int64, uint8, uint16, uint32, uint64"
REAL_TYPES = f"{INTEGER_TYPES}, float16, bfloat16, float32, float64"
MEANINGLESS = [
    ("bool", "SUM", f"{REAL_TYPES}, complex64, complex128"),
    ("int4", "SUM", f"{REAL_TYPES}, complex64, complex128"),
    ("float8_e5m2", "PROD", f"{REAL_TYPES}, complex64, complex128"),
    ("complex64", "MAX", REAL_TYPES),
    ("bool", "MIN", REAL_TYPES),
    ("float32", "LAND", f"bool, {INTEGER_TYPES}"),
    ("bfloat16", "LOR", f"bool, {INTEGER_TYPES}"),
    ("complex128", "LXOR", f"bool, {INTEGER_TYPES}"),
    ("bool", "BAND", INTEGER_TYPES),
    ("float16", "BOR", INTEGER_TYPES),
    ("float64", "BXOR", INTEGER_TYPES),
    ("float32", "MAXLOC", "no type of JAX"),
    ("int32", "MINLOC", "no type of JAX"),
    ("int32", "REPLACE", "no type of JAX"),
    ("int32", "NO_OP", "no type of JAX"),
]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "name", ["allreduce", "reduce", "scan", "exscan", "reduce_scatter"]
)
def test_reductions_without_a_meaning(name, transform, calls_of):
    root = (0,) if name == "reduce" else ()

    def refused():
        for dtype, op, allowed in MEANINGLESS:
            given = f"an array of type {dtype} for op=MPI.{op}"
            text = rf"^{name} got {given}, which is for {allowed}(\n|$)"
            with pytest.raises(TypeError, match=text):
                transform(lambda x, op=op: getattr(mpi, name)(x, getattr(MPI, op), *root))(
                    jnp.zeros((SIZE, 2), dtype)
                )

    assert calls_of(refused) == (None, Counter())


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_other_types_are_refused(transform, calls_of):
    def refused():
        with pytest.raises(
            TypeError,
            match='allgather got an array of type key<fry> for argument "x": PRNG keys '
            r"can't be sent as they are. Send jax.random.key_data\(keys\), and make keys "
            "of what is received by jax.random.wrap_key_data",
        ):
            transform(mpi.allgather)(jax.random.key(0))
        others = [np.zeros(3, jax.dtypes.float0)]
        if hasattr(jnp, "int1"):
            others.append(jnp.zeros(3, jnp.int1))
        for x in others:
            given = re.escape(str(x.dtype))
            with pytest.raises(
                TypeError,
                match=f'bcast got an array of type {given} for argument "x", expected one '
                "of bool, int8, .*, complex128, float8_e3m4, .*, int2, int4, uint2, uint4",
            ):
                transform(lambda x: mpi.bcast(x, 0))(x)

    assert calls_of(refused) == (None, Counter())


def test_keys_by_their_data():
    keys = jax.random.split(jax.random.key(RANK), 3)
    data = mpi.bcast(jax.random.key_data(keys), LAST)
    expected = jax.random.split(jax.random.key(LAST), 3)
    assert (jax.random.wrap_key_data(data) == expected).all()
