"""Builds a release of both versions into dist/, and checks it.

    python tools/release.py                              all steps
    python tools/release.py --only archives wheels       some of them
    python tools/release.py --versions 0.7.4 0.9.3       write new numbers into the files

    archives   the source archives
    wheels     the wheels, by pip from the archives: without git, and offline but for crates
    checks     tags, metadata, SBOMs, the conda recipe, paths of this machine
    selftest   each wheel on every Python and on MPICH and Open MPI
    notes      the release notes, conda recipes and checksums

On Linux, zig links the wheels for glibc 2.17. On x86_64, those for aarch64 are built, too,
if the compiler has the standard library (`rustup target add aarch64-unknown-linux-gnu`).
CARGO_BUILD_TARGET names a single target to build for. `selftest` is for wheels of this
machine; `make emulated` is for those for aarch64.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from crates import versions
from debian import has_standard_library
from environments import (
    FOLDER,
    ROOT,
    attempt,
    call,
    install,
    interpreter,
    make,
    mpi_environ,
    output_of,
    pack,
    search_path,
    uv,
)

DIST = ROOT / "dist"

#: The packages that build and check wheels.
REQUIREMENTS = (
    "pip",
    "maturin==1.16.0",
    "ziglang==0.17.1",
    "auditwheel==6.8.2",
    "twine==7.0.0",
    "cyclonedx-python-lib[json-validation]",
    "py-rattler-build==0.73.0",
)

#: From Python 3.10 to the newest that JAX has wheels for.
PYTHONS = range(10, 15)

#: The oldest glibc that Rust supports, and the oldest macOS that jaxlib does.
GLIBC = "2_17"
MACOS = "11.0"

#: Seconds for a selftest, which takes a tenth of it.
TIMEOUT = 600

IS_LINUX = sys.platform == "linux"

AARCH64 = "aarch64-unknown-linux-gnu"


@cache
def toolbox() -> Path:
    """The environment with the packages that build and check wheels."""
    path = FOLDER / "release"
    make(path, REQUIREMENTS, sys.executable)
    return path


def built(pattern: str) -> list[Path]:
    packages = sorted(DIST.glob(pattern))
    assert packages, f"dist has no {pattern}"
    return packages


def archives() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    for api in versions():
        pack("--sdist", DIST, api)


def wheels() -> None:
    for wheel in DIST.glob("*.whl"):
        wheel.unlink()
    for target in targets():
        for archive in built("*.tar.gz"):
            with tempfile.TemporaryDirectory() as scratch:
                build_from(archive, Path(scratch), DIST, target)


def targets() -> list[str]:
    """The targets of wheels, by their names in Rust. Empty: this machine."""
    if target := os.environ.get("CARGO_BUILD_TARGET"):
        return [target]
    if not IS_LINUX or platform.machine() != "x86_64":
        return [""]
    if has_standard_library(AARCH64):
        return ["", AARCH64]
    print(f"skipped wheels for aarch64: the compiler has no standard library of {AARCH64}")
    return [""]


def build_from(source: Path, scratch: Path, folder: Path, target: str) -> None:
    """Build a wheel as pip does on a machine without git and PyPI."""
    git = scratch / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f'#!/bin/sh\necho "$0 $*" >>{scratch}/called\nexit 1\n')
    git.chmod(0o755)
    pip = (toolbox() / "bin" / "python", "-m", "pip", "--quiet", "wheel", "--no-deps")
    offline = ("--no-index", "--no-build-isolation", "--no-cache-dir")
    options = f"--zig --compatibility manylinux_{GLIBC}" if IS_LINUX else ""
    settings = ("--config-settings", f"build-args={options}") if options else ()
    subprocess.run(
        [*map(str, (*pip, *offline, *settings, "--wheel-dir", folder, source))],
        check=True,
        cwd=scratch,
        env={
            **os.environ,
            "PATH": search_path(git.parent, toolbox()),
            "CARGO_TARGET_DIR": str(ROOT / "target" / "release-wheels"),
            "MACOSX_DEPLOYMENT_TARGET": MACOS,
            # Panics name files of crates. No other flags: the wheel is for all processors.
            "RUSTFLAGS": f"--remap-path-prefix={cargo_home()}=cargo",
            **({"CARGO_BUILD_TARGET": target} if target else {}),
        },
    )
    assert not (scratch / "called").exists(), (scratch / "called").read_text()


def cargo_home() -> Path:
    return Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))


def checks() -> None:
    wheels, packages = built("*.whl"), [*built("*.whl"), *built("*.tar.gz")]
    bin_ = toolbox() / "bin"
    call(bin_ / "twine", "check", "--strict", *packages)
    for wheel in wheels:
        if IS_LINUX:
            check_tag(wheel)
        check_contents(wheel)
    for recipe in recipes(built("*.tar.gz")).values():
        check_recipe(recipe)
    print(f"ok checks: {', '.join(package.name for package in packages)}", flush=True)


def check_tag(wheel: Path) -> None:
    """Check that auditwheel finds the tag of the wheel."""
    said = output_of(toolbox() / "bin" / "auditwheel", "show", wheel)
    words = " ".join(said.split())
    tag = re.search(rf"manylinux_{GLIBC}_\w+$", wheel.stem)
    assert tag, wheel.name
    assert f'consistent with the following platform tag: "{tag[0]}"' in words, said


#: Prints what is wrong with an SBOM, or None.
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""


def check_contents(wheel: Path) -> None:
    """Check that the SBOM is valid, and that no file contains a path of this machine."""
    python = toolbox() / "bin" / "python"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            for path in (ROOT, Path.home(), Path(tempfile.gettempdir()) / "pip-"):
                assert str(path).encode() not in data, f"{wheel.name}: {path} is in {name}"
            if name.endswith(".cyclonedx.json"):
                said = output_of(python, "-c", VALIDATE, stdin=data.decode())
                assert said == "None", f"{wheel.name}: {name}: {said}"


def recipes(source_archives: list[Path]) -> dict[str, str]:
    """The conda recipe of each archive, by the name of its file.

    The one in the checkout builds the checkout. These take the archive from PyPI.
    """
    text = (ROOT / "recipe" / "recipe.yaml").read_text()
    text = text[text.index("schema_version") :]  # without the comment
    result = {}
    for archive in source_archives:
        version = version_of(archive)
        sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
        url = "https://pypi.org/packages/source/m/mpi4jax/mpi4jax-${{ version }}.tar.gz"
        changed, count = re.subn(
            r'(?m)^  version: ".*"((?:.*\n)*?source:\n)  path: .*\n',
            rf'  version: "{version}"\1  url: {url}\n  sha256: {sha256}\n',
            text,
        )
        assert count == 1
        result[f"recipe-{version}.yaml"] = changed
    return result


def version_of(package: Path) -> str:
    return package.name.removesuffix(".tar.gz").split("-")[1]


#: Renders a recipe as for Linux, and prints the name and version of each package.
RENDER = """
import sys
from rattler_build import Stage0Recipe, VariantConfig
pinned = {"c_stdlib": ["sysroot"], "c_compiler": ["gcc"], "rust_compiler": ["rust"]}
for made in Stage0Recipe.from_yaml(sys.stdin.read()).render(VariantConfig(pinned)):
    print(made.recipe.package.name, made.recipe.package.version)
