"""Jitted functions with operations in them are called like any other: without Python."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exports import jax_export
from mpi4py import MPI

from mpi4jax import diagnostics, extend
from mpi4jax import notoken as mpi
from mpi4jax._internal.environment import settings
from mpi4jax._internal.xla import programs
from mpi4jax.experimental import auto_tokenize

pytestmark = [
    pytest.mark.usefixtures("every_call"),
    pytest.mark.skipif(not settings.fast_dispatch, reason="turned off"),
    pytest.mark.on_cpus,
]


def total(x):
    return mpi.allreduce(x, MPI.SUM)


def python_calls(function, *args):
    """How many Python functions run during a call, once it has been compiled."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    for _ in range(3):
        jax.block_until_ready(function(*args))
    sys.setprofile(profile)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return count


def in_loop(x):
    return jax.lax.fori_loop(0, 3, lambda i, y: total(y) / 2, x)


def in_while(x):
    return jax.lax.while_loop(lambda y: (y < 0).any(), total, x)


def in_cond(x):
    return jax.lax.cond(x[0] > 0, total, lambda y: y, x)


@pytest.mark.parametrize(
    "function",
    [
        total,
        auto_tokenize(total),
        jax.jit(total),
        in_loop,
        in_while,
        in_cond,
        jax.checkpoint(total),
        lambda x: jax.grad(lambda y: total(y**2).sum())(x),
        lambda x: (mpi.barrier(), x + 1)[1],
    ],
    ids="plain auto_tokenize jit loop while cond checkpoint grad barrier".split(),
)
def test_no_python(function):
    assert python_calls(jax.jit(function), jnp.ones(3)) == 0


def test_no_python_with_a_constant(size):
    """JAX may make arguments of the arrays that a function closes over."""
    constant = jnp.arange(3.0)
    jitted = jax.jit(lambda x: (total(x * constant), constant))
    assert python_calls(jitted, jnp.ones(3)) == 0
    np.testing.assert_array_equal(jitted(jnp.ones(3)), [size * constant, constant])


def test_no_python_ahead_of_time():
    compiled = jax.jit(total).lower(jnp.ones(3)).compile()
    assert python_calls(compiled, jnp.ones(3)) == 1  # the method that calls the program


def test_donated_and_unused_arguments(size):
    """Dropping the token moves the results that arguments lend their memory to."""

    def function(unused, x, y):
        return y + 1, total(x), x.sum()

    jitted = jax.jit(function, donate_argnums=(1, 2))
    for _ in range(3):
        x, y = jnp.ones(4), jnp.arange(5.0)
        out = jitted(0, x, y)
        np.testing.assert_array_equal(out[0], np.arange(5.0) + 1)
        np.testing.assert_array_equal(out[1], np.full(4, size))
        assert out[2] == 4
        assert x.is_deleted()
        assert y.is_deleted()
    lowered = jitted.lower(0, jnp.ones(4), jnp.arange(5.0)).as_text()
    assert "token" not in lowered.split("@main")[1].split("{\n")[0]


def test_unused_arguments_are_kept_on_request(size):
    jitted = jax.jit(lambda unused, x: total(x), keep_unused=True)
    assert python_calls(jitted, 0, jnp.ones(3)) == 0
    np.testing.assert_array_equal(jitted(0, jnp.ones(3)), np.full(3, size))


def test_a_function_without_results_can_be_waited_for(rank, size):
    """Nothing but JAX's token tells when it is done, so it keeps that."""
    right, left = (rank + 1) % size, (rank - 1) % size
    status = MPI.Status()

    @jax.jit
    def exchange(x):
        y = jnp.ones((300, 300)) + x.sum()
        for _ in range(3):
            y = y @ y / 300  # so slow that the call returns before it is done
        x = x + 0 * jnp.nan_to_num(y).sum()
        mpi.sendrecv(x, x, left, right, sendtag=rank, status=status)

    x = jnp.ones(3)
    assert python_calls(exchange, x) > 10
    jax.effects_barrier()
    assert (status.Get_source(), status.Get_tag()) == (left, left)


@pytest.mark.parametrize(
    "function", [total, lambda x: mpi.barrier()], ids=["allreduce", "barrier"]
)
def test_no_results_ahead_of_time(function):
    """From the second call on, JAX would leave out the token that such programs take."""
    compiled = jax.jit(lambda x: (function(x), None)[1]).lower(jnp.ones(3)).compile()
    numbers = []
    for _ in range(3):
        compiled(jnp.ones(3))
        jax.effects_barrier()
        numbers.append(diagnostics.recent()[-1].number)
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]


def test_send_ahead_of_time(rank, size):
    if size == 1:
        pytest.skip("a message to oneself may wait for its receiver")
    compiled = jax.jit(lambda x: mpi.send(x, (rank + 1) % size))
    compiled = compiled.lower(jnp.ones(3)).compile()
    for n in range(3):
        compiled(jnp.full(3, 1.0 * n))
        received = mpi.recv(jnp.ones(3), (rank - 1) % size)
        np.testing.assert_array_equal(received, np.full(3, n))


def test_beside_other_effects(capfd, size):
    """A program with another ordered effect is called JAX's way."""

    def function(x):
        jax.debug.print("x is {x}", x=x, ordered=True)
        return total(x)

    jitted = jax.jit(function)
    assert python_calls(jitted, jnp.float32(2)) > 10
    assert jitted(jnp.float32(2)) == 2 * size
    jax.effects_barrier()
    assert capfd.readouterr().out.count("x is 2.0") == 5


def test_exported_functions_keep_their_effect(size):
    export = jax_export()
    checks = extend.export_checks()
    exported = export.export(jax.jit(total), disabled_checks=checks)(jnp.ones(3))
    assert [str(e) for e in exported.ordered_effects] == ["MPI"]
    again = jax.jit(lambda x: exported.call(exported.call(x)))
    np.testing.assert_array_equal(again(jnp.ones(3)), np.full(3, size**2))
    assert python_calls(again, jnp.ones(3)) == 0


def test_without_the_announcement_of_jax(size, monkeypatch):
    """Where a program is not found, JAX's way is taken."""
    monkeypatch.delitem(programs._callbacks, programs.LOWERED)
    jitted = jax.jit(lambda x: total(x) + 3)
    assert python_calls(jitted, jnp.ones(3)) > 10
    np.testing.assert_array_equal(jitted(jnp.ones(3)), np.full(3, size + 3))


def test_after_all_listeners_are_cleared(size):
    """JAX tells this one of programs again."""
    from jax._src import monitoring

    listeners = monitoring.get_event_duration_listeners()
    jax.monitoring.clear_event_listeners()
    try:
        jitted = jax.jit(lambda x: total(x) + 4)
        assert python_calls(jitted, jnp.ones(3)) == 0
        np.testing.assert_array_equal(jitted(jnp.ones(3)), np.full(3, size + 4))
    finally:
        jax.monitoring.clear_event_listeners()
        for listener in listeners:
            jax.monitoring.register_event_duration_secs_listener(listener)
