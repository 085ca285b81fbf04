"""The names of MPItrampoline's ABI: what jaxlib asks for, and what the core has."""

import ctypes
import mmap
import re

import pytest

from mpi4jax import _core
from mpi4jax._internal.jax_compat import JAXLIB_LIBRARY


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
