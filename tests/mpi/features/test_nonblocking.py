"""Operations in two halves, and what is computed in between."""

import functools
import inspect
import random
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import arguments_of, every_case, every_operation
from jax.experimental import io_callback
from mpi4py import MPI
from ranks import settle

import mpi4jax
from mpi4jax import _core, diagnostics
from mpi4jax import notoken as mpi
from mpi4jax._testing.modes import nonblocking
from mpi4jax.experimental import tokens

comm = MPI.COMM_WORLD
RANK, SIZE = comm.Get_rank(), comm.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE
#: The neighbors in a line of processes, which has ends.
BEFORE = RANK - 1 if RANK else MPI.PROC_NULL
BEHIND = RANK + 1 if RANK < SIZE - 1 else MPI.PROC_NULL

pytestmark = pytest.mark.usefixtures("enable_x64", "every_call", "nothing_left")
compiled = pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit], ids=["eager", "jit"]
)


@pytest.fixture
def nothing_left():
    """All requests of a test are waited for, but for those that it may lose."""
    before = _core.in_flight()
    expected = types.SimpleNamespace(lost=0)
    yield expected
    settle()
    assert _core.in_flight() == before + expected.lost


def in_two_halves(start):
    return lambda x: mpi4jax.wait(start(x))


def _shift(x):
    return mpi4jax.isendrecv(x, x, LEFT, RIGHT, sendtag=3, recvtag=3)


def _shift_blocking(x):
    return mpi.sendrecv(x, x, LEFT, RIGHT, sendtag=3, recvtag=3)


def _line(x):
    return mpi4jax.isendrecv(x, x, BEFORE, BEHIND)


def _line_blocking(x):
    return mpi.sendrecv(x, x, BEFORE, BEHIND)


def _both_ways(x):
    return mpi4jax.iexchange(
        [x, {"a": 2 * x, "n": jnp.arange(3)}],
        [x, {"a": x, "n": jnp.zeros(3, int)}],
        [BEFORE, BEHIND],
        [BEHIND, BEFORE],
        sendtag=[1, 2],
        recvtag=[1, 2],
    )


def _both_ways_blocking(x):
    return mpi.exchange(
        [x, {"a": 2 * x, "n": jnp.arange(3)}],
        [x, {"a": x, "n": jnp.zeros(3, int)}],
        [BEFORE, BEHIND],
        [BEHIND, BEFORE],
        sendtag=[1, 2],
        recvtag=[1, 2],
    )


def _rows(x):
    return jnp.broadcast_to(x, (SIZE, *x.shape)) * (1 + jnp.arange(SIZE)[:, None])


#: How each operation is started, and the same in one call.
FORMS = {
    "iallgather": (mpi4jax.iallgather, mpi.allgather),
    "iallreduce": (
        lambda x: mpi4jax.iallreduce(x, MPI.SUM),
        lambda x: mpi.allreduce(x, MPI.SUM),
    ),
    "iallreduce-max": (
        lambda x: mpi4jax.iallreduce(x, MPI.MAX),
        lambda x: mpi.allreduce(x, MPI.MAX),
    ),
    "iallreduce-prod": (
        lambda x: mpi4jax.iallreduce(x, MPI.PROD),
        lambda x: mpi.allreduce(x, MPI.PROD),
    ),
    "ialltoall": (
        lambda x: mpi4jax.ialltoall(_rows(x)),
        lambda x: mpi.alltoall(_rows(x)),
    ),
    "ibcast": (
        lambda x: mpi4jax.ibcast(x, SIZE - 1),
        lambda x: mpi.bcast(x, SIZE - 1),
    ),
    "iexchange": (_both_ways, _both_ways_blocking),
    "isendrecv": (_shift, _shift_blocking),
    "isendrecv-line": (_line, _line_blocking),
}
every_form = pytest.mark.parametrize("form", FORMS)
LINEAR = [name for name in FORMS if name not in ("iallreduce-max", "iallreduce-prod")]


def assert_close(actual, expected, rtol=1e-14):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        if x.dtype == jax.dtypes.float0:
            continue
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol)


@every_form
@compiled
@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_values(form, transform, dtype):
    start, blocking = FORMS[form]
    if dtype == "complex64" and form == "iallreduce-max":
        pytest.skip("complex numbers have no order")
    x = (jnp.arange(1.0, 6) + RANK).astype(dtype)
    for _ in range(2):
        assert_close(transform(in_two_halves(start))(x), blocking(x))


@compiled
@pytest.mark.parametrize("dtype", ["bool", "int8", "int4", "uint32", "float32", "float16"])
def test_types(transform, dtype):
    x = jnp.array([RANK, 1, 0, 3]).astype(dtype)
    assert_close(transform(in_two_halves(_shift))(x), _shift_blocking(x))
    gathered = transform(in_two_halves(mpi4jax.iallgather))(x)
    assert_close(gathered, mpi.allgather(x))


@compiled
def test_empty_arrays_and_scalars(transform):
    for x in (jnp.zeros((0, 3)), jnp.float32(RANK), RANK, 1.5):
        assert_close(transform(in_two_halves(_shift))(x), _shift_blocking(x))


@compiled
@pytest.mark.ranks(2)
def test_isend_and_irecv(transform):
    def ring(x):
        sent = mpi4jax.isend(x, RIGHT, tag=5)
        received = mpi4jax.irecv(x, LEFT, tag=5)
        nothing = mpi4jax.wait(sent)
        assert nothing is None
        return mpi4jax.wait(received)

    x = jnp.full((300, 300), RANK)  # more than MPIs send at once
    assert (transform(ring)(x) == LEFT).all()


