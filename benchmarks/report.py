"""Makes tables and plots of the measurements of run.py.

    python benchmarks/report.py build/bench/results.json [--docs]

With `--docs`, these are the tables and plots of the documentation. Then the samples go to
docs/performance/results.json, and a test compares the tables of the pages with them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
#: The MPIs, each with the names of our code and the original's in results.
MPIS = (
    ("MPICH", OURS, UPSTREAM),
    ("Open MPI", "ours, Open MPI", "upstream, Open MPI"),
)
LABELS = {
    OURS: "mpi4jax (Rust)",
    UPSTREAM: "original 0.9.1",
    GLOO: "JAX psum (gloo)",
    "mpi4py": "mpi4py",
}
#: The ghost cells of solvers.
CELLS = {"heat": "ghost cells, heat", "shallow water": "ghost cells, shallow water"}
COLORS = {OURS: "C3", UPSTREAM: "C0", GLOO: "C2", "mpi4py": "k"}


def by_ranks(r: Results, workload: str) -> list[tuple[str, str]]:
    """The names of a workload on different numbers of ranks, with these numbers."""
    names = [name for name in r.samples if name.startswith(f"{workload}, ")]
    return [(name, name.removeprefix(f"{workload}, ")) for name in names]


def growth(r: Results) -> list[Row]:
    rows: list[Row] = []
    for name, ranks in by_ranks(r, "growth"):
        for size in (8, 1 << 16):
            ours = [r(name, OURS, f"{c}, {size}") for c in ("jit", "loop")]
            loop, mpi4py = f"loop, {size}", f"mpi4py, {size}"
            upstream = [r(name, UPSTREAM, f"{c}, {size}") for c in ("jit", "loop")]
            rows.append(
                {
                    "ranks": ranks,
                    "size": format_size(size),
                    "jitted call: ours": ours[0],
                    "jitted call: 0.9.1": upstream[0],
                    "in a loop: ours": ours[1],
                    "in a loop: 0.9.1": upstream[1],
                    "in a loop: mpi4py": r(name, OURS, mpi4py),
                    "loop: ours / mpi4py": r.ratio(name, OURS, loop, mpi4py),
                }
            )
    return rows


def sharded(r: Results) -> list[Row]:
    """JAX's own sums over processes."""
    rows: list[Row] = []
    for name, ranks in by_ranks(r, "psum"):
        for label, prefix in (("one call", "jit, "), ("in a loop", "psum, ")):
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


def permutations(r: Results) -> list[Row]:
    """Messages in programs over all ranks, and JAX's `ppermute` in their place."""
    rows: list[Row] = []
    cases = (
        ("ring", "8", "a ring, 8 B", "messages"),
        ("ring", "1048576", "a ring, 1 MiB", "messages"),
        ("sparse", "sparse", "a graph, `sendrecv`", "messages"),
        ("sparse", "sparse", "a graph, `exchange`", "exchange"),
        ("stencil", "64 x 64", "heat, 64 x 64", "messages"),
        ("stencil", "512 x 512", "heat, 512 x 512", "messages"),
    )
    for workload, label, title, way in cases:
        ours, theirs = f"{way}, {label}", f"ppermute, {label}"
        for name, ranks in by_ranks(r, workload):
            rows.append(
                {
                    "ranks": ranks,
                    "messages along": title,
                    "ours": r(name, OURS, ours),
                    "ours, outside": r(name, OURS, f"outside, {label}"),
                    "ppermute, MPI": r(name, OURS, theirs),
                    "ppermute, gloo": r(name, GLOO, theirs),
                    "ppermute, MPI / ours": r.ratio(name, OURS, theirs, ours),
                    "ppermute, gloo / ours": r.ratio(name, GLOO, theirs, ours),
                }
            )
    return rows


def migration(r: Results) -> list[Row]:
    """Rows to every process by run-time counts, and in padded blocks."""
    rows: list[Row] = []
    for name, ranks in by_ranks(r, "migration"):
        for block, percent in itertools.product((16, 256, 4096), (1, 10, 50, 100)):
            ragged, padded = f"ragged, {block}, {percent}", f"padded, {block}"
            all_to_all = r(name, GLOO, f"all_to_all, {block}")
            rows.append(
                {
                    "ranks": ranks,
                    "rows in a block": block,
                    "filled, %": percent,
                    "alltoallv": r(name, OURS, ragged),
                    "alltoall": r(name, OURS, padded),
                    "all_to_all, MPI": r(name, OURS, f"all_to_all, {block}"),
                    "all_to_all, gloo": all_to_all,
                    "alltoallv / alltoall": r.ratio(name, OURS, ragged, padded),
                    "alltoallv / gloo": over(r(name, OURS, ragged), all_to_all),
                    "migrate": r(name, OURS, f"migrate, {block}, {percent}"),
                }
            )
    return rows


