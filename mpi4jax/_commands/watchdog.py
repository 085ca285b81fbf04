"""A timer that ends a process which waits for other processes for too long."""

from __future__ import annotations

import faulthandler
import os
import threading
import time

from mpi4py import MPI

#: Seconds until a process ends itself, in which the other processes report as well.
GRACE = 10


class Watchdog:
    """A timer that reports the current call of each rank, and ends the process.

    Arguments:
        fd: The file descriptor of the report.
        limit: The timeout in seconds, unlimited if timers can't count it.

    """

    def __init__(self, fd: int, limit: float) -> None:
        self.fd = fd
        self.limit = min(limit, threading.TIMEOUT_MAX - GRACE)
        self.timer: threading.Timer | None = None

    def start(self, call: str) -> None:
        self.timer = threading.Timer(self.limit, self.report, [call])
        self.timer.daemon = True
        self.timer.start()
        # The timer needs the GIL. This one does not, in case the GIL is held for ever.
        faulthandler.dump_traceback_later(self.limit + GRACE, exit=True, file=self.fd)

    def stop(self) -> None:
        assert self.timer is not None
        self.timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def report(self, call: str) -> None:
        rank = f"rank {MPI.COMM_WORLD.Get_rank()} of {MPI.COMM_WORLD.Get_size()}"
        text = f"\n{rank} has been in {call} for {self.limit:g} s\n"
        os.write(self.fd, text.encode())
        faulthandler.dump_traceback(self.fd, all_threads=True)
        time.sleep(GRACE / 2)
        os._exit(1)
