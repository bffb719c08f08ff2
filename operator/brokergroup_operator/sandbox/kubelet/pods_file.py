"""``pods.json``: which pods run on a node and under which process ids, for whoever is not in the kubelet's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "pods.json"


def write_pods_file(file: Path, content: dict[str, Any]) -> None:
    """Replace the file at once, so that no reader sees half of it."""
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
    temporary.replace(file)


def read_pods_file(data_dir: Path) -> list[dict[str, Any]]:
    """The pods of the kubelet with that data folder; none if it has not started."""
    try:
        content = msgspec.json.decode((data_dir / FILE_NAME).read_bytes(), type=dict[str, Any])
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
