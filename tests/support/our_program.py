"""`brokergroup` as users run it: a program of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys


def run(*words: object, timeout_seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with an empty standard input."""
    return subprocess.run(
        [sys.executable, "-m", "brokergroup_operator.cli.main", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


async def output_of(*words: object, timeout_seconds: float = 120.0) -> str:
    """Run it, which must succeed; return what it printed."""
    done = await asyncio.to_thread(run, *words, timeout_seconds=timeout_seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
