"""The events of a run, line by line in virtual time: a failing seed prints them, and two runs of a seed must be equal."""

from __future__ import annotations

import asyncio
import hashlib


class Story:
    """The lines of a run: `tell` adds one, `digest` compares two runs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, what: str) -> None:
        self.lines.append(f"{asyncio.get_running_loop().time():9.4f}  {what}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()
