"""The incident log: one JSON line for each failover and switchover, appended and flushed to the disk.

It is the ground truth that the SLA report is checked against, so a line is written once, whole, after its incident has ended, and
never changed. ``docs/reference/incident-log.md`` says what each member means. A member is added freely; a change of meaning raises
``schemaVersion``. A torn line (the machine died while it was written) is left where it is: readers skip what is not JSON.

What has begun is noted beside the log (``incident_file.py``). An operator that dies in the middle of a failover loses nothing:
the next one on this volume writes the line, with outcome ``interrupted`` and ``censored``. Of several operator pods the one
that acted writes; whoever reads all of their logs merges by ``id``.

Why a member went is told by Kubernetes later than a failover takes; such circumstances (``circumstances.py``) are lines of the same
schema in a file beside the log, written by the pod that reconciles.

Example (one line in the file)::

    {"schemaVersion": 3, "id": "default/orders/7", "kind": "failover", "namespace": "default", "name": "orders",
     "cluster": "DefaultCluster", "brokerName": "orders", "trigger": "connectionRefused", "cause": "crash",
     "evidence": ["..."], "from": 1, "to": 2, "epochBefore": 6, "epoch": 7, "startedAt": "2026-11-21T00:10:00.123Z",
     "detectionMilliseconds": 1.2, "durationMilliseconds": 97.1, "unfenced": false, "unclean": false, "outcome": "completed",
     "writtenBy": "brokergroup-operator-0",
     "stepsMilliseconds": {"detected": 0.0, "decided": 0.4, "committed": 6.1, "notified": 9.0, "roleChanged": 97.1}}
"""

from __future__ import annotations

import asyncio
import platform
from typing import TYPE_CHECKING, Any, Final

import structlog

from brokergroup_operator.observe.circumstances import CIRCUMSTANCE, circumstance_to_json
from brokergroup_operator.observe.incident_file import KEPT_FILES, MAX_BYTES, IncidentFile, start_of
from brokergroup_operator.observe.observer import Observer

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from pathlib import Path

    from brokergroup_operator.observe.circumstances import Circumstance
    from brokergroup_operator.observe.timeline import FailoverTimeline

SCHEMA_VERSION: Final = 3
QUEUE_LIMIT: Final = 1000
RETRY_SECONDS: Final = 1.0
# How long whoever notes a circumstance waits for the disk, and how far the end of one moves before it is noted again.
NOTE_SECONDS: Final = 1.0
NOTED_AGAIN_SECONDS: Final = 300.0
# So many circumstances are remembered as noted; one that was forgotten is noted again, which is the same record.
NOTED_LIMIT: Final = 10_000
INTERRUPTED: Final = "interrupted"

log = structlog.get_logger(__name__)


def incident_to_json(timeline: FailoverTimeline) -> dict[str, Any]:
    """Return the incident as the JSON object described above."""
    document: dict[str, Any] = {
        "schemaVersion": SCHEMA_VERSION,
        "id": timeline.incident_id,
        "kind": timeline.kind.value,
        "namespace": timeline.group.namespace,
        "name": timeline.group.name,
        "cluster": timeline.cluster_name,
        "brokerName": timeline.broker_name,
        "trigger": timeline.trigger.value,
        "cause": timeline.cause.value,
        "evidence": list(timeline.evidence),
        "from": timeline.from_broker_id,
        "to": timeline.to_broker_id,
        "epochBefore": timeline.epoch_before,
        "epoch": timeline.epoch_after,
        "startedAt": timeline.started_at,
        "detectionMilliseconds": _milliseconds(timeline.detection_seconds),
        "durationMilliseconds": _milliseconds(timeline.duration_seconds),
        "unfenced": timeline.unfenced,
        "unclean": timeline.unclean,
        "outcome": timeline.outcome.value,
        "stepsMilliseconds": timeline.milliseconds(),
        "facts": dict(timeline.facts) or None,
    }
    return {name: value for name, value in document.items() if value is not None}


