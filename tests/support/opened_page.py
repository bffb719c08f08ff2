"""`kubectl brokergroup dashboard` as a user runs it: a stand-in for the browser records the address, and Ctrl-C ends it.

The test reads the page as a browser does: the document, then its stream of events.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OPENED_SECONDS = 60.0
ENDED_SECONDS = 30.0
READ_SECONDS = 30.0


class PageNotOpenedError(Exception):
    """The command ended, or opened no browser in time; has its output."""


@contextmanager
def opened_page(command: str, environment: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Run the command until it opens a browser; yield the address. Ctrl-C ends it, with exit code 0."""
    noted = folder / "opened"
    browser = folder / "xdg-open"
    browser.write_text(f'#!/bin/sh\necho "$1" > {noted}.part && mv {noted}.part {noted}\n', encoding="utf-8")
    browser.chmod(0o755)
    path = os.pathsep.join([str(folder), environment["PATH"]])
    with (folder / "printed").open("w+", encoding="utf-8") as printed:
        running = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            env={**environment, "PATH": path},
            stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True,
        )  # fmt: skip
        try:
            yield _address(running, noted, folder / "printed")
        finally:
            # A terminal sends it to both, the plugin and kubectl.
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGINT)
            try:
                code = running.wait(ENDED_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                code = running.wait()
    if code != 0:
        raise PageNotOpenedError(f"{command!r} ended with {code} after Ctrl-C: {(folder / 'printed').read_text()}")


def _address(running: subprocess.Popen[bytes], noted: Path, printed: Path) -> str:
    deadline = time.monotonic() + OPENED_SECONDS
    while not noted.exists():
        if running.poll() is not None or time.monotonic() > deadline:
            raise PageNotOpenedError(f"no browser was opened (exit code {running.poll()}): {printed.read_text()}")
        time.sleep(0.05)
    return noted.read_text(encoding="utf-8").strip()


def document(address: str) -> str:
    """Return the page's HTML."""
    with urllib.request.urlopen(address, timeout=READ_SECONDS) as answer:
        text: str = answer.read().decode()
    return text


def group_on(address: str, key: str) -> dict[str, Any]:
    """Return the page's data of this group, NAMESPACE/NAME, once it has members."""
    with urllib.request.urlopen(f"{address}api/events?group={key}", timeout=READ_SECONDS) as stream:
        for line in stream:
            if line == b"event: group\n":
                shown: dict[str, Any] | None = json.loads(next(stream).removeprefix(b"data: "))
                if shown is not None and shown["members"]:
                    return shown
    raise PageNotOpenedError(f"{address}: the stream ended without a member of {key}")
