"""A timer that ends a process which waits for the others for ever."""

from __future__ import annotations

import faulthandler
import os
import threading
import time

from mpi4py import MPI

#: Seconds until a process ends itself, so that the others say where they are as well.
GRACE = 10


class Watchdog:
    """Reports the call that each rank is in, and ends the process, if it takes too long.

    Arguments:
        fd: The file that it writes to.
        limit: The seconds that it waits, for ever if they are more than timers count.

    """

    def __init__(self, fd: int, limit: float) -> None:
        self.fd = fd
        self.limit = min(limit, threading.TIMEOUT_MAX - GRACE)
        self.timer: threading.Timer | None = None

    def start(self, call: str) -> None:
        self.timer = threading.Timer(self.limit, self.report, [call])
        self.timer.daemon = True
        self.timer.start()
        # The timer needs the GIL. Should it be held for ever, this does without.
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
