"""The lines of `python -m mpi4jax doctor` about MPI and the memory of GPUs."""

import os

import processes
from conftest import SETTINGS
from test_context import OPEN


def devices_of(done):
    """The lines about devices, by their names."""
    _, title, rest = done.stdout.partition("\ndevices\n")
    assert title, done
    lines = rest.partition("\nhosts\n")[0].splitlines()
    return {line[:15].strip(): line[15:] for line in lines}


def doctor(**environ):
    preload = {"LD_PRELOAD": os.environ["AWARE_MPI"]}
    return processes.run(
        "-P", "-m", "mpi4jax", "doctor", ranks=1, **{**SETTINGS, **preload, **environ}
    )


def test_all_is_well():
    done = doctor()
    assert devices_of(done) == {
        "JAX": "1 cpu",
        "driver": "cuda",
        "CUDA-aware": "yes",
        "MPI gets": "the memory of GPUs",
        "context": "there when MPI was initialised",
        "kinds taken": "plain: yes, pool: yes, mapped: yes",
    }
    assert done.returncode == 0, done


def test_other_commands_prepare_a_gpu():
    """They import mpi4py, but not before there is a context that MPI finds."""
    says = {"LD_PRELOAD": os.environ["AWARE_MPI"], "AWARE_MPI_SAYS": "1"}
    done = processes.run(
        "-P",
        "-m",
        "mpi4jax",
        "bench",
        "--quick",
        ranks=1,
        timeout=300,
        **{**SETTINGS, **says},
    )
    assert "aware MPI: it starts with a context" in done.stderr.splitlines(), done


def test_no_context_and_an_old_mpi():
    """The doctor initialises MPI here, and has prepared nothing."""
    done = doctor(
        CUDA_VISIBLE_DEVICES="0,1",
        STAND_IN_DEVICES="2",
        AWARE_MPI_VERSION="Open MPI v5.0.3, package: stand-in",
    )
    devices = devices_of(done)
    assert devices["MPI gets"] == "copies"
    assert devices["context"] == f"none when MPI was initialised: {OPEN}"
    assert devices["kinds taken"] == "plain: yes, pool: no, mapped: no"


def test_an_mpi_of_which_little_is_known():
    devices = devices_of(doctor(AWARE_MPI_VERSION="MPICH Version: 4.3.2"))
    assert devices["kinds taken"] == "plain: yes, pool: not known, mapped: not known"