@compiled
@pytest.mark.ranks(2)
def test_blocking_and_nonblocking_ends_meet(transform):
    def call(x):
        if RANK == 0:
            request = mpi4jax.isend(x, 1, tag=2)
            x = mpi.recv(x, 1, tag=3)
            mpi4jax.wait(request)
        elif RANK == 1:
            request = mpi4jax.irecv(x, 0, tag=2)
            mpi.send(x, 0, tag=3)
            x = mpi4jax.wait(request)
        return x

    x = jnp.full(40_000, RANK)
    assert (transform(call)(x) == (1 - RANK if RANK < 2 else RANK)).all()


@compiled
def test_requests_may_be_waited_for_in_any_order(transform):
    def call(x):
        requests = [
            mpi4jax.isendrecv(x * n, x, LEFT, RIGHT, sendtag=n, recvtag=n) for n in range(5)
        ]
        sums = [mpi4jax.iallreduce(x + n, MPI.SUM) for n in range(3)]
        return (
            [mpi4jax.wait(requests[n]) for n in (3, 0, 4, 1, 2)],
            [mpi4jax.wait(sums[n]) for n in (2, 0, 1)],
        )

    shifted, sums = transform(call)(jnp.float32(RANK + 1))
    np.testing.assert_array_equal(shifted, (LEFT + 1) * np.array([3, 0, 4, 1, 2]))
    ranks = SIZE * (SIZE + 1) / 2
    np.testing.assert_array_equal(sums, ranks + SIZE * np.array([2, 0, 1]))


def test_a_loop_waits_for_what_the_turn_before_has_started():
    @jax.jit
    def pipelined(x):
        def turn(request, _):
            y = mpi4jax.wait(request)
            return _shift(y + 1), y

        request, ys = jax.lax.scan(turn, _shift(x), None, 7)
        return mpi4jax.wait(request), ys

    last, ys = pipelined(jnp.float64(RANK))
    expected = [(RANK - 1 - n) % SIZE + n for n in range(8)]
    np.testing.assert_array_equal(ys, expected[:7])
    assert last == expected[7]

    def loss(x):
        last, ys = pipelined(x)
        return last * (RANK + 1) + ys.sum() * 0

    # After 8 turns, the array of this process has come to another one.
    assert jax.grad(loss)(jnp.float64(RANK)) == (RANK + 8) % SIZE + 1


def test_branches_and_while_loops():
    @jax.jit
    def call(x, n):
        request = jax.lax.cond(n > 0, _shift, lambda x: _shift(-x), x)
        x = mpi4jax.wait(request)

        def turn(state):
            n, request, x = state
            return n - 1, _shift(x), mpi4jax.wait(request)

        _, request, x = jax.lax.while_loop(lambda s: s[0] > 0, turn, (n, _shift(x), x))
        return x, mpi4jax.wait(request)

    def simulated(n):
        """The arrays of all processes."""
        x = (1 if n else -1) * np.roll(np.arange(1.0, SIZE + 1), 1)
        flying = np.roll(x, 1)
        for _ in range(n):
            x, flying = flying, np.roll(x, 1)
        return x[RANK], flying[RANK]

    for n in (0, 3):
        assert call(jnp.float64(RANK + 1), n) == simulated(n)


@every_form
def test_a_batch_is_one_message(form):
    start, blocking = FORMS[form]
    x = jnp.arange(12.0).reshape(3, 4) + RANK
    for axis in (0, 1):
        mapped = jax.vmap(in_two_halves(start), in_axes=axis)(x)
        assert_close(mapped, jax.vmap(blocking, in_axes=axis)(x))
    twice = jax.vmap(jax.vmap(in_two_halves(start)))(x[:, None])
    assert_close(twice, jax.vmap(jax.vmap(blocking))(x[:, None]))
    names = calls_of(jax.jit(jax.vmap(in_two_halves(start))), x)
    assert names == [handler(form), "wait"]


def inner(xs, ys):
    """The inner product over all processes of trees of arrays, without integers."""
    pairs = zip(jax.tree.leaves(xs), jax.tree.leaves(ys), strict=True)
    products = [np.vdot(x, y).real for x, y in pairs if x.dtype == np.float64]
    return comm.allreduce(sum(products))


@every_form
@compiled
def test_derivatives(form, transform):
    start, blocking = FORMS[form]
    x = jnp.array([1.0, 0.5, -2.0]) * (1 + 0.1 * RANK)
    t = jnp.array([0.3, -1.0, 2.0]) + RANK
    function = in_two_halves(start)

    def push(f):
        return transform(lambda x, t: jax.jvp(f, (x,), (t,)))(x, t)

    assert_close(push(function), push(blocking))

    def pull(f):
        def call(x):
            y, pullback = jax.vjp(f, x)
            return pullback(jax.tree.map(_weights, y))

        return transform(call)(x)

    assert_close(pull(function), pull(blocking))


def _weights(y):
    if not jnp.issubdtype(y.dtype, jnp.floating):
        return np.zeros(y.shape, jax.dtypes.float0)
    return (jnp.arange(y.size).reshape(y.shape) % 7 + 1.0).astype(y.dtype)


@pytest.mark.parametrize("form", ["iexchange", "isendrecv", "isendrecv-line", "ialltoall"])
def test_the_adjoint_identity(form):
    """<A x, y> = <x, A^T y>, and the transpose of the transpose is the operation."""
    function = in_two_halves(FORMS[form][0])
    x = jnp.sin(jnp.arange(3.0) + RANK)
    y, pullback = jax.vjp(function, x)
    cotangents = jax.tree.map(
        lambda y: jnp.cos(_weights(y)) if y.dtype == float else _weights(y), y
    )
    (back,) = pullback(cotangents)
    floats = jax.tree.map(
        lambda c: c if c.dtype == float else np.zeros(c.shape, int), cotangents
    )
    left, right = inner(y, floats), inner(x, back)
    assert abs(left - right) < 1e-12 * max(1, abs(left))


