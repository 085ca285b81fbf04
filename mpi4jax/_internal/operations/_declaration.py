"""The declaration of an operation, and the rules that follow from it alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..arguments.dtypes import check_dtype, check_reduction
from ..layout.packing import packed_groups, unpack_groups
from ..mpi.handles import Communicator
from ..xla import call_sites
from ..xla.effects import ordered_effect
from ..xla.jax_compat import ShapedArray, VaryingPrimitive, ad
from ._arguments import like
from ._messages import Messages

_operations: dict[str, Declaration] = {}
_by_primitive: dict[VaryingPrimitive, Declaration] = {}


def get_operation(name: str) -> Declaration:
    """The operation with a name.

    Derivatives refer to other operations, which refer to them. They do so by name, and no
    file of an operation imports another.
    """
    return _operations[name]


def operation_of(primitive: Any) -> Declaration | None:
    """The operation with a primitive."""
    return _by_primitive.get(primitive)


class Declaration:
    """An MPI operation on arrays, as the file of the operation declares it.

    A subclass sets the attributes, and overrides the first group of methods below, where it
    differs from a linear operation on all processes that reads one array and gives another
    one like it (as MPI_Allreduce with MPI_SUM does).

    The parameters of a call, `params`, are integers, or tuples of them, which `_number` at
    the end tells to stand for an MPI object, and `communicator`, a :class:`Communicator`.
    """

    #: The name of the operation, of its handler, and of its primitive.
    name: ClassVar[str]
    #: The names of the array arguments.
    operands: ClassVar[tuple[str, ...]] = ("x",)
    #: How many of the operands, the last ones, are numbers of rows. These have no
    #: derivative, and if they differ within a batch, no message has room for all members.
    count_operands: ClassVar[int] = 0
    #: Whether the result takes the memory of the first operand, if XLA has no further use
    #: for that.
    in_place: ClassVar[bool] = False
    #: Whether the function returns anything.
    has_result: ClassVar[bool] = True
    #: Whether each leaf of a tree is an operand of the primitive. Else leaves are packed
    #: into groups, with a call for each.
    takes_leaves: ClassVar[bool] = False
    #: Whether all processes of the communicator take part. Else two do: the sender of a
    #: message and its receiver.
    is_collective: ClassVar[bool] = True
    #: The names of the parameters that only JAX's rules look at, so that programs which
    #: differ only in these are compiled once.
    unlowered_params: ClassVar[tuple[str, ...]] = ()

    primitive: VaryingPrimitive

    def __init__(self) -> None:
        # Forms of an operation that derivatives or tokens need share its name.
        _operations.setdefault(self.name, self)
        self.primitive = VaryingPrimitive(f"{self.name}_mpi")
        _by_primitive[self.primitive] = self

    # The methods to override.

    def written_aval(self, *avals: Any, **params: Any) -> ShapedArray | None:
        """The type of what MPI writes on this process, or None if it writes nothing."""
        return like(avals[0])

    def read_operands(self, **params: Any) -> int:
        """How many operands, the first ones, the handler gets.

        The others only lend their shape and type.
        """
        return len(self.operands)

    def aval_in_flight(self, *avals: Any, **params: Any) -> ShapedArray | None:
        """The type of what the core has of the nonblocking form until it is waited for."""
        return self.written_aval(*avals, **params)

    def forwarded_operand(self, **params: Any) -> int | None:
        """The position of the operand that is the result on this process.

        None where the result is what MPI writes.
        """
        return None

    def unwritten_rows(self, **params: Any) -> Sequence[tuple[int, int]]:
        """The rows of the result that MPI leaves as they are. They become zeros.

        Each part is a first row and a number of rows.
        """
        return ()

    def batch_axes(self, **params: Any) -> tuple[int, int]:
        """The axes of operands and result at which a message has a batch.

        They are 1 where the first axis belongs to processes: a batch must not separate the
        rows of different processes, which MPI takes from contiguous parts of the buffer.
        """
        return 0, 0

    def envelopes(self, *avals: Any, **params: Any) -> call_sites.Envelopes | None:
        """The messages of a call, where its attributes do not say which these are."""
        return None

    def messages(self, **params: Any) -> tuple[Messages, Messages] | None:
        """The messages that are sent and received, if the operation is no other thing.

        The operands are the arrays that are sent, then those for what is received, in the
        order of the messages.
        """
        return None

    def check_batch(self, axes: Sequence[int | None], **params: Any) -> None:
        """Raise RuntimeError if a batch at these axes of the operands has no meaning."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        """The results, and their tangents: by default those of a linear operation."""
        results = self.primitive.bind(*primals, **params)
        tangents = [ad.instantiate_zeros(tangent) for tangent in tangents]
        first_count = len(primals) - self.count_operands
        operands = *tangents[:first_count], *primals[first_count:]
        return results, self.primitive.bind(*operands, **params)

    def check_transpose(self, **params: Any) -> None:
        """Raise NotImplementedError if the operation has no transpose."""

    def transpose(self, *args: Any, **params: Any) -> Any:
        """The cotangent of the operand, or a tuple with those of all operands.

        Arguments:
            args: The cotangents of the results, and then the operands: only the types of
                those that the operation is transposed by.
            params: The parameters of the call.

        """
        raise NotImplementedError(f"{self.name} can't be transposed")

    # What follows from these.

    def result_avals(self, *avals: Any, **params: Any) -> list[ShapedArray]:
        """The types of the results on this process: one, or none."""
        forwarded = self.forwarded_operand(**params)
        if forwarded is not None:
            return [like(avals[forwarded])]
        written = self.written_aval(*avals, **params)
        return [] if written is None else [written]

    def check_avals(self, function: str, *avals: Any, **params: Any) -> None:
        """Raise TypeError if operands of these types can't be sent, or not be reduced.

        The error names the function of the user's.
        """
        for name, aval in zip(self.operands, avals, strict=True):
            check_dtype(function, name, aval.dtype)
        if "op_number" in params:
            check_reduction(function, params["op_number"], avals[0].dtype)

    def attributes(self, *, communicator: Communicator, **params: Any) -> dict[str, Any]:
        """The parameters in the form in which the handler gets them."""
        lowered = {"comm_number": communicator.number, **params}
        return {
            name: np.array(value, np.int64)[()]  # a scalar of what is none
            for name, value in lowered.items()
            if name not in self.unlowered_params
        }

    def abstract_eval(self, *avals: Any, **params: Any) -> Any:
        """The types of the results, and the effects of a call."""
        self.check_avals(self.name, *avals, **params)
        return self.result_avals(*avals, **params), {ordered_effect}

    def apply(self, *operands: Any, **params: Any) -> Any:
        """Call MPI, in whatever is being traced or differentiated.

        Returns:
            The result, or None where this process has none.

        """
        results = self.primitive.bind(*operands, **params)
        if not results:
            return None
        counts = operands[len(operands) - self.count_operands :]
        return self.complete(results[0], *counts)

    def complete(self, result: Any, *counts: Any) -> Any:
        """The result of a call, from what its primitive gives and from numbers of rows."""
        return result

    def apply_packed(self, *operands: Any, **params: Any) -> Any:
        """Call MPI for a packed group of leaves for each operand.

        A group is None where the tree of another operand has more groups.
        """
        return self.apply(*operands, **params)

    def apply_to_leaves(self, *operands: Any, **params: Any) -> list[Any]:
        """Call MPI for a list of leaves in place of each operand that is an array.

        Returns:
            The results for the leaves of the last one, or an empty list without results.

        """
        first_count = len(operands) - self.count_operands
        axis, result_axis = self.batch_axes(**params)
        results = []
        for packed, group in packed_groups(operands[:first_count], axis):
            result = self.apply_packed(*packed, *operands[first_count:], **params)
            if result is not None and group.indices:
                results.append((group, result))
        return unpack_groups(results, axis, result_axis)
