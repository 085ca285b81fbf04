"""The base class of the cases: one process's part in a call."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from .operators import SUM, Array, Operator

Shape = tuple[int, ...]
Arrays = Sequence[Array]


class Case:
    """The part of one process in a call; a subclass for each operation.

    Arguments:
        comm: The communicator; by default the one of calls without `comm`.
        root: The root of a rooted operation; by default its `usual_root`.
        operator: The operator of a reduction.
        status: The status that a receiving operation fills.

    """

    #: The public functions that are called.
    operations: tuple[str, ...] = ()
    #: The MPI function that these call, if it is only one, and its debug line (see `log`).
    line = "", ""
    #: The name of a further case of an operation, empty for the first case.
    variant = ""
    #: Rank of the root for tests that name none (-1: the last rank).
    usual_root: int | None = None
    #: Whether the arrays of the other processes only lend their shape and type.
    reads_root_only = False
    is_reduction = False
    #: Whether the result is one value that all processes share (docs/autodiff.md).
    is_shared = False
    has_derivative = True
    #: Whether the core may split a long array into several messages.
    goes_in_pieces = False
    #: The number of processes that it needs.
    least_size = 1

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        root: int | None = None,
        operator: Operator = SUM,
        status: MPI.Status | None = None,
    ) -> None:
        group = MPI.COMM_WORLD if comm is None else comm
        self.comm = comm
        self.rank, self.size = group.Get_rank(), group.Get_size()
        self.root_argument = root
        #: The rank of the root, if the operation has one.
        self.root: Any = root
        if root is None and self.usual_root is not None:
            self.root = self.usual_root % self.size
        self.operator = operator
        self.status = status

    def call(self, x: Any) -> Any:
        """Call the operation with an array or a tree of arrays, in a program or outside."""
        raise NotImplementedError

    def shape(self, block: Shape) -> Shape:
        """The shape of this process's array, made of blocks (or rows) of one shape."""
        return block

    def result(self, xs: Arrays) -> Array:
        """The exact result on this process, from the arrays of all in rank order."""
        raise NotImplementedError

    def parts(self, length: int) -> list[int] | None:
        """The elements of a reduction's result on each process, for blocks of `length`.

        None where the result is not divided among the processes.
        """
        return None

    def log(self, sent: int, received: int) -> dict[str, str]:
        """The functions of MPI that are called, in order, and their debug lines.

        Arguments:
            sent: The number of elements of the array.
            received: The number of elements of the result.

        """
        function, text = self.line
        return {function: text.format(sent=sent, received=received, root=self.root)}

    @property
    def is_read(self) -> bool:
        """Whether this process's array is read, and not only its shape and type."""
        return self.is_root or not self.reads_root_only

    def replace(self, **changes: Any) -> Case:
        """The case with some arguments changed."""
        arguments = {
            "comm": self.comm,
            "root": self.root_argument,
            "operator": self.operator,
            "status": self.status,
        }
        return type(self)(**{**arguments, **changes})

    def of(self, rank: int) -> Case:
        """The part of another process."""
        case = copy.copy(self)
        case.rank = rank
        return case

    def arrays(self, make: Callable[[int, Shape], Array], block: Shape) -> list[Array]:
        """The arrays of all processes, by a function of the rank and the shape."""
        return [make(rank, self.of(rank).shape(block)) for rank in range(self.size)]

    @property
    def name(self) -> str:
        operator = "" if self.operator.name == "SUM" else self.operator.name
        parts = " and ".join(self.operations), self.variant, operator
        return "-".join(filter(None, parts))

    @property
    def calls(self) -> Counter[str]:
        """The number of calls of each MPI function."""
        return Counter(self.log(0, 0).keys())

    @property
    def roots(self) -> Sequence[int | None]:
        """The roots to test with: the first process, and the last one."""
        return [None] if self.root is None else sorted({0, self.size - 1})

    @property
    def is_root(self) -> bool:
        return bool(self.rank == self.root)

    @property
    def is_linear(self) -> bool:
        return not self.is_reduction or self.operator.name == "SUM"

    @property
    def left(self) -> int:
        return (self.rank - 1) % self.size

    @property
    def right(self) -> int:
        return (self.rank + 1) % self.size

    @property
    def counts(self) -> list[int]:
        """The rows of each process: unequal, and zero on the third."""
        return [(1, 3, 0, 2)[rank % 4] for rank in range(self.size)]

    def rows_to_each(self, sender: int) -> list[int]:
        """The rows that a process sends to each, some zero; it receives other counts."""
        return [(sender - receiver + 1) % 3 for receiver in range(self.size)]
