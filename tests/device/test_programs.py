"""Devices in Python: programs for them, warnings, and who splits messages.

XLA has no GPU here, so that programs are lowered for one, and not run.
"""

import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import pytest
from compiled import lowered
from every import every_operation
from mpi4py import MPI

import mpi4jax
from mpi4jax import _core, notoken
from mpi4jax._internal.mpi import device

X = jnp.ones(2)
RANK = MPI.COMM_WORLD.Get_rank()


@pytest.fixture(autouse=True)
def warn_again():
    device.check_mpi.cache_clear()
    yield
    device.check_mpi.cache_clear()


def test_a_device_is_found():
    assert _core.device() == "cuda"
    assert _core.why_no_device() is None
    assert mpi4jax.has_cuda_support()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("STAND_IN_DEVICES", "0", "the cuda driver has no device; "),
        ("STAND_IN_INIT", "100", "cuInit returned error code 100: CUDA_ERROR_NO_DEVICE: "),
    ],
)
def test_no_device_is_found(name, value, reason):
    # By the core alone, which needs no MPI for it, in a process of its own.
    code = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("_core", sys.argv[1])
core = module_from_spec(spec)
spec.loader.exec_module(core)
print(core.device(), core.why_no_device())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, _core.__file__],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"None {reason}")
    assert "libamdhip64.so" in done.stdout


@every_operation
def test_programs_for_gpus_have_the_operations(case):
    x = jnp.ones(case.shape((2,)))
    text = lowered(case.call, x).as_text()
    for name in case.operations:
        assert text.count(f"@mpi_{name}_ffi(") == 1
    if case.has_derivative:
        assert lowered(jax.grad(lambda x: case.call(x).sum()), x).as_text()


def test_programs_for_gpus_with_tokens():
    function = lowered(lambda x: mpi4jax.allreduce(x, MPI.SUM)[0], X)
    assert function.as_text().count("@mpi_allreduce_ffi(") == 1


def test_no_device_of_another_vendor():
    with pytest.raises(ImportError) as error:
        lowered(lambda x: notoken.allreduce(x, MPI.SUM), X, platform="rocm")
    assert str(error.value) == (
        "The mpi4jax GPU extensions could not be imported: there is no driver of a GPU "
        "that could be used (the driver is that of cuda)."
    )


@pytest.mark.parametrize(
    ("wanted", "answer", "expected"),
    [
        ("1", False, "this MPI says that it can't"),
        ("1", True, None),
        ("1", None, None),
        (None, None, "set MPI4JAX_USE_CUDA_MPI=1"),
        (None, False, None),
        (None, True, None),
        ("0", None, None),
    ],
)
def test_warnings(monkeypatch, wanted, answer, expected):
    setting = {None: None, "0": False, "1": True}[wanted]
    use(monkeypatch, use_cuda_mpi=setting)
    monkeypatch.setattr(device._core, "mpi_takes_device_memory", lambda: answer)
    monkeypatch.setattr(device._core, "has_start_context", lambda: True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            lowered(lambda x: notoken.allreduce(x, MPI.SUM), X)
    texts = [str(w.message) for w in caught if "CUDA_MPI" in str(w.message)]
    assert len(texts) == (expected is not None)
    assert all(expected in text for text in texts)


def test_the_mpis_of_pypi_say_that_they_take_no_device_memory():
    assert _core.mpi_takes_device_memory() is False
    _core.set_direct(None)
    assert not _core.is_direct()
    _core.set_direct(True)
    assert _core.is_direct()


def use(monkeypatch, **settings):
    """Replace some settings."""
    monkeypatch.setattr(device, "settings", device.settings._replace(**settings))


class TestChunks:
    """By how many bytes messages travel on a communicator."""

    @pytest.fixture(autouse=True)
    def no_setting(self, monkeypatch):
        use(monkeypatch, staging_chunk=None)

    def test_none_where_arrays_are_on_cpus(self):
        assert device.chunk_of(MPI.COMM_WORLD, is_private=True) == 0

    def test_pieces_where_all_processes_work_by_copies(self, monkeypatch):
        monkeypatch.setattr(device, "_uses_copies", lambda: True)
        assert device.chunk_of(MPI.COMM_WORLD, is_private=True) == device.DEFAULT_CHUNK

    def test_none_where_not_all_do(self, monkeypatch):
        monkeypatch.setattr(device, "_uses_copies", lambda: RANK > 0)
        assert device.chunk_of(MPI.COMM_WORLD, is_private=True) == 0

    def test_none_on_communicators_that_others_use(self, monkeypatch):
        monkeypatch.setattr(device, "_uses_copies", lambda: True)
        assert device.chunk_of(MPI.COMM_WORLD, is_private=False) == 0

    @pytest.mark.parametrize("is_private", [True, False])
    @pytest.mark.parametrize(
        ("value", "expected"), [(0, 0), (1, 16), (48, 48), (4000000000, 1 << 30)]
    )
    def test_what_is_set(self, monkeypatch, is_private, value, expected):
        monkeypatch.setattr(device, "_uses_copies", lambda: True)
        use(monkeypatch, staging_chunk=value)
        assert device.chunk_of(MPI.COMM_WORLD, is_private=is_private) == expected

    @pytest.mark.ranks(2)
    def test_none_where_not_all_set_the_same(self, monkeypatch):
        use(monkeypatch, staging_chunk=16 * (1 + RANK))
        assert device.chunk_of(MPI.COMM_WORLD, is_private=True) == 0
