"""Short descriptions of many ranks: ranges, and sentences with examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

#: Largest number of items in a list. Of more items, only examples are shown.
MAX_SHOWN = 4


def first_of(texts: Sequence[str]) -> str:
    """A list of texts, or of the first ones if there are many: "a, b, c and 17 more"."""
    if len(texts) <= MAX_SHOWN:
        return ", ".join(texts)
    shown = texts[: MAX_SHOWN - 1]
    return f"{', '.join(shown)} and {len(texts) - len(shown)} more"


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks in ranges: "rank 3", "ranks 0-2, 5", "ranks 0, 2, 4 and 97 more"."""
    # Consecutive ranks have the same difference between the rank and its index in the list.
    runs = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0])
    ]
    shown = runs if len(runs) <= MAX_SHOWN else runs[: MAX_SHOWN - 1]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in shown]
    left = sum(map(len, runs[len(shown) :]))
    is_one = len(runs) == 1 and len(runs[0]) == 1
    more = f" and {left} more" if left else ""
    return f"{'rank' if is_one else 'ranks'} {', '.join(texts)}{more}"


def by_value(values: Iterable[T]) -> Mapping[T, list[int]]:
    """The ranks of each value."""
    ranks: dict[T, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks


def commonest(kinds: Mapping[T, Sequence[object]]) -> tuple[Sequence[T], Sequence[T]]:
    """The kinds to show, which are the largest if there are many, and the other kinds."""
    if len(kinds) <= MAX_SHOWN:
        return list(kinds), []
    ordered = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    return ordered[: MAX_SHOWN - 1], ordered[MAX_SHOWN - 1 :]


def merge_sentences(
    texts: Sequence[Sequence[str]], name: Callable[[Sequence[int]], str] = name_ranks
) -> list[str]:
    """The sentences of all ranks, each once, with its ranks if some ranks lack it.

    The sentences of most ranks come first. If many sentences differ only in words with
    digits, such as the names of files and hosts, one of them is shown as an example.
    """
    speakers: dict[str, list[int]] = {}
    for rank, sentences in enumerate(texts):
        for sentence in dict.fromkeys(sentences):
            speakers.setdefault(sentence, []).append(rank)
    alike: dict[str, list[str]] = {}
    for sentence in speakers:
        alike.setdefault(re.sub(r"\w*\d\w*", "0", sentence), []).append(sentence)
    merged: list[tuple[str, list[int]]] = []
    for sentences in alike.values():
        if len(sentences) <= MAX_SHOWN:
            merged += [(sentence, speakers[sentence]) for sentence in sentences]
        else:
            together = {rank for sentence in sentences for rank in speakers[sentence]}
            example = f"{sentences[0]} (with other names or numbers on other ranks)"
            merged.append((example, sorted(together)))
    merged.sort(key=lambda pair: -len(pair[1]))
    return [
        sentence if len(ranks) == len(texts) else f"{name(ranks)}: {sentence}"
        for sentence, ranks in merged
    ]
