"""MPI4JAX_HUGE_PAGES: the pages of large arrays that operations use."""

import mmap
from pathlib import Path

import pytest

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from mpi4py import MPI
import mpi4jax

def step(x):
    return mpi4jax.allreduce(x + 1, op=MPI.MAX)

x = jnp.arange(1 << 22, dtype=jnp.float32)
loop = jax.jit(lambda x: jax.lax.fori_loop(0, 6, lambda _, y: step(y), x), donate_argnums=0)
for _ in range(3):
    x = loop(x)
assert (np.asarray(x) == np.arange(1 << 22) + 18).all()
smaps = open("/proc/self/smaps").read().splitlines()
used = sum(int(line.split()[1]) for line in smaps if line.startswith("AnonHugePages"))
# Two processes' lines may be mixed.
print(*MPI.COMM_WORLD.gather(used) or ())
"""


MADV_COLLAPSE = 25


@pytest.fixture
def moves_pages():
    """The kernel gives huge pages on request only, and can move memory into them."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[madvise]" not in setting.read_text():
        pytest.skip("huge pages are not on request")
    with mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * len(memory))
        try:
            memory.madvise(MADV_COLLAPSE)
        except OSError:
            pytest.skip("the kernel can't move memory into huge pages")


def test_the_state_of_a_loop_is_moved(launch, moves_pages):
    """Fails if XLA's state stays where it was, or is moved although that is off."""
    in_kilobytes = [
        [
            int(line)
            for line in launch(
                PROGRAM, ranks=2, MPI4JAX_API="notoken", MPI4JAX_HUGE_PAGES=setting
            ).stdout.split()
        ]
        for setting in ("0", "1")
    ]
    for without, moved in zip(*in_kilobytes, strict=True):
        assert moved - without >= 12 << 10
