"""The needs of `mpi4jax.diagnostics`, and the programs of its documentation."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hangs.md"


def test_the_example_of_recent_calls(launch, tmp_path):
    text = PAGE.read_text().partition("\n## What was called last\n")[2]
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    (output,) = re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S)
    done = launch(code, ranks=2, cwd=tmp_path)
    lines = sorted(2 * output.splitlines())
    assert sorted(done.stdout.splitlines()) == lines, done.stderr


def test_watch_is_not_collective(launch):
    """Fails if a rank that calls it waits for one that does not."""
    done = launch(
        """
        from mpi4py import MPI
        import mpi4jax
        if MPI.COMM_WORLD.Get_rank() == 0:
            mpi4jax.diagnostics.watch()
        """,
        ranks=2,
    )
    assert (done.returncode, done.stderr) == (0, "")
