"""Reports of processes: the files that each one has written, or the reason of its failure.

A report is a line of a file, as the threads that write make no calls of MPI. The processes
of a node append to one file, so that the reader opens one file of each node.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mpi4py import MPI

from ..._manifest import Json

#: Seconds that a file which another host has written may take to be seen.
VISIBLE_AFTER = 20.0

#: The folder with the reports, in the folder that is written.
FOLDER = ".reports"
#: Count of the numbers in a file, which is removed when the reports of all were read.
_NUMBERS = 1024
#: Shortest and longest time in seconds between two looks for reports, and the part that it
#: is of the time that has been waited for them.
_SHORTEST, _LONGEST, _PART = 0.005, 1.0, 0.05


class Reports:
    """Reports about a folder: each process sends one of each number, and rank 0 reads all.

    All processes make this together.

    Arguments:
        folder: The folder that is written.
        token: The token of the folder's lease. Reports with another one are those of an
            earlier run, of which a process still writes.
        comm: A communicator of the processes.

    """

    def __init__(self, folder: Path, token: str, comm: MPI.Intracomm) -> None:
        self._folder, self._token, self._rank = folder, token, comm.Get_rank()
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        #: The lowest rank of the node of this process, which is the node's name.
        self._node = node.bcast(self._rank)
        node.Free()
        #: The ranks of each node.
        self._ranks: dict[int, list[int]] = {}
        for rank, name in enumerate(comm.allgather(self._node)):
            self._ranks.setdefault(name, []).append(rank)
        #: The number of bytes of each file that have been read.
        self._offsets: dict[Path, int] = {}
        #: The last number of which all reports have been sent, and when this was known.
        self._sent = -1, 0.0
        #: The reports that have been read, by number and rank.
        self._received: dict[int, dict[int, Json]] = {}

    def _path(self, node: int, number: int) -> Path:
        return self._folder / FOLDER / f"{node}-{number // _NUMBERS}"

    def send(self, content: dict[str, Json], number: int = 0) -> None:
        """Append the report of this process, with a text "failure" if it has failed."""
        own = {"token": self._token, "rank": self._rank, "number": number}
        record = {**own, **content}
        # It begins with a new line, as the one before may be cut: on a full disk.
        line = f"\n{json.dumps(record)}\n".encode()
        path = self._path(self._node, number)
        with named_errors(path):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            file = os.open(path, flags, 0o666)
            try:
                if os.write(file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(file)

    def expect(self, number: int = 0) -> None:
        """Note that all reports up to a number were sent: those missing soon are lost."""
        self._sent = number, time.monotonic()

    def _is_overdue(self, number: int) -> bool:
        last, moment = self._sent
        return number <= last and time.monotonic() - moment > VISIBLE_AFTER

    def receive(self, is_cancelled: Callable[[], bool], number: int = 0) -> list[Json]:
        """Wait for the reports of all processes. Raise OSError if one of them has failed.

        Arguments:
            is_cancelled: Whether reports that are missing will not come: OSError, too.
            number: The number of the reports.

        Returns:
            The reports, by rank.

        """
        received = self._received.setdefault(number, {})
        begin = time.monotonic()
        while missing := [
            node for node, ranks in self._ranks.items() if not received.keys() >= {*ranks}
        ]:
            is_over = is_cancelled() or self._is_overdue(number)
            for node in missing:
                self._read(self._path(node, number))
            for rank, content in sorted(received.items()):
                if "failure" in content:
                    raise OSError(f"{content['failure']} (on rank {rank})")
            lost = {rank for node in missing for rank in self._ranks[node]} - {*received}
            if is_over and lost:
                raise OSError(
                    f"rank {min(lost)} has not written its part of {self._folder}"
                )
            if lost:
                waited = time.monotonic() - begin
                time.sleep(min(max(_SHORTEST, _PART * waited), _LONGEST))
        if (number + 1) % _NUMBERS == 0:
            for node in self._ranks:
                path = self._path(node, number)
                del self._offsets[path]
                path.unlink()
        return [content for _, content in sorted(self._received.pop(number).items())]

    def _read(self, path: Path) -> None:
        """Read the lines that have been added to a file."""
        offset = self._offsets.setdefault(path, 0)
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                content = file.read()
        except FileNotFoundError:
            # A look at the folder shows new files of other hosts, and fails if it is gone.
            os.listdir(path.parent)
            return
        # On a file system of a network, bytes that are not there yet may be zeros.
        lines = content.partition(b"\0")[0].split(b"\n")
        self._offsets[path] = offset + sum(len(line) + 1 for line in lines[:-1])
        for line in lines[:-1]:
            with contextlib.suppress(ValueError):  # empty, or cut
                record = json.loads(line)
                if record["token"] == self._token:
                    by_rank = self._received.setdefault(record["number"], {})
                    by_rank[record["rank"]] = record


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Give errors of writing the name of the file, which Python does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