@pytest.mark.parametrize("form", LINEAR)
def test_second_derivatives(form):
    start, blocking = FORMS[form]

    def loss(function):
        def call(x):
            leaves = [y for y in jax.tree.leaves(function(x**3)) if y.dtype == float]
            return sum((y**2).sum() for y in leaves)

        return jax.grad(lambda x: (jax.grad(call)(x) ** 2).sum())

    x = jnp.array([1.0, 0.5, -2.0]) * (1 + 0.1 * RANK)
    assert_close(loss(in_two_halves(start))(x), loss(blocking)(x), rtol=1e-12)


def in_every_way(case, mode):
    """The result and the derivatives of a call, and of a batch of calls."""
    x = jnp.sin(jnp.arange(float(np.prod(case.shape((3,))))) + RANK)
    x = x.reshape(case.shape((3,)))
    batch = jnp.stack([x, 2 * x, x + 1])
    call = mode(case.call)
    yield call(x)
    yield mode(jax.vmap(case.call))(batch)
    if case.has_derivative:
        yield mode(lambda x: jax.jvp(case.call, (x,), (x + 1,)))(x)
        for function, point in ((case.call, x), (jax.vmap(case.call), batch)):

            def pull(x, function=function):
                y, pullback = jax.vjp(function, x)
                return pullback(_weights(y))

            yield mode(pull)(point)


@every_case
def test_every_case(case):
    """Its result, derivatives and batches are the same as of the blocking form."""
    if case.size < case.least_size:
        pytest.skip("needs more processes")
    ways = zip(in_every_way(case, nonblocking), in_every_way(case, jax.jit), strict=True)
    for actual, expected in ways:
        assert_close(actual, expected, rtol=1e-12)


@every_operation
def test_the_function_of_every_operation(case):
    x = jnp.arange(float(np.prod(case.shape((3,))))).reshape(case.shape((3,))) + RANK
    for name, arguments in arguments_of(case, x).items():
        function = getattr(mpi, f"i{name}")
        parameters = inspect.signature(function).parameters
        accepted = {key: arguments[key] for key in arguments if key in parameters}
        if name in ("send", "recv"):
            assert parameters.keys() >= {"x", "tag", "comm"}
            continue
        expected = getattr(mpi, name)(**accepted)
        assert_close(mpi4jax.wait(function(**accepted)), expected)


def overlapped(blocking):
    return lambda x: mpi4jax.overlap(lambda: blocking(x), during=lambda: jnp.sin(x))[0]


@every_form
@pytest.mark.parametrize("axis", [0, 1])
def test_derivatives_of_a_batch(form, axis):
    """A map within a derivative: all members have the one ticket of their message."""
    start, blocking = FORMS[form]
    x, t = jnp.sin(jnp.arange(24.0).reshape(2, 4, 3) + RANK), jnp.ones((2, 4, 3)) * RANK

    def derivatives(function):
        mapped = jax.vmap(jax.vmap(function, axis), axis)

        def call(x):
            y, pull = jax.vjp(mapped, x)
            return pull(jax.tree.map(_weights, y))

        return jax.jit(call)(x), jax.jit(lambda x, t: jax.jvp(mapped, (x,), (t,)))(x, t)

    expected = derivatives(blocking)
    assert_close(derivatives(in_two_halves(start)), expected, rtol=1e-13)
    assert_close(derivatives(overlapped(blocking)), expected, rtol=1e-13)


@pytest.mark.parametrize("form", ["iallgather", "isendrecv-line", "iexchange"])
def test_second_derivatives_of_a_batch(form):
    start, blocking = FORMS[form]
    x = jnp.sin(jnp.arange(6.0).reshape(3, 2) + RANK)

    def second(function):
        def loss(x):
            leaves = jax.tree.leaves(jax.vmap(function)(x**3))
            return sum((y**2).sum() for y in leaves if y.dtype == float)

        outer = jax.grad(lambda x: (jax.grad(loss)(x) ** 2).sum())
        return jax.jit(outer)(x), jax.vmap(jax.grad(lambda x: loss(x[None])))(x)

    assert_close(second(in_two_halves(start)), second(blocking), rtol=1e-12)


def test_a_batch_in_flight_from_turn_to_turn():
    def in_turns(start, wait):
        def turns(x):
            def turn(flying, _):
                y = wait(flying)
                return start(jnp.sin(y)), y

            flying, ys = jax.lax.scan(turn, start(x), None, 3)
            return wait(flying).sum() + (ys**2).sum()

        return jax.jit(jax.grad(lambda x: (jax.vmap(turns)(x) ** 2).sum()))

    x = jnp.arange(6.0).reshape(3, 2) + RANK
    blocking = in_turns(_shift_blocking, lambda y: y)
    assert_close(in_turns(_shift, mpi4jax.wait)(x), blocking(x), rtol=1e-12)


def test_what_stands_for_a_message_is_mapped_and_differentiated():
    """Where it alone is, the call is, as that of the process on the other side."""
    x, constant = jnp.arange(6.0).reshape(3, 2) + RANK, jnp.ones(2)

    def half(function):
        def call(x):
            if RANK == 0:
                return function(x, x, LEFT, RIGHT)
            return function(constant, x, LEFT, RIGHT)

        return call

    pair = half(mpi.sendrecv), half(lambda *args: mpi4jax.wait(mpi4jax.isendrecv(*args)))
    for transform in (
        jax.vmap,
        lambda f: lambda x: jax.jvp(f, (x[0],), (x[1],)),
        lambda f: jax.grad(lambda x: (f(x[0]) ** 2).sum()),
        lambda f: jax.grad(lambda x: (jax.vmap(f)(x) ** 2).sum()),
        # The tangents alone have no batch.
        lambda f: jax.vmap(lambda x: jax.jvp(f, (x,), (jnp.ones(2),))),
    ):
        expected, actual = (jax.jit(transform(f))(x) for f in pair)
        assert_close(actual, expected)


