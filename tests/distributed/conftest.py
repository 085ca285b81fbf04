"""Tests of JAX's own programs over all ranks of an `mpiexec`, with any number of ranks."""

import functools
import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from mpi4jax import distributed
from mpi4jax._internal.distributed.collectives import connect

pytest_plugins = ["ranks", "sample"]

COMM = MPI.COMM_WORLD

if os.environ.get("TEST_COLLECTIVES") == "gloo":
    # What JAX gives without MPI is what the tests expect, too.
    connect(COMM, "gloo")
else:
    distributed.initialize()


@pytest.fixture(autouse=True)
def _start_together():
    COMM.Barrier()


@pytest.fixture(autouse=True)
def _enable_x64():
    old = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", old)


@pytest.fixture(scope="session")
def shard_map():
    """JAX's function of that name, without its checks, which versions call differently."""
    try:
        return functools.partial(jax.shard_map, check_vma=False)
    except AttributeError:  # JAX < 0.6.1
        from jax.experimental.shard_map import shard_map

        return functools.partial(shard_map, check_rep=False)


@pytest.fixture
def over(mesh, shard_map):
    """A jitted function of this process's rows, which gives such rows, or the same."""

    def call(body, *out):
        mapped = shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P(*out))
        return jax.jit(mapped)

    return call


@pytest.fixture(scope="session")
def mesh():
    return Mesh(jax.devices(), ("i",))


@pytest.fixture
def grid(size):
    """A mesh of two axes, the second one with two processes if that is possible."""
    columns = 2 if size % 2 == 0 else 1
    devices = np.array(jax.devices()).reshape(size // columns, columns)
    return Mesh(devices, ("i", "j"))


@pytest.fixture(params=[False, True], ids=["unchecked", "checked"])
def is_checked(request):
    """Whether JAX checks in a `shard_map` what varies over the mesh."""
    return request.param


@pytest.fixture(scope="session")
def spread():
    """Spreads an array that all ranks have over a mesh."""

    def call(array, mesh, *axes):
        sharding = NamedSharding(mesh, P(*axes))
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    return call


@pytest.fixture(scope="session")
def skip_what_xla_refuses():
    """Skips a program that XLA of JAX 0.12 can't compile, by an error of its own.

    It is a program of several `shard_map`s, one of which has no array among its operands:
    XLA gives its constants control predecessors, and then fails to remove them.
    """

    def call(program, *arguments):
        if jax.__version_info__ < (0, 12):
            return
        try:
            program.lower(*arguments).compile()
        except jax.errors.JaxRuntimeError as error:
            if "RET_CHECK failure (external/xla" not in str(error):
                raise
            pytest.skip(f"XLA's own error: {str(error)[:200]}")

    return call


@pytest.fixture
def assert_is():
    """Compares the parts that this process has with the parts of a whole array."""

    def call(actual, expected, **tolerance):
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        for shard in actual.addressable_shards:
            part = np.asarray(shard.data)
            if tolerance:
                np.testing.assert_allclose(part, expected[shard.index], **tolerance)
            else:
                np.testing.assert_array_equal(part, expected[shard.index])

    return call
