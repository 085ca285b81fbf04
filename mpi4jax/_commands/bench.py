"""The tables of docs/performance.md, for this machine and these ranks."""

from __future__ import annotations

import argparse
import json
import os

# Ranks share the cores, as they do on a cluster.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

from mpi4py import MPI

from mpi4jax import _launcher, _terminal

from . import facts, tables, workloads

#: Loops take most of the time, and here their figures need less precision.
EFFORT = workloads.Effort(loop_time=0.1)

#: The workloads, each with the title and the rows of its table.
TABLES = {
    "dispatch": ("Calls of an allreduce of 8 bytes", tables.dispatch),
    "eager": ("Eager calls with 8 bytes", tables.eager),
    "latency": ("Jitted calls of an allreduce", tables.latency),
    "loops": ("In a compiled loop, per operation", tables.loops),
}


def run(arguments: argparse.Namespace) -> int:
    if why := _launcher.why_alone(MPI):
        return _launcher.refuse(why)
    is_first = MPI.COMM_WORLD.Get_rank() == 0
    is_text = is_first and not arguments.json
    terminal = _terminal.of()
    machine = describe()
    if is_text:
        _terminal.tell(f"Medians in microseconds. {', '.join(machine.values())}.")
    effort = workloads.QUICK if arguments.quick else EFFORT
    samples: dict[str, dict[str, tables.Samples]] = {}
    rows_of = {}
    for name, (title, rows) in TABLES.items():
        samples[name] = {tables.OURS: getattr(workloads, name)(effort)}
        rows_of[name] = rows(tables.Results(samples))
        if is_text:
            lines = tables.lines(rows_of[name], terminal)
            print("", terminal.heading(f"{title}:"), "", *lines, sep="\n", flush=True)
    if is_first and arguments.json:
        print(json.dumps({"machine": machine, **rows_of}, indent=1))
    return 0


def describe() -> dict[str, str]:
    """The machine, and the versions of the software, for the head of the tables."""
    versions, host = facts.versions(), facts.of_host()
    return {
        "ranks": f"{MPI.COMM_WORLD.Get_size()} rank(s)",
        "cpus": f"{len(host['cpus'])} CPUs",
        "library": _launcher.library_name(MPI.Get_library_version()),
        **{name: f"{name} {versions[name]}" for name in ("mpi4jax", "jax", "python")},
    }