@pytest.mark.ranks(2)
def test_a_mapped_isend_is_one_message():
    def ring(x):
        sent, received = mpi4jax.isend(x, RIGHT), mpi4jax.irecv(x, LEFT)
        mpi4jax.wait(sent)
        return mpi4jax.wait(received)

    x = jnp.arange(6.0).reshape(3, 2) + RANK
    np.testing.assert_array_equal(jax.vmap(ring)(x), x - RANK + LEFT)
    assert calls_of(jax.jit(jax.vmap(ring)), x) == ["iexchange"] * 2 + ["wait"] * 2


@compiled
def test_halves_of_messages_have_no_derivative(transform):
    """As the blocking ones. The gradient would be zero, without a word."""

    def overlapped(function):
        return lambda x: mpi4jax.overlap(lambda: function(x), during=lambda: x * 2)

    halves = {
        "isend": lambda x: mpi4jax.isend(x, RIGHT),
        "irecv": lambda x: mpi4jax.irecv(x, LEFT),
        "send": overlapped(lambda x: mpi.send(x, RIGHT)),
        "recv": overlapped(lambda x: mpi.recv(x, LEFT)),
    }
    x = jnp.ones(3)
    for name, call in halves.items():

        def loss(x, call=call):
            call(x)
            return x.sum()

        for derivative in (jax.grad(loss), lambda x, f=loss: jax.jvp(f, (x,), (x,))):
            with pytest.raises(NotImplementedError, match=f"^{name} can't be different"):
                transform(derivative)(x)
    with pytest.raises(NotImplementedError, match="^irecv can't be differentiated"):
        jax.linear_transpose(in_two_halves(halves["irecv"]), x)(x)


def test_jacfwd():
    x = jnp.ones(2)
    for name, function in (
        ("isendrecv", in_two_halves(_shift)),
        ("sendrecv", overlapped(_shift_blocking)),
    ):
        with pytest.raises(RuntimeError, match=f"^{name} can't be used with jax.jacfwd"):
            jax.jit(jax.jacfwd(function)).lower(x)

        def push(x, t, function=function):
            return jax.jvp(lambda x: jnp.sin(function(x)), (x,), (t,))

        # Directions that all processes have in common are as ever.
        pairs = (
            jnp.sin(jnp.arange(8.0).reshape(4, 2)),
            jnp.cos(jnp.arange(8.0).reshape(4, 2)),
        )
        one_by_one = [push(*pair) for pair in zip(*pairs, strict=True)]
        expected = tuple(map(jnp.stack, zip(*one_by_one, strict=True)))
        assert_close(jax.jit(jax.vmap(push))(*pairs), expected)
        assert_close(jax.jacrev(function)(x), jax.jacrev(_shift_blocking)(x))


def test_the_derivative_of_what_is_started_from_a_constant(nothing_left):
    """In the first turn, nothing is in flight for the derivative: what comes is zero.

    In reverse mode that is the last turn, and nobody waits for what it starts.
    """
    nothing_left.lost = 1

    @jax.jit
    def loss(x):
        def turn(request, _):
            y = mpi4jax.wait(request)
            return _shift(x * (y + 1)), y

        request, ys = jax.lax.scan(turn, _shift(jnp.ones(2)), None, 3)
        return mpi4jax.wait(request).sum() + ys.sum()

    def blocking(x):
        y, total = _shift_blocking(jnp.ones(2)), 0.0
        for _ in range(3):
            total += y.sum()
            y = _shift_blocking(x * (y + 1))
        return y.sum() + total

    x = jnp.array([1.5, -1.0]) + RANK
    assert_close(jax.grad(loss)(x), jax.grad(blocking)(x))
    assert_close(jax.jvp(loss, (x,), (x,)), jax.jvp(blocking, (x,), (x,)))


def test_with_checkpoint_and_custom_vjp():
    @jax.checkpoint
    def step(x):
        return jnp.sin(mpi4jax.wait(_shift(x)))

    def loss(function):
        return jax.jit(jax.grad(lambda x: function(function(x)).sum()))

    x = jnp.arange(3.0) + RANK
    assert_close(loss(step)(x), loss(lambda x: jnp.sin(_shift_blocking(x)))(x))


# What is in flight is the core's own.


def test_the_programs_arrays_may_be_overwritten():
    """XLA has the memory of what was sent back, and others write there."""

    @jax.jit
    def start(x):
        return _shift(x)

    @lambda f: jax.jit(f, donate_argnums=0)
    def overwrite(x):
        return x * 0 - 1

    x = jnp.arange(100_000.0) + RANK  # more than MPIs send at once
    request = start(x)
    for _ in range(3):
        x = overwrite(x)
    np.testing.assert_array_equal(mpi4jax.wait(request), np.arange(100_000.0) + LEFT)

    @jax.jit
    def in_one_program(x):
        request = _shift(x)
        x = mpi4jax.ordering_barrier(x)
        y = jax.lax.fori_loop(0, 10, lambda _, y: -y, x * 2)  # may take x's memory
        y = mpi4jax.ordering_barrier(y)
        return mpi4jax.wait(request), y

    x = jnp.arange(100_000.0) + RANK
    received, y = in_one_program(x)
    np.testing.assert_array_equal(received, np.arange(100_000.0) + LEFT)
    np.testing.assert_array_equal(y, 2 * (np.arange(100_000.0) + RANK))


def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_many_requests_take_no_memory():
    """Each has a block of the core's, which is there for the next one."""

    @jax.jit
    def many(x):
        return jax.lax.fori_loop(0, 25_000, lambda _, x: mpi4jax.wait(_shift(x)), x)

    x = jnp.ones(1000)
    many(x).block_until_ready()
    before = memory()
    for _ in range(3):
        many(x).block_until_ready()
    assert memory() - before < 8 << 20


