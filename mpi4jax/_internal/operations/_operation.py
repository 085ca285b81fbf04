"""MPI operations on arrays, as primitives of JAX."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

import jax.numpy as jnp
import numpy as np

from ..arguments import dtypes
from ..arguments.dtypes import carrier_aval
from ..arguments.types import Array, ArrayLike, DType, PyTree, Shaped
from ..layout.packing import packed_groups, unpack_groups
from ..mpi.handles import Communicator
from ..xla.call_sites import Envelopes
from ..xla.jax_compat import (
    LoweringContext,
    ShapedArray,
    Tangent,
    Value,
    VaryingPrimitive,
    convert,
    is_undonated_argument,
    lower_with,
    vary,
)
from ._arguments import like
from ._computed import is_computed
from ._eager import ArrayOrLeaves, evaluate
from ._lowering import Attributes, call_in_program
from ._messages import Messages
from ._neighbors import UnwrittenRows
from ._transposes import (
    Cotangents,
    Jvp,
    instantiated,
    transpose_rule,
)

X = TypeVar("X")


@dataclass(frozen=True)
class Operation:
    """An MPI operation on arrays, with the parameters of a call.

    A subclass is the declaration of an operation, in the file of its name. Its fields are
    the parameters: integers, or tuples of them, which `_number` at the end tells to stand
    for an MPI object. An instance is the one parameter of the primitive that
    :func:`as_primitive` makes, and the rules of that are methods.

    A subclass sets the attributes, and overrides the first group of methods, where it
    differs from a linear operation on all processes that reads one array and gives another
    one like it (as MPI_Allreduce with MPI_SUM does).
    """

    communicator: Communicator

    #: The name of the operation, of its handler, and of its primitive.
    name: ClassVar[str]
    #: The names of the array arguments.
    operands: ClassVar[tuple[str, ...]] = ("x",)
    #: Number of trailing operands that hold row counts.
    count_operands: ClassVar[int] = 0
    #: Whether the result takes the memory of the first operand, if XLA has no further use
    #: for that.
    in_place: ClassVar[bool] = False
    #: Whether the function returns anything.
    has_result: ClassVar[bool] = True
    #: Whether all processes of the communicator take part, and not only the sender and the
    #: receiver of a message.
    is_collective: ClassVar[bool] = True
    #: Whether the operation is one end of a message, whose other end JAX does not know.
    is_one_sided: ClassVar[bool] = False
    #: Whether blocks go to neighbors in the topology of the communicator.
    has_neighbors: ClassVar[bool] = False
    #: Whether all processes have the same result.
    is_same_everywhere: ClassVar[bool] = False
    #: The fields that only JAX's rules look at, so that programs which differ only in these
    #: are compiled once.
    unlowered: ClassVar[tuple[str, ...]] = ()

    primitive: ClassVar[VaryingPrimitive[list[Array]]]

    # The methods to override.

    def written_aval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray | None:
        """The type of the array that MPI writes on this process, or None without one."""
        return like(x)

    def read_operands(self) -> int:
        """Number of leading operands that the handler gets.

        The others only lend their shape and type.
        """
        return len(self.operands)

    def ranks(self) -> Sequence[int]:
        """The ranks among the parameters.

        A rank that the program computes is given by its index in the last operand
        (`_computed.py`).
        """
        return ()

    def aval_in_flight(self, *avals: ShapedArray) -> ShapedArray | None:
        """The type of the array that the core holds from start to wait of the operation.

        None if it holds none.
        """
        return self.written_aval(*avals)

    def forwarded_operand(self) -> int | None:
        """The position of the operand that is the result on this process.

        None where the result is what MPI writes.
        """
        return None

    def unwritten_rows(self) -> UnwrittenRows | None:
        """The rows of the result that MPI does not write, and that become zeros."""
        return None

    def batch_axes(self) -> tuple[int, int]:
        """The axes of operands and result at which a message has a batch.

        An axis is 1 where the first axis of the array belongs to processes: MPI takes the
        rows of each process from a contiguous part of the buffer, which a batch in front
        would divide.
        """
        return 0, 0

    def envelopes(self, *avals: ShapedArray) -> Envelopes | None:
        """The messages of a call, if its attributes do not describe them."""
        return None

    def messages(self) -> tuple[Messages, Messages] | None:
        """The messages sent and received by an operation that does nothing else, or None.

        Its operands are the arrays to send and then the arrays like the received ones, each
        in the order of the messages.
        """
        return None

    @property
    def has_status(self) -> bool:
        """Whether MPI fills a status of the user's."""
        return False

    def check_dtype(self, function: str, argument: str, dtype: DType) -> None:
        """Raise TypeError if arrays of this data type can't be sent or reduced.

        The error names the user's function and its argument.
        """
        dtypes.check_dtype(function, argument, dtype)

    def check_batch(self, axes: Sequence[int | None]) -> None:
        """Raise RuntimeError if a batch at these axes of the operands has no meaning."""

    @property
    def is_linear(self) -> bool:
        """Whether tangents go through the operation itself."""
        return True

    def jvp(self, primals: Sequence[Array], tangents: Sequence[Tangent]) -> Jvp:
        """The results and their tangents, by default as of a linear operation."""
        arrays, numbers = self.split_operands(primals)
        pushed = instantiated(tangents[: len(arrays)])
        return self.bind(*primals), self.bind(*pushed, *numbers)

    def check_transpose(self) -> None:
        """Raise NotImplementedError if the operation has no transpose."""

    def transpose(
        self,
        cotangents: Sequence[Array],
        types: Sequence[Shaped],
        numbers: Sequence[Array],
    ) -> Cotangents:
        """Cotangents of the operands, from the cotangents of the results.

        Arguments:
            cotangents: The cotangents of the results.
            types: The types of the operands that are arrays. In place of the type of an
                operand without a cotangent, the operand itself may be there.
            numbers: The other operands (:meth:`split_operands`).

        Returns:
            The cotangents of the first operands. The others have none.

        """
        return transpose_rule(self, cotangents, types, numbers)

    # What follows from these.

    @property
    def is_computed(self) -> bool:
        """Whether the last operand has ranks that the program computes."""
        return any(map(is_computed, self.ranks()))

    def split_operands(self, operands: Sequence[X]) -> tuple[Sequence[X], Sequence[X]]:
        """The array operands, and the operands of numbers: row counts, and ranks.

        Numbers have no derivative. If they differ within a batch, no message has room for
        all members.
        """
        array_count = len(operands) - self.count_operands - self.is_computed
        return operands[:array_count], operands[array_count:]

    def result_avals(self, *avals: ShapedArray) -> list[ShapedArray]:
        """The types of the results on this process: one, or none."""
        forwarded = self.forwarded_operand()
        if forwarded is not None:
            return [like(avals[forwarded])]
        written = self.written_aval(*avals)
        return [] if written is None else [written]

    def check_avals(self, function: str, *avals: ShapedArray) -> None:
        """Raise TypeError if operands of these types can't be sent or reduced."""
        # Ranks are last, and have no name.
        for name, aval in zip(self.operands, avals, strict=False):
            self.check_dtype(function, name, aval.dtype)

    def invariant_axes(self) -> Sequence[Hashable]:
        """The axes of a mesh along which the result is the same on all processes."""
        return self.communicator.axes if self.is_same_everywhere else ()

    def attributes(self) -> Attributes:
        """The parameters as attributes of the handler's call."""
        names = (field.name for field in fields(self) if field.name not in self.unlowered)
        values = {name: getattr(self, name) for name in names}
        values["comm_number"] = values.pop("communicator").number
        # A scalar of what is none.
        return {name: np.array(value, np.int64)[()] for name, value in values.items()}

    def bind(self, *operands: Array) -> list[Array]:
        """Call MPI, in whatever is being traced or differentiated."""
        return self.primitive.bind(*operands, operation=self)

    def vary(self, x: Array) -> Array:
        """The array, which JAX takes to vary along the communicator's axes of a mesh."""
        return vary(x, self.communicator.axes)

    def with_varying(self, operands: Sequence[ArrayLike]) -> tuple[Operation, list[Array]]:
        """The operation and the operands that a program on a mesh differentiates."""
        return self, [self.vary(jnp.asarray(x)) for x in operands]

    def apply(self, *operands: Array) -> Array:
        """The result of an operation that has one, in whatever is being traced."""
        result: Array = self.call_in_program(*operands)
        return result

    @property
    def is_completed(self) -> bool:
        """Whether :meth:`complete` changes the result of a nonblocking form."""
        return False

    def complete(self, result: Array, *operands: Array) -> Array:
        """The result of a call, from the primitive's result and the operands."""
        return result

    def apply_to_leaves(self, *operands: ArrayOrLeaves) -> list[Array]:
        """Call MPI for lists of leaves, one in place of each array operand.

        Returns:
            The results for the leaves of the last list, or an empty list without results.

        """
        trees, numbers = self.split_operands(operands)
        axis, result_axis = self.batch_axes()
        results = []
        for packed, group in packed_groups(trees, axis):
            result: Array | None = self.call_in_program(*packed, *numbers)
            if result is not None and group.indices:
                results.append((group, result))
        return unpack_groups(results, axis, result_axis)

    def call_in_program(self, *operands: ArrayOrLeaves) -> PyTree:
        """The result of a user's call. The operands are arrays, or lists of leaves.

        In place of a packed group of leaves, one is None where the tree of another operand
        has more groups.
        """
        if operands and type(operands[0]) is list:
            return self.apply_to_leaves(*operands)
        results = self.primitive.bind(*operands, operation=self)
        return self.complete(results[0], *operands) if results else None

    # The rules of JAX's that some operations override.

    def evaluate(self, *operands: Array) -> list[Array]:
        """The results of a primitive that is bound outside of a trace."""
        result = evaluate(self, operands)
        return [] if result is None else [result]

    def lower(self, ctx: LoweringContext, *operands: Value) -> Sequence[Value]:
        """The results of the handler's call in a program that is being lowered.

        Some types have a carrier, another type of the same size that XLA can pass to a
        handler: operands are converted to it, and results from it.
        """
        read = list(range(self.read_operands()))
        if self.is_computed:
            read.append(len(operands) - 1)
        carriers = [carrier_aval(ctx.avals_in[n]) for n in read]
        aval = self.written_aval(*ctx.avals_in)
        written = [] if aval is None else [aval]
        in_place = (
            self.in_place
            and len(written) == 1
            # XLA would copy an argument of the program to have it overwritten.
            and not is_undonated_argument(operands[0])
        )
        envelopes = self.envelopes(*carriers)
        results = call_in_program(
            ctx,
            self.communicator,
            self.name,
            [convert(operands[n], aval) for n, aval in zip(read, carriers, strict=True)],
            self.attributes(),
            envelopes,
            None if self.is_collective else envelopes,
            is_computed=self.is_computed,
            avals_in=carriers,
            avals_out=list(map(carrier_aval, written)),
            aliases={0: 0} if in_place else None,
        )
        forwarded = self.forwarded_operand()
        if forwarded is not None:
            return [operands[forwarded]]
        return self.lower_results(ctx, results, written)

    def lower_results(
        self, ctx: LoweringContext, results: Sequence[Value], avals: Sequence[ShapedArray]
    ) -> list[Value]:
        """The results of the operation, from the results of its handler."""
        unwritten = self.unwritten_rows()
        if unwritten is not None:
            carriers = list(map(carrier_aval, avals))
            results = lower_with(ctx, lambda x: [unwritten.fill(x, 0)], results, carriers)
        return list(map(convert, results, avals))
