"""`status.failovers`: written by the operator pod that carried the failover out.

The reconcile plane knows only the failovers of its own process, so it leaves the field alone. The pod that committed the
election writes it when the new master has confirmed its role, and again when the incident ends. The patch names the
resourceVersion that was read: of two writers one reads again.

Nothing waits for a write. A failed one is retried with backoff until `GIVE_UP_SECONDS`; the incident log has the failover anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import FailoverStatus
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, Backoff, ConflictError, NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUPS
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import JsonObject, KubernetesApi
    from brokergroup_operator.records.store import GroupKey

FAILOVERS_KEPT: Final = 10
CALL_SECONDS: Final = 3.0
PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 15.0
GIVE_UP_SECONDS: Final = 120.0

log = structlog.get_logger(__name__)


class FailoverHistory(Observer):
    """Writes the failovers of this process in a task of its own, group after group."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        # The latest failover of each group that is not written yet, and since when.
        self._unwritten: dict[GroupKey, tuple[FailoverStatus, float]] = {}
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._writer = asyncio.create_task(self._write_for_ever(), name="rmq:failover-history")

    async def stop(self) -> None:
        """Write what is left, within the deadline of one call, then stop."""
        if self._writer is None:
            return
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        self._writer = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALL_SECONDS):
                await self._write_all()
        if self._unwritten:
            log.warning("failovers not written", groups=[str(key) for key in self._unwritten])

    def master_changed(self, timeline: FailoverTimeline) -> None:
        self._take(timeline)

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self._take(timeline)

    def _take(self, timeline: FailoverTimeline) -> None:
        if timeline.kind is Kind.FAILOVER and timeline.outcome is not Outcome.CANCELLED:
            self._unwritten[timeline.group] = (failover_status(timeline), asyncio.get_running_loop().time())
            self._wake.set()

    async def _write_for_ever(self) -> None:
        backoff = Backoff(PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            await self._wake.wait()
            self._wake.clear()
            failure = await self._write_all()
            if failure is None:
                backoff.reset()
            if self._unwritten:
                await asyncio.sleep(backoff.next_seconds(0.0 if failure is None else failure.retry_after_seconds))
                self._wake.set()

    async def _write_all(self) -> ApiError | None:
        """Write one group after the other until the API is unreachable. Return the last failure."""
        failure = None
        for key, (failover, since_seconds) in list(self._unwritten.items()):
            try:
                await self._write(key, failover)
            except ConflictError:
                continue  # the status was written in between: read it again
            except ApiError as error:
                failure = error
                if asyncio.get_running_loop().time() - since_seconds < GIVE_UP_SECONDS:
                    # Last in the next round: a group that cannot be written must not keep the others waiting.
                    self._unwritten[key] = self._unwritten.pop(key)
                    if isinstance(error, ApiUnavailableError):
                        return error
                    continue
                log.warning(
                    "failover not written to the status", group=str(key), epoch=failover.epoch, error=str(error)
                )
            if self._unwritten.get(key) == (failover, since_seconds):
                del self._unwritten[key]
        return failure

    async def _write(self, key: GroupKey, failover: FailoverStatus) -> None:
        try:
            group = await self._api.get(BROKER_GROUPS, key.name, namespace=key.namespace, timeout_seconds=CALL_SECONDS)
            await self._api.patch(
                BROKER_GROUPS,
                key.name,
                {
                    "metadata": {"resourceVersion": group["metadata"]["resourceVersion"]},
                    "status": shown(group, failover),
                },
                namespace=key.namespace,
                subresource="status",
                field_manager=names.FIELD_MANAGER_FAILOVERS,
                timeout_seconds=CALL_SECONDS,
            )
        except NotFoundError:
            log.debug("group gone before its failover was written", group=str(key))


def shown(group: JsonObject, failover: FailoverStatus) -> dict[str, Any]:
    """Return the field with this failover first; it replaces its own earlier entry, which had fewer phases."""
    status = group.get("status") or {}
    latest: JsonObject = msgspec.to_builtins(failover)
    kept = [one for one in status.get("failovers") or [] if _identity(one) != _identity(latest)]
    failovers = sorted([latest, *kept], key=lambda one: str(one["startedAt"]), reverse=True)[:FAILOVERS_KEPT]
    return {"failovers": failovers}


def _identity(failover: JsonObject) -> tuple[Any, ...]:
    return failover.get("startedAt"), failover.get("from"), failover.get("epoch")


def failover_status(timeline: FailoverTimeline) -> FailoverStatus:
    """Return the failover as the status shows it, in whole milliseconds."""
    phases = {name: round(value) for name, value in timeline.milliseconds().items()}
    duration = timeline.duration_seconds
    return FailoverStatus(
        id=timeline.incident_id,
        cause=timeline.cause.value,
        trigger=timeline.trigger.value,
        from_broker_id=timeline.from_broker_id or 0,
        to_broker_id=timeline.to_broker_id or 0,
        epoch=timeline.epoch_after if timeline.epoch_after is not None else timeline.epoch_before,
        started_at=timeline.started_at,
        duration_milliseconds=max(phases.values(), default=0) if duration is None else round(duration * 1000),
        phases=phases,
    )
