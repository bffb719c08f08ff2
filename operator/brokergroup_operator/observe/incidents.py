"""The incident log: one JSON line for each failover and switchover, appended and flushed to the disk.

It is the ground truth that the SLA report is checked against, so a line is written once, whole, after its incident has ended,
and never changed. A member is added freely; a change of meaning raises ``schemaVersion``. A torn last line (the machine died
while it was written) is left where it is: readers skip what is not JSON, and the writer begins on a new line.

Example (one line in the file)::

    {"schemaVersion": 1, "id": "default/orders/7", "kind": "failover", "namespace": "default", "name": "orders",
     "cluster": "DefaultCluster", "brokerName": "orders", "trigger": "connectionRefused", "evidence": ["..."],
     "from": 1, "to": 2, "epochBefore": 6, "epoch": 7, "startedAt": "2026-11-21T00:10:00.123Z",
     "detectionMilliseconds": 1.2, "durationMilliseconds": 97.1, "unfenced": false, "outcome": "completed",
     "stepsMilliseconds": {"detected": 0.0, "decided": 0.4, "committed": 6.1, "notified": 9.0, "roleChanged": 97.1}}

``startedAt`` is wall clock at ``detected``; all durations are monotonic. ``epoch`` is the epoch after, absent where nobody was
elected. The master's last sign of life was ``detectionMilliseconds`` before ``startedAt``.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
from typing import TYPE_CHECKING, Any

import structlog

from brokergroup_operator.observe.observer import Observer

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.observe.timeline import FailoverTimeline

SCHEMA_VERSION = 1
QUEUE_LIMIT = 1000

log = structlog.get_logger(__name__)


def incident_to_json(timeline: FailoverTimeline) -> dict[str, Any]:
    """Return the incident as the JSON object described above."""
    document: dict[str, Any] = {
        "schemaVersion": SCHEMA_VERSION,
        "id": f"{timeline.group}/{timeline.epoch_after or timeline.epoch_before}",
        "kind": timeline.kind.value,
        "namespace": timeline.group.namespace,
        "name": timeline.group.name,
        "cluster": timeline.cluster_name,
        "brokerName": timeline.broker_name,
        "trigger": timeline.trigger.value,
        "evidence": list(timeline.evidence),
        "from": timeline.from_broker_id,
        "to": timeline.to_broker_id,
        "epochBefore": timeline.epoch_before,
        "epoch": timeline.epoch_after,
        "startedAt": _iso(timeline.started_at_unix_seconds),
        "detectionMilliseconds": _milliseconds(timeline.detection_seconds),
        "durationMilliseconds": _milliseconds(timeline.duration_seconds),
        "unfenced": timeline.unfenced,
        "outcome": timeline.outcome.value,
        "stepsMilliseconds": timeline.milliseconds(),
    }
    return {name: value for name, value in document.items() if value is not None}


class IncidentLog(Observer):
    """Appends closed incidents to a file, in a thread of its own turn, so that a slow disk never delays a failover."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_LIMIT)
        self._writer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write what is taken."""
        self._writer = asyncio.create_task(self._write_all(), name="rmq:incident-log")

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        """Take one closed incident; a queue that is full drops it with an error in the log."""
        line = json.dumps(incident_to_json(timeline), separators=(",", ":")).encode() + b"\n"
        try:
            self._queue.put_nowait(line)
        except asyncio.QueueFull:
            log.exception(
                "incident dropped: the incident log is too slow", path=str(self._path), incident=line.decode()
            )

    async def stop(self) -> None:
        """Write what is left, then end."""
        if self._writer is not None:
            await self._queue.put(None)
            await self._writer
            self._writer = None

    async def _write_all(self) -> None:
        while (line := await self._queue.get()) is not None:
            try:
                await asyncio.to_thread(append_line, self._path, line)
            except OSError as error:
                log.exception("incident not written", path=str(self._path), incident=line.decode(), error=str(error))


def append_line(path: Path, line: bytes) -> None:
    """Append one line and flush it to the disk, on a new line even where the last write was torn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size > 0:
            stream.seek(size - 1)
            if stream.read(1) != b"\n":
                line = b"\n" + line
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())


def _iso(unix_seconds: float) -> str:
    moment = dt.datetime.fromtimestamp(unix_seconds, tz=dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
