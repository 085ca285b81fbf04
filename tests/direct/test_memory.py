"""The kinds of device memory, and what MPIs are known to take."""

import pytest
from test_context import FIRST

CALL = """
import on_device

def program(x):
    return mpi4jax.notoken.allreduce(x, MPI.SUM)

for _ in range(2):
    result = on_device.run(program, on_device.ones(), kind="{kind}")
print((result == on_device.ones()).all(), on_device.copies())
"""
DIRECT, STAGED = ["True (True, False)"], ["True (False, True)"]

WORDS = {
    "pool": "memory of a stream-ordered pool (XLA's allocator cuda_async)",
    "mapped": "memory of the virtual-memory functions (JAX's own from 0.10 on)",
}
NOT_TAKEN = (
    "mpi4jax: arrays on the GPU are copied to host memory for MPI: they are in {kind}, "
    "which Open MPI {version} takes for the host's. Open MPI 4.1.7, 5.0.6 and later know "
    "it; XLA_PYTHON_CLIENT_ALLOCATOR=default gives other memory"
)
NOT_KNOWN = (
    "mpi4jax: arrays on the GPU are copied to host memory for MPI: they are in {kind}, "
    "and it is not known whether {mpi} can use it. If it can, set MPI4JAX_USE_CUDA_MPI=1; "
    "XLA_PYTHON_CLIENT_ALLOCATOR=default gives other memory"
)

#: An Open MPI of before it knew other memory, from the numbers that its text has.
OLD = {"AWARE_MPI_KINDS": ""}


def open_mpi(version):
    return {"AWARE_MPI_VERSION": f"Open MPI v{version}, package: stand-in"}


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("version", ["4.1.7", "5.0.6"])
def test_new_versions_take_all(start, version, kind):
    done = start(FIRST + CALL.format(kind=kind), environ=open_mpi(version))
    assert (done.code, done.output, done.lines) == (0, DIRECT, []), done


@pytest.mark.parametrize("wish", ["", "1"])
@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("version", ["4.1.6", "5.0.5"])
def test_old_versions_get_copies(start, version, kind, wish):
    """Also where the user wants it otherwise: they would crash."""
    environ = {**open_mpi(version), **OLD, "MPI4JAX_USE_CUDA_MPI": wish}
    done = start(FIRST + CALL.format(kind=kind), environ=environ)
    assert (done.code, done.output) == (0, STAGED), done
    assert done.lines == [NOT_TAKEN.format(kind=WORDS[kind], version=version)]


def test_old_versions_take_plain_memory(start):
    done = start(FIRST + CALL.format(kind="plain"), environ={**open_mpi("4.1.0"), **OLD})
    assert (done.code, done.output, done.lines) == (0, DIRECT, []), done


@pytest.mark.parametrize("kind", WORDS)
def test_of_others_nothing_is_known(start, kind):
    other = {"AWARE_MPI_VERSION": "MPICH Version:      4.3.2\nMPICH Device: ch4:ucx"}
    program = FIRST + CALL.format(kind=kind)
    done = start(program, environ=other)
    assert (done.code, done.output) == (0, STAGED), done
    assert done.lines == [NOT_KNOWN.format(kind=WORDS[kind], mpi="MPICH Version: 4.3.2")]
    done = start(program, environ={**other, "MPI4JAX_USE_CUDA_MPI": "1"})
    assert (done.code, done.output, done.lines) == (0, DIRECT, []), done
    # What others call plain is what "CUDA-aware" has always meant.
    done = start(FIRST + CALL.format(kind="plain"), environ=other)
    assert (done.code, done.output, done.lines) == (0, DIRECT, []), done


def test_each_call_is_looked_at(start):
    """An array of another package's pool may come after arrays of XLA's pool."""
    done = start(
        FIRST
        + """
import on_device

def program(x):
    return mpi4jax.notoken.allreduce(x, MPI.SUM)

for kind in ("plain", "pool", "plain"):
    result = on_device.run(program, on_device.ones(), kind=kind)
    assert (result == on_device.ones()).all()
print(on_device.copies())
""",
        environ={**open_mpi("5.0.5"), **OLD},
    )
    assert (done.code, done.output) == (0, ["(True, True)"]), done
