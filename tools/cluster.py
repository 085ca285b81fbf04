"""A cluster of virtual hosts on this machine, and a command that is run on its login node.

    python tools/cluster.py [--hosts 2] [--slurm] [COMMAND ...]

Each host has Linux namespaces of its own: network, name, processes, shared memory, mounts.
So MPI can only use TCP between them. They share all files but those in /tmp and /dev/shm.
`mpiexec` starts its processes on the hosts, one after the other, and with --slurm `srun`
does. The command is a shell by default; the cluster ends with it.

It needs util-linux, iproute2, and root or a kernel on which users may make namespaces.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress

import hosts
import slurm


def namespaces() -> list[str]:
    """The prefix that runs a command in new namespaces, in which it may make more."""
    is_root = os.geteuid() == 0
    user = [] if is_root else ["--user", "--map-root-user"]
    # A shell reaps the processes that others leave behind.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    return [*hosts.NEW, *user, *shell]


def is_possible() -> bool:
    """Whether this machine lets us make hosts."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    command = [*namespaces(), "ip", "link", "add", hosts.BRIDGE, "type", "bridge"]
    return subprocess.run(command, capture_output=True).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--slurm", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not arguments.inside:
        if not is_possible():
            print(
                "cluster: this takes Linux, util-linux, iproute2, and root", file=sys.stderr
            )
            return 1
        command = [*namespaces(), sys.executable, __file__, "--inside", *sys.argv[1:]]
        os.execvp(command[0], command)
    command = arguments.command or [os.environ.get("SHELL", "sh")]
    with ExitStack() as stack:
        folder = stack.enter_context(hosts.cluster(arguments.hosts))
        environ = hosts.environ_of(folder)
        if arguments.slurm:
            environ |= stack.enter_context(slurm.daemons(folder))
        with suppress(KeyboardInterrupt):
            return subprocess.run(command, env={**os.environ, **environ}).returncode
        return 130  # as shells say of an interrupt


if __name__ == "__main__":
    sys.exit(main())
