"""A cluster of virtual hosts on this machine, and a command that is run on its login node.

    python tools/hosts.py [--hosts 2] [--slurm] [COMMAND ...]

Each host has Linux namespaces of its own: network, name, processes, shared memory, mounts.
So MPI finds no other way from one host to another than TCP. The files are the same on all
of them, but for /tmp and /dev/shm. `mpiexec` starts its processes on the hosts, one after
the other, and with --slurm `srun` does. Without a command, this is a shell. With the
command, all of the cluster ends.

It needs util-linux, iproute2, and root or a kernel on which users may make namespaces.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from environments import ROOT

#: The namespaces of the login node, and those of each host.
OWN = ("--net", "--uts", "--ipc", "--mount", "--pid")
NEW = ("unshare", *OWN, "--fork", "--mount-proc", "--kill-child")
#: Names the folder of the cluster, on its login node.
FOLDER = "MPI4JAX_TEST_HOSTS"
#: Seconds for a host to start.
PATIENCE = 20
BRIDGE, LOGIN = "hosts", "login"
SUBNET = "10.77.0"

#: What starts a host: processes end with the shell, which is the first one of them.
BOOT = """
hostname {name}
{mounts}
mount --bind {folder}/{name}.boot_id /proc/sys/kernel/random/boot_id
ip link set lo up
touch {folder}/{name}.up
while :; do sleep 1000 & wait; done
"""

#: What launchers call as they call ssh: options, a host, a command. The environment is that
#: of a login, not the caller's.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
pid=$(cat {folder}/$host.pid) || exit 255
exec nsenter --target $pid {own} env -i HOME="$HOME" USER="${{USER:-root}}" SHELL=/bin/sh \\
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c "$*"
"""


def call(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True)


def until(is_reached: object, what: str) -> None:
    """Wait for something that comes soon."""
    end = time.monotonic() + PATIENCE
    while not is_reached():  # type: ignore[operator]
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not start within {PATIENCE} s")
        time.sleep(0.02)


def own_folders() -> list[list[str]]:
    """Commands that give a host the folders that it shares with no other one."""
    # A checkout in /tmp has to be seen.
    folders = ["/dev/shm"] if Path("/tmp") in ROOT.parents else ["/dev/shm", "/tmp"]
    return [["mount", "-t", "tmpfs", "tmpfs", folder] for folder in folders]


class Host:
    """One of the hosts, by its number."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.name = f"node{number}"
        self.address = f"{SUBNET}.{number + 1}"
        self.link = f"veth{number}"

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self.name}.{kind}"

    def start(self) -> None:
        self._file("up").unlink(missing_ok=True)
        # By this number, libraries tell whether two processes share a kernel.
        self._file("boot_id").write_text(f"{uuid.uuid4()}\n")
        mounts = "\n".join(map(" ".join, own_folders()))
        boot = BOOT.format(name=self.name, folder=self.folder, mounts=mounts)
        with self._file("log").open("w") as log:
            unshare = subprocess.Popen(
                [*NEW, "sh", "-ec", boot],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._file("up").exists, self.name)
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
        pid = int(children.read_text())
        self._file("pid").write_text(str(pid))
        call(
            *("ip", "link", "add", self.link, "type", "veth"),
            *("peer", "name", "eth0", "netns", pid),
        )
        call("ip", "link", "set", self.link, "master", BRIDGE, "up")
        self.call("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.call("ip", "link", "set", "eth0", "up")

    @property
    def pid(self) -> int:
        """The first process of the host, as the login node numbers it."""
        return int(self._file("pid").read_text())

    def command(self, *command: object) -> list[str]:
        """A command, on this host."""
        return ["nsenter", "--target", str(self.pid), *OWN, *map(str, command)]

    def call(self, *command: object) -> None:
        call(*self.command(*command))

    def kill(self) -> None:
        """End all of its processes at once, and its network with them."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}/ns/net").exists(), f"the end of {self.name}")

    def unplug(self) -> None:
        """Take its link down. Its processes go on."""
        call("ip", "link", "set", self.link, "down")


def hosts_of(folder: Path) -> list[Host]:
    """The hosts of a cluster."""
    names = (folder / "hosts").read_text().split()
    return [Host(folder, number) for number in range(len(names))]


def environ_of(folder: Path) -> dict[str, str]:
    """What has each mpiexec start its processes on the hosts, one on each in turn."""
    agent, hosts = str(folder / "agent"), str(folder / "hosts")
    return {
        FOLDER: str(folder),
        # MPICH and Intel MPI
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": agent,
        "HYDRA_HOST_FILE": hosts,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent,
        "I_MPI_HYDRA_HOST_FILE": hosts,
        "I_MPI_PERHOST": "1",
        # Open MPI 5
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_prte_default_hostfile": hosts,
        "PRTE_MCA_rmaps_default_mapping_policy": "node:oversubscribe",
        # Open MPI 4
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_orte_default_hostfile": hosts,
        "OMPI_MCA_rmaps_base_mapping_policy": "node:oversubscribe",
    }


@contextmanager
def cluster(size: int) -> Iterator[Path]:
    """A cluster, around the process that calls this, which is on its login node."""
    base = ROOT / "build"
    base.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hosts-", dir=base) as name:
        folder = Path(name)
        hosts = [Host(folder, number) for number in range(size)]
        (folder / "hosts").write_text("".join(f"{host.name}\n" for host in hosts))
        addresses = {"localhost": "127.0.0.1", LOGIN: f"{SUBNET}.254"}
        addresses |= {host.name: host.address for host in hosts}
        lines = [f"{address} {name}\n" for name, address in addresses.items()]
        (folder / "addresses").write_text("".join(lines))
        call("mount", "--bind", folder / "addresses", "/etc/hosts")
        agent = folder / "agent"
        agent.write_text(AGENT.format(folder=folder, own=" ".join(OWN)))
        agent.chmod(0o755)
        call("hostname", LOGIN)
        for command in own_folders():
            call(*command)
        call("ip", "link", "set", "lo", "up")
        call("ip", "link", "add", BRIDGE, "type", "bridge")
        call("ip", "address", "add", f"{addresses[LOGIN]}/24", "dev", BRIDGE)
        call("ip", "link", "set", BRIDGE, "up")
        for host in hosts:
            host.start()
        yield folder


def namespaces() -> list[str]:
    """What gives a command namespaces of its own, in which it may make more."""
    is_root = os.geteuid() == 0
    user = [] if is_root else ["--user", "--map-root-user"]
    # A shell, as somebody has to wait for the processes that others leave behind.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    return [*NEW, *user, *shell]


def is_possible() -> bool:
    """Whether this machine lets us make hosts."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    tried = [*namespaces(), "ip", "link", "add", BRIDGE, "type", "bridge"]
    return subprocess.run(tried, capture_output=True).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--slurm", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not given.inside:
        if not is_possible():
            print("hosts: this takes Linux, util-linux, iproute2, and root", file=sys.stderr)
            return 1
        again = [*namespaces(), sys.executable, __file__, "--inside", *sys.argv[1:]]
        os.execvp(again[0], again)
    command = given.command or [os.environ.get("SHELL", "sh")]
    with ExitStack() as stack:
        folder = stack.enter_context(cluster(given.hosts))
        environ = environ_of(folder)
        if given.slurm:
            import slurm

            environ |= stack.enter_context(slurm.daemons(folder))
        with suppress(KeyboardInterrupt):
            return subprocess.run(command, env={**os.environ, **environ}).returncode
        return 130


if __name__ == "__main__":
    sys.exit(main())