class IncidentLog(Observer):
    """Writes incidents in a thread, so that a slow disk never delays a failover. Keeps trying while a disk is full."""

    def __init__(
        self, path: Path, *, written_by: str = "", max_bytes: int = MAX_BYTES, kept_files: int = KEPT_FILES
    ) -> None:
        self._path = path
        self._file = IncidentFile(path, max_bytes=max_bytes, kept_files=kept_files)
        self._written_by = written_by or platform.node()
        self._open: dict[tuple[str, str, str], dict[str, Any]] = {}
        # What is to be written, in order; nothing in a line means that only the note of what is open changed.
        self._queue: asyncio.Queue[tuple[dict[str, Any] | None, list[dict[str, Any]]] | None] = asyncio.Queue(
            QUEUE_LIMIT
        )
        # Of their own size: a pod that crashes for weeks must not push incidents out.
        self._beside = IncidentFile(circumstances_beside(path), max_bytes=max_bytes // 4, kept_files=kept_files)
        self._noted: dict[str, dt.datetime] = {}
        self._writer: asyncio.Task[None] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Begin to write what is taken, and first what a process before this one left open."""
        self._writer = asyncio.create_task(self._write_all(), name="rmq:incident-log")

    def master_lost(self, timeline: FailoverTimeline) -> None:
        """Note what has begun."""
        self._note(timeline)

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        """Drop the note of what has begun: no line is written of it."""
        self._open.pop(start_of(self._document(timeline)), None)
        self._put(None)

    def master_committed(self, timeline: FailoverTimeline) -> None:
        """Note the epoch: by it, this incident is the same as what another operator may write of it."""
        self._note(timeline)

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        """Take one closed incident; a queue that is full drops it with an error in the log."""
        document = self._document(timeline)
        self._open.pop(start_of(document), None)
        log.info(
            "incident", **{name: document[name] for name in ("id", "outcome", "trigger", "cause")}, incident=document
        )
        self._put(document)

    async def note(self, told: Sequence[Circumstance]) -> None:
        """Take circumstances, those that are news; returns when they are on the disk, or when that takes too long."""
        fresh = [one for one in told if self._is_news(one)]
        if not fresh:
            return
        for one in fresh:
            document = {**circumstance_to_json(one, schema_version=SCHEMA_VERSION), "writtenBy": self._written_by}
            log.info("circumstance", id=one.id, cause=one.cause, circumstance=document)
            self._put(document)
        try:
            async with asyncio.timeout(NOTE_SECONDS):
                await self._queue.join()
        except TimeoutError:
            log.warning("circumstances not on the disk yet", path=str(self._path), count=len(fresh))

    def _is_news(self, told: Circumstance) -> bool:
        known = self._noted.get(told.id)
        if known is not None and (told.ended_at - known).total_seconds() < NOTED_AGAIN_SECONDS:
            return False
        if len(self._noted) >= NOTED_LIMIT:
            self._noted.clear()
        self._noted[told.id] = told.ended_at
        return True

    async def stop(self) -> None:
        """Write what is left, then end. What is open stays noted."""
        if self._writer is not None:
            self._is_stopping = True
            await self._queue.put(None)
            await self._writer
            self._writer = None

    def _note(self, timeline: FailoverTimeline) -> None:
        document = self._document(timeline)
        self._open[start_of(document)] = document
        self._put(None)

    def _document(self, timeline: FailoverTimeline) -> dict[str, Any]:
        return {**incident_to_json(timeline), "writtenBy": self._written_by}

    def _put(self, document: dict[str, Any] | None) -> None:
        try:
            self._queue.put_nowait((document, list(self._open.values())))
        except asyncio.QueueFull:
            log.exception("incident dropped: the incident log is too slow", path=str(self._path), incident=document)

    async def _write_all(self) -> None:
        await self._try(self._close_what_was_left)
        while (item := await self._queue.get()) is not None:
            document, still_open = item
            if document is not None:
                file = self._beside if document["kind"] == CIRCUMSTANCE else self._file
                await self._try(file.append, document)
            if document is None or document["kind"] != CIRCUMSTANCE:
                await self._try(self._file.note_open, still_open)
            self._queue.task_done()

    async def _try(self, write: Any, *arguments: Any) -> None:
        """Until it is on the disk, or the operator ends."""
        while True:
            try:
                await asyncio.to_thread(write, *arguments)
            except OSError as error:
                log.exception("incident log not written", path=str(self._path), what=arguments, error=str(error))
            else:
                return
            if self._is_stopping:
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _close_what_was_left(self) -> None:
        for document in self._file.left_open():
            self._file.append({**document, "outcome": INTERRUPTED, "censored": True})
        self._file.note_open([])


def circumstances_beside(path: Path) -> Path:
    """The file of the circumstances of an incident log."""
    return path.with_name(f"{path.name}.circumstances")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
