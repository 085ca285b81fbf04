"""`MPI4JAX_PROFILE=1`, and what is printed and drawn of a profile."""

import re

import numpy as np
import pytest

from mpi4jax._internal.traces.report import Result, Row, draw, text_of
from mpi4jax._terminal import Terminal

ROWS = (
    Row("allreduce", "step.py:7 in step", 1000, 4 << 20, (3.0, 1.0), (0.0, 0.5)),
    Row("send", "", 2, 80, (0.25, 0.75), (0.0, 0.0)),
    Row("allreduce", "", 2, 1234, (0.0, 6e-6), (0.0, 0.0)),
)
TRAFFIC = np.array([[0, 80], [0, 0]])
RESULT = Result(10.0, ROWS, TRAFFIC, 0)

HEAD = """\
2 processes, 10 s: 25.0 % of the time in MPI, 2.5 % waiting for others
most in MPI: rank 0 with 32.5 %, least: rank 1 with 17.5 %
"""

TEXT = """
calls  bytes    mean     max  max / mean  waiting  moving  of the run  by operation
 1002  4 MiB     2 s     3 s        1.50   250 ms  1.75 s      20.0 %  allreduce
    2   80 B  500 ms  750 ms        1.50     0 µs  500 ms       5.0 %  send

calls     bytes    mean     max  max / mean  waiting  moving  of the run  by line
 1000     4 MiB     2 s     3 s        1.50   250 ms  1.75 s      20.0 %  allreduce at step.py:7 in step
    2      80 B  500 ms  750 ms        1.50     0 µs  500 ms       5.0 %  send
    2  1.21 KiB    3 µs    6 µs        2.00     0 µs    3 µs       0.0 %  allreduce
"""  # noqa: E501

#: In 80 columns.
NARROW = """
                              max /                   of the  by
calls  bytes    mean     max   mean  waiting  moving     run  operation
 1002  4 MiB     2 s     3 s   1.50   250 ms  1.75 s  20.0 %  allreduce
    2   80 B  500 ms  750 ms   1.50     0 µs  500 ms   5.0 %  send

                                 max /                   of the  by
calls     bytes    mean     max   mean  waiting  moving     run  line
 1000     4 MiB     2 s     3 s   1.50   250 ms  1.75 s  20.0 %  allreduce
    at step.py:7 in step
    2      80 B  500 ms  750 ms   1.50     0 µs  500 ms   5.0 %  send
    2  1.21 KiB    3 µs    6 µs   2.00     0 µs    3 µs   0.0 %  allreduce
"""

#: With what is longest: it stands below its numbers.
LONG = Row(
    "neighbor_alltoallv",
    "/home/me/work/solver/step.py:70 in step (while/body/branch), from main.py:7 in run",
    123_456_789,
    123 << 20,
    (9.0, 8.0),
    (1.12e-3, 1e-3),
)
BELOW = """
    neighbor_alltoallv at /home/me/work/solver/step.py:70 in step
      (while/body/branch), from main.py:7 in run"""


def test_text():
    assert text_of(RESULT, Terminal(width=120)) + "\n" == HEAD + TEXT


def test_text_in_80_columns():
    assert text_of(RESULT) + "\n" == HEAD + NARROW


def test_text_of_long_rows():
    text = text_of(RESULT._replace(rows=(LONG,)))
    assert text.endswith(BELOW)
    assert max(map(len, text.splitlines())) <= 80


def test_headings_are_bold_on_a_terminal():
    lines = text_of(RESULT, Terminal(120, has_colors=True)).splitlines()
    bold = [line for line in lines if line.startswith("\x1b[1mcalls")]
    assert [line[-16:] for line in bold] == [
        "  by operation\x1b[0m"[-16:],
        "run  by line\x1b[0m"[-16:],
    ]
    assert text_of(RESULT, Terminal(120)).count("\x1b") == 0


