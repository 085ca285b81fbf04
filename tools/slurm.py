"""Slurm on the virtual hosts of tools/hosts.py: a controller, and a daemon on each host.

It needs root and the packages slurmctld, slurmd, slurm-client and munge, none of which has
to run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hosts

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")

CONFIGURATION = """
ClusterName=hosts
SlurmctldHost={login}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.slurmd.pid
SlurmdLogFile={folder}/%n.slurmd.log
SlurmdSpoolDir=/tmp/slurmd
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout={timeout}
MpiDefault=none
NodeName=node[0-{last}] CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
"""

#: Seconds after which a host that does not answer is down. Slurm has 300 by default.
TIMEOUT = 10


def is_possible() -> bool:
    """Whether this machine has Slurm, and its user may start it."""
    return all(map(shutil.which, PROGRAMS)) and os.geteuid() == 0


def output_of(folder: Path, *command: object) -> str:
    """Call one of Slurm's programs, and return its output."""
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    process = subprocess.run(
        list(map(str, command)), env=environ, capture_output=True, text=True
    )
    return process.stdout


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a daemon, which writes to its log alone."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)


def start_on(host: hosts.Host) -> None:
    """Start Slurm's daemon on a host, and wait until it can be used."""
    conf = host.folder / "slurm.conf"
    start(host.command("slurmd", "-D", "-f", conf))
    state = ("sinfo", "--noheader", "--nodes", host.name, "--format", "%T")
    hosts.wait_until(lambda: output_of(host.folder, *state).strip() == "idle", host.name)


@contextmanager
def daemons(folder: Path) -> Iterator[dict[str, str]]:
    """Slurm, on the hosts of a cluster. Gives the environment that `srun` needs."""
    nodes = hosts.hosts_of(folder)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(
        CONFIGURATION.format(
            login=hosts.LOGIN,
            folder=folder,
            timeout=TIMEOUT,
            last=len(nodes) - 1,
            cpus=os.cpu_count(),
        )
    )
    kinds = ("key", "pid", "log", "seed")
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket"]
    munged += [f"--{kind}-file={folder}/munge.{kind}" for kind in kinds]
    started = [start(command) for command in (munged, ["slurmctld", "-D", "-f", str(conf)])]
    try:
        for host in nodes:
            start_on(host)
        yield {"SLURM_CONF": str(conf)}
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait()
