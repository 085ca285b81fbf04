"""`MPI4JAX_PROFILE=1`, and what is printed and drawn of a profile."""

import numpy as np
import pytest

from mpi4jax._internal.profile_report import Result, Row, draw, text_of

ROWS = (
    Row("allreduce", "step.py:7 in step", 1000, 4_000_000, (3.0, 1.0), (0.0, 0.5)),
    Row("send", "", 2, 80, (0.25, 0.75), (0.0, 0.0)),
    Row("allreduce", "", 2, 1234, (0.0, 6e-6), (0.0, 0.0)),
)
TRAFFIC = np.array([[0, 80], [0, 0]])
RESULT = Result(10.0, ROWS, TRAFFIC, 0)

TEXT = """\
2 processes, 10 s: 25.0 % of the time in MPI, 2.5 % waiting for others
most in MPI: rank 0 with 32.5 %, least: rank 1 with 17.5 %

calls  bytes    mean     max  max/mean  waiting  moving  of the run  by operation
 1002   4 MB     2 s     3 s      1.50   250 ms  1.75 s      20.0 %  allreduce
    2   80 B  500 ms  750 ms      1.50     0 µs  500 ms       5.0 %  send

calls    bytes    mean     max  max/mean  waiting  moving  of the run  by line
 1000     4 MB     2 s     3 s      1.50   250 ms  1.75 s      20.0 %  allreduce  step.py:7 in step
    2     80 B  500 ms  750 ms      1.50     0 µs  500 ms       5.0 %  send
    2  1.23 kB    3 µs    6 µs      2.00     0 µs    3 µs       0.0 %  allreduce
"""  # noqa: E501


def test_text():
    assert text_of(RESULT) + "\n" == TEXT


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
    assert matrix.get_title() == "Messages, bytes"
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
        (["6", "72", "B"], f"allreduce  {tmp_path}/program.py:6 in <lambda>"),
    ]
