"""Describes in a wheel the Rust crates that are compiled into its core.

An SBOM (CycloneDX, at the place of PEP 770), and the texts of the crates' licenses. Both
come from what Cargo resolves for the target of the build: without crates for other
systems, and without those that only take part in the build.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

#: The names of files with licenses.
LICENSES = re.compile(r"(licen[sc]e|copying|unlicense|notice|copyright).*", re.IGNORECASE)

#: How the text of the license begins under which the core takes the standard library. Other
#: crates bring the text along.
APACHE = "Apache License Version 2.0, January 2004"

RULE = "=" * 79


class Crate(NamedTuple):
    """A crate in the core."""

    name: str
    version: str
    license: str
    purl: str
    repository: str = ""
    #: The checksum of its archive.
    sha256: str = ""
    #: The crates that it depends on, by their `purl`.
    needs: Sequence[str] = ()
    #: The texts of its licenses.
    texts: Sequence[str] = ()


class Core(NamedTuple):
    """The core, and the crates it is compiled from."""

    target: str
    #: Its direct dependencies.
    needs: Sequence[str]
    crates: Sequence[Crate]


def versions() -> dict[str, str]:
    """The version of ours with each API."""
    text = (ROOT / "Cargo.toml").read_text()
    by_key = dict(re.findall(r'^(version|notoken-version) = "(.*)"', text, re.MULTILINE))
    return {"token": by_key["version"], "notoken": by_key["notoken-version"]}


def output_of(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def resolve() -> Core:
    """Find the crates in the core, as it is built here."""
    said = output_of(os.environ.get("RUSTC", "rustc"), "-vV")
    rust, host = (re.findall(rf"(?m)^{key}: (.*)$", said)[0] for key in ("release", "host"))
    target = os.environ.get("CARGO_BUILD_TARGET", host)
    metadata = json.loads(
        output_of(
            *(os.environ.get("CARGO", "cargo"), "metadata", "--format-version", "1"),
            *("--locked", "--filter-platform", target),
            *("--manifest-path", "rust/Cargo.toml", "--features", "python"),
        )
    )
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {
        node["id"]: [d["pkg"] for d in node["deps"] if is_linked(d, packages[d["pkg"]])]
        for node in metadata["resolve"]["nodes"]
    }
    root = metadata["resolve"]["root"]
    linked, todo = set(), [root]
    while todo:
        package = todo.pop()
        if package not in linked:
            linked.add(package)
            todo += needs[package]
    checksums = checksums_of((ROOT / "Cargo.lock").read_text())
    std = Crate("rust-std", rust, "Apache-2.0 OR MIT", f"pkg:generic/rust-std@{rust}")

    def purls(package: str) -> list[str]:
        return sorted([*(purl_of(packages[need]) for need in needs[package]), std.purl])

    crates = [
        crate_of(packages[package])._replace(
            sha256=checksums[packages[package]["name"], packages[package]["version"]],
            needs=purls(package),
        )
        for package in linked - {root}
    ]
    return Core(target, purls(root), [*sorted(crates), std])


def is_linked(dependency: dict[str, Any], package: dict[str, Any]) -> bool:
    """Whether a dependency is linked: it is no macro, and not for a build script."""
    is_macro = any("proc-macro" in target["kind"] for target in package["targets"])
    return not is_macro and any(kind["kind"] is None for kind in dependency["dep_kinds"])


def purl_of(package: dict[str, Any]) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def crate_of(package: dict[str, Any]) -> Crate:
    folder = Path(package["manifest_path"]).parent
    files = [file for file in sorted(folder.iterdir()) if LICENSES.fullmatch(file.name)]
    texts = [file.read_text(errors="replace") for file in files if file.is_file()]
    if not package["license"] or not texts:
        raise ValueError(f"{purl_of(package)} says nothing of its license")
    return Crate(
        package["name"],
        package["version"],
        package["license"].replace("/", " OR "),
        purl_of(package),
        repository=package["repository"] or "",
        texts=texts,
    )


def checksums_of(lock: str) -> dict[tuple[str, str], str]:
    """The checksums in a Cargo.lock, by name and version."""
    entry = r'name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"'
    return {
        (name, version): checksum for name, version, checksum in re.findall(entry, lock)
    }


def sbom(core: Core, version: str) -> bytes:
    """The SBOM of a wheel: the same whenever it is built from the same."""
    own = f"pkg:pypi/mpi4jax@{version}"
    needs = {own: core.needs, **{crate.purl: crate.needs for crate in core.crates}}
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "mpi4jax",
                "version": version,
                "licenses": [{"expression": "MIT"}],
                "purl": own,
                "properties": [{"name": "mpi4jax:target", "value": core.target}],
            }
        },
        "components": [component(crate) for crate in core.crates],
        "dependencies": [{"ref": r, "dependsOn": list(n)} for r, n in needs.items()],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document))
    document["serialNumber"] = f"urn:uuid:{serial}"
    return (json.dumps(document, indent=2) + "\n").encode()


def component(crate: Crate) -> dict[str, Any]:
    result: dict[str, Any] = {
        "type": "library",
        "bom-ref": crate.purl,
        "name": crate.name,
        "version": crate.version,
        "scope": "required",
        "licenses": [{"expression": crate.license}],
        "purl": crate.purl,
    }
    if crate.sha256:
        result["hashes"] = [{"alg": "SHA-256", "content": crate.sha256}]
    if crate.repository:
        result["externalReferences"] = [{"type": "vcs", "url": crate.repository}]
    return result


def licenses(core: Core) -> bytes:
    """The licenses of all crates, each text once."""
    texts: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    for crate in core.crates:
        for text in crate.texts:
            words = " ".join(text.split())
            texts.setdefault(words, text.strip("\n"))
            names.setdefault(words, []).append(crate.name)
    if not any(words.startswith(APACHE) for words in texts):
        raise ValueError("no crate has the text of the standard library's license")
    width = max(len(crate.name + crate.version) for crate in core.crates) + 3
    rows = [f"{f'{c.name} {c.version}':{width}}{c.license}" for c in core.crates]
    parts = [
        "The compiled core of mpi4jax contains these Rust crates. It takes the standard\n"
        "library (rust-std) under the Apache License. The licenses of all of them follow.",
        "\n".join(rows),
    ]
    for words, text in texts.items():
        parts += [f"{RULE}\n{', '.join(names[words])}\n{RULE}", text]
    return ("\n\n".join(parts) + "\n").encode()
