"""What `python -m mpi4jax` does."""

from __future__ import annotations

import importlib
import sys

#: The commands, each a module in `_internal/commands`, and what they do.
COMMANDS = {
    "trace": "merge the files that MPI4JAX_TRACE=folder has written into a timeline"
}


def main(arguments: list[str]) -> int:
    """Run a command, and give its exit status."""
    if not arguments or arguments[0] not in COMMANDS:
        lines = [f"  {name:10}{what}" for name, what in COMMANDS.items()]
        text = "\n".join(["usage: python -m mpi4jax COMMAND ...", "", *lines])
        is_asked = arguments in (["-h"], ["--help"])
        print(text, file=sys.stdout if is_asked else sys.stderr)
        return 0 if is_asked else 2
    command = importlib.import_module(f"mpi4jax._internal.commands.{arguments[0]}")
    status: int = command.main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
