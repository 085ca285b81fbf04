"""Names for some of the ranks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def named(ranks: Iterable[int]) -> str:
    """Ranks in ranges: "rank 3", "ranks 0-2, 5"."""
    # Ranks that follow each other are as far from their places in the list.
    runs = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    is_one = len(runs) == 1 and len(runs[0]) == 1
    return f"{'rank' if is_one else 'ranks'} {', '.join(texts)}"


def by_value(values: Sequence[T]) -> Mapping[T, list[int]]:
    """The ranks that have a value, by the value."""
    found: dict[T, list[int]] = {}
    for rank, value in enumerate(values):
        found.setdefault(value, []).append(rank)
    return found


def said_by(texts: Sequence[Sequence[str]]) -> list[str]:
    """What the ranks say, each sentence once, with the ranks if not all say it."""
    sentences = dict.fromkeys(text for said in texts for text in said)
    lines = []
    for sentence in sentences:
        ranks = [rank for rank, said in enumerate(texts) if sentence in said]
        everyone = len(ranks) == len(texts)
        lines.append(sentence if everyone else f"{named(ranks)}: {sentence}")
    return lines
