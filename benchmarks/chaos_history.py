"""What must hold over every version of the controller's record that was ever visible, and over the logs at the end.

The history is what a watch of the BrokerGroupState delivers; deletions of the object would show as epochs that fall.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocketmq_remoting.message_record import Host
from rocketmq_replica.log.message_store import MessageStore, StorePaths

_MONOTONIC = ("masterEpoch", "syncStateSetEpoch", "nextBrokerId")


@dataclass
class RecordHistory:
    """Judges each version of the record against those before it."""

    highest: dict[str, int] = field(default_factory=dict)
    check_codes: dict[int, set[str]] = field(default_factory=dict)
    masters: dict[int, set[int]] = field(default_factory=dict)
    fallen: list[str] = field(default_factory=list)

    def see(self, record: dict[str, Any]) -> None:
        """One version of the record."""
        for name in _MONOTONIC:
            value, before = int(record.get(name, 0)), self.highest.get(name, 0)
            if value < before:
                self.fallen.append(f"{name} fell from {before} to {value}")
            self.highest[name] = max(value, before)
        for replica in record.get("replicas", []):
            if replica.get("registerCheckCode"):
                self.check_codes.setdefault(replica["brokerId"], set()).add(replica["registerCheckCode"])
        if record.get("masterBrokerId") is not None:
            self.masters.setdefault(int(record["masterEpoch"]), set()).add(int(record["masterBrokerId"]))

    @property
    def reused_ids(self) -> list[int]:
        """Broker ids that were claimed under two check codes."""
        return sorted(broker_id for broker_id, codes in self.check_codes.items() if len(codes) > 1)

    @property
    def shared_epochs(self) -> list[int]:
        """Master epochs under which the record named two masters."""
        return sorted(epoch for epoch, masters in self.masters.items() if len(masters) > 1)


def compare_logs(store_directories: list[Path]) -> list[str]:
    """Where the stopped replicas' commit logs differ below the shortest end, byte by byte; empty when they don't."""
    logs = {str(directory): _log_bytes(directory) for directory in store_directories}
    (first_name, first), *others = sorted(logs.items())
    differences = []
    for name, data in others:
        length = min(len(first), len(data))
        if first[:length] != data[:length]:
            at = next(index for index in range(length) if first[index] != data[index])
            differences.append(f"{first_name} and {name} differ at offset {at}")
    return differences


def _log_bytes(directory: Path) -> bytes:
    """The valid part of a log, as the replica itself reads it when it starts."""
    store = MessageStore(
        StorePaths(directory, directory / "commitlog", directory / "epochFileCheckpoint"),
        file_size_bytes=_file_size(directory / "commitlog"),
        store_host=Host("127.0.0.1", 10911),
    )
    try:
        parts: list[bytes] = []
        while part := store.log.read(sum(map(len, parts)), store.max_offset):
            parts.append(part)
        return b"".join(parts)
    finally:
        store.close()


def _file_size(commit_log: Path) -> int:
    return next(file.stat().st_size for file in sorted(commit_log.iterdir()))
