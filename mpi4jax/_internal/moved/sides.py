"""The messages of one side, those sent or those received, and the parts of arrays in them.

There is an array for each process and each type. It has the parts of all fields of that
type, one after the other. Where that is one part, and contiguous, the message may be in the
field itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..arguments.types import Array
from ..mpi.handles import Communicator
from ..operations._lowering import call_in_program
from ..operations._messages import Messages, message_attributes
from ..operations.exchange import Exchange
from ..xla.call_sites import Envelope, Envelopes
from ..xla.jax_compat import LoweringContext, ShapedArray, Value
from .copies import Copy, CopyList, View


class Part(NamedTuple):
    """A part of a field, and where a message has it."""

    in_field: View
    in_message: View


class Span(NamedTuple):
    """The elements of an array that a message has, from one on."""

    array: int
    first: int
    size: int


class Side:
    """The messages of one side, whose arrays are numbered after the fields.

    Arguments:
        types: The types of the fields.
        ranks: Of each message, the rank of the process on the other side, or a parameter
            that stands for it.
        tag: The tag of all messages.
        part: The part of a field that a message has, by the indices of the message and of
            the field.
        is_in_place: Whether messages may be in the fields.

    """

    def __init__(
        self,
        types: Sequence[ShapedArray],
        ranks: Sequence[int],
        tag: int,
        part: Callable[[int, int], View],
        *,
        is_in_place: bool = False,
    ) -> None:
        #: The types of the fields.
        self.fields = list(types)
        #: The types of the arrays of messages that are not in a field.
        self.types: list[ShapedArray] = []
        #: The parts in these arrays.
        self.parts: list[Part] = []
        #: The elements that each message has.
        self.spans: list[Span] = []
        dtypes = list(dict.fromkeys(x.dtype for x in types))
        for message, dtype in itertools.product(range(len(ranks)), dtypes):
            fields = [n for n, x in enumerate(types) if x.dtype == dtype]
            views = [part(message, field) for field in fields]
            if is_in_place and len(views) == 1 and views[0].is_contiguous:
                self.spans.append(Span(fields[0], views[0].offset, views[0].size))
                continue
            array = len(types) + len(self.types)
            size = 0
            for in_field in views:
                shape = tuple(in_field.sizes)
                in_message = View(array, shape, size, tuple(map(range, shape)))
                self.parts.append(Part(in_field, in_message))
                size += in_field.size
            self.types.append(ShapedArray((size,), dtype))
            self.spans.append(Span(array, 0, size))
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

    def envelopes(self) -> tuple[Envelope, ...]:
        """Those of messages of one type, which may be in a field."""
        dtype = self.fields[0].dtype
        sizes = [ShapedArray((span.size,), dtype) for span in self.spans]
        return self.messages.envelopes(sizes)


def lower_exchange(
    ctx: LoweringContext,
    communicator: Communicator,
    sent: Side,
    received: Side,
    values: Sequence[Value],
) -> list[Value]:
    """Lower the call that sends and receives messages of one type, which may be in fields.

    Arguments:
        ctx: What JAX hands to a lowering rule.
        communicator: The communicator.
        sent, received: The two sides.
        values: The fields to send from and the arrays of their messages, and then the
            fields to receive into.

    Returns:
        The fields that were received into, and the arrays of the other messages.

    """
    envelopes = Envelopes(sent.envelopes(), received.envelopes())
    first = len(sent.fields) + len(sent.types)
    return call_in_program(
        ctx,
        communicator,
        Exchange.name,
        values,
        {
            **message_attributes(communicator, sent.messages, received.messages),
            "sent": np.array(sent.spans, np.int64).reshape(-1),
            "received": np.array(received.spans, np.int64).reshape(-1),
        },
        envelopes,
        envelopes,
        avals_in=[*sent.fields, *sent.types, *received.fields],
        avals_out=[*received.fields, *received.types],
        aliases={first + n: n for n in range(len(received.fields))},
    )
