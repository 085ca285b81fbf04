"""Short descriptions of the hosts of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mpi4jax._override import override

from . import ranks
from .facts import Facts

#: The lines of a section of the report: a label, and a text.
Section = Sequence[tuple[str, str]]


class Kind(NamedTuple):
    """The properties by which hosts are grouped."""

    rank_count: int
    cpus: float
    #: Whether several ranks may run on the same CPU.
    are_cpus_shared: bool
    huge_pages: str | None

    @override
    def __str__(self) -> str:
        return f"{self.cpus:g} CPU(s) allowed, huge pages: {self.huge_pages or 'unknown'}"


class Host(NamedTuple):
    """A host, and the ranks on it."""

    name: str
    ranks: Sequence[int]
    kind: Kind


def of_ranks(facts_by_rank: Sequence[Facts]) -> list[Host]:
    """The hosts of all ranks."""
    hosts = []
    names = [facts["host"]["name"] for facts in facts_by_rank]
    for name, ranks_there in ranks.by_value(names).items():
        facts_of_host = [facts_by_rank[rank]["host"] for rank in ranks_there]
        bound = [cpu for host in facts_of_host for cpu in host["cpus"]]
        is_shared = len(set(bound)) < len(bound)
        pages = facts_of_host[0]["huge_pages"]
        kind = Kind(len(ranks_there), cpus(facts_of_host), is_shared, pages)
        hosts.append(Host(name, ranks_there, kind))
    return hosts


def _kinds(hosts: Iterable[Host]) -> dict[Kind, list[str]]:
    """The names of the hosts of each kind."""
    kinds: dict[Kind, list[str]] = {}
    for host in hosts:
        kinds.setdefault(host.kind, []).append(host.name)
    return kinds


def cpus(hosts: Sequence[Facts]) -> float:
    """Number of CPUs that the ranks of one host have together."""
    all_cpus = {cpu for host in hosts for cpu in host["cpus"]}
    quotas: list[float] = [host["quota"] for host in hosts if host["quota"]]
    return min([float(len(all_cpus)), *quotas])


def describe(hosts: Sequence[Host]) -> Section:
    """A line for each host, or for each kind of hosts if there are many."""
    if len(hosts) <= ranks.MAX_SHOWN:
        return [_describe_one(host) for host in hosts]
    by_name = {host.name: host for host in hosts}
    kinds = _kinds(hosts)
    shown, left = ranks.commonest(kinds)
    lines = []
    for kind in shown:
        names = kinds[kind]
        if len(names) == 1:
            lines.append(_describe_one(by_name[names[0]]))
            continue
        text = f"{ranks.first_of(names)}: {kind.rank_count} rank(s) each, {kind}"
        lines.append((f"{len(names)} hosts", text))
    if left:
        others = [name for kind in left for name in kinds[kind]]
        text = f"{ranks.first_of(others)}: {len(left)} more kinds"
        lines.append((f"{len(others)} hosts", text))
    return lines


def _describe_one(host: Host) -> tuple[str, str]:
    return host.name, f"{ranks.name_ranks(host.ranks)}, {host.kind}"


def describe_crowds(hosts: Sequence[Host]) -> str:
    """Description of the hosts with more ranks than CPUs."""
    kinds = {kind: names for kind, names in _kinds(hosts).items() if _is_crowded(kind)}
    return _describe_sharing(kinds, "more ranks than CPUs")


def describe_unbound(hosts: Sequence[Host]) -> str:
    """Description of the hosts with enough CPUs, some of which ranks share nevertheless."""
    kinds = {
        kind: names
        for kind, names in _kinds(hosts).items()
        if kind.are_cpus_shared and not _is_crowded(kind)
    }
    return _describe_sharing(kinds, "ranks that share CPUs")


def _is_crowded(kind: Kind) -> bool:
    return kind.rank_count > kind.cpus


def _describe_sharing(kinds: dict[Kind, list[str]], problem: str) -> str:
    shown, left = ranks.commonest(kinds)
    parts = []
    for kind in shown:
        names = kinds[kind]
        where = names[0]
        if len(names) > 1:
            where = f"each of {len(names)} hosts ({ranks.first_of(names)})"
        parts.append(f"{kind.rank_count} ranks share {kind.cpus:g} CPU(s) on {where}")
    if left:
        count = sum(len(kinds[kind]) for kind in left)
        parts.append(f"and {count} more hosts have {problem}")
    return ", ".join(parts)
