"""Picks the one reconcile plane by a Lease: its holder reconciles, and says at any time whether it still may write.

The Lease keeps two planes from doing the same work at once. It protects nothing else: every write of a pass can be repeated,
and masters are granted by compare-and-set on the record, never by the Lease (ADR 2).

Why not the official client's elector: its requests have no deadline, so a leader that is cut off waits for ever and stays leader;
it reads the wall clock, so a step of the clock makes a second leader; and two processes of one name are both leader.
Here the time is monotonic, every request has a deadline, and the holder's name is drawn anew at each start. A leader counts
its time from *before* it asked for the Lease, a candidate from *after* it saw it change, and the first counts less.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import secrets
import time
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.errors import ApiError, Backoff, ConflictError, NotFoundError
from brokergroup_operator.kube.resources import LEASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.settings import LeaderElectionSettings

log = structlog.get_logger(__name__)

# One renewal at most is under way when a plane ends; each conflict means that one was carried out.
GIVE_BACK_ATTEMPTS = 3
# A candidate that the API does not answer tries ever less often, down to once in so many retry periods.
LONGEST_PERIODS_BETWEEN_TRIES = 8


class LeaderElector:
    """Calls `on_started` and `on_stopped` as leadership comes and goes, until `stop` gives the Lease back: that calls neither."""

    def __init__(
        self,
        api: KubernetesApi,
        settings: LeaderElectionSettings,
        *,
        on_started: Callable[[], None],
        on_stopped: Callable[[], None],
    ) -> None:
        self._api = api
        self._settings = settings
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._holder = f"{settings.identity}_{secrets.token_hex(4)}"
        # The Lease as it was last read or written, and when it was last seen to change.
        self._lease: JsonObject | None = None
        self._changed_seconds = 0.0
        self._leading = False
        self._leads_until_seconds = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._stranger = ""

    @property
    def leads_for_seconds(self) -> float:
        """How long a write that begins now may be under way: none of ours is, once another one may lead.

        0: none may begin, also in a process that was frozen, before its timers run.
        """
        return max(0.0, self._leads_until_seconds - time.monotonic()) if self._leading else 0.0

    def start(self) -> asyncio.Task[None]:
        """Begin, also again after `stop`. The task ends only by `stop`, or by a fault that the caller must look to."""
        self._task = asyncio.create_task(self._campaign(), name="leader election")
        return self._task

    async def stop(self) -> None:
        """Give the Lease back, so that the next plane need not wait for its end. What writes must have ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._expiry is not None:
            self._expiry.cancel()
        self._leading = False
        with contextlib.suppress(ApiError):
            await self._give_back()

    async def _give_back(self) -> None:
        """By what the API server has: it may carry out a renewal whose sender was cancelled, before our read or after it."""
        for _ in range(GIVE_BACK_ATTEMPTS):
            lease = await self._read()
            if lease is None or _holder(lease) != self._holder:
                return
            with contextlib.suppress(ConflictError):
                await self._write(lease, holder="")
                return

    async def _campaign(self) -> None:
        period_seconds = self._settings.retry_period_seconds
        backoff = Backoff(period_seconds, LONGEST_PERIODS_BETWEEN_TRIES * period_seconds)
        while True:
            try:
                await self._try()
                backoff.reset()
                pause_seconds = self._pause_seconds()
            except ConflictError:
                # Another plane wrote it meanwhile, or our own last write was done after all: the next look shows which.
                self._lease, pause_seconds = None, 0.0
            except ApiError as error:
                log.warning("leader_election.interrupted", error=str(error))
                # The leader has two seconds to renew; a candidate can wait.
                pause_seconds = max(period_seconds, error.retry_after_seconds)
                if not self._leading:
                    pause_seconds = backoff.next_seconds(pause_seconds)
            await asyncio.sleep(pause_seconds)

    def _pause_seconds(self) -> float:
        """How long to wait: a candidate tries again at the moment the Lease ends."""
        if self._leading or self._lease is None:
            return self._settings.retry_period_seconds
        return min(self._settings.retry_period_seconds, max(0.0, self._ends_seconds(self._lease) - time.monotonic()))

    async def _try(self) -> None:
        lease = self._lease if self._leading and self._lease is not None else await self._read()
        sent_seconds = time.monotonic()
        if lease is None:
            self._lease = await self._create()
        elif _holder(lease) in {"", self._holder} or time.monotonic() >= self._ends_seconds(lease):
            self._lease = await self._write(lease, holder=self._holder)
        else:
            self._lose(f"held by {_holder(lease)}")
            self._tell_of_a_stranger(_holder(lease))
            return
        self._hold(sent_seconds)

    def _hold(self, sent_seconds: float) -> None:
        self._leads_until_seconds = sent_seconds + self._settings.renew_deadline_seconds
        if self._expiry is not None:
            self._expiry.cancel()
        remaining_seconds = max(0.0, self._leads_until_seconds - time.monotonic())
        self._expiry = asyncio.get_running_loop().call_later(remaining_seconds, self._lose, "not renewed in time")
        if not self._leading:
            log.info("leader_election.leads", holder=self._holder)
            self._leading = True
            self._on_started()

    def _lose(self, why: str) -> None:
        if self._leading:
            log.warning("leader_election.lost", holder=self._holder, why=why)
            self._leading = False
            self._on_stopped()

    def _tell_of_a_stranger(self, holder: str) -> None:
        """Two releases that share a Lease are one operator: only one pod of all of them reconciles, by its own settings."""
        if holder != self._stranger and _stateful_set(holder) != _stateful_set(self._holder):
            self._stranger = holder
            log.error(
                "leader_election.shared",
                lease=self._settings.operator,
                held_by=holder,
                expected="a pod of this release: give each release in one namespace its own --lease-name (chart: leaseName)",
            )

    async def _read(self) -> JsonObject | None:
        try:
            lease = await self._api.get(
                LEASES,
                self._settings.name,
                namespace=self._settings.namespace,
                timeout_seconds=self._settings.request_timeout_seconds,
            )
        except NotFoundError:
            return None
        if self._lease is None or _version(lease) != _version(self._lease):
            self._changed_seconds = time.monotonic()
        self._lease = lease
        return lease

    def _ends_seconds(self, lease: JsonObject) -> float:
        """By the holder's own duration: an operator of another version may keep it longer than we would."""
        duration = (lease.get("spec") or {}).get("leaseDurationSeconds") or self._settings.lease_duration_seconds
        return self._changed_seconds + float(duration)

    async def _create(self) -> JsonObject:
        metadata = {"name": self._settings.name, "namespace": self._settings.namespace}
        return await self._api.create(
            LEASES,
            {"metadata": metadata, "spec": self._spec({}, self._holder)},
            timeout_seconds=self._settings.request_timeout_seconds,
        )

    async def _write(self, lease: JsonObject, *, holder: str) -> JsonObject:
        """A compare-and-set: the Lease carries the resourceVersion with which it was read."""
        return await self._api.replace(
            LEASES,
            lease | {"spec": self._spec(lease.get("spec") or {}, holder)},
            timeout_seconds=self._settings.request_timeout_seconds,
        )

    def _spec(self, before: JsonObject, holder: str) -> JsonObject:
        now = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = before | {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._settings.lease_duration_seconds,
            "renewTime": now,
        }
        if holder and before.get("holderIdentity") != holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1
        return spec


def _holder(lease: JsonObject) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _stateful_set(holder: str) -> str:
    """The StatefulSet of the pod that a holder's name begins with."""
    return holder.partition("_")[0].rpartition("-")[0]


def _version(lease: JsonObject) -> str:
    return str(lease["metadata"].get("resourceVersion", ""))
