"""Every data type: what moves, bit by bit, what is reduced, and what is refused."""

import functools
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import every_operation_that, every_reduction
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._internal.arguments.dtypes import CARRIERS, DATATYPES
from mpi4jax._testing.cases import OPERATIONS, OPERATORS, Operator

pytestmark = pytest.mark.usefixtures("enable_x64")

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LAST = SIZE - 1
TYPES = (*DATATYPES, *CARRIERS)

#: Elements of an array: odd, as XLA packs several of the smallest types into a byte.
N = 21


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


def values(dtype, rank, shape):
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


def receive_all(call, sent):
    return {dtype: call(x) for dtype, x in sent.items()}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@every_operation_that(
    lambda case: not case.is_reduction and "barrier" not in case.operations
)
def test_all_bits_arrive(case, compiled):
    move = functools.partial(receive_all, case.call)
    if compiled:
        # No argument of the program, so that the result may take its memory.
        move = jax.jit(
            lambda sent: receive_all(case.call, jax.lax.optimization_barrier(sent))
        )
    everyones = {
        dtype: case.arrays(functools.partial(values, dtype), (N,)) for dtype in TYPES
    }
    sent = {dtype: jnp.asarray(xs[RANK]) for dtype, xs in everyones.items()}
    received = move(sent)
    for dtype, xs in everyones.items():
        assert received[dtype].dtype == dtype
        wanted = case.result(xs)
        np.testing.assert_array_equal(bits(received[dtype]), bits(wanted), err_msg=dtype)
        np.testing.assert_array_equal(bits(sent[dtype]), bits(xs[RANK]), err_msg=dtype)


#: The types that the operators are for.
INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
REALS = [*INTEGERS, "float16", "bfloat16", "float32", "float64"]
NUMBERS = [*REALS, "complex64", "complex128"]
LOGICAL = ["bool", *INTEGERS]
REDUCED = {
    **dict.fromkeys(["SUM", "PROD"], NUMBERS),
    **dict.fromkeys(["MAX", "MIN"], REALS),
    **dict.fromkeys(["LAND", "LOR", "LXOR"], LOGICAL),
    **dict.fromkeys(["BAND", "BOR", "BXOR"], INTEGERS),
}
REDUCTIONS = [case for case in OPERATIONS.values() if case.is_reduction]


def operand(case, x):
    """An array as an operation takes it: as it is, or with rows for each process."""
    shape = case.shape(x.shape)
    if shape == x.shape:
        return x
    return np.stack([np.roll(x, row) for row in range(shape[0])])


def check_reductions(*reductions, transform=jax.jit):
    """Compare all reductions with NumPy, by operators and the arrays of all processes."""
    xs, cases = {}, {}
    for operator, everyones in reductions:
        for case in REDUCTIONS:
            key = case.operations[0], operator.name
            cases[key] = case.replace(operator=operator)
            xs[key] = [operand(case, x) for x in everyones]

    @transform
    def function(mine):
        return {key: case.call(mine[key]) for key, case in cases.items()}

    mine = {key: jnp.asarray(arrays[RANK]) for key, arrays in xs.items()}
    results = jax.block_until_ready(function(mine))
    for key, case in cases.items():
        actual, wanted = np.asarray(results[key]), case.result(xs[key])
        assert actual.dtype == wanted.dtype
        if wanted.dtype == jnp.bfloat16:
            # NumPy does not know that a NaN may be in their place.
            actual, wanted = actual.astype(float), wanted.astype(float)
        np.testing.assert_array_equal(actual, wanted, err_msg=str(key))


def compares_as_signed(dtype):
    """Whether the MPI takes the largest of these numbers for negative (MPICH 4.0 does)."""
    if not dtype.startswith("uint"):
        return False
    zero, largest = np.zeros(1, dtype), np.full(1, jnp.iinfo(dtype).max, dtype)
    MPI.MAX.Reduce_local(largest, zero)
    return zero[0] == 0


