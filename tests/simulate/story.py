"""What happened in a run, line by line in virtual time: what a failing seed prints, and what must be the same twice."""

from __future__ import annotations

import asyncio
import hashlib


class Story:
    """`tell` a line; `digest` tells two runs apart."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, what: str) -> None:
        self.lines.append(f"{asyncio.get_running_loop().time():9.4f}  {what}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()