def test_random_programs():
    """Requests in flight across other calls give what calls in order give."""
    for seed in range(12):
        steps = random.Random(seed)
        plan = [steps.choice(["start", "wait", "block", "compute"]) for _ in range(30)]
        kinds = [steps.choice(["shift", "sum", "gather", "line"]) for _ in plan]
        picks = [steps.random() for _ in plan]

        def program(x, plan=plan, kinds=kinds, picks=picks):
            started, values = [], [x]
            starts = {
                "shift": _shift,
                "line": _line,
                "sum": lambda x: mpi4jax.iallreduce(x, MPI.SUM),
                "gather": mpi4jax.iallgather,
            }
            for action, kind, pick in zip(plan, kinds, picks, strict=True):
                x = values[int(pick * len(values))]
                if action == "start":
                    started.append(starts[kind](x))
                elif action == "wait" and started:
                    y = mpi4jax.wait(started.pop(int(pick * len(started))))
                    values.append(y[-1] if y.ndim else y)
                elif action == "block":
                    values.append(mpi.allreduce(_shift_blocking(x), MPI.MAX) / SIZE)
                else:
                    values.append(jnp.sin(x) + RANK)
            return values, [mpi4jax.wait(request) for request in started]

        def simulated(plan=plan, kinds=kinds, picks=picks):
            """The values of all processes at once, without MPI."""
            everyone = np.arange(SIZE)
            started, values = [], [np.arange(SIZE) + 0.5]

            def moved(x, kind):
                if kind == "shift":
                    return x[(everyone - 1) % SIZE]
                if kind == "line":
                    return np.concatenate([x[:1], x[:-1]])
                if kind == "sum":
                    return np.full(SIZE, x.sum())
                return np.broadcast_to(x, (SIZE, SIZE))

            for action, kind, pick in zip(plan, kinds, picks, strict=True):
                x = values[int(pick * len(values))]
                if action == "start":
                    started.append(moved(x, kind))
                elif action == "wait" and started:
                    y = started.pop(int(pick * len(started)))
                    values.append(y[:, -1] if y.ndim == 2 else y)
                elif action == "block":
                    values.append(np.full(SIZE, x.max()) / SIZE)
                else:
                    values.append(np.sin(x) + everyone)
            return [x[RANK] for x in values], [x[RANK] for x in started]

        x = jnp.float64(RANK + 0.5)
        expected = simulated()
        for function in (program, jax.jit(program)):
            for values, expected_values in zip(function(x), expected, strict=True):
                for y, z in zip(values, expected_values, strict=True):
                    np.testing.assert_allclose(y, z, rtol=1e-12)


# What is computed in between.


def flights_now(x):
    """A computation that says how many operations are in flight while it runs."""

    def look(_):
        return np.int32(_core.in_flight())

    return jax.pure_callback(look, jax.ShapeDtypeStruct((), jnp.int32), x.sum())


def calls_of(function, *args):
    """The operations that a call of a compiled function makes, in order."""
    jax.block_until_ready(function(*args))
    mpi.barrier()
    jax.block_until_ready(function(*args))
    names = [call.operation for call in diagnostics.recent()]
    return names[len(names) - names[::-1].index("barrier") :]


def handlers_in(function, *args):
    """The handlers that a compiled function calls, in order."""
    handlers = re.findall(r"mpi_(\w+)_ffi", function.lower(*args).as_text())
    # On GPUs, `order` makes a byte of the token, and the other way round.
    return [handler for handler in handlers if handler != "order"]


def handler(form):
    """The operation of the core that starts a form."""
    return "iexchange" if "isend" in form else form.partition("-")[0]


@compiled
def test_overlap(transform):
    def call(x):
        def communicate():
            moved = mpi.sendrecv(x, x, LEFT, RIGHT)
            return moved + mpi.allreduce(moved * 2, MPI.SUM), mpi.allreduce(x, MPI.MAX)

        return mpi4jax.overlap(communicate, during=lambda: (flights_now(x), x * 3))

    x = jnp.arange(4.0) + RANK
    before = _core.in_flight()
    (first, largest), (flight_count, tripled) = transform(call)(x)
    expected = x - RANK + LEFT + 2 * (SIZE * (x - RANK) + SIZE * (SIZE - 1) / 2)
    np.testing.assert_allclose(first, expected)
    np.testing.assert_array_equal(largest, x - RANK + SIZE - 1)
    np.testing.assert_array_equal(tripled, 3 * x)
    # The first one. The second needs what it brings, and the third one is called later.
    assert flight_count - before == 1


def test_overlap_keeps_the_order_of_calls():
    status = MPI.Status()

    @jax.jit
    def call(x):
        def communicate():
            a = mpi.allreduce(x, MPI.SUM)
            b = mpi.sendrecv(x, x, LEFT, RIGHT, status=status)  # has no such form
            c = mpi.allgather(x)
            return a, b, c, mpi.allreduce(a, MPI.SUM)

        return mpi4jax.overlap(communicate, during=lambda: x @ x)

    assert handlers_in(call, jnp.arange(3.0)) == [
        "iallreduce",
        "sendrecv",
        "iallgather",
        "in_order",
        "in_order",
        "wait",
        "wait",
        "allreduce",
    ]


def new_ref(value):
    if hasattr(jax, "new_ref"):
        return jax.new_ref(value)
    from jax._src.core import mutable_array  # JAX < 0.7

    return mutable_array(value)


def written_then_read(x, ref):
    ref[...] = mpi.allreduce(x, MPI.SUM)
    return ref[...] + 0


def written_by_another_function(x, ref):
    jax.jit(lambda ref, y: ref.__setitem__(..., y))(ref, mpi.allreduce(x, MPI.SUM))
    return ref[...] + 0


def read_then_written(x, ref):
    element = ref[mpi.allreduce(x, MPI.SUM)[0].astype(int) - SIZE]
    ref[...] = jnp.full(3, 9.0)
    return element + SIZE - 1


