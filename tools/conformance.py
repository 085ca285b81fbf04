"""Runs the test suites that mpi4jax ships, unchanged, against the installed wheel.

The suites come from the source archives on PyPI. A run fails if a test does that is not
listed in conformance_known_failures.txt, and also if one that is listed there passes.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from environments import (
    FOLDER,
    TIMED_OUT,
    Environment,
    attempt,
    call,
    mpi_environ,
    prepare,
    uv,
)
from sample import SHARE, part_of

HERE = Path(__file__).parent
ARCHIVES = FOLDER / "archives"
#: Timeout of a suite in seconds. A suite takes a tenth of it, so one that runs out hangs.
TIMEOUT = 1200
#: The message if the number of failures differs from the number of named failures.
NOT_AS_NAMED = "but those with a name are"


class Suite(NamedTuple):
    """A release of mpi4jax, and the one of our versions that takes its place."""

    version: str
    api: str
    #: The numbers of ranks for each MPI.
    ranks: Mapping[str, tuple[int, ...]]


NEWER = {"mpich": (1, 2), "openmpi": (2,)}
#: Numbers of ranks for older suites, which are parts of the newer suites in other words.
OLDER = {"mpich": (2,)}
SUITES = (
    Suite("0.7.2", "token", NEWER),
    Suite("0.9.1.post2", "notoken", NEWER),
    Suite("0.5.4", "token", OLDER),
    Suite("0.3.15.post2", "token", OLDER),
)


def fetch(version: str, folder: Path) -> Path:
    """Unpack the tests of a release, the examples, and the settings that tests name."""
    target = folder / f"mpi4jax-{version}"
    if (target / "pyproject.toml").is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    pip = (uv().with_name("pip"), "download", "--quiet", "--no-deps")
    call(*pip, "--no-binary", "mpi4jax", "--dest", folder, f"mpi4jax=={version}")
    with tarfile.open(target.with_name(f"{target.name}.tar.gz")) as archive:
        wanted = [
            member
            for member in archive.getmembers()
            if member.name.split("/")[1:2] in (["tests"], ["examples"], ["pyproject.toml"])
        ]
        # Debian's Python 3.11 has no such filter yet.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder, wanted)
    return target


def known_failures(version: str, mpi: str) -> set[str]:
    """The tests that can't pass. A line has version, MPI (or "any"), test and reason."""
    lines = (HERE / "conformance_known_failures.txt").read_text().splitlines()
    fields = [line.split() for line in lines if line and not line.startswith("#")]
    return {f[2] for f in fields if f[0] == version and f[1] in (mpi, "any")}


def run(suite: Suite, source: Path, environment: Path, ranks: int, **environ: str) -> bool:
    """Run one suite, and say how it went.

    The suites give the processes that they start ten seconds. Where that was not enough on
    a busy machine, a suite gets a second try. So it does where one rank has written into
    the middle of another one's line, so that the numbers of failures are not what they say.
    """
    output = try_once(suite, source, environment, ranks, **environ)
    chances = "subprocess.TimeoutExpired", NOT_AS_NAMED
    if output is not None and any(chance in output for chance in chances):
        print(f"once more: suite of {suite.version}, {environment.name}, {ranks} rank(s)")
        output = try_once(suite, source, environment, ranks, **environ)
    return output is None


def try_once(
    suite: Suite, source: Path, environment: Path, ranks: int, **environ: str
) -> str | None:
    """Run one suite. Return its output if it failed."""
    command = [environment / "bin" / "mpiexec", "-n", str(ranks)]
    command += [environment / "bin" / "python", "-P", "-m", "pytest", "-q", "--color=no"]
    command += ["-p", "no:cacheprovider", "-rA", "--tb=short", "--rootdir", source]
    command += [source / "tests"]
    label = f"suite of {suite.version}: {environment.name}, {ranks} rank(s)"
    with tempfile.TemporaryDirectory() as scratch:
        # Where a test has all ranks write to one file of a fixed name.
        environ = {**mpi_environ(environment), **environ, "TMPDIR": scratch}
        code, output = attempt(command, environ, cwd=source, timeout=TIMEOUT)
    if code == TIMED_OUT:
        print(f"{output}\nFAILED {label}: not done after {TIMEOUT} s")
        return ""
    failures = re.findall(r"(?:FAILED|ERROR) (tests/\S+)", output)
    failed = set(failures)
    passed = set(re.findall(r"^PASSED (\S+)", output, re.MULTILINE))
    known = known_failures(suite.version, environment.name.partition("-")[0])
    summaries = re.findall(r"\d+ passed[^\n]*? in [\d.]+s", output)
    wrong = [f"fails: {test}" for test in sorted(failed - known)]
    wrong += [f"passes, but is listed as failing: {t}" for t in sorted(passed & known)]
    counted = sum(
        map(int, re.findall(r"(\d+) (?:failed|errors?)[^\n]*? in [\d.]+s", output))
    )
    if counted != len(failures):
        wrong.append(f"{counted} failed, {NOT_AS_NAMED} {len(failures)}")
    if len(summaries) != ranks or (code != 0 and not failed):
        wrong.append(f"{len(summaries)} of {ranks} ranks finished")
    if not wrong:
        listed = f", {len(failed)} known to fail" if failed else ""
        print(f"ok {label}: {summaries[0]}{listed}", flush=True)
        return None
    print(output)
    print(f"FAILED {label}:", *wrong, sep="\n  ", flush=True)
    return "\n".join([output, *wrong])


def run_all() -> list[bool]:
    """Run the share's suites: those on one rank side by side, others one after another."""
    jobs = [
        (suite, mpi, n)
        for suite in SUITES
        for mpi, ranks in suite.ranks.items()
        for n in ranks
    ]
    todo = [
        (suite, fetch(suite.version, ARCHIVES), prepare(Environment(mpi, api=suite.api)), n)
        for suite, mpi, n in part_of(jobs, SHARE)
    ]
    with ThreadPoolExecutor(2) as pool:
        alone = list(pool.map(lambda job: run(*job), [j for j in todo if j[-1] == 1]))
    return alone + [run(*job) for job in todo if job[-1] != 1]
