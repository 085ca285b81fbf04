"""Makes a table and plots of what run.py has measured.

python benchmarks/report.py build/bench/results.json
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from mpi4jax._commands.tables import (
    OURS,
    UPSTREAM,
    Results,
    Row,
    dispatch,
    eager,
    loops,
    over,
    table,
)
from mpi4jax._text import format_number, format_size

GLOO = "gloo"
#: The MPIs, and who uses each.
MPIS = (
    ("MPICH", OURS, UPSTREAM),
    ("Open MPI", "ours, Open MPI", "upstream, Open MPI"),
)
LABELS = {
    OURS: "mpi4jax (Rust)",
    UPSTREAM: "mpi4jax 0.9.1",
    GLOO: "JAX psum (gloo)",
    "mpi4py": "mpi4py",
}
COLORS = {OURS: "C3", UPSTREAM: "C0", GLOO: "C2", "mpi4py": "k"}


def by_ranks(r: Results, workload: str) -> list[tuple[str, str]]:
    """The names that a workload has on different numbers of ranks, and these."""
    names = [name for name in r.samples if name.startswith(f"{workload}, ")]
    return [(name, name.removeprefix(f"{workload}, ")) for name in names]


def growth(r: Results) -> list[Row]:
    rows: list[Row] = []
    for name, ranks in by_ranks(r, "growth"):
        for size in (8, 1 << 16):
            ours = [r(name, OURS, f"{c}, {size}") for c in ("jit", "loop")]
            upstream = [r(name, UPSTREAM, f"{c}, {size}") for c in ("jit", "loop")]
            mpi4py = r(name, OURS, f"mpi4py, {size}")
            rows.append(
                {
                    "ranks": ranks,
                    "size": format_size(size),
                    "jitted call: ours": ours[0],
                    "jitted call: 0.9.1": upstream[0],
                    "in a loop: ours": ours[1],
                    "in a loop: 0.9.1": upstream[1],
                    "in a loop: mpi4py": mpi4py,
                    "loop: ours / mpi4py": over(ours[1], mpi4py),
                }
            )
    return rows


def sharded(r: Results) -> list[Row]:
    """JAX's own sums over processes."""
    rows: list[Row] = []
    for name, ranks in by_ranks(r, "psum"):
        for label, prefix in (("one call", "jit, "), ("in a loop", "allreduce, ")):
            for size in (8, 1 << 16, 1 << 20):
                ours, gloo = (r(name, p, f"{prefix}{size}") for p in (OURS, GLOO))
                rows.append(
                    {
                        "ranks": ranks,
                        "psum": label,
                        "size": format_size(size),
                        "MPI": ours,
                        "gloo": gloo,
                        "gloo / MPI": over(gloo, ours),
                    }
                )
    return rows


def beside_c(r: Results) -> list[Row]:
    """Operations in a loop, and in one in C."""
    rows: list[Row] = []
    for name in ("allreduce", "bcast", "sendrecv", "allgather", "alltoall"):
        for size in r.sizes("c", OURS, f"{name}, "):
            case = f"{name}, {size}"
            c, ours, unrolled = (
                r("c", OURS, case) for case in (f"C, {case}", case, f"{case}, unroll=2")
            )
            rows.append(
                {
                    "operation": name,
                    "size": format_size(size),
                    "C": c,
                    "ours": ours,
                    "ours, unroll=2": unrolled,
                    "ours / C": over(ours, c),
                    "unroll=2 / C": over(unrolled, c),
                }
            )
    return rows


def programs(r: Results) -> list[Row]:
    rows = []
    for count in r.sizes("programs", OURS, "call, "):
        row: Row = {"operations": str(count)}
        for case, name, unit in (
            ("trace and lower", "trace and lower (ms per operation)", 1e3),
            ("compile", "compile (ms)", 1e3),
            ("call", "call (us)", 1),
        ):
            for peer, label in ((OURS, "ours"), (UPSTREAM, "0.9.1")):
                value = r("programs", peer, f"{case}, {count}")
                row[f"{name}: {label}"] = value and value / unit / count
        rows.append(row)
    return rows


def checks(r: Results) -> list[Row]:
    rows: list[Row] = []
    for name in ("allreduce", "sendrecv"):
        for size in r.sizes("checks", OURS, f"{name}, "):
            plain = r("checks", OURS, f"{name}, {size}")
            checked = r("checks", OURS, f"checked {name}, {size}")
            rows.append(
                {
                    "operation": name,
                    "size": format_size(size),
                    "by default": plain,
                    "MPI4JAX_CHECK=1": checked,
                    "checked / by default": over(checked, plain),
                }
            )
    return rows


