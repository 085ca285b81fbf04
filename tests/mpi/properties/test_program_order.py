"""XLA runs the programs of a Python thread one after another, of whatever kind they are.

Each program sends its number to the other rank, where mpi4py receives the numbers. Were a
program to overtake another one, they would arrive in another order.

100,000 programs if the file is run as a whole, 2,000 in a sample of the tests.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax.experimental import io_callback
from mpi4py import MPI

from mpi4jax import notoken as mpi

pytestmark = [
    pytest.mark.ranks(2),
    pytest.mark.skipif(
        MPI.Query_thread() < MPI.THREAD_MULTIPLE,
        reason="receives by mpi4py while XLA's threads send",
    ),
]

THREADS = 3
#: Of each of the tests that have any number of programs.
PROGRAMS = 50_000 if sample.is_whole() else 1_000
#: Programs that a thread calls before it waits for all of them. XLA takes 32 at a time from
#: all threads, and hangs if these wait for a callback whose own program finds no place. So
#: half of the places are for the programs of callbacks.
BURST = 15 // THREADS


class Conversation:
    """The programs that send a number to the other rank, and the numbers from there."""

    def __init__(self, comm, other):
        self.comm, self.other = comm, other
        self.programs = [
            self.send,
            jax.jit(self.send),
            jax.jit(self.send_and_add),
            jax.jit(self.send_and_add, donate_argnums=0),
            jax.jit(self.compute_and_send),
            jax.jit(lambda x: self.compute_and_send(x)[0], donate_argnums=0),
            jax.jit(lambda x: compute(self.send_and_add(x))),
            jax.jit(self.send_in_callback),
        ]
        #: XLA runs these at once if it can, and on a thread of its own.
        self.cheap, self.long = self.programs[2], self.programs[4]

    def send(self, x):
        mpi.send(x, self.other, comm=self.comm)

    def send_and_add(self, x):
        self.send(x)
        return x + 1

    def compute_and_send(self, x):
        y = compute(x)
        self.send(y)
        return y + 1, y

    def send_in_callback(self, x):
        """Two programs that the callback calls; it waits for neither."""

        def callback(x):
            program = self.long if int(x) % 2 else self.cheap
            program(jnp.float32(x))
            return np.float32(x)

        return io_callback(callback, jax.ShapeDtypeStruct((), np.float32), x) + 1

    def received(self, count):
        """The next numbers from the other rank."""
        numbers = np.empty(count, np.float32)
        for k in range(count):
            self.comm.Recv(numbers[k : k + 1], self.other)
        return numbers

    def run(self, count, seed):
        """Call that many programs, of a random kind each."""
        random = np.random.default_rng(seed)
        for start in range(0, count, BURST):
            numbers = range(start, min(start + BURST, count))
            kinds = random.integers(len(self.programs), size=len(numbers))
            results = [
                self.programs[kind](jnp.float32(k))
                for kind, k in zip(kinds, numbers, strict=True)
            ]
            np.testing.assert_array_equal(self.received(len(numbers)), numbers)
            for result, k in zip(results, numbers, strict=True):
                if result is not None:
                    assert jax.tree.leaves(result)[0] == k + 1
            jax.effects_barrier()  # for those that have no result


def compute(x):
    """The argument, after a computation that XLA runs on a thread of its own."""
    y = jnp.ones((100, 100)) + x
    return x + 0 * jnp.nan_to_num(y @ y @ y).sum()


@pytest.fixture
def conversations(comm, rank):
    """One for each thread, with a communicator of its own."""
    comms = [comm.Dup() for _ in range(THREADS)]
    other = 1 - rank if rank < 2 else MPI.PROC_NULL
    yield [Conversation(comm, other) for comm in comms]
    for comm in comms:
        comm.Free()


def test_one_thread(conversations, rank):
    """Fails if a program overtakes one that was called before it."""
    if rank < 2:
        conversations[0].run(PROGRAMS, seed=rank)


def test_several_threads(conversations, rank):
    """Fails if a program overtakes another one of its thread, or if threads mix them up."""
    if rank > 1:
        return
    count = PROGRAMS // THREADS
    with ThreadPoolExecutor(THREADS) as pool:
        threads = [
            pool.submit(conversation.run, count, seed=(rank, thread))
            for thread, conversation in enumerate(conversations)
        ]
    for thread in threads:
        thread.result()


def test_no_order_between_threads(conversations, rank):
    """The tests above can fail: numbers whose programs overtake each other are seen.

    If this one fails, XLA has come to order the programs of all threads, and
    `docs/sharp-bits.md` is to say so.
    """
    if rank > 1:
        return
    conversation = conversations[0]
    is_running, may_end = threading.Event(), threading.Event()

    def wait(x):
        is_running.set()
        may_end.wait()
        return np.float32(x)

    @jax.jit
    def send_late(x):
        shape = jax.ShapeDtypeStruct((), np.float32)
        return conversation.send_and_add(io_callback(wait, shape, x))

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(lambda: send_late(jnp.float32(0)).block_until_ready())
        is_running.wait()
        early = conversation.cheap(jnp.float32(1))
        may_end.set()
        assert (late.result(), early) == (1, 2)
    np.testing.assert_array_equal(conversation.received(2), [1, 0])
