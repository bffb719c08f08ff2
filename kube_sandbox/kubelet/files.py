"""The kubelet's data folder: its lock, volumes, logs, and ``pods.json``, where other processes read what runs."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kube_sandbox.client import JsonObject


@dataclass(frozen=True, slots=True)
class DataFolders:
    """Paths under the data folder. ``pods/`` goes with the pod, ``claims/`` with the claim, ``logs/`` stays."""

    root: Path

    @property
    def all_pods(self) -> Path:
        """The pods' own folders."""
        return self.root / "pods"

    @property
    def all_claims(self) -> Path:
        """One folder per bound claim."""
        return self.root / "claims"

    def pod(self, pod: JsonObject) -> Path:
        """emptyDir, configMap and secret volumes, and each container's scratch folder."""
        return self.all_pods / unique_name(pod)

    def claim(self, claim: JsonObject) -> Path:
        """The claim's volume."""
        return self.all_claims / unique_name(claim)

    def logs(self, pod: JsonObject) -> Path:
        """One folder per container, one file per start in it."""
        return self.root / "logs" / unique_name(pod)


def unique_name(obj: JsonObject) -> str:
    """Return ``<namespace>_<name>_<uid>``: readable, and different for a later object of the same name."""
    metadata = obj["metadata"]
    return f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"


PODS_FILE = "pods.json"


def write_pods_file(data_dir: Path, content: dict[str, Any]) -> None:
    """Replace, atomically, the file that tells people and scripts which pods run here."""
    temporary = data_dir / "pods.new"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
    temporary.replace(data_dir / PODS_FILE)


def read_container_pid(data_dir: Path, namespace: str, pod: str, container: str) -> int | None:
    """Return the process id of a container's main process, None while it does not run."""
    try:
        content = msgspec.json.decode((data_dir / PODS_FILE).read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None  # before the first start
    for entry in content["pods"]:
        if (entry["namespace"], entry["name"]) == (namespace, pod):
            for candidate in entry["containers"]:
                if candidate["name"] == container and candidate["pid"] is not None:
                    return int(candidate["pid"])
    return None


CHUNK_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.1


class NoSuchLogError(LookupError):
    """This container has no log here."""


def newest_log(logs_folder: Path, container: str) -> Path:
    """Return the log of a container's latest start."""
    starts = [file for file in (logs_folder / container).glob("*.log") if file.stem.isdigit()]
    if not starts:
        raise NoSuchLogError(f"container {container!r} has not been started: no log in {logs_folder.name}")
    return max(starts, key=lambda file: int(file.stem))


async def read_log(
    file: Path, *, tail_lines: int | None, follow: bool, still_written: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield the file's content or its last lines; with ``follow`` also what is added while ``still_written()``."""
    with file.open("rb") as log:
        if tail_lines is not None and (tail := b"".join(deque(log, maxlen=tail_lines))):
            yield tail
        while True:
            written = still_written()  # before the read, so that the last output is not lost
            chunk = log.read(CHUNK_BYTES)
            if chunk:
                yield chunk
            elif follow and written:
                await asyncio.sleep(FOLLOW_SECONDS)
            else:
                return


class FolderInUseError(Exception):
    """Another process uses the folder; the message names it."""


def lock_folder(file: Path) -> int:
    """Lock a folder by a file in it, until the descriptor is closed; raises FolderInUseError, or OSError.

    Two kubelets on one data folder would kill each other's pods as leftovers. The lock is the kernel's: it ends with its process.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "?"
        os.close(descriptor)
        raise FolderInUseError(f"folder {file.parent} is in use by process {holder} ({_command(holder)})") from None
    except OSError:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "ended meanwhile"
