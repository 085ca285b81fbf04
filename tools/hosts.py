"""Virtual hosts on this machine: Linux namespaces, and a login node that reaches them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from environments import ROOT, call

#: The kinds of namespaces that the login node and each host do not share.
OWN = ("--net", "--uts", "--ipc", "--mount", "--pid")
NEW = ("unshare", *OWN, "--fork", "--mount-proc", "--kill-child")
#: Names the folder of the cluster, on its login node.
FOLDER = "TEST_HOSTS"
#: Seconds for a host to start.
PATIENCE = 20
BRIDGE, LOGIN = "hosts", "login"
SUBNET = "10.77.0"

#: The first process of a host, with which all others end.
BOOT = """
hostname {name}
{mounts}
mount --bind {folder}/{name}.boot_id /proc/sys/kernel/random/boot_id
ip link set lo up
touch {folder}/{name}.up
while :; do sleep 1000 & wait; done
"""

#: Stands in for ssh: options, a host, a command. The environment is a login's, not
#: the caller's.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
pid=$(cat {folder}/$host.pid) || exit 255
exec nsenter --target $pid {own} env -i HOME="$HOME" USER="${{USER:-root}}" SHELL=/bin/sh \\
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c "$*"
"""


def wait_until(is_reached: Callable[[], object], event: str) -> None:
    """Poll a condition, for `PATIENCE` seconds at most."""
    end = time.monotonic() + PATIENCE
    while not is_reached():
        if time.monotonic() > end:
            raise TimeoutError(f"{event} did not come within {PATIENCE} s")
        time.sleep(0.02)


def own_folders() -> list[list[str]]:
    """Commands that mount the folders which hosts do not share."""
    # A checkout in /tmp has to be seen.
    folders = ["/dev/shm"] if Path("/tmp") in ROOT.parents else ["/dev/shm", "/tmp"]
    return [["mount", "-t", "tmpfs", "tmpfs", folder] for folder in folders]


class Host:
    """A host of the cluster, with its index."""

    def __init__(self, folder: Path, index: int) -> None:
        self.folder = folder
        self.name = f"node{index}"
        self.address = f"{SUBNET}.{index + 1}"
        self.link = f"veth{index}"

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self.name}.{kind}"

    def start(self) -> None:
        self._file("up").unlink(missing_ok=True)
        # By this identifier, libraries tell whether two processes share a kernel.
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
        wait_until(self._file("up").exists, self.name)
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
        pid = int(children.read_text())
        self._file("pid").write_text(str(pid))
        # The kernel takes its time with the link of a host that has ended.
        subprocess.run(["ip", "link", "delete", self.link], capture_output=True)
        call(
            *("ip", "link", "add", self.link, "type", "veth"),
            *("peer", "name", "eth0", "netns", pid),
        )
        call("ip", "link", "set", self.link, "master", BRIDGE, "up")
        self.call("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.call("ip", "link", "set", "eth0", "up")

    @property
    def pid(self) -> int:
        """The process ID, on the login node, of the host's first process."""
        return int(self._file("pid").read_text())

    def command(self, *command: object) -> list[str]:
        """The command line that runs a command on this host."""
        return ["nsenter", "--target", str(self.pid), *OWN, *map(str, command)]

    def call(self, *command: object) -> None:
        call(*self.command(*command))

    def kill(self) -> None:
        """Kill all processes of the host at once, which closes their connections."""
        if not self._file("pid").exists():
            return
        pid = self.pid
        self._file("pid").unlink()
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: not Path(f"/proc/{pid}/ns/net").exists(), f"the end of {self.name}"
        )

    def unplug(self) -> None:
        """Take the host's link down. The processes keep running."""
        call("ip", "link", "set", self.link, "down")


def hosts_of(folder: Path) -> list[Host]:
    """The hosts of a cluster."""
    names = (folder / "hosts").read_text().split()
    return [Host(folder, index) for index in range(len(names))]


def environ_of(folder: Path) -> dict[str, str]:
    """The variables with which each mpiexec starts its ranks on the hosts in turn."""
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
    """Make the calling process the login node of a cluster. Yield the cluster's folder."""
    base = ROOT / "build"
    base.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hosts-", dir=base) as name:
        folder = Path(name)
        hosts = [Host(folder, index) for index in range(size)]
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
