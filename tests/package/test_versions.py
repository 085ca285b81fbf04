"""One source, two versions: with tokens at the top level (0.7), and without (0.9)."""

import base64
import csv
import hashlib
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile

import pytest

import mpi4jax

VERSIONS = {"token": "0.7.3", "notoken": "0.9.2"}


def contents(wheel):
    """The files of a wheel, under names without the version."""
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as archive:
        return {
            name.replace(f"mpi4jax-{version}.dist-info", "dist-info"): archive.read(name)
            for name in archive.namelist()
        }


def test_what_is_installed(api):
    assert mpi4jax.__version__ == importlib.metadata.version("mpi4jax") == VERSIONS[api]
    module = {"token": "mpi4jax.experimental.tokens", "notoken": "mpi4jax.notoken"}[api]
    top_level = importlib.import_module(module)
    for name in mpi4jax.notoken.__all__:
        assert getattr(mpi4jax, name) is getattr(top_level, name)


@pytest.mark.parametrize("wanted", ["token", "notoken"])
def test_environment_variable(wanted):
    code = "import mpi4jax; print(mpi4jax.barrier() is None, mpi4jax.allreduce.__module__)"
    environ = {**os.environ, "MPI4JAX_API": wanted}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == str(wanted == "notoken")


def test_the_two_differ_in_what_they_say_of_themselves(wheels):
    token, notoken = contents(wheels["token"]), contents(wheels["notoken"])
    assert list(token) == list(notoken)
    differing = {name for name in token if token[name] != notoken[name]}
    assert differing == {
        "dist-info/METADATA",
        "dist-info/RECORD",
        "dist-info/sboms/mpi4jax.cyclonedx.json",
        "mpi4jax/_default_api.pyi",
    }
    expected = token["dist-info/METADATA"].replace(b"\nVersion: 0.7.3", b"\nVersion: 0.9.2")
    assert notoken["dist-info/METADATA"] == expected
    assert b"\nfrom .experimental.tokens import *\n" in token["mpi4jax/_default_api.pyi"]
    assert b"notoken" not in token["mpi4jax/_default_api.pyi"].partition(b"import")[2]
    assert b"\nfrom .notoken import *\n" in b"\n" + notoken["mpi4jax/_default_api.pyi"]
    assert b".experimental" not in notoken["mpi4jax/_default_api.pyi"]


@pytest.mark.parametrize("name", VERSIONS)
def test_record(name, wheels):
    """Every file of the wheel is listed with its checksum, as pip wants it."""
    wheel = wheels[name]
    assert wheel.name.split("-")[1] == VERSIONS[name]
    folder = f"mpi4jax-{VERSIONS[name]}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        rows = list(csv.reader(archive.read(f"{folder}/RECORD").decode().splitlines()))
        assert [row[0] for row in rows] == archive.namelist()
        for file, checksum, size in rows[:-1]:
            data = archive.read(file)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            assert (checksum, size) == (f"sha256={digest.decode()}", str(len(data))), file
        assert rows[-1] == [f"{folder}/RECORD", "", ""]


def test_numbers_stand_in_one_file(root):
    """The numbers of releases, in all that is released. Documentation may name versions."""
    listed = subprocess.run(
        ["git", "ls-files", "*.toml", "*.rs", "mpi4jax", "tools", "Makefile"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    pattern = re.compile(r"\b0\.(7\.3|9\.2)\b")
    assert [name for name in listed if pattern.search((root / name).read_text())] == [
        "Cargo.toml"
    ]


def test_requirements_of_programs_are_met(api):
    """pip changes nothing for a program that asks for the generation that is installed."""
    wanted = {"token": "mpi4jax>=0.3.9,<0.8", "notoken": "mpi4jax>=0.9,<1"}[api]
    # No index: whatever has to be looked up is an error.
    pip = [sys._base_executable, "-m", "pip", "--python", sys.executable, "install"]
    command = [*pip, "--dry-run", "--no-index", "--no-deps", wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"Requirement already satisfied: {wanted.split('>')[0]}" in done.stdout
    assert "Would install" not in done.stdout


def test_source_archives(root, tmp_path, wheels):
    """An archive says which version it is, and is built as that without being asked."""
    version = VERSIONS["notoken"]
    code = (
        "import sys; sys.path.insert(0, 'tools'); import build_backend as backend; "
        "print(backend.version_for(None), backend.version_for({'api': 'notoken'}))"
    )
    stub = tmp_path / "maturin"
    stub.mkdir()
    (stub / "__init__.py").write_text(
        "get_requires_for_build_editable = get_requires_for_build_sdist = None\n"
        "get_requires_for_build_wheel = None\n"
    )
    tree = tmp_path / "tree"
    (tree / "tools").mkdir(parents=True)
    for name in ("Cargo.toml", "tools/build_backend.py", "tools/crates.py"):
        (tree / name).write_bytes((root / name).read_bytes())

    def versions():
        command = [sys.executable, "-c", code]
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            command, cwd=tree, env=environ, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert versions() == [VERSIONS["token"], version]
    (tree / "PKG-INFO").write_text(f"Metadata-Version: 2.4\nVersion: {version}\n")
    assert versions() == [version, version]
