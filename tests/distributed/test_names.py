"""The names of MPItrampoline's ABI: what jaxlib asks for, and what the core has."""

import ctypes
import mmap
import re

import pytest

from mpi4jax import _core
from mpi4jax._internal.xla.jax_compat import JAXLIB_LIBRARY


def strings(path, pattern):
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return {name.decode() for name in re.findall(rb"\0(%s)(?=\0)" % pattern, content)}


PATTERN = rb"MPIX?ABI_\w+|mpiwrapper_export_\w+|mpiabi_version_\w+|mpiwrapper_version_\w+"


@pytest.fixture(scope="module")
def wanted():
    return strings(JAXLIB_LIBRARY, PATTERN)


def test_the_core_has_what_jaxlib_asks_for(wanted):
    """MPItrampoline ends the process at the first name that is missing."""
    core = ctypes.CDLL(_core.__file__)
    assert len([name for name in wanted if name.startswith("MPIABI_")]) > 600
    assert [name for name in sorted(wanted) if not hasattr(core, name)] == []


def test_jaxlib_asks_for_what_the_core_has(wanted):
    """A name more could not have been tried."""
    assert sorted(strings(_core.__file__, PATTERN) - wanted) == []


def test_functions_that_are_missing_name_themselves():
    core = ctypes.CDLL(_core.__file__)
    text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
    for name in ("Bcast", "Win_create", "Type_commit"):
        code = getattr(core, f"MPIABI_{name}")()
        assert code != 0
        core.MPIABI_Error_string(code, text, ctypes.byref(length))
        expected = f"MPI_{name} is not among the functions that mpi4jax has for JAX's"
        assert text.value.decode() == f"{expected} collectives"
        assert length.value == len(text.value)


def test_functions_without_a_code_say_it(capfd):
    core = ctypes.CDLL(_core.__file__)
    core.MPIABI_Wtime.restype = ctypes.c_double
    assert core.MPIABI_Comm_f2c(0) == 0
    assert core.MPIABI_Wtime() != core.MPIABI_Wtime()
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("mpi4jax: MPI_Comm_f2c is not among the functions ")
    assert [line.split()[1] for line in lines[1:]] == ["MPI_Wtime", "MPI_Wtime"]


def test_a_status(rank, size):
    """XLA ignores them, so this asks as MPItrampoline would: who has sent, and the tag."""
    core = ctypes.CDLL(_core.__file__)
    values = (
        ctypes.c_size_t.in_dll(core, f"MPIABI_{n}") for n in ("INT32_T", "COMM_WORLD")
    )
    kind, world = (ctypes.c_size_t(value.value) for value in values)
    right, left = (rank + 1) % size, (rank - 1) % size
    sent, received = ctypes.c_int(rank + 10), ctypes.c_int()
    # Room for MPI's own status, and the three fields behind it.
    status = (ctypes.c_int * 10)()
    code = core.MPIABI_Sendrecv(
        *(ctypes.byref(sent), 1, kind, right, 7),
        *(ctypes.byref(received), 1, kind, left, 7),
        *(world, status),
    )
    assert code == 0
    assert received.value == left + 10
    assert status[6:9] == [left, 7, 0]
