"""Runs the test suites that mpi4jax ships, unchanged, against the installed wheel.

    python tests/conformance.py ENVIRONMENT [ENVIRONMENT ...]

An environment is a virtual environment that holds mpi4jax, pytest and an MPI. The suites
come from the source archives on PyPI. Exits with 1 if a test fails that is not listed in
conformance_known_failures.txt, or if one that is listed there passes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RANKS = (1, 2)
TIMEOUT = 600


class Suite(NamedTuple):
    version: str
    environ: dict[str, str]


SUITES = (
    Suite("0.7.2", {}),
    Suite("0.9.1.post2", {"MPI4JAX_API": "notoken"}),
    Suite("0.3.15.post2", {}),
)


def fetch(version: str, folder: Path) -> Path:
    """Unpack the tests and examples of a release, and nothing else of it."""
    target = folder / f"mpi4jax-{version}"
    if (target / "tests").is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        + ["--no-binary", "mpi4jax", "--dest", str(folder), f"mpi4jax=={version}"],
        check=True,
    )
    with tarfile.open(target.with_name(f"{target.name}.tar.gz")) as archive:
        wanted = [
            member
            for member in archive.getmembers()
            if member.name.split("/")[1:2] in (["tests"], ["examples"])
        ]
        archive.extractall(folder, wanted, filter="data")
    return target


def known_failures(version: str) -> set[str]:
    lines = (HERE / "conformance_known_failures.txt").read_text().splitlines()
    return {
        line.split()[1] for line in lines if line.split()[:1] == [version]
    }


def run(suite: Suite, source: Path, environment: Path, ranks: int) -> bool:
    """Run one suite, and say how it went."""
    environ = {
        **os.environ,
        **suite.environ,
        # Root may run Open MPI, and more ranks than cores.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    python = environment / "bin" / "python"
    command = [environment / "bin" / "mpiexec", "-n", str(ranks), python, "-P"]
    command += ["-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short"]
    command += ["--rootdir", source, "-q", source / "tests"]
    label = f"{suite.version} in {environment.name}, {ranks} rank(s)"
    try:
        process = subprocess.run(
            command,
            env=environ,
            cwd=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        print(f"FAILED {label}: not done after {TIMEOUT} s\n{error.output!r}")
        return False
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", process.stdout, re.MULTILINE))
    passed = set(re.findall(r"^PASSED (\S+)", process.stdout, re.MULTILINE))
    known = known_failures(suite.version)
    summaries = re.findall(r"^.*\d+ passed.* in .*$", process.stdout, re.MULTILINE)
    wrong = [f"fails: {test}" for test in sorted(failed - known)]
    wrong += [f"passes, but is listed as failing: {t}" for t in sorted(passed & known)]
    if len(summaries) != ranks or (process.returncode != 0 and not failed):
        wrong.append(f"{len(summaries)} of {ranks} ranks finished")
    if not wrong:
        print(f"ok {label}: {summaries[0].strip('= ')}", flush=True)
        return True
    print(process.stdout)
    print(f"FAILED {label}:", *wrong, sep="\n  ", flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="+", type=Path)
    parser.add_argument("--archives", type=Path, default=HERE.parent / ".envs" / "archives")
    args = parser.parse_args()
    results = [
        run(suite, fetch(suite.version, args.archives), environment.resolve(), ranks)
        for suite in SUITES
        for environment in args.environments
        for ranks in RANKS
    ]
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
