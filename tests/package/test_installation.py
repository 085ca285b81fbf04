"""The installation lines of the first pages, each block in a fresh environment.

A wheel takes the place of the checkout that the pages install. A block that needs what a
test does not have (a cluster, a toolchain, the network) has a comment above it:
`<!-- not tested: needs a cluster -->`.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = ("README.md", "docs/installation.md", "docs/index.md")

#: The command of which all others are about what it has installed.
PIP = "pip install"
#: What else is run: our commands, on one process or several.
OURS = re.compile(r"(mpiexec -n \d+ )?python -m mpi4jax ")

BLOCK = re.compile(
    r"^(?:<!-- not tested: (?P<reason>.+?) -->\n+)?"
    r"^```(?:sh|bash|shell|console)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

#: Seconds until a line is taken to hang, on whatever machine.
PATIENCE = 600

#: The installer says so where it reaches no index. It may have all that it needs itself.
OFFLINE = re.compile("error sending request|Failed to fetch|dns error")

NOT_THE_ORIGINAL = "an independent reimplementation in Rust, not the original mpi4jax"


class Block(NamedTuple):
    """The lines of a block of commands, without comments."""

    page: str
    #: Why it is not tested, if it is not.
    reason: str | None
    lines: tuple[str, ...]

    @property
    def installs(self):
        return tuple(line for line in self.lines if line.startswith(PIP))


def lines_of(text):
    text = re.sub(r"\\\n\s*", "", text)
    words = (shlex.split(line, comments=True) for line in text.splitlines())
    return tuple(shlex.join(each) for each in words if each)


def blocks_of(page):
    """The blocks of a page with lines about an installation of mpi4jax."""
    text = (ROOT / page).read_text()
    blocks = [
        Block(page, match["reason"], lines_of(match["text"]))
        for match in BLOCK.finditer(text)
    ]
    return [b for b in blocks if any(PIP in x or OURS.match(x) for x in b.lines)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
TESTED = [block for block in BLOCKS if not block.reason]


def installs_for(block):
    """The lines to run before a block: its page's, if it has none itself."""
    if block.installs:
        return ()
    same_page = [other for other in TESTED if other.page == block.page]
    return next(other.installs for other in same_page if other.installs)


def of_wheel(line, wheels):
    """A line of pip's with the wheel in place of the checkout, and the wheel."""
    words = shlex.split(line)[2:]
    api = "token"
    if "--config-settings" in words:
        at = words.index("--config-settings")
        api = words[at + 1].removeprefix("api=")
        del words[at : at + 2]
    sources = [re.fullmatch(r"(?:\./?|\S*\.whl)(\[.*\])?", word) for word in words]
    assert sum(map(bool, sources)) == 1, f"what does it install? {line}"
    return [
        f"{wheels[api]}{source[1] or ''}" if source else word
        for word, source in zip(words, sources, strict=True)
    ], wheels[api]


class Installation:
    """A virtual environment that a page's lines fill."""

    def __init__(self, folder, uv, wheels):
        self.path, self.uv, self.wheels = folder / "env", uv, wheels
        self.folder = folder
        self.environ = {**os.environ, "COLUMNS": "80", "VIRTUAL_ENV": str(self.path)}
        self.environ["PATH"] = f"{self.path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environ.pop("PYTHONPATH", None)
        self.call(uv, "venv", "--quiet", self.path)

    def call(self, *command):
        return subprocess.run(
            list(map(str, command)),
            cwd=self.folder,
            env=self.environ,
            timeout=PATIENCE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, line):
        """Run a line, and look at what it says."""
        if line.startswith(PIP):
            self.install(line)
            self.check_version(self.call("python", "-m", "mpi4jax", "--version").stdout)
            return
        assert OURS.match(line), f"{line}: mark its block, or say here what it shows"
        done = self.call("bash", "-c", line)
        assert done.returncode == 0, done.stdout
        if line.endswith("--version"):
            self.check_version(done.stdout)
        elif line.endswith("doctor"):
            assert "\nproblem: none\n" in done.stdout
        elif line.endswith("selftest"):
            (ranks,) = re.findall(r"-n (\d+)", line) or ["1"]
            assert f", {ranks} rank(s)\n" in done.stdout
            assert re.search(r"^all is well \(\d+ s\)$", done.stdout, re.MULTILINE)

    def install(self, line):
        arguments, self.wheel = of_wheel(line, self.wheels)
        command = (self.uv, "pip", "install", "--python", self.path, *arguments)
        done = self.call(*command)
        if done.returncode and OFFLINE.search(done.stdout):
            done = self.call(*command, "--offline")
            if done.returncode:
                pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stdout

    def check_version(self, text):
        version = self.wheel.name.split("-")[1]
        first, second, folder = text.splitlines()
        assert first.startswith(f"mpi4jax {version}, with")
        assert second == NOT_THE_ORIGINAL
        assert Path(folder).is_relative_to(self.path)


@pytest.mark.parametrize("block", TESTED, ids=lambda b: f"{b.page}: {b.lines[0]}")
def test_lines(block, tmp_path, wheels, uv, api):
    if api != "token":
        pytest.skip("the run of the other version installs both")
    installation = Installation(tmp_path, uv, wheels)
    for line in (*installs_for(block), *block.lines):
        installation.run(line)


def test_every_page_installs_and_looks():
    """Each page has a tested installation; README also says how to look at it."""
    assert {block.page for block in TESTED if block.installs} == set(PAGES)
    lines = [line for block in TESTED if block.page == "README.md" for line in block.lines]
    assert "python -m mpi4jax --version" in lines
    assert any(re.fullmatch(r"mpiexec -n \d python -m mpi4jax selftest", x) for x in lines)


def test_every_line_is_seen():
    """Fails if a block of another form hides a line from these tests."""
    for page in PAGES:
        for line in (ROOT / page).read_text().splitlines():
            if re.match(r"\s*(\w+=\S+ )?pip install ", line):
                line = shlex.join(shlex.split(line, comments=True))
                assert any(line in b.lines for b in BLOCKS if b.page == page), line


def test_wheels_take_the_place_of_checkouts(wheels):
    words, wheel = of_wheel("pip install '.[mpich]' --config-settings api=notoken", wheels)
    assert (words, wheel) == ([f"{wheel}[mpich]"], wheels["notoken"])
    words, wheel = of_wheel("pip install --quiet dist/mpi4jax-0.7.3-any.whl", wheels)
    assert (words, wheel) == (["--quiet", f"{wheel}"], wheels["token"])
