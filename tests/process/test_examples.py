"""The programs of the gallery, as `python -m mpi4jax examples` runs them."""

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import run

from mpi4jax._commands import examples
from mpi4jax._internal.xla.call_sites import is_users

FILES = examples.files()
#: Short runs, and what they print at the end.
RUNS = {
    "assimilation": (("--cells=20", "--steps=60", "--iterations=10"), "(gradient)"),
    "heat_3d": (("--cells", "8", "7", "6", "--steps=3", "--descents=20"), "(beginning)"),
    "heat_mesh": (("--cells=24",), "24 x 24 cells, 2 x 1 processes, residual"),
    "particles": (("--per-side=12", "--steps=40"), "all particles are there: True"),
    "pipeline": ((), "4 of 8 layers"),
    "poisson_fem": (("--nodes=200",), "(gradient)"),
    "posterior": (
        ("--measurements=60", "--warmup=100", "--samples=100"),
        "chains are equal to the bit on all processes: True",
    ),
    "shallow_water": (("--nx=24", "--ny=12", "--days=0.1"), "all finite: True"),
    "sharded": ((), "own weights"),
    "sources": (("--points", "40", "36"), "(sources)"),
    "taylor_green": (("--modes=12", "--time=2"), "(enstrophy)"),
    "training": (("--epochs=3",), "weights are those of all ranks: True"),
}
DRAWING = (
    *("assimilation", "heat_3d", "heat_mesh", "particles", "poisson_fem", "posterior"),
    *("shallow_water", "sources", "taylor_green"),
)
#: Packages that an environment may lack, and the programs that do not run without them.
NEEDS = {"assimilation": "diffrax", "posterior": "numpyro"}
#: How many bars show the progress of those that take long.
BARS = {"assimilation": 1, "heat_3d": 2, "shallow_water": 1}


def each_of(names):
    """Runs a test for each program whose packages are there."""

    def parameter(name):
        package = NEEDS.get(name, "jax")
        lacks = pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}")
        return pytest.param(name, marks=lacks)

    return pytest.mark.parametrize("name", [parameter(name) for name in names])


def command(*arguments, **options):
    return run("-P", "-m", "mpi4jax", "examples", *arguments, timeout=600, **options)


def test_listing():
    done = command(ranks=2)
    assert done.returncode == 0, done.stderr
    listed = re.findall(r"^(\w+)  +(\w.*\.)$", done.stdout, re.MULTILINE)
    assert [name for name, _ in listed] == [*FILES] == [*RUNS]
    assert max(map(len, done.stdout.partition("the programs")[0].splitlines())) <= 80
    folder = Path(re.search(r"^the programs: +(.*)$", done.stdout, re.M)[1])
    for name, purpose in listed:
        assert (folder / f"{name}.py").read_text().startswith(f'"""{purpose}\n')


def test_unknown_name():
    done = command("heat", ranks=2)
    assert done.returncode == 1
    names = ", ".join(FILES)
    assert done.stderr.count(f"no example 'heat', expected one of: {names}\n") == 1


@each_of(RUNS)
def test_run(name, tmp_path):
    arguments, end = RUNS[name]
    no_plot = ["--no-plot"] * (name in DRAWING)
    done = command(name, *arguments, *no_plot, ranks=2, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert end in done.stdout
    assert not [*tmp_path.iterdir()]


@each_of(DRAWING)
def test_picture_and_progress(name, tmp_path):
    arguments, _ = RUNS[name]
    done = command(name, *arguments, "--output=picture.png", ranks=2, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "wrote picture.png" in done.stdout
    shares = re.findall(r"^\w+ +\[#+ *\] +(\d+) %, +\d+ s left$", done.stderr, re.M)
    # heat_3d does everything twice: on all processes together, and on each alone.
    assert [*map(int, shares)] == [*range(10, 101, 10)] * BARS.get(name, 0)


WITHOUT = """
    import sys
    sys.modules[{package!r}] = None
    from mpi4jax.__main__ import main
    main(["examples", {name!r}])
"""


@each_of(DRAWING)
def test_without_matplotlib(name, launch):
    """The program says so before it computes anything, and once."""
    done = launch(WITHOUT.format(package="matplotlib", name=name), ranks=2)
    assert done.returncode == 2, done.stderr
    assert done.stdout.strip() == ""
    assert done.stderr.count("which is not installed: pip install matplotlib") == 1
    assert "--no-plot" in done.stderr


@pytest.mark.parametrize("name", NEEDS)
def test_without_package(name, launch):
    done = launch(WITHOUT.format(package=NEEDS[name], name=name), ranks=2)
    assert done.returncode == 1, done.stderr
    assert done.stdout.strip() == ""
    assert done.stderr.count(f"which is not installed: pip install {NEEDS[name]}") == 1


def test_lines_of_examples_in_a_wheel_are_those_of_a_program():
    """Fails if reports leave them out, as those of the rest of the package."""
    assert is_users(str(examples.FOLDERS[0] / "heat_3d.py"))
    assert not is_users(str(examples.PACKAGE / "halo.py"))


def test_progress_on_a_terminal(monkeypatch, capsys):
    """The line is rewritten until the last one."""
    monkeypatch.syspath_prepend(FILES["heat_3d"].parent)
    import heat_3d

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert [*heat_3d.progress(3, "alone")] == [0, 1, 2]
    lines = re.sub(r" +\d+ s left", "", capsys.readouterr().err)
    assert lines == (
        f"alone [{'#' * 6:20}]  30 %,\ralone [{'#' * 13:20}]  65 %,\r"
        f"alone [{'#' * 20}] 100 %,\n"
    )


def test_progress_is_one_function():
    """Each program is a file that stands alone, so several have the function."""
    functions = {
        next(
            ast.unparse(node)
            for node in ast.parse(FILES[name].read_text()).body
            if isinstance(node, ast.FunctionDef) and node.name == "progress"
        )
        for name in BARS
    }
    assert len(functions) == 1
