"""This node: its CPUs, what a container or a batch system leaves of them, and huge pages.

Imports nothing but Python's own modules.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Environment variables with the number of XLA's threads, by default one for each core.
XLA_THREADS = ("PJRT_NPROC", "NPROC")

_GROUPS, _OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def allowed_cpus() -> list[int]:
    """The CPUs on which this process may run."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def all_cpus(groups: Path = _GROUPS, own: Path = _OWN_GROUP) -> list[int]:
    """The CPUs on which the processes of this node may run together."""
    names = {1: "cpuset.effective_cpus", 2: "cpuset.cpus.effective"}
    for version, folder in _groups_with("cpuset", groups, own):
        if cpus := _numbers(" ".join(_lines(folder / names[version]))):
            return cpus
    return list(range(os.cpu_count() or 1))


def _numbers(text: str) -> list[int]:
    """The numbers in the kernel's notation: "0-2,5" is 0, 1, 2 and 5."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return [n for first, last in ranges for n in range(int(first), int(last or first) + 1)]


def siblings() -> str:
    """The name of the processes that the launcher has started on this node.

    All of them have one parent process, which belongs to the launcher.
    """
    parent = os.getppid()
    # The number alone may be that of an earlier process.
    status = " ".join(_lines(Path(f"/proc/{parent}/stat"))).rpartition(")")[2].split()
    return f"{parent}-{status[19] if len(status) > 19 else 0}"


def nvidia_gpus(folder: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """The number of NVIDIA's GPUs in this node, 0 if unknown."""
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def cpu_quota(groups: Path = _GROUPS, own: Path = _OWN_GROUP) -> float | None:
    """The number of CPUs whose time a container or a batch system leaves this process."""
    quotas = []
    for version, folder in _groups_with("cpu", groups, own):
        if version == 2:
            quotas += [_quota(*line.split()) for line in _lines(folder / "cpu.max")]
        else:
            limit = _lines(folder / "cpu.cfs_quota_us")
            period = _lines(folder / "cpu.cfs_period_us")
            quotas += [_quota(*pair) for pair in zip(limit, period, strict=False)]
    return min((quota for quota in quotas if quota), default=None)


def _groups_with(controller: str, root: Path, own: Path) -> Iterator[tuple[int, Path]]:
    """The control groups of this process, the innermost first, each with its version."""
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from ((2, folder) for folder in _upwards(root, path))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _upwards(root / controller, path))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _upwards(root: Path, path: str) -> Iterable[Path]:
    folder = root / path.lstrip("/")
    return [folder, *folder.parents[: len(folder.parents) - len(root.parents)]]


def _quota(limit: str, period: str) -> float | None:
    return int(limit) / int(period) if limit.isdigit() else None


def huge_pages(
    setting: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled"),
) -> str | None:
    """The kernel's setting for huge pages: "always", on request ("madvise"), or "never"."""
    in_brackets = re.search(r"\[(\w+)\]", " ".join(_lines(setting)))
    return in_brackets and in_brackets[1]