@pytest.mark.parametrize(
    "communicate", [written_then_read, written_by_another_function, read_then_written]
)
@compiled
def test_overlap_keeps_the_order_at_refs(communicate, transform):
    """Fails if what does not depend on a result comes before what does."""

    def function(x):
        ref = new_ref(jnp.ones(3))
        return mpi4jax.overlap(lambda: communicate(x, ref), during=lambda: x + 1)[0]

    np.testing.assert_array_equal(transform(function)(jnp.ones(3)), SIZE)


def test_overlap_beside_a_ref():
    def function(x):
        ref = new_ref(x)

        def during():
            ref[...] *= 3
            return ref[...] + x

        total, computed = mpi4jax.overlap(lambda: mpi.allreduce(x, MPI.SUM), during=during)
        return total, computed, ref[...]

    total, computed, left = jax.jit(function)(jnp.ones(3))
    assert (total[0], computed[0], left[0]) == (SIZE, 4, 3)


def test_overlap_keeps_the_order_of_callbacks():
    calls = []

    def function(x):
        def communicate():
            y = mpi.allreduce(x, MPI.SUM)
            for index, value in enumerate((y, x)):
                note = functools.partial(lambda index, _: calls.append(index), index)
                io_callback(note, None, value, ordered=True)
            return y

        return mpi4jax.overlap(communicate, during=lambda: x + 1)

    jax.block_until_ready(jax.jit(function)(jnp.ones(3)))
    jax.effects_barrier()
    assert calls == [0, 1]


@every_form
def test_overlap_of_every_form(form):
    _, blocking = FORMS[form]
    call = jax.jit(lambda x: mpi4jax.overlap(lambda: blocking(x), during=lambda: x + 1))
    x = jnp.arange(3.0) + RANK
    received, computed = call(x)
    assert_close(received, blocking(x))
    assert_close(computed, x + 1)
    assert handlers_in(call, x) == [handler(form), "in_order", "in_order", "wait"]
    assert calls_of(call, x) == [handler(form), "wait"]


def test_derivatives_overlap_as_well():
    def loss(x):
        received, y = mpi4jax.overlap(
            lambda: mpi.sendrecv(x, x, LEFT, RIGHT), during=lambda: jnp.sin(x)
        )
        return (received * y).sum()

    def blocking(x):
        return (_shift_blocking(x) * jnp.sin(x)).sum()

    x = jnp.arange(1.0, 4) + RANK
    assert_close(jax.grad(loss)(x), jax.grad(blocking)(x))
    half = ["iexchange", "in_order", "in_order", "wait"]
    for derivative, arguments in (
        (jax.grad(loss), (x,)),
        (lambda x, t: jax.jvp(loss, (x,), (t,)), (x, x)),
    ):
        names = handlers_in(jax.jit(derivative), *arguments)
        assert sorted(names) == sorted(half + half)
        # JAX 0.6 puts the calls of cotangents into another order, the same everywhere.
        if jax.__version_info__ >= (0, 7) and len(arguments) == 1:
            assert names == half + half


@compiled
def test_derivatives_within_an_overlap(transform):
    x = jnp.arange(1.0, 4) + RANK

    def pushed(x):
        return jax.jvp(lambda x: jnp.sin(_shift_blocking(x)), (x,), (x,))

    def call(x):
        return mpi4jax.overlap(lambda: pushed(x), during=lambda: x + 1)

    assert_close(transform(call)(x), (pushed(x), x + 1))
    assert handlers_in(jax.jit(call), x)[:3] == ["iexchange", "iexchange", "in_order"]


@compiled
@pytest.mark.ranks(2)
def test_a_token_that_carries_derivatives(transform):
    """Such calls are made before the computation, as they have no nonblocking form."""

    def ring(x, token):
        if RANK == 0:
            token = tokens.send(x, RIGHT, token=token)
            return tokens.recv(x, LEFT, token=token)
        y, token = tokens.recv(x, LEFT, token=token)
        return y, tokens.send(x, RIGHT, token=token)

    def loss(x):
        (y, token), z = mpi4jax.overlap(
            lambda: ring(x, mpi4jax.create_token(x)), during=lambda: jnp.sin(x)
        )
        return mpi4jax.tie((y * z).sum(), token)

    def blocking(x):
        return (_shift_blocking(x) * jnp.sin(x)).sum()

    x = jnp.arange(1.0, 4) + RANK
    assert_close(transform(loss)(x), blocking(x))
    assert_close(transform(jax.grad(loss))(x), jax.grad(blocking)(x))


def test_nothing_is_copied():
    """An array that is handed through takes its operand's memory."""

    @lambda f: jax.jit(f, donate_argnums=0)
    def call(x):
        x, y = mpi4jax.overlap(
            lambda: x.at[0].set(_shift_blocking(x[-1])), during=lambda: x * 2
        )
        return x, y

    x = jnp.ones((1000, 100)) * RANK
    program = call.lower(x).compile()
    size = x.size * 8
    # Without the donated argument, which one of the results takes: the other result.
    assert program.memory_analysis().temp_size_in_bytes < size / 2
    for result in call(x):
        assert result.shape == (1000, 100)


def test_operations_in_during():
    x = jnp.float64(RANK)
    total, shifted = jax.jit(
        lambda x: mpi4jax.overlap(
            lambda: mpi.allreduce(x, MPI.SUM), during=lambda: _shift_blocking(x)
        )
    )(x)
    assert (total, shifted) == (SIZE * (SIZE - 1) / 2, LEFT)


def test_what_takes_nothing_is_computed_all_the_same():
    assert (
        jax.jit(
            lambda: mpi4jax.overlap(
                lambda: mpi.allreduce(1, MPI.SUM), during=lambda: 3 + jnp.ones(2)
            )
        )()[0]
        == SIZE
    )
    nothing, none = mpi4jax.overlap(lambda: None, during=lambda: None)
    assert nothing is none is None