"""


def check_recipe(recipe: str) -> None:
    """Check that rattler-build, which conda-forge uses, makes one package of a recipe."""
    said = output_of(toolbox() / "bin" / "python", "-c", RENDER, stdin=recipe)
    (version,) = re.findall(r'(?m)^  version: "(.*)"', recipe)
    assert said == f"mpi4jax {version}", said


def selftest() -> None:
    wheels = {version_of(wheel): wheel for wheel in built(f"*_{platform.machine()}.whl")}
    failed = []
    for minor in PYTHONS:
        python = interpreter(minor) or fetched(minor)
        if python is None:
            print(f"skipped Python 3.{minor}: it is not here, and can't be fetched")
            continue
        for mpi in ("mpich", "openmpi"):
            for version, wheel in wheels.items():
                label = f"mpi4jax {version}, Python 3.{minor}, {mpi}"
                if not try_wheel(label, wheel, python, mpi):
                    failed.append(label)
    if failed:
        sys.exit("\n".join(["failed:", *failed]))


def fetched(minor: int) -> str | None:
    """A Python that uv has fetched, if it can."""
    name = f"3.{minor}"
    if subprocess.run([uv(), "python", "install", "--quiet", name]).returncode:
        return None
    return output_of(uv(), "python", "find", name)


def try_wheel(label: str, wheel: Path, python: str, mpi: str) -> bool:
    """Whether a wheel works in an environment of its own, made as users make it."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "environment")
        call(uv(), "venv", "--quiet", "--python", python, path)
        install(path, f"{wheel}[{mpi}]")
        bin_ = path / "bin"
        code, output = attempt(
            [bin_ / "mpiexec", "-n", 2, bin_ / "python", "-m", "mpi4jax", "selftest"],
            mpi_environ(path),
            cwd=scratch,
            timeout=TIMEOUT,
        )
        version = output_of(bin_ / "python", "-c", "import jax; print(jax.__version__)")
    said = output.strip().splitlines()
    if code == 0 and any(line.startswith("all is well") for line in said):
        print(f"ok {label}, JAX {version}: {said[0]}, {said[-1]}", flush=True)
        return True
    print(output)
    print(f"FAILED {label}, JAX {version}: exit code {code}", flush=True)
    return False


