"""Draws the pictures of the documentation, from runs of the examples on 2 processes.

    python tools/pictures.py [name ...]

Writes into docs/pictures. Timelines are drawn from traces (MPI4JAX_TRACE); other programs
on the machine would show in them. Text can be read where a picture is 360 pixels wide.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from environments import ROOT, Environment, call, mpi_environ, prepare

FOLDER = ROOT / "docs" / "pictures"

#: The array in flight in the picture for docs/overlap.md. Rank 1 is late.
FLIGHT = """
import jax, jax.numpy as jnp, mpi4jax
from mpi4py import MPI
from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
other = 1 - rank


def work(z, times):
    return jax.lax.fori_loop(0, times, lambda _, z: jnp.tanh(z @ z), z)


@jax.jit
def steps(x, z):
    def step(_, state):
        x, z = state
        z = mpi4jax.ordering_barrier(work(z, 8 * rank))
        return mpi4jax.overlap(
            lambda: mpi.sendrecv(x, x, other, other), during=lambda: work(z, 24 - 8 * rank)
        )

    return jax.lax.fori_loop(0, 60, step, (x, z))


jax.block_until_ready(steps(jnp.ones(1 << 16), jnp.ones((192, 192)) / 192))
"""


def run(*program: str, ranks: int = 2, trace: Path | None = None) -> None:
    path = prepare(Environment())
    environ = mpi_environ(path) | ({"MPI4JAX_TRACE": str(trace)} if trace else {})
    # XLA's threads would take turns with the other rank on a small machine.
    environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    mpiexec, python = path / "bin" / "mpiexec", path / "bin" / "python"
    call("timeout", 300, mpiexec, "-n", ranks, python, *program, **environ)


def events_of(*program: str) -> list[dict]:
    """The events of the timeline of a run, as tests/timelines.py has them."""
    import timelines

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(*program, trace=folder)
        timeline = folder / "timeline"
        python = prepare(Environment()) / "bin" / "python"
        call(python, "-P", "-m", "mpi4jax", "trace", folder, "--output", timeline)
        return timelines.read(timeline)


def smaller(path: Path) -> None:
    """Fewer colours, and so a third of the size."""
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(128).save(path, optimize=True)


def picture_of(example: str, ranks: int = 2) -> None:
    """The picture that an example draws itself."""
    path = FOLDER / f"{example}.png"
    run(f"examples/{example}.py", "--output", str(path), ranks=ranks)
    smaller(path)


def shallow_water() -> None:
    picture_of("shallow_water")
    draw("shallow_water", events_of("examples/shallow_water.py", "--benchmark"), 12)


def heat_3d() -> None:
    picture_of("heat_3d")
    draw("heat_3d", events_of("examples/heat_3d.py", "--no-plot"), 14)


def heat_mesh() -> None:
    picture_of("heat_mesh")


def particles() -> None:
    picture_of("particles", ranks=4)


def poisson_fem() -> None:
    picture_of("poisson_fem", ranks=4)


def posterior() -> None:
    picture_of("posterior")


def sources() -> None:
    picture_of("sources", ranks=4)


def taylor_green() -> None:
    picture_of("taylor_green", ranks=4)


def assimilation() -> None:
    picture_of("assimilation")


def vorticity() -> None:
    """The block of docs/files.md that draws what an example has written."""
    import pages

    block = pages.block_run_by_test("files.md")
    with tempfile.TemporaryDirectory() as folder:
        run("examples/shallow_water.py", "--no-plot", "--files", f"{folder}/jet")
        python = prepare(Environment()) / "bin" / "python"
        call(python, "-c", f"import os; os.chdir({folder!r})\n{block.text}")
        picture = Path(folder, "vorticity.png")
        smaller(picture)
        shutil.copy(picture, FOLDER)


def training() -> None:
    draw("training", events_of("examples/training.py"), 10)


def sharded() -> None:
    draw("sharded", events_of("examples/sharded.py"), 16)


def pipeline() -> None:
    draw("pipeline", events_of("examples/pipeline.py"), 36)


def flight() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(FLIGHT)
        program.flush()
        draw("flight", events_of(program.name), None)


def tutorial() -> None:
    """The program of the tutorial, which draws its picture."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = re.findall(r"^```python.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text("\n".join([f"import os; os.chdir({folder!r})", *blocks]))
        run(str(program))
        (picture,) = Path(folder).glob("*.png")
        smaller(picture)
        shutil.copy(picture, FOLDER / "tutorial.png")


#: Readable on white and on black.
GRAY = "#7f868d"
WAITING = "#b4bcc4"
COLORS = ("#1f77b4", "#e8833a", "#4f9d69", "#9467bd", "#c44e52")


def undisturbed(flights: list[dict]) -> tuple[float, float]:
    """The step of two ranks that took least time: other programs use the cores, too."""
    of_rank = [[f for f in flights if f["pid"] == pid] for pid in (1, 2)]
    steps = [
        (min(a["ts"], b["ts"]), max(a["ts"] + a["dur"], b["ts"] + b["dur"]))
        for a, b in zip(*of_rank, strict=True)
    ]
    begin, end = min(steps[1:], key=lambda step: step[1] - step[0])
    return begin - 0.05 * (end - begin), end + 0.05 * (end - begin)


def draw(name: str, events: list[dict], calls: int | None) -> None:
    """A part of a timeline: the quickest calls of rank 0 in the second half of the run.

    Without a number, what is computed while a message is in flight.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tracks = {
        event["tid"]
        for event in events
        if event["ph"] == "M" and event["args"]["name"].startswith("MPI")
    }
    slices = [e for e in events if e["ph"] == "X" and e["tid"] in tracks]
    waits = [e for e in slices if e["name"].startswith("waits for")]
    made = [e for e in slices if "on" in e["args"]]
    ranks = sorted({e["pid"] for e in made})
    flights = sorted((e for e in events if e["ph"] == "b"), key=lambda e: e["ts"])
    if calls is None:
        # It only holds computations in their place.
        made = [e for e in made if not e["name"].startswith("in_order")]
        begin, end = undisturbed(flights)
    else:
        times = sorted(e["ts"] for e in made if e["pid"] == ranks[0])
        times = times[len(times) // 2 :]
        # The quickest part: other programs use the cores, too.
        parts = zip(times, times[calls:], strict=False)
        begin, end = min(parts, key=lambda part: part[1] - part[0])
        begin, end = begin - 0.02 * (end - begin), end - 0.005 * (end - begin)

    figure, axis = plt.subplots(
        figsize=(5.4, 0.8 + 0.45 * len(ranks)), layout="constrained", facecolor="none"
    )
    labels: dict[str, str] = {}

    def bar(event: dict, low: float, height: float, **style: object) -> None:
        left = max(event["ts"], begin)
        width = min(event["ts"] + event["dur"], end) - left
        if width > 0:
            row = ranks.index(event["pid"])
            axis.broken_barh([(left - begin, width)], (row + low, height), **style)

    for event in made:
        operation = event["name"].split()[0]
        if event["ts"] < end and event["ts"] + event["dur"] > begin:
            labels.setdefault(operation, COLORS[len(labels) % len(COLORS)])
            bar(event, 0.15, 0.55, color=labels[operation], label=operation)
    for event in waits:
        bar(event, 0.15, 0.55, color=WAITING, linewidth=0, label="waits")
    for flight in flights:
        bar(flight, 0.78, 0.07, color=GRAY, label="in flight")
    if calls is None:
        for rank in ranks:
            calls_of = sorted((e for e in made if e["pid"] == rank), key=lambda e: e["ts"])
            for start, wait in itertools.pairwise(calls_of):
                if wait["name"].startswith("wait"):
                    left = start["ts"] + start["dur"]
                    gap = {"pid": rank, "ts": left, "dur": wait["ts"] - left}
                    bar(gap, 0.15, 0.55, color="#9fc5a8", alpha=0.6, label="computes")

    unit, name_of_unit = (1e3, "ms") if end - begin > 2e3 else (1, "µs")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g}")
    axis.set_xlabel(f"time ({name_of_unit})", color=GRAY)
    axis.set_xlim(0, end - begin)
    axis.set_ylim(len(ranks), 0)
    axis.set_yticks([r + 0.42 for r in range(len(ranks))])
    axis.set_yticklabels([f"rank {pid - 1}" for pid in ranks])
    axis.set_facecolor("none")
    axis.tick_params(colors=GRAY)
    for side in axis.spines.values():
        side.set_color(GRAY)
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=len(handles),
        frameon=False,
        labelcolor=GRAY,
        fontsize=11,
        columnspacing=1,
        handlelength=1,
    )
    suffix = "" if calls is None else "_timeline"
    figure.savefig(FOLDER / f"{name}{suffix}.png", dpi=200, transparent=True)


PICTURES: dict[str, Callable[[], None]] = {
    made.__name__: made
    for made in (
        shallow_water,
        heat_3d,
        heat_mesh,
        poisson_fem,
        particles,
        posterior,
        sources,
        taylor_green,
        assimilation,
        vorticity,
        training,
        sharded,
        pipeline,
        flight,
        tutorial,
    )
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    python = prepare(Environment()) / "bin" / "python"
    if Path(sys.prefix) != python.parent.parent:
        # matplotlib is there.
        sys.exit(subprocess.run([python, __file__, *sys.argv[1:]]).returncode)
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
        print(f"drew {name}", flush=True)


if __name__ == "__main__":
    main()