def beside_c(r: Results) -> list[Row]:
    """Operations in a loop, and in one in C."""
    rows: list[Row] = []
    for name in ("allreduce", "bcast", "sendrecv", "allgather", "alltoall"):
        for size in r.sizes("c", OURS, f"{name}, "):
            case = f"{name}, {size}"
            c, unrolled = f"C, {case}", f"{case}, unroll=2"
            rows.append(
                {
                    "operation": name,
                    "size": format_size(size),
                    "C": r("c", OURS, c),
                    "ours": r("c", OURS, case),
                    "ours, unroll=2": r("c", OURS, unrolled),
                    "ours / C": r.ratio("c", OURS, case, c),
                    "unroll=2 / C": r.ratio("c", OURS, unrolled, c),
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
            plain, checked = f"{name}, {size}", f"checked {name}, {size}"
            rows.append(
                {
                    "operation": name,
                    "size": format_size(size),
                    "by default": r("checks", OURS, plain),
                    "MPI4JAX_CHECK=1": r("checks", OURS, checked),
                    "checked / by default": r.ratio("checks", OURS, checked, plain),
                }
            )
    return rows


def trees(r: Results) -> list[Row]:
    """An allreduce of every leaf of a tree, by one call or by many."""
    rows: list[Row] = []
    sizes = {"200 of 1024": "200 of 1 KiB", "10 of 4194304": "10 of 4 MiB"}
    kinds = {"jit": "a jitted call", "loop": "a loop"}
    for (mpi, ours, theirs), leaves, where in itertools.product(MPIS, sizes, kinds):
        tree, each = (f"{leaves}, {where}, {way}" for way in ("tree", "each"))
        upstream = r("trees", theirs, each)
        nothing = r("trees", ours, f"{leaves}, jit, nothing") if where == "jit" else None
        rows.append(
            {
                "MPI": mpi,
                "leaves": sizes[leaves],
                "in": kinds[where],
                "tree": r("trees", ours, tree),
                "a call for each": r("trees", ours, each),
                "0.9.1, a call for each": upstream,
                "no message": nothing,
                "tree / each": r.ratio("trees", ours, tree, each),
                "tree / 0.9.1": over(r("trees", ours, tree), upstream),
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
                unrolled, mpi4py = f"{case}, unroll=2", f"mpi4py, {case}"
                rows.append(
                    {
                        "MPI": mpi,
                        "ranks": ranks,
                        "neighbors": str(count),
                        "size of a block": format_size(size),
                        "ours": r(name, peer, case),
                        "ours, unroll=2": r(name, peer, unrolled),
                        "mpi4py": r(name, peer, mpi4py),
                        "ours / mpi4py": r.ratio(name, peer, case, mpi4py),
                        "unroll=2 / mpi4py": r.ratio(name, peer, unrolled, mpi4py),
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
                    "plan / mpi4py": r.ratio(
                        name, ours, f"{count}, plan", f"{count}, mpi4py"
                    ),
                }
            )
    return rows


def unstructured(r: Results) -> list[Row]:
    """The ghosts of unstructured meshes, filled or added to their owners, in a loop."""
    rows: list[Row] = []
    for name, ranks in by_ranks(r, "unstructured"):
        cases = [case for case in r.samples[name][OURS] if case.endswith(", plan")]
        for label in (case.removesuffix(", plan") for case in cases):
            points, neighbors, fields = label.split(", ")
            plan, loop = f"{label}, plan", f"{label}, sendrecv"
            upstream = r(name, UPSTREAM, loop)
            others = "tatva", "alltoall", "mpi4py", "PETSc"
            rows.append(
                {
                    "ranks": ranks,
                    "points": points,
                    "neighbors": neighbors,
                    "fields": fields,
                    "plan": r(name, OURS, plan),
                    "sendrecv": r(name, OURS, loop),
                    "0.9.1, sendrecv": upstream,
                    **{other: r(name, OURS, f"{label}, {other}") for other in others},
                    "added: plan": r(name, OURS, f"{plan}, added"),
                    "added: tatva": r(name, OURS, f"{label}, tatva, added"),
                    "plan / sendrecv": r.ratio(name, OURS, plan, loop),
                    "plan / 0.9.1": over(r(name, OURS, plan), upstream),
                    "plan / mpi4py": r.ratio(name, OURS, plan, f"{label}, mpi4py"),
                    "plan / PETSc": r.ratio(name, OURS, plan, f"{label}, PETSc"),
                }
            )
    return rows


def redistribution(r: Results) -> list[Row]:
    """Slabs that are divided along another axis and back, and transforms of them."""
    rows: list[Row] = []
    kinds = (
        ("move", "layout", "redistributed"),
        ("transform", "plan", "transformed"),
    )
    ways = {"calls": "two calls", "loop": "a loop"}
    for (mpi, peer, theirs), (name, ranks), (kind, own, title) in itertools.product(
        MPIS, by_ranks(r, "redistribution"), kinds
    ):
        end = f", {kind}, {own}, loop"
        cases = [case for case in r.samples[name].get(peer, {}) if case.endswith(end)]
        for points, way in itertools.product((c.removesuffix(end) for c in cases), ways):
            label = f"{points}, {kind}"
            ours, by_hand = f"{label}, {own}, {way}", f"{label}, by hand, {way}"
            mpi4py_fft = f"{label}, mpi4py-fft"
            rows.append(
                {
                    "MPI": mpi,
                    "ranks": ranks,
                    "there and back": title,
                    "points": f"{points}^3",
                    "in": ways[way],
                    "ours": r(name, peer, ours),
                    "by hand": r(name, peer, by_hand),
                    "0.9.1, by hand": r(name, theirs, by_hand),
                    "mpi4py-fft": r(name, peer, mpi4py_fft),
                    "ours / by hand": r.ratio(name, peer, ours, by_hand),
                    "ours / mpi4py-fft": r.ratio(name, peer, ours, mpi4py_fft),
                }
            )
    return rows


def weak_scaling(r: Results) -> list[Row]:
    """The redistribution of as many bytes on each rank, and copies of these."""
    rows: list[Row] = []
    for (mpi, ours, _), ranks in itertools.product(MPIS, (1, 2, 4, 8)):
        name = f"redistribution, {ranks}"
        if ours in r.samples.get(name, {}):
            moved = 1 - 1 / ranks
            rows.append(
                {
                    "MPI": mpi,
                    "ranks": str(ranks),
                    "MiB sent by each": f"{2 * 16 * moved:g}",
                    "there and back": r(name, ours, "weak, layout"),
                    "two copies": r(name, ours, "weak, copy"),
                    "there and back / copies": r.ratio(
                        name, ours, "weak, layout", "weak, copy"
                    ),
                }
            )
    return rows


def number(r: Results, workload: str, peer: str, case: str) -> float:
    """A sample that is a number, such as MiB, and not seconds."""
    return (r(workload, peer, case) or 0) / 1e6


def transforms_of_sharded_arrays(r: Results) -> list[Row]:
    """Transforms of sharded arrays, and the memory that they need meanwhile."""
    rows: list[Row] = []
    for (name, ranks), (peer, label) in itertools.product(
        by_ranks(r, "sharded_fft"), ((OURS, "MPI"), (GLOO, "gloo"))
    ):
        for points in (32, 64, 128, 256):
            ours, of_jax = f"{points}, ours", f"{points}, jnp.fft"
            if ours not in r.samples[name].get(peer, {}):
                continue
            rows.append(
                {
                    "ranks": ranks,
                    "JAX's collectives": label,
                    "points": f"{points}^3",
                    "`fft.fftn`": r(name, peer, ours),
                    "`jnp.fft.fftn`": r(name, peer, of_jax),
                    "jnp.fft / ours": r.ratio(name, peer, of_jax, ours),
                    "MiB, `fft.fftn`": number(r, name, peer, f"memory, {ours}"),
                    "MiB, `jnp.fft.fftn`": number(r, name, peer, f"memory, {of_jax}"),
                }
            )
    return rows


def random_fields(r: Results) -> list[Row]:
    """Parts of random fields, and the memory that they need."""
    rows: list[Row] = []
    for (name, ranks), points in itertools.product(
        by_ranks(r, "fields"), (64, 128, 256, 320)
    ):
        whole, part = f"{points}, whole", f"{points}, part"
        if part not in r.samples[name].get(OURS, {}):
            continue
        rows.append(
            {
                "ranks": ranks,
                "points": f"{points}^3",
                "part of the whole": r(name, OURS, whole),
                "part alone": r(name, OURS, part),
                "whole / part": r.ratio(name, OURS, whole, part),
                "MiB, whole": number(r, name, OURS, f"memory, {whole}"),
                "MiB, part": number(r, name, OURS, f"memory, {part}"),
            }
        )
    return rows


def gradients(r: Results) -> list[Row]:
    """Gradients of a run, by the number of its states that are kept."""
    samples = r.samples.get("gradients", {}).get(OURS, {})
    if not samples:
        return []
    steps = round(number(r, "gradients", OURS, "steps"))
    rows: list[Row] = []
    for case in samples:
        if case == "steps" or case.startswith("memory, "):
            continue
        way, _, states = case.partition(", ")
        least = evaluations(steps, int(states)) / steps if way == "diffrax" else None
        milliseconds = r("gradients", OURS, case)
        rows.append(
            {
                "gradient by": way if states else "none: the run",
                "states": states or "1",
                "MiB": number(r, "gradients", OURS, f"memory, {case}"),
                "ms": milliseconds and milliseconds / 1e3,
                "time / run": r.ratio("gradients", OURS, case, "run"),
                "least evaluations / step": least,
            }
        )
    return rows


def evaluations(steps: int, states: int) -> int:
    """The least evaluations of a step for a gradient of `steps` that keeps some states.

    The first state is one of them, and each step is evaluated once more when it is
    differentiated: A. Griewank and A. Walther, Algorithm 799: Revolve (2000).
    """
    repetitions = next(
        n for n in itertools.count() if math.comb(states + n, states) >= steps
    )
    return (repetitions + 1) * steps - math.comb(states + repetitions, states + 1)


def inner_products(r: Results) -> list[Row]:
    """Inner products of two vectors over all ranks, in a loop."""
    rows: list[Row] = []
    for name, ranks in by_ranks(r, "solvers"):
        for mpi, ours, _ in MPIS:
            of_mpi = r.samples[name].get(ours, {})
            for case in (case for case in of_mpi if case.endswith(", plain")):
                label = case.removesuffix(", plain")
                reproducible = f"{label}, reproducible"
                _, dtype, count = label.split(", ")
                rows.append(
                    {
                        "MPI": mpi,
                        "ranks": ranks,
                        "type": dtype,
                        "elements": count,
                        "plain": r(name, ours, case),
                        "reproducible": r(name, ours, reproducible),
                        "local": r(name, ours, f"{label}, local"),
                        "reproducible / plain": r.ratio(name, ours, reproducible, case),
                    }
                )
    return rows


def conjugate_gradients(r: Results) -> list[Row]:
    """Iterations for a stencil of five points."""
    rows: list[Row] = []
    for name, ranks in by_ranks(r, "solvers"):
        for mpi, ours, _ in MPIS:
            of_mpi = r.samples[name].get(ours, {})
            for by_hand in (case for case in of_mpi if case.endswith(", by hand")):
                label = by_hand.removesuffix(", by hand")
                cg, pipelined = f"{label}, cg", f"{label}, pipelined"
                cells = label.split(", ")[1]
                rows.append(
                    {
                        "MPI": mpi,
                        "ranks": ranks,
                        "cells": f"{cells} x {cells}",
                        "`cg`": r(name, ours, cg),
                        "pipelined": r(name, ours, pipelined),
                        "two allreduces": r(name, ours, by_hand),
                        "`cg` / two": r.ratio(name, ours, cg, by_hand),
                        "pipelined / `cg`": r.ratio(name, ours, pipelined, cg),
                    }
                )
    return rows


def checkpoints(r: Results) -> list[Row]:
    """An array in files, and back, in ms."""
    rows: list[Row] = []
    ways = ("ours", "bare", "one process", "ours, sharded", "orbax")
    for (name, ranks), place, direction in itertools.product(
        by_ranks(r, "checkpoints"), ("tmpfs", "disk"), ("save", "load")
    ):
        if ranks == "1":
            continue
        cases = [f"{place}, {direction}, {way}" for way in ways]
        ours, bare, one_process, ours_sharded, orbax = cases
        times = (over(r(name, OURS, case), 1000) for case in cases)
        rows.append(
            {
                "ranks": ranks,
                "files on": place,
                "direction": direction,
                **dict(zip(ways, times, strict=True)),
                "ours / bare": r.ratio(name, OURS, ours, bare),
                "one process / ours": r.ratio(name, OURS, one_process, ours),
                "orbax / ours, sharded": r.ratio(name, OURS, orbax, ours_sharded),
            }
        )
    return rows


def output(r: Results) -> list[Row]:
    """Steps of a solver that writes three fields after each tenth one."""
    return [
        {
            "ranks": ranks,
            "files on": place,
            "alone": r(name, OURS, f"{place}, steps"),
            "with output": r(name, OURS, f"{place}, steps, output"),
            "with output / alone": r.ratio(
                name, OURS, f"{place}, steps, output", f"{place}, steps"
            ),
            "compressed / alone": r.ratio(
                name, OURS, f"{place}, steps, compressed", f"{place}, steps"
            ),
            "zarr-python / alone": r.ratio(
                name, OURS, f"{place}, steps, zarr-python", f"{place}, steps"
            ),
            "size, compressed / not": number(r, name, OURS, f"{place}, compressed size"),
        }
        for (name, ranks), place in itertools.product(
            by_ranks(r, "checkpoints"), ("tmpfs", "disk")
        )
    ]


def axes(r: Results) -> list[Row]:
    """The ghost cells of five fields along one axis, in a loop."""
    rows: list[Row] = []
    for axis, label in enumerate(("first", "second")):
        for width in (32, 256, 1024):
            plan, each = (f"{axis}, {width}, {way}" for way in ("plan", "each"))
            upstream = r("axes", UPSTREAM, each)
            rows.append(
                {
                    "axis": label,
                    "fields": f"{width} x {width}",
                    "plan": r("axes", OURS, plan),
                    "sendrecv": r("axes", OURS, each),
                    "0.9.1, sendrecv": upstream,
                    "plan / sendrecv": r.ratio("axes", OURS, plan, each),
                    "plan / 0.9.1": over(r("axes", OURS, plan), upstream),
                }
            )
    return rows


#: The measured codes and kinds of pages, by the titles of columns.
PAGES_OF = {
    "small pages": "ours, small pages",
    "ours": OURS,
    "GLIBC_TUNABLES": "ours, huge pages by glibc",
}


def huge_pages(r: Results) -> list[Row]:
    """An operation on 16 MiB in a loop."""
    rows: list[Row] = []
    for name, length in itertools.product(("allreduce", "bcast", "sendrecv"), (6, 60)):
        case = f"{name}, {length}"
        row: Row = {"operation": name, "iterations": str(length)}
        row |= {title: r("pages", peer, case) for title, peer in PAGES_OF.items()}
        for title, peer in PAGES_OF.items():
            row[f"{title} / mpi4py"] = r.ratio("pages", peer, case, f"mpi4py, {case}")
        rows.append(row)
    return rows


def resident(r: Results) -> list[Row]:
    """The memory that each of 8 processes needs more."""
    peers = {title: r.samples["resident"][peer] for title, peer in PAGES_OF.items()}
    return [
        {"arrays": case, **{title: samples[case][0] for title, samples in peers.items()}}
        for case in peers["ours"]
    ]


def overlap(r: Results) -> list[Row]:
    """Computation beside messages: one after the other, and at once."""
    labels = {"late": ("one, 50 ms late", "")}
    for case in r.samples["overlap"][OURS]:
        size, _, rest = case.partition(", ")
        if size.isdigit() and rest.endswith(", plain"):
            factor = rest.removesuffix(", plain")
            labels[f"{size}, {factor}"] = (format_size(int(size)), size)
    labels |= {solver: (label, solver) for solver, label in CELLS.items()}
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


def runs(r: Results) -> list[Row]:
    """Whole programs, and the import."""
    times = {}
    for name in r.samples:
        if name.startswith(("own solver, ", "solver of ")):
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
                "0.9.1 / ours": over(upstream, ours),
            }
        )
    return rows


def others(r: Results) -> list[Row]:
    rows = runs(r)
    for name, nanoseconds in r.samples["handlers"].items():
        label = f"handler of {name}, ns"
        rows.append({"": label, "ours": nanoseconds, "0.9.1": None, "0.9.1 / ours": None})
    return rows


def headline(r: Results) -> list[Row]:
    """The first figures that a reader sees."""
    call, loop, cells = "dispatch", "loops", "halos, 2"
    small, large = "allreduce, 8", "allreduce, 1048576"

    def row(
        label: str,
        ours: float | None,
        upstream: float | None,
        gloo: float | None = None,
        by_hand: float | None = None,
    ) -> Row:
        return {
            "µs, 2 processes": label,
            "this mpi4jax": ours,
            "mpi4jax 0.9.1": upstream,
            "JAX's `psum` (gloo)": gloo,
            "mpi4py by hand": by_hand,
        }

    return [
        row(
            "`allreduce` of 8 bytes, an eager call",
            ours=r(call, OURS, "eager"),
            upstream=r(call, UPSTREAM, "eager"),
        ),
        row(
            "`allreduce` of 8 bytes, a jitted call",
            ours=r(call, OURS, "jit"),
            upstream=r(call, UPSTREAM, "jit"),
            gloo=r("psum, 2", GLOO, "jit, 8"),
            by_hand=r(call, OURS, "by hand"),
        ),
        row(
            "`allreduce` of 8 bytes, in a loop",
            ours=r(loop, OURS, small),
            upstream=r(loop, UPSTREAM, small),
            gloo=r("psum, 2", GLOO, "psum, 8"),
        ),
        row(
            "`allreduce` of 1 MiB, in a loop",
            ours=r(loop, OURS, large),
            upstream=r(loop, UPSTREAM, large),
            gloo=r("psum, 2", GLOO, "psum, 1048576"),
        ),
        row(
            "ghost cells of 5 fields, in a loop",
            ours=r(cells, OURS, "5, plan"),
            upstream=r(cells, UPSTREAM, "5, each"),
            by_hand=r(cells, OURS, "5, mpi4py"),
        ),
    ]


def shared_cores(r: Results) -> list[Row]:
    """Matrix products and sums, where ranks share cores or have one each."""
    rows: list[Row] = []
    computing = {"all": "in each step", "one": "one rank in a step"}
    for (mpi, ours, theirs), workload, who in itertools.product(
        MPIS, ("unbound", "bound"), computing
    ):
        for name, ranks in by_ranks(r, workload):
            gloo, psum = r(name, GLOO, f"psum, {who}"), r(name, ours, f"psum, {who}")
            allreduce = r(name, ours, f"allreduce, {who}")
            rows.append(
                {
                    "MPI": mpi,
                    "ranks": f"{ranks}, {workload}",
                    "products": computing[who],
                    "allreduce": allreduce,
                    "0.9.1": r(name, theirs, f"allreduce, {who}"),
                    "mpi4py": r(name, ours, f"mpi4py, {who}"),
                    "psum, MPI": psum,
                    "psum, gloo": gloo,
                    "allreduce / gloo": over(allreduce, gloo),
                    "psum, MPI / gloo": over(psum, gloo),
                }
            )
    return rows


def sums(r: Results) -> list[Row]:
    """Sums over two processes in a loop, by messages and of sharded arrays."""
    rows: list[Row] = []
    for size in (8, 1 << 16, 1 << 20):
        row: Row = {"size": format_size(size)}
        for label, peer in (("MPI", OURS), ("gloo", GLOO)):
            # The two take turns in the same processes.
            both = (r("psum, 2", peer, f"{name}, {size}") for name in ("psum", "allreduce"))
            row[f"`psum` over {label} / `allreduce`"] = over(*both)
        rows.append(row)
    return rows


#: All tables: the subject of the rows, and the rows.
TABLES: dict[str, tuple[str, Callable[[Results], list[Row]]]] = {
    "Calls": ("Time of an `allreduce` of 8 bytes", dispatch),
    "Eager calls": ("Time of 8 bytes", eager),
    "Compiled loops": ("Time of one operation of a `fori_loop`", loops),
    "Compared with C": ("Time of one operation of a loop", beside_c),
    "Ranks": ("Time of an `allreduce`", growth),
    "Sharded arrays": ("Time of `jax.lax.psum` in a `shard_map`", sharded),
    "Messages in a `shard_map`": (
        "Time of a step of a loop, with messages of mpi4jax and JAX's `ppermute`",
        permutations,
    ),
    "Particles": (
        "Time of a step of a loop, in which each process sends rows of 32 bytes to each",
        migration,
    ),
    "Operations in a function": ("Time of one operation on one rank", programs),
    "Checked operations": ("Time of one operation of a loop", checks),
    "Trees": ("Time of an `allreduce` of all leaves", trees),
    "Neighbors": ("Time of a `neighbor_alltoall` of a loop", neighbors),
    "Ghost cells": ("Time of a step of a loop over float64 fields of 256 x 256", halos),
    "Ghost cells along one axis": (
        "Time of a step of a loop over five float64 fields",
        axes,
    ),
    "Ghosts of unstructured meshes": (
        "Time of a step of a loop, by the number of points of a float64 field on each "
        "rank: ghosts for each neighbor are filled, or added to their owners",
        unstructured,
    ),
    "Redistribution": (
        "Time of a cube of complex numbers that is divided along another axis, or "
        "transformed, and back",
        redistribution,
    ),
    "Redistribution of as much on each rank": (
        "Time of 16 MiB on each rank that are redistributed, and back, in a loop",
        weak_scaling,
    ),
    "Transforms of sharded arrays": (
        "Time of the transform of a cube of complex64 that is sharded along one axis, and "
        "how much memory each process needs meanwhile",
        transforms_of_sharded_arrays,
    ),
    "Random fields": (
        "Time of a cube of normal numbers in float32, of which each process has a part, "
        "and how much memory each process needs meanwhile",
        random_fields,
    ),
    "Gradients of long runs": (
        "Time of the gradient of 10,000 steps by the first state, 256 x 256 cells of "
        "float32 on two ranks, and how much memory each process needs meanwhile",
        gradients,
    ),
    "Inner products": (
        "Time of `linalg.vdot` in a loop, by the number of elements on each rank",
        inner_products,
    ),
    "Conjugate gradients": (
        "Time of an iteration of `linalg.cg`, and of the method with two allreduces by "
        "hand, by the number of cells on each rank",
        conjugate_gradients,
    ),
    "Checkpoints": (
        "Time in ms of 1 GiB of float32, divided among the ranks, into files and back",
        checkpoints,
    ),
    "Output": (
        "Time of 100 steps of the shallow-water solver, 960 x 480 cells, and the same with "
        "three fields written after each tenth one",
        output,
    ),
    "Huge pages": ("Time of one operation on 16 MiB in a `fori_loop`", huge_pages),
    "Memory": (
        "What each of 8 processes needs more for a loop over large arrays, in MiB",
        resident,
    ),
    "Overlap": ("Time of a message and a computation", overlap),
    "Ranks that share cores": (
        "Time of a step of a loop: a matrix product and a sum",
        shared_cores,
    ),
    "Everything else": (
        "Time of a run, an import, and a handler, which XLA calls (with an MPI that does "
        "nothing)",
        others,
    ),
}


def excerpt(
    rows: Sequence[Row], columns: str = "", **wanted: Sequence[object]
) -> list[Row]:
    """Some columns of those rows that have one of the wanted values in each column."""
    names = columns.split("; ") if columns else list(rows[0])
    return [
        {name: row[name] for name in names}
        for row in rows
        if all(row[column] in values for column, values in wanted.items())
    ]


#: The tables within pages, by the names in their markers.
EXCERPTS: dict[str, Callable[[Results], list[Row]]] = {
    "headline": headline,
    "sums": sums,
    "calls": lambda r: excerpt(
        dispatch(r),
        "call; ours; 0.9.1; in turn; 0.9.1 / ours; ours / in turn",
        call=("eager", "jit"),
    ),
    "loops": lambda r: excerpt(
        loops(r),
        "operation; size; ours; 0.9.1; mpi4py; 0.9.1 / ours; ours / mpi4py",
        operation=("allreduce", "sendrecv"),
        size=("8 B", "1 MiB", "16 MiB"),
    ),
    "c": lambda r: excerpt(
        beside_c(r),
        operation=("allreduce", "sendrecv"),
        size=("8 B", "16 MiB"),
    ),
    "ranks": lambda r: excerpt(
        growth(r),
        "ranks; jitted call: ours; jitted call: 0.9.1; in a loop: ours; in a loop: mpi4py",
        size=("8 B",),
    ),
    "trees": lambda r: excerpt(
        trees(r),
        "leaves; tree; a call for each; 0.9.1, a call for each; tree / each",
        MPI=("MPICH",),
        **{"in": ("a loop",)},
    ),
    "neighbors": lambda r: excerpt(
        neighbors(r),
        "neighbors; size of a block; ours, unroll=2; mpi4py; unroll=2 / mpi4py",
        MPI=("MPICH",),
        ranks=("2",),
        neighbors=("2", "32"),
    ),
    "halos": lambda r: excerpt(
        halos(r),
        "MPI; plan; 0.9.1, sendrecv; mpi4py; plan / 0.9.1; plan / mpi4py",
        fields=("5",),
        ranks=("2",),
    ),
    "axes": lambda r: excerpt(axes(r), "axis; fields; plan; 0.9.1, sendrecv; plan / 0.9.1"),
    "unstructured": lambda r: excerpt(
        unstructured(r),
        "points; fields; plan; sendrecv; 0.9.1, sendrecv; mpi4py; PETSc; "
        "plan / 0.9.1; plan / PETSc",
        ranks=("2",),
    ),
    "six_neighbors": lambda r: excerpt(
        unstructured(r),
        "points; fields; plan; sendrecv; 0.9.1, sendrecv; mpi4py; PETSc; "
        "plan / sendrecv; plan / 0.9.1; plan / mpi4py",
        ranks=("8",),
        neighbors=("6",),
    ),
    "particles": lambda r: excerpt(
        migration(r),
        "rows in a block; filled, %; alltoallv; alltoall; all_to_all, gloo; "
        "alltoallv / alltoall; migrate",
        ranks=("2",),
        **{"filled, %": (1, 100)},
    ),
    "redistribution": lambda r: excerpt(
        redistribution(r),
        "there and back; points; in; ours; by hand; mpi4py-fft; ours / by hand; "
        "ours / mpi4py-fft",
        MPI=("MPICH",),
        ranks=("2",),
        points=("64^3", "128^3", "256^3", "512^3"),
    ),
    "scaling": lambda r: excerpt(
        weak_scaling(r),
        "ranks; MiB sent by each; there and back; two copies; there and back / copies",
        MPI=("MPICH",),
    ),
    "sharded_transforms": lambda r: excerpt(
        transforms_of_sharded_arrays(r),
        "ranks; points; `fft.fftn`; `jnp.fft.fftn`; jnp.fft / ours; MiB, `fft.fftn`; "
        "MiB, `jnp.fft.fftn`",
        points=("128^3", "256^3"),
        **{"JAX's collectives": ("MPI",)},
    ),
    "fields": lambda r: excerpt(
        random_fields(r),
        "ranks; points; part of the whole; part alone; whole / part; MiB, whole; MiB, part",
        points=("256^3", "320^3"),
    ),
    "gradients": gradients,
    "products": lambda r: excerpt(
        inner_products(r),
        "type; elements; plain; reproducible; reproducible / plain",
        MPI=("MPICH",),
        ranks=("2",),
    ),
    "iterations": lambda r: excerpt(
        conjugate_gradients(r),
        "cells; `cg`; pipelined; two allreduces; `cg` / two; pipelined / `cg`",
        MPI=("MPICH",),
        ranks=("2",),
    ),
    "checkpoints": checkpoints,
    "output": output,
    "pages": lambda r: excerpt(
        huge_pages(r),
        "operation; iterations; small pages / mpi4py; ours / mpi4py; "
        "GLIBC_TUNABLES / mpi4py",
    ),
    "resident": resident,
    "overlap": lambda r: excerpt(
        overlap(r),
        "message; message alone; computation alone; one after the other; "
        "the same, in two parts; overlap",
        MPI=("MPICH",),
        message=("one, 50 ms late", "64 KiB", *CELLS.values()),
    ),
    "cores": lambda r: excerpt(
        shared_cores(r),
        "ranks; products; allreduce; 0.9.1; mpi4py; psum, MPI; psum, gloo; "
        "allreduce / gloo; psum, MPI / gloo",
        MPI=("MPICH",),
    ),
    "messages": lambda r: excerpt(
        permutations(r),
        "messages along; ours; ours, outside; ppermute, MPI / ours; ppermute, gloo / ours",
        ranks=("2",),
    ),
    "programs": runs,
}


# The pages.

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "performance"
PAGES = tuple(
    ROOT / name
    for name in ("README.md", "docs/performance.md", "docs/sharded-or-messages.md")
)


def environment_of(r: Results) -> str:
    machine: Mapping[str, Any] = r.samples["machine"]
    return (
        f"{machine['processor'].replace('(R)', '')} ({machine['cores']} cores), Linux "
        f"{machine['system'].partition('-')[0]}, Python {machine['python']}, "
        f"JAX {machine['jax']}, MPICH {machine['mpich']}"
    )


def tables_page(r: Results) -> str:
    text = f"Medians, in microseconds unless a title says otherwise. {environment_of(r)}.\n"
    for title, (about, rows) in TABLES.items():
        if measured := rows(r):
            text += f"\n## {title}\n\n{about}.\n\n{table(measured)}"
    return text


def with_figures(text: str, r: Results) -> str:
    """A page, with its tables as the results have them."""

    def replaced(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name == "machine":
            return f"{begin}{environment_of(r)}\n{end}"
        return f"{begin}\n{table(EXCERPTS[name](r))}\n{end}"

    pattern = r"(<!-- figures: (\w+) -->\n?).*?(<!-- end -->)"
    return re.sub(pattern, replaced, text, flags=re.DOTALL)


def pages(r: Results) -> dict[Path, str]:
    """The texts of all pages with figures, by their paths."""
    head = (
        "---\norphan: true\n---\n\n# All figures\n\n"
        "[Performance](../performance.md) explains them.\n\n"
    )
    return {
        FOLDER / "tables.md": head + tables_page(r),
        **{page: with_figures(page.read_text(), r) for page in PAGES},
    }


def rounded(results: Any) -> Any:
    """The results, with four digits of each sample."""
    if isinstance(results, dict):
        return {name: rounded(value) for name, value in results.items()}
    if isinstance(results, list):
        return [float(f"{sample:.4g}") for sample in results]
    return results


def in_lines(results: Any) -> str:
    """JSON, with a line for the samples of each case."""
    text = json.dumps(results, indent=1)
    return re.sub(r"\[[^\]]*\]", lambda samples: " ".join(samples[0].split()), text) + "\n"


# Plots.


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 12, "axes.titlesize": 12})
    from matplotlib import pyplot

    return pyplot


def plot_dispatch(r: Results, path: Path) -> None:
    bars = [
        ("empty jitted call", OURS, "empty", "0.7"),
        ("mpi4py", OURS, "mpi4py", COLORS["mpi4py"]),
        (f"jit, {LABELS[OURS]}", OURS, "jit", COLORS[OURS]),
        (f"eager, {LABELS[OURS]}", OURS, "eager", COLORS[OURS]),
        (f"jit, {LABELS[UPSTREAM]}", UPSTREAM, "jit", COLORS[UPSTREAM]),
        (f"eager, {LABELS[UPSTREAM]}", UPSTREAM, "eager", COLORS[UPSTREAM]),
    ]
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    values = [r("dispatch", peer, case) or 0 for _, peer, case, _ in bars]
    drawn = axis.barh([b[0] for b in bars], values, color=[b[3] for b in bars])
    axis.bar_label(drawn, [f" {format_number(v)} µs" for v in values])
    axis.set_xscale("log")
    axis.set_xlim(1, 30 * max(values))
    axis.invert_yaxis()
    axis.set_xlabel("time of a call (µs)")
    axis.set_title("allreduce of 8 bytes on 2 ranks", loc="left")
    figure.savefig(path, dpi=130)


def plot_sizes(r: Results, path: Path, *, bandwidth: bool) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(8, 4), sharey=True, layout="constrained")
    panels = (
        ("one jitted call", "latency", "jit, ", "mpi4py, "),
        ("in a loop", "loops", "allreduce, ", "mpi4py, allreduce, "),
    )
    for axis, (title, workload, case, reference) in zip(axes, panels, strict=True):
        for label, peer, where, prefix in (
            (OURS, OURS, workload, case),
            (UPSTREAM, UPSTREAM, workload, case),
            (GLOO, GLOO, "psum, 2", case.replace("allreduce", "psum")),
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


def plot(r: Results, folder: Path) -> None:
    plot_dispatch(r, folder / "dispatch.png")
    plot_sizes(r, folder / "latency.png", bandwidth=False)
    plot_sizes(r, folder / "bandwidth.png", bandwidth=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument(
        "--docs", action="store_true", help="write the pages of the documentation"
    )
    args = parser.parse_args()
    samples = json.loads(args.results.read_text())
    if args.docs:
        samples = rounded(samples)
        (FOLDER / "results.json").write_text(in_lines(samples))
        for path, text in pages(Results(samples)).items():
            path.write_text(text)
        plot(Results(samples), FOLDER)
        return
    r = Results(samples)
    text = tables_page(r)
    args.results.with_name("table.md").write_text(text)
    print(text)
    plot(r, args.results.parent)
    print(f"wrote {args.results.parent}")


if __name__ == "__main__":
    main()
