"""Operations run in program order, within a program and from one program to the next."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import every_operation
from jax.experimental.compilation_cache import compilation_cache
from jax.extend.core import Primitive
from jax.interpreters import mlir
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._testing.cases.messages import Sendrecv
from mpi4jax._testing.modes import MODES
from mpi4jax.experimental import auto_tokenize

pytestmark = pytest.mark.usefixtures("every_call")


def conversation(rank):
    """Two ranks talk: each message is needed for the next, none may overtake another.

    A wrong order shows as a wrong value, or as a deadlock.
    """

    def talk(x):
        if rank == 0:
            a = mpi.recv(x, 1)
            mpi.send(x + 1, 1)
            b = mpi.recv(x, 1)
            c = mpi.recv(x, 1)
            mpi.send(a + 10 * b, 1)
            mpi.send(a + 100 * c, 1)
            return a + b + c
        if rank == 1:
            mpi.send(x + 2, 0)
            a = mpi.recv(x, 0)
            mpi.send(a * 3, 0)
            mpi.send(a * 5, 0)
            b = mpi.recv(x, 0)
            c = mpi.recv(x, 0)
            return b * 1000 + c
        return x

    return talk


def expected_of_conversation(rank):
    return {0: 2 + 3 + 5, 1: 32 * 1000 + 502}.get(rank, 0)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "mode",
    [
        lambda f: f,
        jax.jit,
        lambda f: jax.jit(auto_tokenize(f)),
        lambda f: jax.jit(auto_tokenize(jax.jit(f))),
        lambda f: jax.jit(lambda x: jax.jit(f)(x)),
        lambda f: jax.jit(lambda x: jax.lax.cond(x[0] == 0, f, lambda y: y, x)),
        lambda f: jax.jit(
            lambda x: jax.lax.fori_loop(0, 4, lambda i, _: f(x), jnp.zeros_like(x))
        ),
        lambda f: jax.jit(
            lambda x: jax.lax.scan(lambda _, y: (f(y), None), x, jnp.zeros((4, 2)))[0]
        ),
    ],
    ids="eager jit block block-of-jit nested-jit cond loop scan".split(),
)
def test_hot_potato(mode, rank):
    result = mode(conversation(rank))(jnp.zeros(2))
    np.testing.assert_array_equal(result, np.full(2, expected_of_conversation(rank)))


MESSAGE = Sendrecv()


def between_messages(case):
    """An operation that has nothing to do with its neighbours but the order."""

    def talk(x):
        before = MESSAGE.call(jnp.ones(1) * case.rank)
        y = case.call(x)
        after = MESSAGE.call(jnp.ones(1) * -case.rank)
        return jnp.concatenate([before, y.ravel(), after])

    return talk


@pytest.mark.parametrize("mode", MODES)
@every_operation
def test_between_messages(case, mode, sequence_of):
    """A wrong order shows in the debug lines, or as processes that wait for ever."""
    xs = case.arrays(lambda rank, shape: np.full(shape, rank, np.float32), (2,))
    function = MODES[mode](between_messages(case))
    result, sequence = sequence_of(function, jnp.asarray(xs[case.rank]))
    parts = [case.left], case.result(xs).ravel(), [-case.left]
    np.testing.assert_array_equal(result, np.concatenate(parts))
    calls = [*MESSAGE.calls, *case.calls, *MESSAGE.calls]
    if mode == "nonblocking":
        # An exchange starts as a sendrecv does: its blocking form shows by its end.
        starts = (f"I{name.lower().replace('waitall', 'sendrecv')}" for name in calls)
        calls = [call for start in starts for call in (start, "Waitall")]
    assert sequence == calls * (3 if mode == "loop" else 1)


@pytest.mark.on_cpus
@every_operation
def test_calls_are_chained(case):
    """Each call takes the token that the one before it returns.

    A backend may run calls in program order without, so the tests above could pass by luck.
    """
    x = jnp.ones(case.shape((2,)))
    text = jax.jit(between_messages(case)).lower(x).as_text()
    calls = re.findall(r"%(\w+)\S* = stablehlo.custom_call @mpi_\w+_ffi\((.*?)\)", text)
    assert len(calls) == 2 * MESSAGE.calls.total() + case.calls.total()
    for (result, _), (_, operands) in itertools.pairwise(calls):
        # The token is the last of the results, and the last of the operands.
        assert re.fullmatch(rf"%{result}(#\d)?", operands.split(", ")[-1])


@pytest.mark.ranks(2)
def test_programs_run_one_after_another(rank):
    """Slow and fast programs, with and without JAX's token, dispatched in a burst.

    Message k carries the number k; were a fast program to overtake a slow one, the numbers
    would arrive in another order.
    """
    other = 1 - rank if rank < 2 else MPI.PROC_NULL

    def exchange(x):
        return mpi.sendrecv(x, x, other, other)

    def slow(x):
        y = jnp.ones((300, 300)) + x
        for _ in range(3):
            y = y @ y / 300
        return exchange(x + 0 * jnp.nan_to_num(y).sum())

    programs = [
        jax.jit(auto_tokenize(exchange)),
        jax.jit(slow),
        jax.jit(auto_tokenize(slow)),
        exchange,
        jax.jit(exchange),
    ]
    pattern = np.random.default_rng(3).integers(len(programs), size=300)
    results = [programs[p](jnp.float32(k)) for k, p in enumerate(pattern)]
    np.testing.assert_array_equal(results, np.arange(300))


@pytest.mark.ranks(2)
def test_unawaited_calls_run_in_order(rank):
    """Nobody looks at the results of the sends, and they still arrive in order."""
    send = jax.jit(auto_tokenize(lambda x: mpi.send(x, 1 - rank)))
    recv = jax.jit(auto_tokenize(lambda x: mpi.recv(x, 1 - rank)))
    if rank == 0:
        for k in range(100):
            send(jnp.float32(k))
    elif rank == 1:
        assert [float(recv(jnp.float32(0))) for _ in range(100)] == list(range(100))


def test_results_that_nobody_uses_are_still_sent(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size

    def function(x):
        mpi.sendrecv(x, x, left, right)  # without this one, the next gets its message
        return mpi.sendrecv(x + 1, x, left, right)

    for mode in (jax.jit, lambda f: jax.jit(auto_tokenize(f))):
        assert mode(function)(jnp.float32(rank)) == left + 1


@pytest.mark.ranks(2)
def test_while_loop_with_communication_in_its_condition(rank, comm):
    if rank > 1:
        return
    pair = comm.Split(0 if rank < 2 else 1) if comm.Get_size() == 2 else None
    if pair is None:
        pytest.skip("for two ranks")

    def condition(x):
        return jnp.all(mpi.sendrecv(x, x, 1 - rank, 1 - rank, comm=pair) < 100)

    def body(x):
        return mpi.allreduce(x, MPI.SUM, comm=pair)

    for mode in (jax.jit, lambda f: jax.jit(auto_tokenize(f))):
        result = mode(lambda x: jax.lax.while_loop(condition, body, x))(jnp.float32(1))
        assert result == 128
    pair.Free()


@pytest.fixture
def persistent_cache(tmp_path):
    """JAX's cache of compiled programs in files, with none in it."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}

    def use(values):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    use(settings)
    yield
    use(before)


