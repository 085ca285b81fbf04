"""From a user's name down to JAX, an editor finds each definition, and there are few."""

import subprocess
import sys
from pathlib import Path

#: How many definitions there are on a way, the last one included.
MOST = 5

WAYS = (
    "mpi4jax.allreduce:VaryingPrimitive.bind",
    "notoken.tree.bcast:VaryingPrimitive.bind",
    "notoken.irecv:VaryingPrimitive.bind",
    "mpi4jax.wait:VaryingPrimitive.bind",
    "halo.Plan.exchange:Operation.bind",
    "unstructured.Plan.exchange:Operation.bind",
)


def test_every_definition_is_found(tools, tmp_path):
    script = Path(__file__).parent / "definitions.py"
    command = [tools / "python", script, sys.executable, tmp_path, *WAYS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for pair, line in zip(WAYS, done.stdout.splitlines(), strict=True):
        assert 0 < len(line.split()) <= MOST, f"{pair}: {line}"
