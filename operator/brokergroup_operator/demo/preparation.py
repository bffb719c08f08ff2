"""What a demo needs before it begins: its folder, the log of its own process, the BrokerGroup of a manifest."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog
import yaml

from brokergroup_operator.folder_lock import FolderInUseError, FolderLock
from kube_sandbox.kubelet.process import kill_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_FILE = "demo.lock"
SANDBOX = "sandbox"
# How long the sandbox and operator of a dead demo may take to stop (`cli/running.py`: they are killed after 20 s).
_ENDING_SECONDS = 30.0
_POLL_SECONDS = 0.1


class DemoFolderError(Exception):
    """The folder cannot be a demo's; says why, and what was expected."""


@contextmanager
def demo_folder(directory: Path) -> Iterator[FolderLock]:
    """Empty and lock the folder for the length of a block. Children that inherit the lock's descriptor keep the lock.

    Raises DemoFolderError at once for another demo's folder; after 30 s if processes of a dead demo have not stopped.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in directory.iterdir()}
        if names and LOCK_FILE not in names and not {SANDBOX, "logs"} <= names:
            raise DemoFolderError(
                f"folder {directory} holds other files; expected an empty folder, or an earlier demo's"
            )
        lock = _take(directory / LOCK_FILE)
    except OSError as error:
        raise DemoFolderError(f"folder {directory}: {error.strerror}; expected a folder that can be written") from error
    try:
        kill_leftovers(directory / SANDBOX)
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != LOCK_FILE:
                entry.unlink()
        yield lock
    finally:
        lock.release()


def _take(file: Path) -> FolderLock:
    """Take the lock, at once or when the processes of a dead demo have stopped."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while True:
        try:
            return FolderLock.take(file)
        except FolderInUseError as error:
            if error.by_its_taker or time.monotonic() > deadline:
                raise DemoFolderError(f"{error}; end it, or give this demo another --directory") from error
        time.sleep(_POLL_SECONDS)


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """Log to the file for the length of a block, also what libraries log: on the terminal it would break the screen."""
    file.parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    before = structlog.get_config()
    with file.open("a", encoding="utf-8", buffering=1) as target:
        handler = logging.StreamHandler(target)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                structlog.dev.ConsoleRenderer(colors=False),
            ],
            logger_factory=structlog.WriteLoggerFactory(target),
        )
        try:
            yield
        finally:
            structlog.configure(**before)
            root.removeHandler(handler)


class DemoManifestError(Exception):
    """The file holds no BrokerGroup for the demo; names the file, the value and what was expected."""


def read_broker_group(file: Path) -> dict[str, Any]:
    """Return the file's one BrokerGroup, beside documents of other kinds. Raises DemoManifestError."""
    try:
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise DemoManifestError(f"{file}: {error.strerror}; expected a file with a BrokerGroup") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DemoManifestError(f"{file}: no YAML: {' '.join(str(error).split())}") from error
    groups = [each for each in documents if isinstance(each, dict) and each.get("kind") == "BrokerGroup"]
    if len(groups) != 1:
        kinds = [each.get("kind") if isinstance(each, dict) else type(each).__name__ for each in documents]
        raise DemoManifestError(f"{file}: holds {kinds}; expected exactly one BrokerGroup")
    [group] = groups
    for section in ("metadata", "spec"):
        if not isinstance(group.get(section), dict):
            raise DemoManifestError(f"{file}: {section} is {group.get(section)!r}; expected a map")
    if not isinstance(group["metadata"].get("name"), str):
        raise DemoManifestError(f"{file}: metadata.name is {group['metadata'].get('name')!r}; expected a name")
    return group
