"""Builds the package with maturin, as one of two versions.

One source is released under two version numbers, as programs ask for the API that they are
written for by the version of mpi4jax: with tokens (0.7), or without (0.9).

    pip install .                                     with tokens
    pip install . --config-settings api=notoken       without

Both numbers stand in Cargo.toml. The packages have the same content, but for the number
and for what type checkers see at the top level of mpi4jax (`_default_api.pyi`). A source
archive is built as the version that it is. Wheels also get the examples, an SBOM and the
licenses of the crates in them (crates.py).
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import crates
import maturin

get_requires_for_build_editable = maturin.get_requires_for_build_editable
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
get_requires_for_build_wheel = maturin.get_requires_for_build_wheel

Config = dict[str, Any] | None

ROOT = Path(__file__).resolve().parent.parent

#: The API without tokens for type checkers, in place of `mpi4jax/_default_api.pyi`.
NOTOKEN_API = b"from .notoken import *\n"


def version_for(settings: Config) -> str:
    """The version to build, selected by its API, or by the source archive."""
    known = crates.versions()
    api = (settings or {}).get("api")
    archive = ROOT / "PKG-INFO"
    if api is None and archive.exists():
        match = re.search(r"^Version: (.*)$", archive.read_text(), re.MULTILINE)
        if match and match[1] in known.values():
            return match[1]
    if api is not None and api not in known:
        raise ValueError(f"`api` is {api!r}, expected one of: {', '.join(known)}")
    return known[api or "token"]


def build_wheel(
    wheel_directory: str, config_settings: Config = None, metadata_directory: Any = None
) -> str:
    build = partial(maturin.build_wheel, config_settings=config_settings)
    version, core = version_for(config_settings), crates.resolve()
    info = info_folder(version)
    added = {
        f"mpi4jax/examples/{path.name}": path.read_bytes()
        for path in sorted((ROOT / "examples").glob("*.py"))
    }
    added[f"{info}licenses/THIRD-PARTY.txt"] = crates.licenses(core)
    added[f"{info}sboms/mpi4jax.cyclonedx.json"] = crates.sbom(core, version)
    return built(build, wheel_directory, version, added)


def build_editable(
    wheel_directory: str, config_settings: Config = None, metadata_directory: Any = None
) -> str:
    build = partial(maturin.build_editable, config_settings=config_settings)
    return built(build, wheel_directory, version_for(config_settings), {})


def build_sdist(sdist_directory: str, config_settings: Config = None) -> str:
    build = partial(maturin.build_sdist, config_settings=config_settings)
    return built(build, sdist_directory, version_for(config_settings), {})


def info_folder(version: str) -> str:
    return f"mpi4jax-{version}.dist-info/"


def built(
    build: Callable[[str], str], directory: str, version: str, added: Mapping[str, bytes]
) -> str:
    """Put what a function builds into a directory, as the version that it is to be.

    A wheel gets more files, by their names in it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, build(scratch))
        name, old, rest = re.fullmatch(r"(.+?)-(\d+(?:\.\d+)*)(.*)", file.name).groups()
        target = Path(directory, f"{name}-{version}{rest}")
        if file.suffix == ".whl":
            rewrite_wheel(file, target, old, version, added)
        elif version == old:
            shutil.copy(file, target)
        else:
            relabel_archive(file, target, f"{name}-{old}", f"{name}-{version}", version)
    return target.name


def with_version(metadata: bytes, version: str) -> bytes:
    return re.sub(rb"(?m)^Version: .*$", f"Version: {version}".encode(), metadata, count=1)


def with_licenses(metadata: bytes, names: list[str]) -> bytes:
    """Metadata that list more files with licenses."""
    own = b"License-File: LICENSE\n"
    assert own in metadata
    more = "".join(f"License-File: {name}\n" for name in names).encode()
    return metadata.replace(own, own + more, 1)


def rewrite_wheel(
    wheel: Path, target: Path, old: str, version: str, added: Mapping[str, bytes]
) -> None:
    before, after = info_folder(old), info_folder(version)
    licenses = f"{after}licenses/"
    texts = [n.removeprefix(licenses) for n in added if n.startswith(licenses)]
    is_notoken = version == crates.versions()["notoken"]
    record = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w") as result:

        def add(info: zipfile.ZipInfo, data: bytes) -> None:
            record.append(f"{info.filename},sha256={digest(data)},{len(data)}")
            result.writestr(info, data, zipfile.ZIP_DEFLATED)

        for info in source.infolist():
            data = source.read(info)
            if info.filename.startswith(before):
                info.filename = after + info.filename.removeprefix(before)
            if info.filename == f"{after}METADATA":
                data = with_licenses(with_version(data, version), texts)
            elif info.filename == "mpi4jax/_default_api.pyi" and is_notoken:
                data = NOTOKEN_API
            if info.filename != f"{after}RECORD":
                add(info, data)
        for name, data in added.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o100644 << 16
            add(info, data)
        info = zipfile.ZipInfo(f"{after}RECORD")
        info.external_attr = 0o100644 << 16
        lines = "\n".join([*record, f"{info.filename},,", ""])
        result.writestr(info, lines, zipfile.ZIP_DEFLATED)


def digest(data: bytes) -> str:
    """A checksum in the format of RECORD."""
    checksum = hashlib.sha256(data).digest()
    return base64.urlsafe_b64encode(checksum).rstrip(b"=").decode()


def relabel_archive(archive: Path, target: Path, old: str, new: str, version: str) -> None:
    with tarfile.open(archive) as source, tarfile.open(target, "w:gz") as result:
        for member in source.getmembers():
            file = source.extractfile(member)
            data = file.read() if file else b""
            member.name = new + member.name.removeprefix(old)
            if member.name == f"{new}/PKG-INFO":
                data = with_version(data, version)
                member.size = len(data)
            result.addfile(member, io.BytesIO(data))
