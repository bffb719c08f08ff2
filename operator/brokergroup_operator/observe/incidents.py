"""The incident log: one JSON line for each failover and switchover, appended and flushed to the disk.

The SLA report is checked against it, so a line is written once, whole, after its incident has ended, and never changed.
``docs/reference/incident-log.md`` says what each member means. A member is added freely; a change of meaning raises
``schemaVersion``. A torn line (the machine died while it was written) stays: readers skip what is not JSON.

``incidents.jsonl.open`` lists the incidents that have begun. The next operator on this volume writes the lines of one that died,
with outcome ``interrupted`` and ``censored``. Of several operator pods the one that acted writes; readers of all their logs merge
by ``id``. Kubernetes says why a member went only after the failover, so such circumstances are lines of a file beside the log.

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
import json
import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from brokergroup_operator.observe.observer import Observer

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from pathlib import Path

    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.records.store import GroupKey

MAX_BYTES: Final = 8 * 1024 * 1024
KEPT_FILES: Final = 4
CIRCUMSTANCE: Final = "circumstance"
SCHEMA_VERSION: Final = 3
QUEUE_LIMIT: Final = 1000
RETRY_SECONDS: Final = 1.0
# How long `note` waits for the disk, and how far the end of a circumstance moves before it is noted again.
NOTE_SECONDS: Final = 1.0
NOTED_AGAIN_SECONDS: Final = 300.0
# So many circumstances are known as noted; one beyond is noted again, which is the same record.
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
        # Lines to write, each with the incidents open then; no line: only the list of open incidents changed.
        self._queue: asyncio.Queue[tuple[dict[str, Any] | None, list[dict[str, Any]]] | None] = asyncio.Queue(
            QUEUE_LIMIT
        )
        # A file of its own: the circumstances of a pod that crashes for weeks must not push incidents out.
        self._beside = IncidentFile(circumstances_beside(path), max_bytes=max_bytes // 4, kept_files=kept_files)
        self._noted: dict[str, dt.datetime] = {}
        self._writer: asyncio.Task[None] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Begin to write, first the incidents that an earlier process left open."""
        self._writer = asyncio.create_task(self._write_all(), name="rmq:incident-log")

    def master_lost(self, timeline: FailoverTimeline) -> None:
        self._note(timeline)

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        """Drop an incident that has begun: no line is written."""
        self._open.pop(start_of(self._document(timeline)), None)
        self._put(None)

    def master_committed(self, timeline: FailoverTimeline) -> None:
        """Note the epoch: with it, the incident has the same id in every operator's log."""
        self._note(timeline)

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        """Queue one closed incident; a full queue drops it with an error in the log."""
        document = self._document(timeline)
        self._open.pop(start_of(document), None)
        log.info(
            "incident", **{name: document[name] for name in ("id", "outcome", "trigger", "cause")}, incident=document
        )
        self._put(document)

    async def note(self, told: Sequence[Circumstance]) -> None:
        """Write new circumstances; return when they are on the disk, or after ``NOTE_SECONDS``."""
        fresh = [one for one in told if self._is_news(one)]
        if not fresh:
            return
        for one in fresh:
            document = {**circumstance_to_json(one), "writtenBy": self._written_by}
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
        """Write what is queued, then stop. Open incidents stay listed."""
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
        """Retry until it is on the disk, or the operator stops."""
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
    """Return the file of an incident log's circumstances."""
    return path.with_name(f"{path.name}.circumstances")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstance:
    """Why a member went, by Kubernetes: killed for memory, evicted, its node without disk. Readers join it by member and time.

    `cause` is one of ``metric_names.CAUSES`` (``unknown`` proves nothing), `what` Kubernetes' own word for it. A circumstance that
    lasts is noted again with a later end.
    """

    group: GroupKey
    cluster_name: str
    broker_name: str
    broker_id: int
    cause: str
    what: str
    started_at: dt.datetime
    ended_at: dt.datetime
    pod: str
    node: str = ""
    message: str = ""

    @property
    def id(self) -> str:
        """The same for each operator process that notes it."""
        return f"{self.group}/{self.pod}/{self.what}@{iso(self.started_at)}"


