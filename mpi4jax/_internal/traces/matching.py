"""Which calls of several processes belong together."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: One process sends to all others, or gets something from each.
FROM_ROOT = {"bcast", "scatter", "scatterv"}
TO_ROOT = {"gather", "gatherv", "reduce"}


def first_messages(sent: Array, received: Array) -> Array:
    """The places of the messages that receives get, by their tags; -1 where there is none.

    All messages come from one process, and the receives are one after another.
    """
    is_any = received < 0
    if is_any.all():
        places = np.arange(len(received))
        return np.where(places < len(sent), places, -1)
    if not is_any.any():
        # The n-th receive with a tag gets the n-th message with it.
        found = np.full(len(received), -1)
        for tag in np.unique(received):
            places, wanted = np.flatnonzero(sent == tag), np.flatnonzero(received == tag)
            count = min(len(places), len(wanted))
            found[wanted[:count]] = places[:count]
        return found
    left = deque(enumerate(sent.tolist()))
    found = np.full(len(received), -1)
    for n, tag in enumerate(received.tolist()):
        fits = (k for k, (_, has) in enumerate(left) if tag < 0 or has == tag)
        place = next(fits, None)
        if place is not None:
            found[n] = left[place][0]
            del left[place]
    return found