def test_ordering_barrier_gives_what_it_gets():
    tree = {"a": jnp.arange(3), "b": [jnp.ones(2, bool), jnp.complex64(2j)]}
    for call in (mpi4jax.ordering_barrier, jax.jit(mpi4jax.ordering_barrier)):
        assert_close(call(tree), tree)
    x = jnp.arange(3.0)
    assert_close(jax.vmap(jax.jit(mpi4jax.ordering_barrier))(x), x)
    assert_close(jax.jacrev(jax.jit(mpi4jax.ordering_barrier))(x), jnp.eye(3))
    assert_close(jax.jacfwd(jax.jit(mpi4jax.ordering_barrier))(x), jnp.eye(3))


# Errors.


def test_a_request_is_waited_for_once():
    request = _shift(jnp.ones(3))
    mpi4jax.wait(request)
    was_before = "was waited for before: the isendrecv started at .*test_nonblocking.py"
    with pytest.raises(Exception, match=was_before):
        jax.block_until_ready(mpi4jax.wait(request))
    jitted = jax.jit(_shift)(jnp.ones(3))
    jax.block_until_ready(mpi4jax.wait(jitted))
    with pytest.raises(Exception, match=was_before):
        jax.block_until_ready(mpi4jax.wait(jitted))


def through_bfloat16(x):
    return x.astype(jnp.bfloat16).astype(x.dtype)


@compiled
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda x: x.astype("float16"),
            r"it has float16\[2\] where isendrecv gave float32",
        ),
        (
            lambda x: x.astype("float64"),
            r"it has float64\[2\] where isendrecv gave float32",
        ),
        (lambda x: x.astype(int), r"it has int64\[2\] where isendrecv gave float32\[2\]"),
        (lambda x: jnp.pad(x, (0, 1)), r"it has float32\[3\] where isendrecv gave float32"),
        (through_bfloat16, r"no operation here gave the ticket \[\d+, \d+\]"),
        (lambda x: x + 1, "no operation here gave the ticket"),
        (lambda x: x * 2, "no operation here gave the ticket"),
        (lambda x: x * 0, r"no operation here gave the ticket \[0, 0\]"),
        (lambda x: x / 0, r"no operation here gave the ticket \[inf, inf\]"),
        (
            lambda x: jnp.where(jnp.arange(2) == 0, x, 7),
            "no operation here gave the ticket",
        ),
    ],
)
def test_a_changed_request(transform, change, text):
    """Fails if it is taken for another one, or if its message is lost by the error."""
    request = _shift(jnp.ones(3) * RANK)
    changed = transform(lambda request: jax.tree.map(change, request))(request)
    with pytest.raises(Exception, match=f"wait got a request that was changed.*{text}"):
        jax.block_until_ready(transform(mpi4jax.wait)(changed))
    np.testing.assert_array_equal(mpi4jax.wait(request), [LEFT] * 3)


def test_a_changed_array_of_a_request():
    """Root has its result of a broadcast from an array in the request."""
    request = mpi4jax.ibcast(jnp.ones(3), 0, comm=MPI.COMM_SELF)
    (ticket, x), structure = jax.tree.flatten(request)
    changed = jax.tree.unflatten(structure, [ticket, x.astype("float32")])
    text = r"changed: it has float32\[3\] where ibcast gave float64\[3\]"
    with pytest.raises(TypeError, match=text):
        mpi4jax.wait(changed)
    np.testing.assert_array_equal(mpi4jax.wait(request), [1] * 3)


@compiled
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    "copy",
    [
        jnp.copy,
        lambda x: x,
        lambda x: x.astype("float32"),
        lambda x: jax.device_put(x, jax.devices()[0]),
        lambda x: jnp.where(True, x, 0),
        lambda x: jnp.stack([x, x])[1],
        lambda x: x.astype("int32").astype("float32"),
    ],
)
def test_a_copied_request(transform, copy):
    request = _shift(jnp.ones(3) * RANK)
    copied = transform(lambda request: jax.tree.map(copy, request))(request)
    wait = jax.jit(mpi4jax.wait, donate_argnums=0)
    np.testing.assert_array_equal(wait(copied), [RIGHT] * 3)


def test_a_request_in_numpy():
    request = jax.device_get(_shift(jnp.ones(3) * RANK))
    np.testing.assert_array_equal(mpi4jax.wait(request), [RIGHT] * 3)


def test_several_requests_in_one_array():
    requests = [_shift(jnp.ones(3) * n) for n in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *requests)
    with pytest.raises(Exception, match="wait got several requests in one array"):
        jax.block_until_ready(jax.vmap(mpi4jax.wait)(stacked))
    _, values = jax.lax.scan(lambda _, request: (0, mpi4jax.wait(request)), 0, stacked)
    np.testing.assert_array_equal(values, [[0] * 3, [1] * 3])


def test_overlap_of_what_is_no_function():
    x = jnp.ones(3)
    for transform in (lambda f: f, jax.jit):
        for argument, call in {
            "communicate": lambda x: mpi4jax.overlap(x, during=lambda: x),
            "during": lambda x: mpi4jax.overlap(lambda: mpi4jax.barrier(), during=x),
        }.items():
            text = f"overlap: `{argument}` must be a function of no arguments, not a"
            with pytest.raises(TypeError, match=text):
                transform(call)(x)


def out_of_a_branch(x):
    return mpi4jax.wait(jax.lax.cond(x > 0, _shift, lambda x: _shift(-x), x))


def into_a_branch(x):
    branches = mpi4jax.wait, lambda request: -mpi4jax.wait(request)
    return jax.lax.cond(x > 0, *branches, _shift(x))


def from_turn_to_turn(x):
    def turn(state):
        left, request = state
        return left - 1, _shift(mpi4jax.wait(request))

    _, request = jax.lax.while_loop(lambda state: state[0] > 0, turn, (x, _shift(x)))
    return mpi4jax.wait(request)


