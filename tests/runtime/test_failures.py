"""A driver function that fails in a call is an exception, and the next call works."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import driver
import jax
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.jax_compat import devices_in_use

#: Functions without which a staged call has no result. Where the operand is there, XLA
#: calls none of them before the core does.
NEEDED = ["cuMemHostAlloc", "cuEventSynchronize", "cuMemcpyHtoDAsync"]
if len(jax.devices()) < len(devices_in_use()):
    # JAX passes a token, which XLA copies to the device first.
    NEEDED.remove("cuMemcpyHtoDAsync")


@pytest.fixture(autouse=True)
def _staged(every_call):
    _core.set_direct(False)
    driver.set_open(False)
    # The buffers are allocated again.
    _core.free_staging()
    yield
    for name in NEEDED:
        driver.fail(name, 0)


@pytest.mark.parametrize("code", [2, 700])
@pytest.mark.parametrize("name", NEEDED)
def test_a_function_that_fails(name, code):
    x = jax.device_put(np.arange(6, dtype=np.float32))
    add = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM, comm=MPI.COMM_SELF))
    np.testing.assert_array_equal(add(x), np.arange(6))
    _core.free_staging()
    driver.fail(name, code)
    expected = f"r0 | {name} returned error code {code}: {driver.ERRORS[code]}"
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(add(x))
    assert expected in str(raised.value)
    np.testing.assert_array_equal(add(x), np.arange(6))


def test_a_failure_while_others_wait():
    """The call that fails is in the middle of others, which are right all the same."""
    x = jax.device_put(np.arange(6, dtype=np.float32))
    add = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM, comm=MPI.COMM_SELF) + 1)
    results = []
    for index in range(5):
        if index == 2:
            jax.block_until_ready(results)
            _core.free_staging()
            driver.fail("cuMemHostAlloc", 2)
            expected = "cuMemHostAlloc returned error code 2"
            with pytest.raises(jax.errors.JaxRuntimeError, match=expected):
                jax.block_until_ready(add(x))
        else:
            results.append(add(x))
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, np.arange(6) + 1)


@pytest.mark.parametrize("in_thread", [False, True], ids=["here", "in a thread"])
def test_programs_after_one_that_failed(in_thread):
    """JAX passes the token of the last program to the next one, even if that has failed."""
    comm = MPI.COMM_SELF.Dup()
    x = jax.device_put(np.arange(6, dtype=np.float32))
    fail = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM, comm=comm) - 1)
    add = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM, comm=MPI.COMM_SELF) + 1)
    jax.block_until_ready((fail(x), add(x)))
    comm.Free()

    def run():
        for _ in range(20):
            # A program that was dispatched before the error is known may fail with it.
            results = [fail(x)] + [add(x) for _ in range(3)]
            for result in results:
                with contextlib.suppress(jax.errors.JaxRuntimeError):
                    jax.block_until_ready(result)
            with pytest.raises(jax.errors.JaxRuntimeError, match="was freed"):
                jax.block_until_ready(fail(x))
            np.testing.assert_array_equal(add(x), np.arange(6) + 1)
            np.testing.assert_array_equal(mpi.bcast(x, 0, comm=MPI.COMM_SELF), x)

    if in_thread:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run).result()
    else:
        run()
