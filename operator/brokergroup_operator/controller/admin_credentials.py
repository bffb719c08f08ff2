"""Who administers: access keys that may designate a master and clean, kept in a file that is read again when it changes.

The file is a folder with ``accessKey`` and ``secretKey`` (a mounted Secret), or a JSON file of one such pair or a list of them.
``mqadmin`` signs as one of them when its ``conf/tools.yml`` says so.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

from rocketmq_remoting.signature import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0


class AdminCredentialsError(ValueError):
    """The file cannot be used; the message names it and what was expected, never what is in it."""


class AdminCredentials:
    """The administrators' keys in force."""

    def __init__(self, credentials: Iterable[Credentials] = (), *, path: Path | None = None) -> None:
        self._path = path
        self._by_key = _by_key(read_credentials(path) if path is not None else credentials)
        self._seen = _state_of(path)
        self._checked_seconds = time.monotonic()

    def get(self, access_key: str) -> Credentials | None:
        """The administrator of this access key."""
        self._refresh()
        return self._by_key.get(access_key)

    def _refresh(self) -> None:
        now_seconds = time.monotonic()
        if self._path is None or now_seconds - self._checked_seconds < CHECK_SECONDS:
            return
        self._checked_seconds = now_seconds
        seen = _state_of(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._by_key = _by_key(read_credentials(self._path))
        except AdminCredentialsError as error:
            logger.error("the old administrators stay in force: %s", error)  # noqa: TRY400 - the cause may quote the file


def read_credentials(path: Path) -> tuple[Credentials, ...]:
    """AdminCredentialsError when there are none."""
    try:
        if path.is_dir():
            pair = {name: (path / name).read_text(encoding="utf-8").strip() for name in ("accessKey", "secretKey")}
            return (_credentials(pair),)
        read = json.loads(path.read_text(encoding="utf-8"))
        return tuple(_credentials(pair) for pair in (read if isinstance(read, list) else [read]))
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        # Not "from error": an error of the JSON reader quotes what it read.
        raise AdminCredentialsError(
            f"{path}: expected a folder with the files accessKey and secretKey, or JSON of such pairs"
            f" ({type(error).__name__})"
        ) from None


def _credentials(pair: dict[str, str]) -> Credentials:
    return Credentials(access_key=pair["accessKey"], secret_key=pair["secretKey"])


def _by_key(credentials: Iterable[Credentials]) -> dict[str, Credentials]:
    return {one.access_key: one for one in credentials}


def _state_of(path: Path | None) -> tuple[tuple[int, int, int], ...] | None:
    if path is None:
        return None
    try:
        paths = [path / "accessKey", path / "secretKey"] if path.is_dir() else [path]
        states = [one.stat() for one in paths]
    except OSError:
        return None
    return tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in states)
