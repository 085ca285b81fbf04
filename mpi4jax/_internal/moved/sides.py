"""The messages of one side, those sent or those received, and the parts of arrays in them.

There is an array for each process and each type. It has the parts of all fields of that
type, one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from ..arguments.types import Array
from ..operations._messages import Messages
from ..xla.jax_compat import ShapedArray
from .copies import Copy, CopyList, View


class Part(NamedTuple):
    """A part of a field, and where a message has it."""

    in_field: View
    in_message: View


class Side:
    """The messages of one side, whose arrays are numbered after the fields.

    Arguments:
        types: The types of the fields.
        ranks: Of each message, the rank of the process on the other side, or a parameter
            that stands for it.
        tag: The tag of all messages.
        part: The part of a field that a message has, by the indices of the message and of
            the field.

    """

    def __init__(
        self,
        types: Sequence[ShapedArray],
        ranks: Sequence[int],
        tag: int,
        part: Callable[[int, int], View],
    ) -> None:
        #: The types of the arrays.
        self.types: list[ShapedArray] = []
        #: The parts in these arrays.
        self.parts: list[Part] = []
        dtypes = list(dict.fromkeys(x.dtype for x in types))
        for message, dtype in itertools.product(range(len(ranks)), dtypes):
            fields = [n for n, x in enumerate(types) if x.dtype == dtype]
            array = len(types) + len(self.types)
            size = 0
            for field in fields:
                in_field = part(message, field)
                shape = tuple(in_field.sizes)
                in_message = View(array, shape, size, tuple(map(range, shape)))
                self.parts.append(Part(in_field, in_message))
                size += in_field.size
            self.types.append(ShapedArray((size,), dtype))
        count = len(ranks)
        self.messages = Messages(tuple(ranks), (tag,) * count, (len(dtypes),) * count)

    def packing(self) -> CopyList:
        """The function that appends the messages to the fields."""
        copies = tuple(itertools.starmap(Copy, self.parts))
        return CopyList((copies,), appended=tuple(self.types))

    def unpacking(self) -> CopyList:
        """The function that puts the messages into the fields, and drops them."""
        copies = [Copy(in_message, in_field) for in_field, in_message in self.parts]
        copies.sort(key=lambda copy: copy.result.array)
        return CopyList((tuple(copies),), dropped=tuple(self.types))

    def buffers(self) -> list[Array]:
        return [jnp.zeros(x.shape, x.dtype) for x in self.types]
