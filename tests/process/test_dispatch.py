"""When JAX's own way of calling programs is kept."""

import pytest
from jaxlib import xla_client

PYTHON_CALLS = """
    import sys
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    total = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM))
    for _ in range(3):
        total(jnp.ones(3)).block_until_ready()
    count = 0

    def profile(frame, event, argument):
        global count
        count += event == "call"

    x = jnp.ones(3)
    sys.setprofile(profile)
    y = total(x)
    sys.setprofile(None)
    print(count, y.sum(), "token" in total.lower(x).as_text().split("@main")[1][:40])
"""


def test_on_by_default(launch):
    assert launch(PYTHON_CALLS).stdout == "0 3.0 False\n"


def test_turned_off(launch):
    done = launch(PYTHON_CALLS, MPI4JAX_FAST_DISPATCH="0")
    count, result, has_token = done.stdout.split()
    assert int(count) > 10
    assert (result, has_token) == ("3.0", "True")


AHEAD_OF_TIME = """
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    total = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM)).lower(jnp.ones(3)).compile()
    print(*(float(total(n * jnp.ones(3))[0]) for n in range(3)))
"""


@pytest.mark.parametrize(
    "variable",
    [
        {"MPI4JAX_FAST_DISPATCH": "0"},
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    ],
    ids=["turned-off", "devices"],
)
def test_ahead_of_time(launch, variable):
    """A program that takes JAX's token also gets it in the second call."""
    done = launch(AHEAD_OF_TIME, **variable)
    assert done.stdout == "0.0 1.0 2.0\n", done.stderr


EXPORT = """
    import jax, jax.numpy as jnp
    from jax import export
    from mpi4py import MPI
    from mpi4jax import extend, notoken as mpi

    def function(x):
        split = MPI.COMM_WORLD.Split(0)
        return mpi.allreduce(x, MPI.SUM) + mpi.allreduce(x, MPI.MAX, comm=split)

    checks = extend.export_checks()
    exported = export.export(jax.jit(function), disabled_checks=checks)(jnp.ones(3))
    with open(FILE, "wb") as file:
        file.write(exported.serialize())
"""

LOAD = """
    import jax.numpy as jnp
    from jax import export
    from mpi4py import MPI
    from mpi4jax import extend

    extend.communicator_number()
    extend.communicator_number(MPI.COMM_WORLD.Split(0))
    with open(FILE, "rb") as file:
        print(export.deserialize(file.read()).call(jnp.ones(3)))
"""


def test_exported_program_in_another_process(launch, tmp_path):
    pytest.importorskip("jax.export", exc_type=ImportError)
    pytest.importorskip("flatbuffers")
    file = tmp_path / "program"
    for code, output in ((EXPORT, ""), (LOAD, "[2. 2. 2.]\n")):
        done = launch(code.replace("FILE", repr(str(file))))
        assert done.stdout == output, done.stderr


SEVERAL_DEVICES = """
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    other = 1 - MPI.COMM_WORLD.Get_rank()
    devices = jax.local_devices()
    assert len(devices) == 3

    def exchange(x):
        return mpi.sendrecv(x, x, other, other)

    def slow(x):
        y = jnp.ones((300, 300)) + x
        for _ in range(3):
            y = y @ y / 300
        return exchange(x + 0 * jnp.nan_to_num(y).sum())

    calls = [jax.jit(slow), jax.jit(exchange), exchange]
    results = []
    for k in range(90):
        x = jax.device_put(jnp.float32(k), devices[k % 3])
        results.append(calls[k % 3](x))
    assert [float(y) for y in results] == list(range(90)), results
    print("fine")
"""


def test_several_devices_of_one_process(launch):
    """Each exchange is slower on one device than the next one on another.

    The numbers would arrive in another order if the devices went their own ways.
    """
    flags = "--xla_force_host_platform_device_count=3"
    done = launch(SEVERAL_DEVICES, 2, XLA_FLAGS=flags)
    assert done.stdout.count("fine") == 2, done.stderr


EXECUTION_STREAMS = """
    import jax, jax.numpy as jnp, numpy as np
    from jaxlib import xla_client
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    def send(x):
        mpi.send(x, 1, comm=MPI.COMM_WORLD)
        return x

    def compute_and_send(x):
        y = jnp.ones((300, 300)) + x
        for _ in range(3):
            y = y @ y / 300
        return send(x + 0 * jnp.nan_to_num(y).sum())

    programs = [jax.jit(compute_and_send), jax.jit(send)]
    if MPI.COMM_WORLD.Get_rank() == 0:
        results = []
        for k in range(50):
            with xla_client.execution_stream_id(1 + k % 2):
                results.append(programs[k % 2](jnp.float32(k)))
        jax.block_until_ready(results)
    else:
        numbers = np.empty(50, np.float32)
        for k in range(50):
            MPI.COMM_WORLD.Recv(numbers[k:k + 1], 0)
        print((numbers == np.arange(50)).all())
"""


@pytest.mark.skipif(
    not hasattr(xla_client, "execution_stream_id"), reason="this jaxlib has no streams"
)
def test_execution_streams(launch):
    """Cheap programs in one of XLA's streams would overtake long ones in another."""
    done = launch(EXECUTION_STREAMS, 2)
    assert done.stdout == "True\n", done.stderr
