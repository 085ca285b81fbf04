"""The needs of `mpi4jax.diagnostics`, and the programs of its documentation."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hangs.md"


def test_the_example_of_recent_calls(launch, tmp_path):
    text = PAGE.read_text().partition("\n## What was called last\n")[2]
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    (output,) = re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S)
    done = launch(code, cwd=tmp_path)
    assert done.stdout == output, done.stderr


def test_watch_needs_threads(launch):
    done = launch(
        """
        import mpi4py
        mpi4py.rc.thread_level = "serialized"
        import mpi4jax
        try:
            mpi4jax.diagnostics.watch()
        except RuntimeError as error:
            print(error)
        """
    )
    assert done.stdout == (
        "mpi4jax.diagnostics.watch() needs an MPI that was initialised with "
        "THREAD_MULTIPLE, by which a thread can ask while another one waits\n"
    ), done.stderr
