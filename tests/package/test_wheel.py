"""The wheels list the crates in them, with licenses, and no paths of the machine."""

import json
import re
import subprocess
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

APIS = ("token", "notoken")


@pytest.fixture(params=APIS)
def files(request, wheels):
    """The files of a wheel's `.dist-info`, and under "core" its extension module."""
    with zipfile.ZipFile(wheels[request.param]) as archive:
        data = {name: archive.read(name) for name in archive.namelist()}
    (core,) = (data[name] for name in data if re.fullmatch(r"mpi4jax/_core.*\.so", name))
    info = {name.split("/", 1)[1]: d for name, d in data.items() if ".dist-info/" in name}
    return {**info, "core": core}


@pytest.fixture
def linked(root):
    """The crates in the core, by Cargo's own account: without macros and build scripts."""
    said = subprocess.run(
        [
            *("cargo", "tree", "--locked", "--prefix", "none", "--format", "{p} {l}"),
            *("--edges", "normal,no-proc-macro", "--features", "mpi4jax/python"),
        ],
        cwd=root,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    pattern = r"^([\w-]+) v([\d.]+) (?!\(/)(.*?)(?: \(\*\))?$"
    crates = re.findall(pattern, said, re.MULTILINE)
    return {(name, version): terms for name, version, terms in crates}


@pytest.mark.parametrize("api", APIS)
def test_examples(api, wheels, root):
    """`python -m mpi4jax examples` runs them from there."""
    paths = sorted((root / "examples").glob("*.py"))
    with zipfile.ZipFile(wheels[api]) as archive:
        names = [n for n in archive.namelist() if n.startswith("mpi4jax/examples/")]
        assert names == [f"mpi4jax/examples/{path.name}" for path in paths]
        for name, path in zip(names, paths, strict=True):
            assert archive.read(name) == path.read_bytes()


def test_sbom(files, linked):
    sbom = json.loads(files["sboms/mpi4jax.cyclonedx.json"])
    version = message_from_bytes(files["METADATA"])["Version"]
    assert sbom["bomFormat"] == "CycloneDX"
    own = sbom["metadata"]["component"]
    assert (own["name"], own["version"]) == ("mpi4jax", version)
    *crates, std = sbom["components"]
    assert {(c["name"], c["version"]) for c in crates} == {*linked}
    assert std["name"] == "rust-std"
    for crate in crates:
        terms = linked[crate["name"], crate["version"]]
        assert crate["licenses"] == [{"expression": terms}]
        assert re.fullmatch(r"[0-9a-f]{64}", crate["hashes"][0]["content"])
    # Every component is reached from ours.
    needs = {entry["ref"]: entry["dependsOn"] for entry in sbom["dependencies"]}
    reached, todo = set(), [own["bom-ref"]]
    while todo:
        reference = todo.pop()
        if reference not in reached:
            reached.add(reference)
            todo += needs[reference]
    assert reached == {own["bom-ref"], *(c["bom-ref"] for c in sbom["components"])}


def test_licenses(files, linked):
    names = message_from_bytes(files["METADATA"]).get_all("License-File")
    assert names == ["LICENSE", "THIRD-PARTY.txt"]
    assert {f"licenses/{name}" for name in names} <= {*files}
    text = files["licenses/THIRD-PARTY.txt"].decode()
    table, _, texts = text.partition("=" * 79)
    for (name, version), terms in linked.items():
        row = rf"^{name} {re.escape(version)} +{re.escape(terms)}$"
        assert re.search(row, table, re.M), name
        assert re.search(rf"^(.*, )?{name}(, .*)?$", texts, re.M), name
    assert re.search(r"^rust-std ", table, re.M)


def test_no_paths_of_the_machine_in_what_is_said(files, root):
    for name, data in files.items():
        if name != "core":
            assert str(root).encode() not in data, name
            assert str(Path.home()).encode() not in data, name
