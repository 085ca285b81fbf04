"""Which GPU this process will use, as far as that can be known before it uses one."""

import pytest

from mpi4jax import _launcher, _node
from mpi4jax._internal.mpi import context
from mpi4jax._internal.xla import jax_compat

LOCAL_RANKS = [variables.local_rank for variables in _launcher._VARIABLES.values()]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "OMPI_MCA_orte_hnp_uri", *LOCAL_RANKS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(context._core, "device_count", lambda: 4)


@pytest.mark.parametrize(("count", "device"), [(0, None), (1, 0), (2, None)])
def test_what_the_machine_has(monkeypatch, tmp_path, count, device):
    """The driver is not asked: that would fix what it shows."""
    for index in range(count):
        (tmp_path / f"0000:0{index}:00.0").mkdir()
    assert _node.nvidia_gpus(tmp_path) == count
    assert _node.nvidia_gpus(tmp_path / "none") == 0
    monkeypatch.setattr(context, "nvidia_gpus", lambda: count)
    assert context._only_device() == device


@pytest.mark.parametrize(
    ("visible", "device"),
    [("3", 0), ("GPU-8932f937", 0), ("0,1", None), ("", None), ("2,", 0)],
)
def test_what_the_environment_shows(monkeypatch, visible, device):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(context, "nvidia_gpus", lambda: 1)
    assert context._only_device() == device


@pytest.mark.parametrize("name", LOCAL_RANKS)
def test_the_number_on_the_host(monkeypatch, name):
    assert context._likely_device() == 0
    monkeypatch.setenv(name, "3")
    assert context._likely_device() == 3
    # More processes than GPUs: JAX would have none for this one.
    monkeypatch.setenv(name, "4")
    assert context._likely_device() == 0


def test_the_number_that_jax_detects(monkeypatch):
    """As in a distributed program under Slurm, which is asked before the launchers."""
    assert jax_compat.local_rank() is None
    slurm = dict.fromkeys(["SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS"], "1")
    for name, value in {**slurm, "SLURM_PROCID": "9", "SLURM_LOCALID": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    assert (jax_compat.local_rank(), context._likely_device()) == (2, 2)
