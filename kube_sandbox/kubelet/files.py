"""What the kubelet keeps under its data folder: volumes, logs, and ``pods.json``, which tells other processes what runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kube_sandbox.client import JsonObject


@dataclass(frozen=True, slots=True)
class DataFolders:
    """``pods/`` goes with the pod, ``claims/`` with the claim, ``logs/`` stays."""

    root: Path

    @property
    def lock_file(self) -> Path:
        """Held while a kubelet uses this data folder."""
        return self.root / "kubelet.lock"

    @property
    def pods_file(self) -> Path:
        """Which pods run here, for people and scripts."""
        return self.root / PODS_FILE

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

    def container_log(self, pod: JsonObject, container: str, restart_count: int) -> Path:
        """The log of one start of one container."""
        return self.logs(pod) / container / f"{restart_count}.log"


def unique_name(obj: JsonObject) -> str:
    """``<namespace>_<name>_<uid>``: readable, and never the same for a successor of the same name."""
    metadata = obj["metadata"]
    return f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"


PODS_FILE = "pods.json"


def write_pods_file(file: Path, content: dict[str, Any]) -> None:
    """Replace the file at once, so that no reader sees half of it."""
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
    temporary.replace(file)


def read_pods_file(data_dir: Path) -> list[dict[str, Any]]:
    """The pods of the kubelet with that data folder; none if it has not started."""
    try:
        content = msgspec.json.decode((data_dir / PODS_FILE).read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return []
    return list(content["pods"])


def read_container_pid(data_dir: Path, namespace: str, pod: str, container: str) -> int | None:
    """The process id of a container's main process, None while it does not run."""
    for entry in read_pods_file(data_dir):
        if (entry["namespace"], entry["name"]) == (namespace, pod):
            for candidate in entry["containers"]:
                if candidate["name"] == container and candidate["pid"] is not None:
                    return int(candidate["pid"])
    return None


CHUNK_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.1


class NoSuchLogError(LookupError):
    """This container has not written a log here."""


def newest_log(logs_folder: Path, container: str) -> Path:
    """The log of a container's latest start."""
    files = sorted((logs_folder / container).glob("*.log"), key=_start_number)
    starts = [file for file in files if file.stem.isdigit()]
    if not starts:
        raise NoSuchLogError(f"container {container!r} has not been started: no log in {logs_folder.name}")
    return starts[-1]


def _start_number(file: Path) -> int:
    return int(file.stem) if file.stem.isdigit() else -1


async def read_log(
    file: Path, *, tail_lines: int | None, follow: bool, still_written: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """The file's content, from its last lines on if asked, and what is added while ``still_written()``."""
    with file.open("rb") as log:
        if tail_lines is not None:
            log.seek(_offset_of_last_lines(file, tail_lines))
        while True:
            written = still_written()  # asked before reading: what came before the end is not lost
            chunk = log.read(CHUNK_BYTES)
            if chunk:
                yield chunk
            elif follow and written:
                await asyncio.sleep(FOLLOW_SECONDS)
            else:
                return


def _offset_of_last_lines(file: Path, lines: int) -> int:
    """Where the last ``lines`` lines begin, searched from the end."""
    with file.open("rb") as log:
        end = position = log.seek(0, 2)
        found = 0
        while position > 0:
            step = min(CHUNK_BYTES, position)
            position -= step
            log.seek(position)
            chunk = log.read(step)
            for index in range(step - 1, -1, -1):
                # The newline that ends the last line does not begin another one.
                if chunk[index] == 0x0A and position + index != end - 1:
                    found += 1
                    if found == lines:
                        return position + index + 1
        return 0 if lines > 0 else end
