"""The steps of a command of the Makefile's, printed when they begin."""

from __future__ import annotations

import time


class Steps:
    """Progress of a command's steps, printed when a step begins: "[2/3] ruff check"."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.done = 0
        self.began = time.monotonic()

    def begin(self, text: str) -> None:
        self.done += 1
        print(f"[{self.done}/{self.count}] {text}", flush=True)

    def took(self) -> str:
        """The time since the first step."""
        return f"{time.monotonic() - self.began:.0f} s"
