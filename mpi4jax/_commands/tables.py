"""Tables of measurements, for a terminal and in Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from mpi4jax._terminal import Terminal
from mpi4jax._text import align, format_number, format_size, layout

OURS, UPSTREAM = "ours", "upstream"

Samples = Mapping[str, Sequence[float]]
#: A row by its columns. Columns that are None in all rows are left out.
Row = dict[str, "str | float | None"]


class Results:
    """Medians of measured times, in microseconds."""

    def __init__(self, samples: Mapping[str, Mapping[str, Samples]]) -> None:
        #: The seconds of each case, by workload and peer.
        self.samples = samples

    def __call__(self, workload: str, peer: str, case: str) -> float | None:
        seconds = self.samples.get(workload, {}).get(peer, {}).get(case)
        return None if not seconds else 1e6 * median(seconds)

    def ratio(self, workload: str, peer: str, case: str, base: str) -> float | None:
        """Ratio of the times of two cases in the same processes.

        The cases took turns, so this is the median of the ratios.
        """
        samples = self.samples.get(workload, {}).get(peer, {})
        pairs = [*zip(samples.get(case, ()), samples.get(base, ()), strict=False)]
        return median(seconds / other for seconds, other in pairs) if pairs else None

    def sizes(self, workload: str, peer: str, prefix: str) -> list[int]:
        cases = self.samples.get(workload, {}).get(peer, {})
        return sorted(
            int(rest)
            for case in cases
            if case.startswith(prefix) and (rest := case[len(prefix) :]).isdigit()
        )


def over(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def _text(column: str, value: str | float | None) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    if " / " not in column:
        return format_number(value)
    return f"{value:.2f}" if value < 10 else f"x{value:.0f}"


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The shown columns, and their texts in each row."""
    columns = [c for c in rows[0] if any(row[c] is not None for row in rows)]
    return columns, [[_text(c, row[c]) for c in columns] for row in rows]


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    if not rows:
        return ""
    columns, texts = _cells(rows)
    head, *body = align([columns, *texts])
    rule = ["-" * len(cell) for cell in head]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *body))


def lines(rows: Sequence[Row], terminal: Terminal) -> list[str]:
    """The rows as lines for a terminal, numbers to the right."""
    if not rows:
        return []
    columns, texts = _cells(rows)
    labels = [any(isinstance(row[c], str) for row in rows) for c in columns]
    pads = [str.ljust if is_label else str.rjust for is_label in labels]
    heads, body = layout(columns, texts, pads, terminal.width)
    return [*map(terminal.heading, heads), *body]


def _comparison(
    labels: Mapping[str, str],
    ours: float | None,
    upstream: float | None,
    others: Mapping[str, float | None],
    ratios: Mapping[str, float | None],
) -> Row:
    """A row of times and ratios: upstream's time over ours, and ours over others."""
    ratios = {f"ours / {name}": ratio for name, ratio in ratios.items()}
    return {
        **labels,
        "ours": ours,
        "0.9.1": upstream,
        **others,
        "0.9.1 / ours": over(upstream, ours),
        **ratios,
    }


def dispatch(r: Results) -> list[Row]:
    """Small operations, called in different ways."""
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
        by_hand = "by hand" if count == 1 else "by hand, 10"
        sum_ = empty + count * mpi4py if empty and mpi4py else None
        times = {"empty + mpi4py": sum_, "in turn": r("dispatch", OURS, by_hand)}
        ratios = {
            "sum": over(ours, sum_),
            "in turn": r.ratio("dispatch", OURS, case, by_hand),
        }
        rows.append(_comparison({"call": case}, ours, upstream, times, ratios))
    return rows


def eager(r: Results) -> list[Row]:
    """Every operation, called eagerly."""
    rows = []
    for case in r.samples["eager"][OURS]:
        if "by hand" in case:
            continue
        ours, upstream = (r("eager", p, case) for p in (OURS, UPSTREAM))
        by_hand = f"{case}, by hand"
        times = {"empty + mpi4py": r("eager", OURS, by_hand)}
        ratios = {"(empty + mpi4py)": r.ratio("eager", OURS, case, by_hand)}
        rows.append(_comparison({"operation": case}, ours, upstream, times, ratios))
    return rows


def latency(r: Results) -> list[Row]:
    """A jitted call, over the size of its array."""
    rows = []
    empty = r("dispatch", OURS, "empty") or 0
    for size in r.sizes("latency", OURS, "jit, "):
        ours, upstream = (r("latency", p, f"jit, {size}") for p in (OURS, UPSTREAM))
        mpi4py = empty + (r("latency", OURS, f"mpi4py, {size}") or 0)
        times, ratios = {"empty + mpi4py": mpi4py}, {"(empty + mpi4py)": over(ours, mpi4py)}
        rows.append(_comparison({"size": format_size(size)}, ours, upstream, times, ratios))
    return rows


def loops(r: Results) -> list[Row]:
    """Operations in a compiled loop."""
    rows = []
    for name in ("allreduce", "bcast", "sendrecv", "allgather", "alltoall"):
        for size in r.sizes("loops", OURS, f"{name}, "):
            case = f"{name}, {size}"
            ours, upstream = (r("loops", p, case) for p in (OURS, UPSTREAM))
            mpi4py = f"mpi4py, {case}"
            times = {"mpi4py": r("loops", OURS, mpi4py)}
            ratio = r.ratio("loops", OURS, case, mpi4py)
            same = r.ratio("loops", OURS, case, f"{mpi4py}, JAX's memory")
            labels = {"operation": name, "size": format_size(size)}
            ratios = {"mpi4py": ratio, "mpi4py (XLA's memory)": same or ratio}
            rows.append(_comparison(labels, ours, upstream, times, ratios))
    return rows
