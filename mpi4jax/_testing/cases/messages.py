"""Cases of messages between two processes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._override import override

from .case import Array, Arrays, Case, Shape


class Exchange(Case):
    """Each process sends its array to both sides, and gets both neighbors' arrays."""

    operations = ("exchange",)
    goes_in_pieces = True

    @override
    def call(self, x: Any) -> Any:
        from_left, _from_right = mpi.exchange(
            [x, x],
            [x, x],
            source=[self.left, self.right],
            dest=[self.right, self.left],
            sendtag=[3, 4],
            recvtag=[3, 4],
            comm=self.comm,
        )
        return from_left

    @override
    def result(self, xs: Arrays) -> Array:
        return xs[self.left]

    @override
    def log(self, sent: int, received: int) -> dict[str, str]:
        left, right = self.left, self.right
        return {
            "Waitall": f"<- {left} (tag 3, {sent} items), <- {right} (tag 4, {sent} items) "
            f"/ -> {right} (tag 3, {sent} items), -> {left} (tag 4, {sent} items)"
        }


class ExchangeOfTrees(Case):
    """Two arrays travel in one message along a line of processes."""

    operations = ("exchange",)
    variant = "tree"

    @override
    def call(self, x: Any) -> Any:
        received = mpi.exchange(
            {"first": x, "second": 2 * x},
            {"first": 3 * x, "second": x},
            source=self.left if self.rank > 0 else MPI.PROC_NULL,
            dest=self.right if self.rank < self.size - 1 else MPI.PROC_NULL,
            comm=self.comm,
        )
        return received["first"]

    @override
    def result(self, xs: Arrays) -> Array:
        return xs[self.left] if self.rank > 0 else 3 * xs[0]

    @override
    def log(self, sent: int, received: int) -> dict[str, str]:
        receives = [f"<- {self.left} (tag 0, {2 * sent} items)"] * (self.rank > 0)
        sends = [f"-> {self.right} (tag 0, {2 * sent} items)"] * (self.rank < self.size - 1)
        return {"Waitall": " / ".join(receives + sends)}


class SendAndRecv(Case):
    """Each process sends to the right and receives from the left; MPI need not buffer."""

    operations = ("send", "recv")
    has_derivative = False  # JAX does not follow a message from one process to another.
    goes_in_pieces = True
    least_size = 2  # MPI need not buffer a message, so none goes to its own sender.

    @override
    def call(self, x: Any) -> Any:
        if self.rank == 0:
            self._send(x)
            return self._recv(x)
        y = self._recv(x)
        self._send(x)
        return y

    def _send(self, x: Any) -> None:
        mpi.send(x, self.right, tag=1, comm=self.comm)

    def _recv(self, x: Any) -> Any:
        return mpi.recv(x, self.left, tag=1, comm=self.comm, status=self.status)

    @override
    def result(self, xs: Arrays) -> Array:
        return xs[self.left]

    @override
    def log(self, sent: int, received: int) -> dict[str, str]:
        send = {"Send": f"-> {self.right} (tag 1, {sent} items)"}
        recv = {"Recv": f"<- {self.left} (tag 1, {received} items)"}
        return send | recv if self.rank == 0 else recv | send


class Sendrecv(Case):
    """Each process sends to the right and receives from the left, in one call."""

    operations = ("sendrecv",)
    goes_in_pieces = True

    @property
    def source(self) -> int:
        return self.left

    @property
    def dest(self) -> int:
        return self.right

    @property
    def tags(self) -> tuple[int, int]:
        """The tags to send and to receive with."""
        return 0, MPI.ANY_TAG

    def buffer(self, x: Any) -> Any:
        """An array of the received shape and type, or a tree of them."""
        return x

    @override
    def call(self, x: Any) -> Any:
        sendtag, recvtag = self.tags
        return mpi.sendrecv(
            x,
            self.buffer(x),
            self.source,
            self.dest,
            sendtag=sendtag,
            recvtag=recvtag,
            comm=self.comm,
            status=self.status,
        )

    @override
    def result(self, xs: Arrays) -> Array:
        return xs[self.left]

    @override
    def log(self, sent: int, received: int) -> dict[str, str]:
        sendtag, recvtag = self.tags
        return {
            "Sendrecv": f"<- {self.source} (tag {recvtag}, {received} items) / "
            f"-> {self.dest} (tag {sendtag}, {sent} items)"
        }


class SendrecvWithTags(Sendrecv):
    """Each message has its own tag, and the buffer is another array."""

    variant = "tags"

    @property
    @override
    def tags(self) -> tuple[int, int]:
        return self.rank + 5, self.left + 5

    @override
    def buffer(self, x: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, x)


class SendrecvInLine(Sendrecv):
    """A line: the last process sends to PROC_NULL, and the first gets its buffer back."""

    variant = "line"

    @property
    @override
    def source(self) -> int:
        return self.left if self.rank > 0 else MPI.PROC_NULL

    @property
    @override
    def dest(self) -> int:
        return self.right if self.rank < self.size - 1 else MPI.PROC_NULL

    @override
    def buffer(self, x: Any) -> Any:
        return jax.tree.map(lambda array: 3 * array, x)

    @override
    def result(self, xs: Arrays) -> Array:
        return xs[self.left] if self.rank > 0 else 3 * xs[0]


class SendrecvOfUnequal(Sendrecv):
    """The received array has another shape than the sent one."""

    variant = "unequal"

    @override
    def shape(self, block: Shape) -> Shape:
        return (self.rank + 1, *block)

    @override
    def buffer(self, x: Any) -> Any:
        def zeros(array: Any) -> Any:
            return jnp.zeros((self.left + 1, *array.shape[1:]), array.dtype)

        return jax.tree.map(zeros, x)