def notes() -> None:
    """Write the release notes, the recipes and the checksums."""
    archives = built("*.tar.gz")
    (DIST / "RELEASE-NOTES.md").write_text(section() + "\n")
    for name, recipe in recipes(archives).items():
        (DIST / name).write_text(recipe)
    packages = [*archives, *built("*.whl")]
    sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in packages]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")


def section() -> str:
    """The section of the changelog about both versions."""
    heading = " and ".join(versions().values())
    sections = re.split(r"(?m)^## (.*)\n", (ROOT / "CHANGELOG.md").read_text())
    by_heading = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert heading in by_heading, f"CHANGELOG.md has no section {heading!r}"
    return f"# mpi4jax {heading}\n\n{by_heading[heading].strip()}"


#: The files in which the numbers of both versions stand.
NUMBERED = ("Cargo.toml", "recipe/recipe.yaml", "tests/package/test_versions.py")


def write_versions(token: str, notoken: str) -> None:
    """Write new numbers, and make the changes since the last release theirs."""
    old = versions()
    for name in NUMBERED:
        path = ROOT / name
        text = path.read_text().replace(old["token"], token)
        path.write_text(text.replace(old["notoken"], notoken))
    changelog = ROOT / "CHANGELOG.md"
    heading = f"## {token} and {notoken}"
    text, count = re.subn(r"(?m)^## Unreleased$", heading, changelog.read_text(), count=1)
    assert count or heading in text, "CHANGELOG.md has no section `## Unreleased`"
    changelog.write_text(text)
    # Their entries of mpi4jax's own crate.
    for manifest in ("Cargo.toml", "tests/referee/Cargo.toml"):
        call("cargo", "update", "--quiet", "--workspace", "--manifest-path", manifest)


STEPS = {step.__name__: step for step in (archives, wheels, checks, selftest, notes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--versions", nargs=2, metavar=("TOKEN", "NOTOKEN"))
    arguments = parser.parse_args()
    if arguments.versions:
        return write_versions(*arguments.versions)
    if changed := output_of("git", "status", "--porcelain"):
        print(f"not a release yet: some changes are not committed\n{changed}", flush=True)
    for step in arguments.only:
        STEPS[step]()


if __name__ == "__main__":
    main()