@pytest.mark.parametrize("dtype", ["bool", *NUMBERS])
def test_reductions(dtype):
    names = [name for name, dtypes in REDUCED.items() if dtype in dtypes]
    if compares_as_signed(dtype):
        names = [name for name in names if name not in ("MAX", "MIN")]

    def mine(rank):
        """Integers of any bits, and other numbers of which every product is exact."""
        if "int" in dtype or dtype == "bool":
            return values(dtype, rank, (N,))
        numbers = np.random.default_rng(rank).integers(-3, 4, (2, N))
        return (numbers[0] + 1j * numbers[1] if "complex" in dtype else numbers[0]).astype(
            dtype
        )

    def taken(name, x):
        # Sums of short integers may stop at their limits, as Open MPI's do.
        return x % 4 if name in ("SUM", "PROD") and x.dtype.itemsize < 4 else x

    arrays = list(map(mine, range(SIZE)))
    pairs = [(OPERATORS[name], [taken(name, x) for x in arrays]) for name in names]
    check_reductions(*pairs)
    # Eagerly, each is a program of its own, so one operator must do.
    check_reductions(pairs[0], transform=lambda function: function)


short_floats = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


@short_floats
def test_short_floats_are_rounded_to_even(dtype):
    # The first integers that have no float of their own are odd ones after these.
    first = {"float16": 2048, "bfloat16": 256}[dtype]
    parts = [[first, first + 2, -first - 2, first], [1, 1, 1, 3], [0, 0, 0, 0]]
    sums = [first, first + 4, -first, first + 4]
    arrays = [np.array(parts[min(rank, 2)], dtype) for rank in range(SIZE)]
    if SIZE > 1:
        assert OPERATIONS["allreduce"].result(arrays).tolist() == sums
    check_reductions((OPERATORS["SUM"], arrays))


@short_floats
def test_short_floats_that_are_not_finite(dtype):
    limits = jnp.finfo(dtype)

    def mine(rank):
        opposite = np.inf if rank == 0 else -np.inf
        zero = 0 if rank == 0 else np.inf
        return np.array(
            [np.nan, np.inf, opposite, zero, limits.max, -limits.max, limits.tiny]
        ).astype(dtype)

    arrays = list(map(mine, range(SIZE)))
    names = ("SUM", "PROD", "MAX", "MIN")
    check_reductions(*((OPERATORS[name], arrays) for name in names))
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
    check_reductions(*((OPERATORS[name], arrays) for name in ("SUM", "MAX")))


@pytest.mark.parametrize("dtype", ["float16", "int16"])
def test_user_made_operator(dtype):
    def larger_magnitude(a, b, datatype):
        a, b = np.frombuffer(a, dtype), np.frombuffer(b, dtype)
        b[...] = np.where(abs(a) > abs(b), a, b)

    op = MPI.Op.Create(larger_magnitude, commute=True)
    arrays = [(np.arange(N) + r) * (-1) ** r for r in range(SIZE)]
    arrays = [array.astype(dtype) for array in arrays]
    operator = Operator("user", op, lambda a, b: np.where(abs(a) > abs(b), a, b))
    check_reductions((operator, arrays))
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
    ("float32", "MAXLOC", "not supported for JAX arrays"),
    ("int32", "MINLOC", "not supported for JAX arrays"),
    ("int32", "REPLACE", "not supported for JAX arrays"),
    ("int32", "NO_OP", "not supported for JAX arrays"),
]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@every_reduction
def test_reductions_without_a_meaning(case, transform, calls_of):
    def refused():
        for dtype, op, allowed in MEANINGLESS:
            dtype_text = f'an array of type {dtype} for argument "x" for op=MPI.{op}'
            text = rf"^{case.name} got {dtype_text}, which is (for )?{allowed}(\n|$)"
            operator = Operator(op, getattr(MPI, op), None)
            with pytest.raises(TypeError, match=text):
                transform(case.replace(operator=operator).call)(
                    jnp.zeros(case.shape((2,)), dtype)
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
            # Of NumPy, as JAX 0.12 may give one of bool if it has compiled for that.
            others.append(np.zeros(3, jnp.int1))
        for x in others:
            dtype = re.escape(str(x.dtype))
            with pytest.raises(
                TypeError,
                match=f'bcast got an array of type {dtype} for argument "x", expected one '
                "of bool, int8, .*, complex128, float8_e3m4, .*, int2, int4, uint2, uint4",
            ):
                transform(lambda x: mpi.bcast(x, 0))(x)

    assert calls_of(refused) == (None, Counter())


def test_keys_by_their_data():
    keys = jax.random.split(jax.random.key(RANK), 3)
    data = mpi.bcast(jax.random.key_data(keys), LAST)
    expected = jax.random.split(jax.random.key(LAST), 3)
    assert (jax.random.wrap_key_data(data) == expected).all()
