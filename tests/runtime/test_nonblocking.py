"""Operations in two halves, with computations and other calls in between."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpi4jax
from mpi4jax import _core
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.flush import flush

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE

pytestmark = pytest.mark.usefixtures("way", "nothing_in_flight")
compiled = pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit], ids=["eager", "jit"]
)


@pytest.fixture
def nothing_in_flight():
    before = _core.in_flight()
    yield
    flush()
    assert _core.in_flight() == before


def of(rank, shape=(5, 4)):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + np.float32(
        100 * rank
    )


@compiled
def test_to_the_right(transform):
    def program(x):
        receive = mpi4jax.irecv(x, LEFT, tag=4)
        send = mpi4jax.isend(x, RIGHT, tag=4)
        y = mpi4jax.wait(receive)
        mpi4jax.wait(send)
        return y

    result = transform(program)(jax.device_put(of(RANK)))
    np.testing.assert_array_equal(result, of(LEFT))


@compiled
@pytest.mark.parametrize("is_first", [True, False])
def test_sums_in_flight(transform, is_first):
    """Two at once, waited for in either order, with a computation in between."""

    def program(x):
        requests = [mpi4jax.iallreduce(x, MPI.SUM), mpi4jax.iallreduce(x, MPI.MAX)]
        y = jnp.sqrt(x) + 1
        order = (0, 1) if is_first else (1, 0)
        results = {index: mpi4jax.wait(requests[index]) for index in order}
        return results[0], results[1], y

    total, highest, y = transform(program)(jax.device_put(of(RANK)))
    np.testing.assert_array_equal(total, sum(map(of, range(SIZE))))
    np.testing.assert_array_equal(highest, of(SIZE - 1))
    np.testing.assert_allclose(y, np.sqrt(of(RANK)) + 1, rtol=1e-6)


def test_in_flight_from_program_to_program():
    """The ticket goes from program to program; what is sent may be overwritten before."""
    start = jax.jit(lambda x: mpi4jax.iallreduce(x, MPI.SUM))
    overwrite = jax.jit(lambda x: x * 0, donate_argnums=0)
    x = jax.device_put(of(RANK))
    request = start(x)
    overwrite(x)
    between = mpi.allreduce(jax.device_put(of(RANK)), MPI.MIN)
    result = jax.jit(mpi4jax.wait)(request)
    np.testing.assert_array_equal(result, sum(map(of, range(SIZE))))
    np.testing.assert_array_equal(between, of(0))


def test_in_a_loop():
    def turn(_, x):
        request = mpi4jax.isendrecv(x, x, LEFT, RIGHT)
        y = x + 1
        return mpi4jax.wait(request) + 0 * y

    result = jax.jit(lambda x: jax.lax.fori_loop(0, 5, turn, x))(jax.device_put(of(RANK)))
    np.testing.assert_array_equal(result, of((RANK - 5) % SIZE))


def test_the_progress_thread():
    """Long messages while the streams are busy with kernels."""
    x = jax.device_put(np.arange(200_000, dtype=np.float32) + np.float32(RANK))

    def program(x):
        request = mpi4jax.isendrecv(x, x, LEFT, RIGHT)
        y = x[:64]
        for _ in range(20):
            y = jnp.sort(y * 1.5 - 1)
        return mpi4jax.wait(request), y

    result, _ = jax.jit(program)(x)
    np.testing.assert_array_equal(result, np.asarray(x) - RANK + LEFT)