class CircumstanceSink(Protocol):
    """Keeps circumstances."""

    async def note(self, told: Sequence[Circumstance]) -> None:
        """Return when they are on the disk, or after a second without."""
        ...


class NoSink:
    """No incident log is kept."""

    async def note(self, told: Sequence[Circumstance]) -> None:
        """Drop them."""


def circumstance_to_json(told: Circumstance) -> dict[str, Any]:
    """Return the line of the log."""
    document: dict[str, Any] = {
        "schemaVersion": SCHEMA_VERSION,
        "id": told.id,
        "kind": CIRCUMSTANCE,
        "namespace": told.group.namespace,
        "name": told.group.name,
        "cluster": told.cluster_name,
        "brokerName": told.broker_name,
        "brokerId": told.broker_id,
        "cause": told.cause,
        "what": told.what,
        "startedAt": iso(told.started_at),
        "endedAt": iso(told.ended_at),
        "pod": told.pod,
        "node": told.node,
        "message": told.message[:1024],
    }
    return {name: value for name, value in document.items() if value != ""}


def iso(moment: dt.datetime) -> str:
    """Return UTC with milliseconds, as all times of the log."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class IncidentFile:
    """Appends whole lines and rotates old files away; blocking, on the disk at return. Raises OSError.

    A full ``incidents.jsonl`` becomes ``incidents.jsonl.1``, that one ``.2``; the last one is deleted. ``incidents.jsonl.open`` is
    replaced as a whole.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, kept_files: int = KEPT_FILES) -> None:
        self._path = path
        self._open = path.with_name(f"{path.name}.open")
        self._max_bytes = max_bytes
        self._kept_files = kept_files

    def append(self, document: dict[str, Any]) -> None:
        """Add one line, on a new line even where the last write was torn."""
        line = to_line(document)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size + len(line) > self._max_bytes:
            self._rotate()
        append_line(self._path, line)

    def note_open(self, documents: list[dict[str, Any]]) -> None:
        """Replace the list of open incidents."""
        if not documents:
            self._open.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        aside = self._open.with_name(f"{self._open.name}.new")
        with aside.open("wb") as stream:
            stream.writelines(to_line(document) for document in documents)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(self._open)
        sync_folder(self._open.parent)

    def left_open(self) -> list[dict[str, Any]]:
        """Return the incidents that an earlier process began and wrote no line of, also if it could not update the list."""
        if not self._open.exists():
            return []
        noted = _documents(self._open)
        newest = (self._path, self._rotated(1))
        ended = {start_of(line) for path in newest if path.exists() for line in _documents(path)}
        return [document for document in noted if start_of(document) not in ended]

    def _rotate(self) -> None:
        self._rotated(self._kept_files).unlink(missing_ok=True)
        for number in range(self._kept_files - 1, 0, -1):
            if self._rotated(number).exists():
                self._rotated(number).rename(self._rotated(number + 1))
        if self._kept_files > 0:
            self._path.rename(self._rotated(1))
        else:
            self._path.unlink()
        sync_folder(self._path.parent)

    def _rotated(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def start_of(document: dict[str, Any]) -> tuple[str, str, str]:
    """Return an incident's identity from its beginning on; its id changes with an election."""
    return str(document.get("namespace")), str(document.get("name")), str(document.get("startedAt"))


def to_line(document: dict[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def append_line(path: Path, line: bytes) -> None:
    """Append one line and flush it to the disk, on a new line even where the last write was torn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("ab+") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size > 0:
            stream.seek(size - 1)
            if stream.read(1) != b"\n":
                line = b"\n" + line
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())
    if is_new:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, or a crash of the machine loses a file that was created or renamed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _documents(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines():
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue  # torn: the machine died while it was written
        if isinstance(document, dict):
            found.append(document)
    return found