def test_loops_from_the_persistent_cache(persistent_cache):
    """With jaxlib 0.6.0, a while loop from the cache would make no turn."""

    def function(x):
        return jax.lax.while_loop(lambda y: (y < 100).all(), lambda y: 2 * total(y), x)

    def total(x):
        return mpi.allreduce(x, MPI.MAX)

    for _ in range(2):
        np.testing.assert_array_equal(jax.jit(function)(jnp.ones(2)), np.full(2, 128))
        jax.clear_caches()


def test_a_primitive_that_hides_effects():
    """JAX has no token for what it does not know of."""
    error, names = NotImplementedError, "^allreduce .* the primitive hiding"
    if jax.__version_info__ < (0, 10):
        error, names = KeyError, "an operation .* a primitive"

    def total(x):
        return mpi.allreduce(x, MPI.SUM)

    def in_loop(x):
        return jax.lax.fori_loop(0, 2, lambda _, y: total(y), x)

    for function in (total, in_loop):
        hiding = Primitive("hiding")
        hiding.def_abstract_eval(lambda x: x)
        mlir.register_lowering(hiding, mlir.lower_fun(function, multiple_results=False))
        for program in (hiding.bind, lambda x, bind=hiding.bind: total(bind(total(x)))):
            with pytest.raises(
                error, match=f"{names} takes and whose effects it hides from JAX"
            ):
                jax.jit(program)(jnp.ones(3))
    assert total(1) == MPI.COMM_WORLD.size