def trees(r: Results) -> list[Row]:
    """An allreduce of every leaf of a tree, by one call or by many."""
    rows: list[Row] = []
    sizes = {"200 of 1024": "200 of 1 KiB", "10 of 4194304": "10 of 4 MiB"}
    kinds = {"jit": "a jitted call", "loop": "a loop"}
    for (mpi, ours, theirs), leaves, where in itertools.product(MPIS, sizes, kinds):
        tree, each = (r("trees", ours, f"{leaves}, {where}, {c}") for c in ("tree", "each"))
        upstream = r("trees", theirs, f"{leaves}, {where}, each")
        nothing = r("trees", ours, f"{leaves}, jit, nothing") if where == "jit" else None
        rows.append(
            {
                "MPI": mpi,
                "leaves": sizes[leaves],
                "in": kinds[where],
                "tree": tree,
                "a call for each": each,
                "0.9.1, a call for each": upstream,
                "no message": nothing,
                "tree / each": over(tree, each),
                "tree / 0.9.1": over(tree, upstream),
            }
        )
    return rows


def neighbors(r: Results) -> list[Row]:
    """Blocks for the neighbors on a graph, in a loop."""
    rows: list[Row] = []
    for (mpi, peer, _), (name, ranks) in itertools.product(MPIS, by_ranks(r, "neighbors")):
        for count in (2, 8, 32):
            for size in r.sizes(name, peer, f"{count}, "):
                case = f"{count}, {size}"
                ours, unrolled, mpi4py = (
                    r(name, peer, of_way)
                    for of_way in (case, f"{case}, unroll=2", f"mpi4py, {case}")
                )
                rows.append(
                    {
                        "MPI": mpi,
                        "ranks": ranks,
                        "neighbors": str(count),
                        "size of a block": format_size(size),
                        "ours": ours,
                        "ours, unroll=2": unrolled,
                        "mpi4py": mpi4py,
                        "ours / mpi4py": over(ours, mpi4py),
                        "unroll=2 / mpi4py": over(unrolled, mpi4py),
                    }
                )
    return rows


def halos(r: Results) -> list[Row]:
    """The ghost cells of some fields, in a loop."""
    rows: list[Row] = []
    for (mpi, ours, theirs), (name, ranks) in itertools.product(MPIS, by_ranks(r, "halos")):
        for count in (1, 5, 20):
            plan, at_once, back, each, mpi4py = (
                r(name, ours, f"{count}, {case}")
                for case in ("plan", "plan, corners=False", "accumulate", "each", "mpi4py")
            )
            upstream = r(name, theirs, f"{count}, each")
            rows.append(
                {
                    "MPI": mpi,
                    "ranks": ranks,
                    "fields": str(count),
                    "plan": plan,
                    "plan, corners=False": at_once,
                    "accumulate": back,
                    "sendrecv": each,
                    "0.9.1, sendrecv": upstream,
                    "mpi4py": mpi4py,
                    "plan / 0.9.1": over(plan, upstream),
                    "plan / mpi4py": over(plan, mpi4py),
                }
            )
    return rows


def overlap(r: Results) -> list[Row]:
    """Computation beside messages: one after the other, and at once."""
    labels = {"late": ("one, 50 ms late", "")}
    for case in r.samples["overlap"][OURS]:
        size, _, rest = case.partition(", ")
        if size.isdigit() and rest.endswith(", plain"):
            factor = rest.removesuffix(", plain")
            labels[f"{size}, {factor}"] = (format_size(int(size)), size)
    labels["heat"] = ("ghost cells, heat", "heat")
    labels["shallow water"] = ("ghost cells, shallow water", "shallow water")
    rows: list[Row] = []
    for mpi, peer, _ in MPIS:
        for case, (label, alone) in labels.items():
            computation, plain, parts, at_once = (
                r("overlap", peer, f"{case}, {name}")
                for name in ("computation", "plain", "in parts", "overlap")
            )
            rows.append(
                {
                    "MPI": mpi,
                    "message": label,
                    "message alone": r("overlap", peer, f"{alone}, message"),
                    "computation alone": computation,
                    "one after the other": plain,
                    "the same, in two parts": parts,
                    "overlap": at_once,
                    "overlap / one after the other": over(at_once, plain),
                }
            )
    return rows