@pytest.mark.parametrize(
    ("function", "text", "lost"),
    [
        (out_of_a_branch, "several requests in one array", 2),
        (into_a_branch, "waited for before: the isendrecv started at .* in into_a_bra", 0),
        (from_turn_to_turn, "several requests in one array", 1),
    ],
)
def test_conditions_that_are_mapped_over(function, text, lost, nothing_left, checked):
    """Both branches run, and a request of each is chosen for each member."""
    nothing_left.lost = lost
    x = jnp.arange(2.0)
    with pytest.raises(Exception, match=f"{text}.*wait for an operation in the branch"):
        jax.block_until_ready(jax.jit(jax.vmap(function))(x))

    def in_the_branch(x):
        shift = in_two_halves(_shift)
        return jax.lax.cond(x > 0, shift, lambda x: shift(-x), x)

    def blocking(x):
        return jax.lax.cond(x > 0, _shift_blocking, lambda x: _shift_blocking(-x), x)

    for derivative in (lambda f: f, jax.grad):
        expected = jax.vmap(derivative(blocking))(x)
        assert_close(jax.vmap(derivative(in_the_branch))(x), expected)


@compiled
def test_trees(transform):
    tree = {"a": jnp.arange(3.0) + RANK, "b": [jnp.ones((2, 2)), jnp.arange(2) * RANK]}
    rows = jax.tree.map(lambda x: jnp.stack([x * n for n in range(SIZE)]), tree)
    for start, blocking, x in (
        (mpi4jax.iallreduce, mpi.allreduce, tree),
        (mpi4jax.ireduce_scatter, mpi.reduce_scatter, rows),
    ):
        call = transform(lambda x, f=start: mpi4jax.wait(f(x, MPI.SUM)))
        assert_close(call(x), blocking(x, MPI.SUM))
    assert_close(
        transform(in_two_halves(_shift))(tree), jax.tree.map(_shift_blocking, tree)
    )
    request = mpi4jax.igather(tree, 0)
    assert_close(mpi4jax.wait(request), mpi.gather(tree, 0))


def test_wrong_arguments():
    with pytest.raises(TypeError, match="wait: `request` must be what a nonbl"):
        mpi4jax.wait(jnp.ones(3))
    with pytest.raises(TypeError, match="irecv: `source` must be an integer, not"):
        mpi4jax.irecv(jnp.ones(3), 1.5)
    with pytest.raises(TypeError, match="isend: `x` must be an array or a number"):
        mpi4jax.isend("a", 0)
    with pytest.raises(ValueError, match="iexchange got .* for argument `dest`"):
        mpi4jax.iexchange([jnp.ones(3)], [], [], [0, 1])
    with pytest.raises(ValueError, match=f"isend got {SIZE} for argument `dest`, expected"):
        mpi4jax.isend(jnp.ones(3), SIZE)
    with pytest.raises(ValueError, match="input must have shape"):
        mpi4jax.ialltoall(jnp.ones((SIZE + 1, 2)))
    with pytest.raises(TypeError, match="complex64"):
        mpi4jax.iallreduce(jnp.ones(2, jnp.complex64), MPI.MAX)
    with pytest.raises(TypeError, match='isend got an array of type <U1 for argument "x"'):
        mpi4jax.isend(np.array(["a"]), 0)


def test_any_source_has_no_way_back():
    def loss(x):
        request = mpi4jax.isendrecv(x, x, MPI.ANY_SOURCE, RIGHT)
        return mpi4jax.wait(request).sum()

    assert loss(jnp.float64(RANK)) == LEFT
    with pytest.raises(NotImplementedError, match="ANY_SOURCE or MPI.ANY_TAG can't be"):
        jax.jit(jax.grad(loss)).lower(1.0)


@compiled
def test_debug_lines(log_of, transform):
    _, lines = log_of(transform(in_two_halves(_shift)), jnp.ones(3))
    ends = f"<- {LEFT} (tag 3, 3 items) / -> {RIGHT} (tag 3, 3 items)"
    assert f"MPI_Isendrecv {ends}" in lines[0]
    assert "MPI_Waitall for isendrecv" in lines[2]
    assert len(lines) == 4
    _, lines = log_of(transform(in_two_halves(mpi4jax.iallgather)), jnp.ones(3))
    assert "MPI_Iallgather (3 items)" in lines[0]


# With MPI4JAX_CHECK.


@pytest.fixture
def checked(compare_calls):
    _core.set_eager_line("its line")


@every_form
@compiled
@pytest.mark.usefixtures("checked")
def test_what_fits_is_as_without_checks(form, transform):
    start, blocking = FORMS[form]
    x = jnp.arange(3.0) + RANK
    assert_close(transform(in_two_halves(start))(x), blocking(x))


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("checked")
def test_messages_that_do_not_fit():
    x = jnp.ones(3) if RANK == 0 else jnp.ones(3, jnp.int32)
    if RANK < 2:
        request = mpi4jax.isendrecv(x, x, 1 - RANK, 1 - RANK)
        with pytest.raises(Exception, match="a message that does not fit") as error:
            jax.block_until_ready(mpi4jax.wait(request))
        assert "its line" in str(error.value)
    assert mpi.allreduce(1, MPI.SUM) == SIZE


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("checked")
def test_collective_operations_that_differ():
    start = mpi4jax.iallreduce if RANK == 0 else mpi.allreduce
    with pytest.raises(Exception, match="they called different operations"):
        jax.block_until_ready(start(jnp.ones(3), MPI.SUM))
    assert mpi.allreduce(1, MPI.SUM) == SIZE


@pytest.mark.usefixtures("checked")
def test_any_source_with_checks():
    with pytest.raises(Exception, match="receive from MPI.ANY_SOURCE is not possible"):
        jax.block_until_ready(mpi4jax.irecv(jnp.ones(3), MPI.ANY_SOURCE))
