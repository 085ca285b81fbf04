"""Names of some of the ranks, and few lines for many of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

#: Of more than these, only examples are shown.
MOST = 4


def first_of(texts: Sequence[str]) -> str:
    """The texts, the first ones if they are many: "a, b, c and 17 more"."""
    if len(texts) <= MOST:
        return ", ".join(texts)
    shown = texts[: MOST - 1]
    return f"{', '.join(shown)} and {len(texts) - len(shown)} more"


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks in ranges: "rank 3", "ranks 0-2, 5", "ranks 0, 2, 4 and 97 more"."""
    # Of consecutive ranks, the difference to the index in the list is the same.
    runs = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0])
    ]
    shown = runs if len(runs) <= MOST else runs[: MOST - 1]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in shown]
    left = sum(map(len, runs[len(shown) :]))
    is_one = len(runs) == 1 and len(runs[0]) == 1
    more = f" and {left} more" if left else ""
    return f"{'rank' if is_one else 'ranks'} {', '.join(texts)}{more}"


def by_value(values: Iterable[T]) -> Mapping[T, list[int]]:
    """The ranks that have a value, by the value."""
    ranks: dict[T, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks


def commonest(kinds: Mapping[T, Sequence[object]]) -> tuple[Sequence[T], Sequence[T]]:
    """The kinds to show, and those that are left. Of many, the largest ones are shown."""
    if len(kinds) <= MOST:
        return list(kinds), []
    ordered = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    return ordered[: MOST - 1], ordered[MOST - 1 :]


def merge_sentences(
    texts: Sequence[Sequence[str]], name: Callable[[Sequence[int]], str] = name_ranks
) -> list[str]:
    """The sentences of all ranks, each once, with the ranks if not all say it.

    Those of most ranks come first. Of many sentences that differ only in words with
    digits, such as the names of files and hosts, one is an example.
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
        if len(sentences) <= MOST:
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
