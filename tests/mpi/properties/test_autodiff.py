"""Derivatives of every operation, against the Jacobian of what all processes compute.

That Jacobian is made by finite differences: one element of one process's array after the
other is changed, and all processes look at what that does to their results.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import every_derivative, every_reduction, over
from mpi4py import MPI

import mpi4jax
from mpi4jax import halo
from mpi4jax import notoken as mpi
from mpi4jax._testing.cases import CASES, OPERATIONS, OPERATORS
from mpi4jax._testing.cases.collectives import Exscan
from mpi4jax.experimental import auto_tokenize

pytestmark = pytest.mark.usefixtures("enable_x64")

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LAST = SIZE - 1
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
LINEAR = [case for case in CASES.values() if case.has_derivative and case.is_linear]


def function_of(case):
    """The call, without what rank 0 gets of exscan for MAX and MIN: infinite constants."""
    if case.is_linear or not isinstance(case, Exscan):
        return case.call

    def finite(x):
        y = case.call(x)
        return jnp.where(jnp.isfinite(y), y, 0)

    return finite


def shift(x):
    return mpi.sendrecv(x, jnp.zeros_like(x), source=LEFT, dest=RIGHT)


linear_cases = over(LINEAR)
dtypes = pytest.mark.parametrize("dtype", [np.float64, np.complex128])


def random(shape, dtype=np.float64, seed=0, *, is_shared=False):
    """An array that differs from process to process, unless `is_shared`."""
    generator = np.random.default_rng([seed, 0 if is_shared else RANK])
    x = generator.uniform(0.5, 2, shape)
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * generator.uniform(-1, 1, shape)
    return jnp.asarray(x, dtype)


def jacobian(function, x):
    """The derivative of this process's result by the elements of each process's array.

    A list with a matrix for each process. The functions are analytic, so that differences
    along the real axis are enough for complex arrays, too.
    """
    step = 1e-4
    matrices = []
    for rank, size in enumerate(COMM.allgather(x.size)):
        columns = []
        for element in range(size):
            change = np.zeros(x.size, x.dtype)
            if rank == RANK:
                change[element] = step
            change = change.reshape(x.shape)
            difference = function(x + change) - function(x - change)
            columns.append(np.ravel(difference) / (2 * step))
        length = np.size(function(x)) if size == 0 else len(columns[0])
        matrices.append(np.array(columns).reshape(size, length).T)
    return matrices


def pushed(matrices, tangent):
    """The product of the Jacobian and the tangents of all processes."""
    tangents = COMM.allgather(np.ravel(tangent))
    return sum(m @ t for m, t in zip(matrices, tangents, strict=True))


def pulled(matrices, cotangent, *, is_shared):
    """The product of the Jacobian's transpose and the cotangents of all processes.

    The result is one value if it is shared: its cotangent, which each process has, counts
    once, and so each process needs nothing but its own.
    """
    cotangent = np.ravel(cotangent)
    if is_shared:
        return matrices[RANK].T @ cotangent
    everyones = COMM.allgather([m.T @ cotangent for m in matrices])
    return sum(from_one[RANK] for from_one in everyones)


def assert_close(actual, expected, tolerance=1e-7):
    actual, expected = np.ravel(actual), np.ravel(expected)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def everywhere(value):
    """The sum of a number over all processes."""
    return COMM.allreduce(complex(value))


@dtypes
@pytest.mark.parametrize("shape", [(), (2, 2)], ids=str)
@linear_cases
def test_linear(case, shape, dtype):
    f = function_of(case)
    x, t = random(case.shape(shape), dtype, 1), random(case.shape(shape), dtype, 2)
    matrices = jacobian(f, x)
    y, tangent = jax.jvp(f, (x,), (t,))
    np.testing.assert_array_equal(y, f(x))
    assert_close(tangent, pushed(matrices, t))
    assert_close(jax.linearize(f, x)[1](t), pushed(matrices, t))

    cotangent = random(y.shape, dtype, 3)
    _, pull = jax.vjp(f, x)
    (gradient,) = pull(cotangent)
    assert_close(gradient, pulled(matrices, cotangent, is_shared=case.is_shared))
    (transposed,) = jax.linear_transpose(f, x)(cotangent)
    np.testing.assert_array_equal(transposed, gradient)
    if not case.is_shared:
        left = everywhere(jnp.sum(f(x) * cotangent))
        assert abs(left - everywhere(jnp.sum(x * gradient))) < 1e-12 * max(1, abs(left))


@linear_cases
def test_transposing_twice(case):
    f = function_of(case)
    x = random(case.shape((3,)), seed=1)

    def transposed(y):
        return jax.linear_transpose(f, x)(y)[0]

    (again,) = jax.linear_transpose(transposed, f(x))(x)
    assert_close(again, f(x), 1e-14)


def of_a_plan(name, root):
    """A call for whole fields, whose parts differ in size, on a plane that is divided."""
    grid = COMM.Create_cart(MPI.Compute_dims(SIZE, 2), (True, False))
    plan = halo.Plan(grid, ((1, 1), (2, 1)), shape=(7, 5))

    def call(x):
        y = getattr(plan, name)(x, root=root)
        return jnp.zeros(0, x.dtype) if y is None else y

    return call, (7, 5) if name == "scatter" else plan.scatter(np.zeros((7, 5))).shape


@dtypes
@pytest.mark.parametrize("root", sorted({0, LAST}))
@pytest.mark.parametrize("name", ["scatter", "gather"])
def test_whole_fields(name, root, dtype):
    f, shape = of_a_plan(name, root)
    x, t = random(shape, dtype, 1), random(shape, dtype, 2)
    matrices = jacobian(jax.jit(f), x)
    for transform in (lambda f: f, jax.jit):
        y, tangent = transform(lambda x, t: jax.jvp(f, (x,), (t,)))(x, t)
        np.testing.assert_array_equal(y, f(x))
        assert_close(tangent, pushed(matrices, t))
        batch = transform(jax.vmap(f))(jnp.stack([x, t]))
        np.testing.assert_array_equal(batch, jnp.stack([y, f(t)]))

        if name == "gather" and jax.__version_info__ < (0, 8):
            continue  # This JAX does not come back where the result is not there.
        ct = random(y.shape, dtype, 3)
        gradient = transform(lambda x, ct: jax.vjp(f, x)[1](ct)[0])(x, ct)
        assert_close(gradient, pulled(matrices, ct, is_shared=False))
        if name == "scatter":
            # Where gather has no result, nothing is left of it to transpose.
            (transposed,) = transform(jax.linear_transpose(f, x))(ct)
            np.testing.assert_array_equal(transposed, gradient)
        left = everywhere(jnp.sum(y * ct))
        assert abs(left - everywhere(jnp.sum(x * gradient))) < 1e-12 * max(1, abs(left))
        mapped = transform(jax.grad(lambda x: jnp.sum(jnp.abs(jax.vmap(f)(x)) ** 2)))
        single = transform(jax.grad(lambda x: jnp.sum(jnp.abs(f(x)) ** 2)))
        assert_close(mapped(jnp.stack([x, t]))[1], single(t), 1e-12)


@every_derivative
def test_first_derivatives(case):
    f = function_of(case)
    x, t = random(case.shape((2,)), seed=4), random(case.shape((2,)), seed=5)
    matrices = jacobian(f, x)
    y, tangent = jax.jvp(f, (x,), (t,))
    assert_close(tangent, pushed(matrices, t))
    cotangent = random(y.shape, seed=6)
    (gradient,) = jax.vjp(f, x)[1](cotangent)
    assert_close(gradient, pulled(matrices, cotangent, is_shared=case.is_shared))


@every_derivative
def test_second_derivatives(case):
    shape = case.shape((2,))
    x, t, v = (random(shape, seed=seed) for seed in (4, 5, 6))
    f = function_of(case)
    weights = random(f(x).shape, seed=7, is_shared=case.is_shared)
    step = 1e-5

    def loss(x):
        return jnp.sum(weights * jnp.sin(f(x)))

    gradient = jax.jit(jax.grad(loss))
    _, pushed = jax.jvp(gradient, (x,), (t,))
    difference = gradient(x + step * t) - gradient(x - step * t)
    assert_close(pushed, difference / (2 * step), 1e-6)
    # The gradient is each process's own: it is transposed truly.
    (pulled,) = jax.vjp(gradient, x)[1](v)
    left = everywhere(jnp.sum(pushed * v))
    assert abs(left - everywhere(jnp.sum(t * pulled))) < 1e-12 * max(1, abs(left))

    @jax.jit
    def slope(x):
        return jax.jvp(loss, (x,), (t,))[1]

    # Reverse over forward mode. The slope of a shared loss is shared.
    change = (slope(x + step * v) - slope(x - step * v)) / (2 * step)
    change = change if case.is_shared else everywhere(change)
    assert_close(everywhere(jnp.sum(jax.grad(slope)(x) * v)), change, 1e-6)


def in_scan(f):
    def scanned(x):
        return jax.lax.scan(lambda c, _: (c + f(x), None), 0 * f(x), None, length=2)[0] / 2

    return scanned


def in_fori_loop(f):
    return lambda x: jax.lax.fori_loop(0, 2, lambda _, c: c + f(x), 0 * f(x)) / 2


def in_cond(f):
    return lambda x: jax.lax.cond(jnp.ndim(x) < 9, f, lambda x: 0 * f(x), x)


def in_cond_on_data(f):
    return lambda x: jax.lax.cond(jnp.all(x < 9), f, lambda x: -f(x), x)


def in_custom_vjp(f):
    @jax.custom_vjp
    def custom(x):
        return f(x)

    custom.defvjp(lambda x: jax.vjp(f, x), lambda pull, cotangent: pull(cotangent))
    return custom


def in_custom_jvp(f):
    @jax.custom_jvp
    def custom(x):
        return f(x)

    custom.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return custom


def in_while_loop(f):
    def looped(x):
        def body(state):
            return state[0] + 1, state[1] + f(x)

        return jax.lax.while_loop(lambda state: state[0] < 2, body, (0, 0 * f(x)))[1] / 2

    return looped


PLACES = {
    "jit": jax.jit,
    "scan": in_scan,
    "fori_loop": in_fori_loop,
    "cond": in_cond,
    "cond-data": in_cond_on_data,
    "custom_vjp": in_custom_vjp,
    "custom_jvp": in_custom_jvp,
    "checkpoint": jax.checkpoint,
    "auto_tokenize": auto_tokenize,
    "while_loop": in_while_loop,
}
FORWARD_ONLY, REVERSE_ONLY = "while_loop", "custom_vjp"


@over([*LINEAR, CASES["allreduce-MAX"], CASES["scan-PROD"]])
def test_places(case):
    f = function_of(case)
    x, t = random(case.shape((2,)), seed=8), random(case.shape((2,)), seed=9)
    cotangent = random(f(x).shape, seed=10)

    @jax.jit
    def gradients(x):
        return {
            name: jax.vjp(wrap(f), x)[1](cotangent)[0]
            for name, wrap in PLACES.items()
            if name != FORWARD_ONLY
        }

    @jax.jit
    def tangents(x):
        return {
            name: jax.jvp(wrap(f), (x,), (t,))[1]
            for name, wrap in PLACES.items()
            if name != REVERSE_ONLY
        }

    _, tangent = jax.jvp(f, (x,), (t,))
    (gradient,) = jax.vjp(f, x)[1](cotangent)
    for name, actual in gradients(x).items():
        np.testing.assert_allclose(actual, gradient, rtol=1e-14, err_msg=name)
    for name, actual in tangents(x).items():
        np.testing.assert_allclose(actual, tangent, rtol=1e-14, err_msg=name)
    eager = jax.vjp(jax.jit(f), x)[1](cotangent)[0]
    np.testing.assert_allclose(eager, gradient, rtol=1e-14)


def test_extremum_of_equals_is_shared_out():
    # All have the extremum in the first element, and the last rank alone in the second.
    x = jnp.asarray([5.0, RANK])
    (gradient,) = jax.vjp(lambda x: mpi.allreduce(x, MPI.MAX), x)[1](
        jnp.asarray([6.0, 7.0])
    )
    np.testing.assert_allclose(gradient, [6 / SIZE, 7.0 * (RANK == LAST)], rtol=1e-15)
    _, tangent = jax.jvp(lambda x: mpi.allreduce(x, MPI.MIN), (x,), (x + 1,))
    np.testing.assert_allclose(tangent, [6.0, 1.0], rtol=1e-15)


def test_products_with_zeros():
    # One zero leaves one derivative, two leave none.
    for zeros in (1, 2):
        x = jnp.asarray(0.0 if zeros > RANK else RANK + 2.0)
        everyones = np.array(COMM.allgather(float(x)))
        expected = np.prod(np.delete(everyones, RANK))
        assert jax.grad(lambda x: mpi.allreduce(x, MPI.PROD))(x) == expected


@pytest.mark.parametrize(
    ("op", "text"),
    [
        ("LAND", "op=MPI.LAND: logical and bitwise operators have no derivative"),
        ("BXOR", "op=MPI.BXOR: logical and bitwise operators have no derivative"),
    ],
)
@every_reduction
def test_operators_without_derivatives(case, op, text):
    x = jnp.ones(case.shape((2,)))
    for transform in (
        lambda f: jax.grad(lambda x: f(x).sum()),
        lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    ):
        with pytest.raises(
            NotImplementedError, match=f"^{case.name} can't be .* with {text}"
        ):
            transform(case.replace(operator=OPERATORS[op]).call)(x)


def test_operators_of_users_have_no_derivative():
    op = MPI.Op.Create(lambda a, b, t: None)
    text = "scan can't be differentiated with an operator of your own"
    with pytest.raises(NotImplementedError, match=text):
        jax.grad(lambda x: mpi.scan(x, op).sum())(jnp.ones(3))
    op.Free()


def test_transposing_what_is_not_linear():
    text = (
        "allreduce can't be transposed with op=MPI.MAX: it is linear with op=MPI.SUM only"
    )
    with pytest.raises(NotImplementedError, match=text):
        jax.linear_transpose(lambda x: mpi.allreduce(x, MPI.MAX), jnp.ones(3))(jnp.ones(3))


@pytest.mark.ranks(2)
@pytest.mark.skipif(
    jax.__version_info__ < (0, 8), reason="older JAX leaves out the send in the loop"
)
def test_messages_of_constants_in_a_loop_that_is_differentiated():
    """Fails, or hangs, if JAX leaves out the send, as no result depends on it."""

    def step(total, _):
        constant = jax.lax.stop_gradient(total)
        mpi.send(constant, RIGHT)
        return total / 2 + mpi.recv(constant, LEFT), None

    def loss(x):
        return jax.lax.scan(step, x, length=2)[0].sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.full(3, RANK + 1.0))
    # Half of half of its own, and twice half of the neighbor's, and the one behind it.
    own, left, behind = ((RANK - distance) % SIZE + 1 for distance in range(3))
    np.testing.assert_allclose(value, 3 * (own / 4 + left + behind))
    np.testing.assert_allclose(gradient, np.full(3, 0.25))


def test_send_and_recv_have_no_derivative():
    halves = {
        "send": lambda x: mpi.send(x, RIGHT),
        "recv": lambda x: mpi.recv(x, LEFT),
    }
    for name, call in halves.items():
        text = f"{name} can't be differentiated: .* Or use sendrecv on both sides"
        with pytest.raises(NotImplementedError, match=text):
            jax.grad(lambda x, call=call: (call(x), x.sum())[1])(jnp.ones(3))
    others = [case for case in OPERATIONS.values() if not case.has_derivative]
    assert sorted(halves) == sorted(name for case in others for name in case.operations)


@pytest.mark.ranks(2)
def test_one_way_messages():
    """The advice in the error of send and recv works."""

    def loss(x):
        if RANK == 0:
            return mpi.sendrecv(x, jnp.zeros(3), MPI.PROC_NULL, 1).sum()
        if RANK == 1:
            return (mpi.sendrecv(x, jnp.zeros(3), 0, MPI.PROC_NULL) ** 2).sum()
        return x.sum()

    x = jnp.arange(3.0) + RANK
    gradients = {0: 2 * np.arange(3.0), 1: np.zeros(3)}
    for transform in (lambda f: f, jax.jit):
        gradient = transform(jax.grad(loss))(x)
        np.testing.assert_array_equal(gradient, gradients.get(RANK, np.ones(3)))


def test_gradient_needs_to_know_the_source():
    text = "sendrecv with source=MPI.ANY_SOURCE can't be differentiated in reverse mode"
    with pytest.raises(NotImplementedError, match=text):
        jax.grad(lambda x: mpi.sendrecv(x, x, MPI.ANY_SOURCE, RIGHT).sum())(jnp.ones(3))


def test_status_is_that_of_the_message_itself():
    # The cotangent comes from the other side: it must not get into the status.
    status = MPI.Status()

    def loss(x):
        return mpi.sendrecv(x, x, LEFT, RIGHT, status=status).sum()

    jax.block_until_ready(jax.jit(jax.grad(loss))(jnp.ones(3)))
    assert status.Get_source() == LEFT


def test_jacfwd_of_sendrecv():
    x = jnp.ones(2)
    text = "sendrecv can't be used with jax.jacfwd"
    for transform in (lambda f: f, jax.jit):
        for function in (shift, jax.jit(shift)):
            with pytest.raises(RuntimeError, match=text):
                transform(jax.jacfwd(function))(x)


def test_directions_in_common():
    """Where jacfwd is refused, single directions and pairs are right."""
    x, t = random((4, 2), seed=1), random((4, 2), seed=2)

    def push(x, t):
        return jax.jvp(lambda x: jnp.sin(shift(x)), (x,), (t,))[1]

    expected = jnp.stack([push(*pair) for pair in zip(x, t, strict=True)])
    assert_close(jax.vmap(push)(x, t), expected, 1e-14)
    assert_close(jax.jit(jax.vmap(jax.jit(push)))(x, t), expected, 1e-14)
    one_by_one = jax.lax.map(lambda t: push(x[0], t), t)
    assert_close(one_by_one[1], push(x[0], t[1]), 1e-14)
    of_gradient = jax.vmap(jax.grad(lambda x: jnp.sin(shift(x)).sum()))
    assert_close(of_gradient(x)[3], of_gradient(x[3:])[0], 1e-14)


def conjugate_gradients(matvec, b):
    """A solver for vectors whose elements are divided among the processes."""

    def dot(u, v):
        return mpi.allreduce(jnp.vdot(u, v), op=MPI.SUM)

    def step(_, state):
        x, residual, direction, square = state
        image = matvec(direction)
        length = square / dot(direction, image)
        x, residual = x + length * direction, residual - length * image
        new = dot(residual, residual)
        return x, residual, residual + new / square * direction, new

    start = jnp.zeros_like(b), b, b, dot(b, b)
    return jax.lax.fori_loop(0, len(b) * SIZE, step, start)[0]


def test_linear_solver():
    """The solution is differentiated, not the iterations, as docs/autodiff.md says."""
    rows = 3
    own = slice(RANK * rows, (RANK + 1) * rows)
    factor = random((SIZE * rows, SIZE * rows), is_shared=True)
    matrix = factor @ factor.T + 10 * jnp.eye(SIZE * rows)
    right_side = random(SIZE * rows, seed=1, is_shared=True)

    def solution_squared(columns, b):
        def matvec(v):
            return mpi.reduce_scatter((columns @ v).reshape(SIZE, rows), op=MPI.SUM)

        x = jax.lax.custom_linear_solve(matvec, b, conjugate_gradients, symmetric=True)
        return mpi.allreduce(jnp.sum(x**2), op=MPI.SUM)

    def dense(matrix, b):
        return jnp.sum(jnp.linalg.solve(matrix, b) ** 2)

    of_both = (0, 1)
    by_columns, by_rows = jax.jit(jax.grad(solution_squared, of_both))(
        matrix[:, own], right_side[own]
    )
    of_matrix, of_right_side = jax.grad(dense, of_both)(matrix, right_side)
    assert_close(by_columns, of_matrix[:, own], 1e-9)
    assert_close(by_rows, of_right_side[own], 1e-9)


def test_an_extremum_of_what_a_checkpoint_rounds_differently():
    """As compiled code may when it is fused with other code the second time."""
    calls = itertools.count()

    def rounded(x):
        return np.nextafter(x, np.inf if next(calls) else x)

    @jax.custom_jvp
    def identity(x):
        return jax.pure_callback(rounded, x, x)

    identity.defjvp(lambda primals, tangents: (identity(*primals), tangents[0]))

    @jax.jit
    @jax.grad
    @jax.checkpoint
    def gradient(x):
        return jnp.sum(mpi.allreduce(jnp.sin(identity(x)), MPI.MAX))

    x = jnp.asarray([RANK / SIZE, 1 - RANK / SIZE])
    expected = np.cos(x) * [RANK == LAST, RANK == 0]
    np.testing.assert_allclose(gradient(x), expected, rtol=1e-12)
    assert next(calls) == 2


def test_complex_results_in_a_checkpoint():
    """They are kept for the backward pass, and no message is sent again."""

    def loss(x):
        y = x * (1 + 2j)
        y = jnp.sin(mpi.sendrecv(y, y, LEFT, RIGHT))
        y = jnp.cos(mpi.allreduce(y, MPI.SUM)) * y
        y = mpi4jax.wait(mpi4jax.isendrecv(y, y, LEFT, RIGHT)) * y
        return (y * y.conj()).real.sum()

    x = jnp.arange(3.0) + RANK
    for function in (jax.checkpoint(loss), jax.jit(jax.checkpoint(loss))):
        np.testing.assert_allclose(jax.grad(function)(x), jax.grad(loss)(x), rtol=1e-5)