def test_text_of_nothing():
    assert text_of(Result(2.0, (), np.zeros((1, 1)), 1)).splitlines()[:3] == [
        "1 process, 2 s: 0.0 % of the time in MPI, 0.0 % waiting for others",
        "most in MPI: rank 0 with 0.0 %, least: rank 0 with 0.0 %",
        "1 call could not be written",
    ]


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    figure = draw(RESULT)
    bars, matrix, _ = figure.axes
    assert [bar.get_height() for bar in bars.patches] == pytest.approx(
        [3, 0.500006, 0, 0.5, 0.25, 0.75, 0, 0]
    )
    assert bars.get_legend_handles_labels()[1] == [
        "allreduce",
        "allreduce, waiting",
        "send",
        "send, waiting",
    ]
    assert matrix.get_title() == "Messages, B"
    assert (matrix.images[0].get_array() == TRAFFIC).all()
    figure.savefig(tmp_path / "profile.png")


def test_variable(launch, tmp_path):
    done = launch(
        """
        import jax, jax.numpy as jnp
        from mpi4py import MPI
        from mpi4jax import notoken as mpi

        step = jax.jit(lambda x: mpi.allreduce(x, op=MPI.MAX))
        x = jnp.ones(3)
        for _ in range(3):
            step(x)
        mpi.barrier()
        """,
        ranks=2,
        MPI4JAX_PROFILE="1",
    )
    assert done.returncode == 0, done.stderr
    head, by_operation, by_line = done.stdout.rstrip().split("\n\n")
    assert head.startswith("2 processes, ")

    def cells(table):
        return sorted(
            (row.split()[:3], row.split("%  ")[1]) for row in table.splitlines()[1:]
        )

    assert cells(by_operation) == [
        (["2", "0", "B"], "barrier"),
        (["6", "72", "B"], "allreduce"),
    ]
    assert cells(by_line) == [
        (["2", "0", "B"], "barrier"),
        (["6", "72", "B"], f"allreduce at {tmp_path}/program.py:6 in <lambda>"),
    ]


def test_a_disk_that_is_full(launch):
    """Lost records are counted, and the program goes on."""
    done = launch(
        """
        import resource
        from mpi4py import MPI
        from mpi4jax import notoken as mpi

        mpi.barrier()
        if MPI.COMM_WORLD.Get_rank() == 1:
            # As on a full disk, files can't grow any more.
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        for _ in range(2000):
            mpi.barrier()
        """,
        ranks=2,
        MPI4JAX_PROFILE="1",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("calls are not recorded any more") == 1
    missing = re.search(r"^(\d+) calls could not be written$", done.stdout, re.M)
    counted = re.search(r"^ *(\d+) .* barrier$", done.stdout, re.M)
    assert missing, done.stdout
    assert counted, done.stdout
    assert int(missing[1]) > 1000
    assert int(missing[1]) + int(counted[1]) == 2 * 2001


def test_a_rank_that_cannot_write(launch):
    """No rank waits for it: all say which one it is."""
    done = launch(
        """
        import os, tempfile
        from mpi4py import MPI
        if MPI.COMM_WORLD.Get_rank() == 1:
            tempfile.tempdir = "/proc/nothing"
        import mpi4jax
        """,
        ranks=2,
        timeout=60,
        MPI4JAX_PROFILE="1",
    )
    assert done.returncode != 0
    assert "RuntimeError: a profile: rank 1 can't write it: " in done.stderr


@pytest.mark.parametrize("make", ["Dup()", "Split(0, rank)"])
def test_communicators_that_ranks_use_in_another_order(launch, make):
    """Fails if they are told apart by the order in which each rank has used them."""
    done = launch(
        f"""
        import time
        import jax.numpy as jnp
        from mpi4py import MPI
        from mpi4jax import notoken as mpi

        rank = MPI.COMM_WORLD.Get_rank()
        a, b = MPI.COMM_WORLD.{make}, MPI.COMM_WORLD.{make}
        a.Set_name("a")
        b.Set_name("b")
        x = jnp.ones(3)
        if rank == 0:
            mpi.send(x, 1, comm=a)
            time.sleep(1)
            mpi.send(x, 1, comm=b)
        else:
            mpi.recv(x, 0, comm=b)
            mpi.recv(x, 0, comm=a)
        """,
        ranks=2,
        MPI4JAX_PROFILE="1",
    )
    assert done.returncode == 0, done.stderr
    row = re.findall(r"^ *2 .* recv$", done.stdout, re.M)[0]
    waiting = re.split(r"  +", row.strip())[5]
    # It waited for the second send. The column is the mean of both ranks.
    assert waiting.endswith(" ms"), done.stdout
    assert float(waiting.split()[0]) > 300, done.stdout