def others(r: Results) -> list[Row]:
    times = {}
    for name in r.samples:
        if "solver" in name:
            times[f"{name} rank(s), s"] = name, "seconds", 1e6
    times["`import mpi4jax`, ms"] = "import", "import", 1e3
    rows: list[Row] = []
    for label, (name, case, unit) in times.items():
        ours, upstream = (r(name, p, case) for p in (OURS, UPSTREAM))
        rows.append(
            {
                "": label,
                "ours": ours and ours / unit,
                "0.9.1": upstream and upstream / unit,
                "ours / 0.9.1": over(ours, upstream),
            }
        )
    for name, nanoseconds in r.samples["handlers"].items():
        label = f"handler of {name}, ns"
        rows.append({"": label, "ours": nanoseconds, "0.9.1": None, "ours / 0.9.1": None})
    return rows


def plot_dispatch(r: Results, path: Path) -> None:
    bars = [
        ("empty jitted call", OURS, "empty", "0.7"),
        ("mpi4py", OURS, "mpi4py", COLORS["mpi4py"]),
        ("jit, ours", OURS, "jit", COLORS[OURS]),
        ("auto_tokenize, ours", OURS, "auto_tokenize", COLORS[OURS]),
        ("eager, ours", OURS, "eager", COLORS[OURS]),
        ("jit, 0.9.1", UPSTREAM, "jit", COLORS[UPSTREAM]),
        ("eager, 0.9.1", UPSTREAM, "eager", COLORS[UPSTREAM]),
    ]
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    values = [r("dispatch", peer, case) or 0 for _, peer, case, _ in bars]
    drawn = axis.barh([b[0] for b in bars], values, color=[b[3] for b in bars])
    axis.bar_label(drawn, [f" {format_number(v)} µs" for v in values])
    axis.set_xscale("log")
    axis.set_xlim(1, 5 * max(values))
    axis.invert_yaxis()
    axis.set_xlabel("time of a call (µs)")
    axis.set_title("allreduce of 8 bytes on 2 ranks", loc="left")
    figure.savefig(path, dpi=130)


def plot_sizes(r: Results, path: Path, *, bandwidth: bool) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    panels = (
        ("one jitted call", "latency", "jit, ", "mpi4py, "),
        ("in a loop", "loops", "allreduce, ", "mpi4py, allreduce, "),
    )
    for axis, (title, workload, case, reference) in zip(axes, panels, strict=True):
        for label, peer, where, prefix in (
            (OURS, OURS, workload, case),
            (UPSTREAM, UPSTREAM, workload, case),
            (GLOO, GLOO, "psum, 2", case),
            ("mpi4py", OURS, workload, reference),
        ):
            sizes = r.sizes(where, peer, prefix)
            times = [r(where, peer, f"{prefix}{size}") for size in sizes]
            if bandwidth:
                times = [size / time / 1e3 for size, time in zip(sizes, times, strict=True)]
            axis.plot(sizes, times, "o-", ms=3, color=COLORS[label], label=LABELS[label])
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("size (bytes)")
        axis.set_title(title, loc="left")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("array bytes per time (GB/s)" if bandwidth else "time (µs)")
    axes[1].legend()
    figure.suptitle("allreduce on 2 ranks")
    figure.savefig(path, dpi=130)


def main() -> None:
    path = Path(sys.argv[1])
    r = Results(json.loads(path.read_text()))
    sections = {
        "Small operations, µs": dispatch(r),
        "Eager operations, 8 bytes, µs": eager(r),
        "Operations in a loop, µs each": loops(r),
        "Operations in a loop, and in one in C, µs each": beside_c(r),
        "Ranks, µs": growth(r),
        "JAX's own sums over processes, µs": sharded(r),
        "Operations in a function": programs(r),
        "Checked operations in a loop, µs each": checks(r),
        "Trees, µs": trees(r),
        "Neighbors on a graph, µs each": neighbors(r),
        "Ghost cells, µs": halos(r),
        "Computing beside messages, µs": overlap(r),
        "Everything else": others(r),
    }
    machine = ", ".join(f"{k} {v}" for k, v in r.samples["machine"].items())
    text = f"Medians. {machine}.\n"
    text += "".join(f"\n## {title}\n\n{table(rows)}" for title, rows in sections.items())
    path.with_name("table.md").write_text(text)
    print(text)
    plot_dispatch(r, path.with_name("dispatch.png"))
    plot_sizes(r, path.with_name("latency.png"), bandwidth=False)
    plot_sizes(r, path.with_name("bandwidth.png"), bandwidth=True)
    print(f"wrote {path.parent}")


if __name__ == "__main__":
    main()
