"""Tests of what is installed: files, names, types. They need no `mpiexec`.

The runner says where things are: the wheels of both versions (WHEEL_TOKEN, WHEEL_NOTOKEN),
the environment with mypy and pyright (TOOLS), the installer (UV), and the source archives
of the original's releases (ARCHIVES).
"""

import os
from pathlib import Path

import pytest

import mpi4jax

pytest_plugins = ["sample"]


def path_of(name):
    if name not in os.environ:
        pytest.skip(f"{name} is not set: start these tests by `make package`")
    return Path(os.environ[name])


@pytest.fixture(scope="session")
def wheels():
    """The wheel of each version, by the API at its top level."""
    return {api: path_of(f"WHEEL_{api.upper()}") for api in ("token", "notoken")}


@pytest.fixture(scope="session")
def tools():
    return path_of("TOOLS") / "bin"


@pytest.fixture(scope="session")
def uv():
    return path_of("UV")


@pytest.fixture(scope="session")
def archives():
    return path_of("ARCHIVES")


@pytest.fixture(scope="session")
def api():
    """The API at the top level of the installed version."""
    major, minor = map(int, mpi4jax.__version__.split(".")[:2])
    return "token" if (major, minor) < (0, 8) else "notoken"


@pytest.fixture(scope="session")
def root():
    """The checkout."""
    return Path(__file__).parent.parent.parent
