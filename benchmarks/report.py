"""Makes a table and plots of what run.py has measured.

python benchmarks/report.py build/bench/results.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OURS, UPSTREAM, GLOO = "ours", "upstream", "gloo"
LABELS = {
    OURS: "mpi4jax (Rust)",
    UPSTREAM: "mpi4jax 0.9.1",
    GLOO: "JAX psum (gloo)",
    "mpi4py": "mpi4py",
}
COLORS = {OURS: "C3", UPSTREAM: "C0", GLOO: "C2", "mpi4py": "k"}


class Results:
    """Medians, in microseconds."""

    def __init__(self, samples: dict) -> None:
        self.samples = samples

    def __call__(self, workload: str, peer: str, case: str) -> float | None:
        seconds = self.samples.get(workload, {}).get(peer, {}).get(case)
        return None if not seconds else 1e6 * median(seconds)

    def sizes(self, workload: str, peer: str, prefix: str) -> list[int]:
        cases = self.samples.get(workload, {}).get(peer, {})
        return sorted(
            int(rest)
            for case in cases
            if case.startswith(prefix) and (rest := case[len(prefix) :]).isdigit()
        )


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def over(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{value / base:.2f}"


def size_of(count: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count // factor} {unit}"
    return f"{count} B"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def comparison(
    labels: list[str],
    ours: float | None,
    upstream: float | None,
    others: list[float | None],
    bases: list[float | None],
) -> list[str]:
    """A row of times, and of our time over upstream's and over each of the bases."""
    times = map(number, (ours, upstream, *others))
    return [*labels, *times, *(over(ours, base) for base in (upstream, *bases))]


def dispatch(r: Results) -> str:
    rows = []
    for case, count in (
        ("eager", 1),
        ("jit", 1),
        ("auto_tokenize", 1),
        ("jit, 10", 10),
        ("auto_tokenize, 10", 10),
    ):
        ours, upstream = (r("dispatch", p, case) for p in (OURS, UPSTREAM))
        empty, mpi4py = (r("dispatch", OURS, c) for c in ("empty", "mpi4py"))
        by_hand = r("dispatch", OURS, "by hand" if count == 1 else "by hand, 10")
        sum_ = empty + count * mpi4py if empty and mpi4py else None
        bases = [sum_, by_hand]
        rows.append(comparison([case], ours, upstream, bases, bases))
    head = "call,ours,0.9.1,empty + mpi4py,in turn,ours / 0.9.1,ours / sum,ours / in turn"
    return table(head.split(","), rows)


def eager(r: Results) -> str:
    rows = []
    for case in r.samples["eager"][OURS]:
        if "by hand" in case:
            continue
        ours, upstream = (r("eager", p, case) for p in (OURS, UPSTREAM))
        by_hand = r("eager", OURS, f"{case}, by hand")
        rows.append(comparison([case], ours, upstream, [by_hand], [by_hand]))
    head = "operation,ours,0.9.1,empty + mpi4py,ours / 0.9.1,ours / (empty + mpi4py)"
    return table(head.split(","), rows)


def loops(r: Results) -> str:
    rows = []
    for name in ("allreduce", "bcast", "sendrecv", "allgather", "alltoall"):
        for size in r.sizes("loops", OURS, f"{name}, "):
            case = f"{name}, {size}"
            ours, upstream = (r("loops", p, case) for p in (OURS, UPSTREAM))
            mpi4py = r("loops", OURS, f"mpi4py, {case}")
            same = r("loops", OURS, f"mpi4py, {case}, JAX's memory") or mpi4py
            labels = [name, size_of(size)]
            rows.append(comparison(labels, ours, upstream, [mpi4py], [mpi4py, same]))
    head = (
        "operation,size,ours,0.9.1,mpi4py,ours / 0.9.1,ours / mpi4py,"
        "ours / mpi4py in memory of XLA's"
    )
    return table(head.split(","), rows)


def growth(r: Results) -> str:
    rows = []
    for name in (n for n in r.samples if n.startswith("growth, ")):
        for size in (8, 1 << 16):
            ours = [r(name, OURS, f"{c}, {size}") for c in ("jit", "loop")]
            upstream = [r(name, UPSTREAM, f"{c}, {size}") for c in ("jit", "loop")]
            mpi4py = r(name, OURS, f"mpi4py, {size}")
            rows.append(
                [
                    name.split()[1],
                    size_of(size),
                    *map(number, (ours[0], upstream[0], ours[1], upstream[1], mpi4py)),
                    over(ours[1], mpi4py),
                ]
            )
    head = (
        "ranks,size,jitted call: ours,0.9.1,in a loop: ours,0.9.1,mpi4py,"
        "loop: ours / mpi4py"
    )
    return table(head.split(","), rows)


def programs(r: Results) -> str:
    rows = []
    for count in r.sizes("programs", OURS, "call, "):
        row = [str(count)]
        for case, unit in (("trace and lower", 1e3), ("compile", 1e3), ("call", 1)):
            values = [r("programs", p, f"{case}, {count}") for p in (OURS, UPSTREAM)]
            row += [number(v and v / unit / count) for v in values]
        rows.append(row)
    head = (
        "operations,trace and lower (ms per operation): ours,0.9.1,compile (ms): ours,"
        "0.9.1,call (us): ours,0.9.1"
    )
    return table(head.split(","), rows)


def others(r: Results) -> str:
    rows = []
    for name in r.samples:
        if "solver" in name:
            ours, upstream = (r(name, p, "seconds") for p in (OURS, UPSTREAM))
            label = f"{name} rank(s), s"
            values = [ours and ours / 1e6, upstream and upstream / 1e6]
            rows.append([label, *map(number, values), over(*values)])
    ours, upstream = (r("import", p, "import") for p in (OURS, UPSTREAM))
    values = [ours and ours / 1e3, upstream and upstream / 1e3]
    rows.append(["`import mpi4jax`, ms", *map(number, values), over(*values)])
    for name, nanoseconds in r.samples["handlers"].items():
        rows.append([f"handler of {name}, ns", number(nanoseconds), "-", "-"])
    return table(["", "ours", "0.9.1", "ours / 0.9.1"], rows)


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
    axis.bar_label(drawn, [f" {number(v)} µs" for v in values])
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
            (GLOO, GLOO, "gloo", case),
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
        "Ranks, µs": growth(r),
        "Operations in a function": programs(r),
        "Everything else": others(r),
    }
    machine = ", ".join(f"{k} {v}" for k, v in r.samples["machine"].items())
    text = f"Medians. {machine}.\n"
    text += "".join(f"\n## {title}\n\n{body}" for title, body in sections.items())
    path.with_name("table.md").write_text(text)
    print(text)
    plot_dispatch(r, path.with_name("dispatch.png"))
    plot_sizes(r, path.with_name("latency.png"), bandwidth=False)
    plot_sizes(r, path.with_name("bandwidth.png"), bandwidth=True)
    print(f"wrote {path.parent}")


if __name__ == "__main__":
    main()
