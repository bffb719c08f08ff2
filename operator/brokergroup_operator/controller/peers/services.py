"""What every part of a plane works with: its settings, its calls, the other planes, and the tasks that run beside requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from brokergroup_operator.kube.errors import Backoff
from rocketmq_remoting.address import EXPECTED, heard_address
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, encode_broker_names
from rocketmq_remoting.errors import BodyError, RemotingError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from brokergroup_operator.controller.peers.broker_calls import BrokerCalls
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.observer import Observer
    from brokergroup_operator.records.store import GroupKey
    from rocketmq_remoting.client import RemotingClient

Result = TypeVar("Result")
# Beside the broker name in a plane's question: two groups of two namespaces may have one name, each at NameServers of its own.
ASKED_NAMESPACE: Final = "brokergroupNamespace"
ASKED_NAME: Final = "brokergroupName"

log = structlog.get_logger(__name__)


class BackgroundTasks:
    """Keeps tasks referenced while they run, logs those that fail, and cancels at the end those that still run."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()

    def start(
        self,
        work: Coroutine[Any, Any, Result],
        name: str,
        *,
        on_end: Callable[[asyncio.Task[Result]], object] | None = None,
    ) -> asyncio.Task[Result]:
        """Run this beside the caller. A failure is logged; the next tick of the plane begins such work again."""
        task = self.keep(asyncio.create_task(work, name=name))
        if on_end is not None:
            task.add_done_callback(on_end)
        return task

    def keep(self, task: asyncio.Task[Result]) -> asyncio.Task[Result]:
        self.running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        running = list(self.running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", task=task.get_name(), error=repr(error))


def is_running(task: asyncio.Task[Any] | None) -> bool:
    return task is not None and not task.done()


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after this long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def doubled(first_seconds: float, times: int, longest_seconds: float) -> float:
    return min(first_seconds * 2.0 ** min(times, 10), longest_seconds)


class Patience:
    """When what has just failed may be tried again, by the event loop's clock. The pause doubles with each failure."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._backoff = Backoff(first_seconds, longest_seconds)
        self.until_seconds = 0.0

    @property
    def is_over(self) -> bool:
        return asyncio.get_running_loop().time() >= self.until_seconds

    def failed(self, retry_after_seconds: float = 0.0) -> float:
        """Begin a pause, at least the server's `retry_after_seconds`; return its length."""
        pause_seconds = self._backoff.next_seconds(retry_after_seconds)
        self.until_seconds = asyncio.get_running_loop().time() + pause_seconds
        return pause_seconds

    def answered(self) -> None:
        """The pause is over, and the next one is short again."""
        self._backoff.reset()
        self.until_seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What a plane has one of, for all its parts."""

    settings: PlaneSettings
    observer: Observer
    calls: BrokerCalls
    planes: Planes
    # None: the records are not in Kubernetes.
    api_silence_seconds: Callable[[], float] | None = None
    tasks: BackgroundTasks = field(default_factory=BackgroundTasks)


class Part:
    """A part of a plane, which looks after all groups; most are woken by the plane's tick."""

    def __init__(self, services: Services) -> None:
        self._settings, self._observer = services.settings, services.observer
        self._calls, self._planes, self._tasks = services.calls, services.planes, services.tasks

    @property
    def _now_seconds(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class HeardElsewhere:
    """Which of the other planes hear a broker, and how many planes there are, this one included."""

    hearing: tuple[str, ...] = ()
    planes: int = 1

    def protects(self, silent_for_seconds: float, patience_seconds: float) -> bool:
        """Whether a broker that has been silent here for so long is left alone on their word.

        A majority always protects it, a minority for `patience_seconds` (`test_how_long_the_word_of_other_planes_counts`): one
        plane with a stuck view must not keep a dead master in office.
        """
        if 2 * len(self.hearing) > self.planes:
            return True
        return bool(self.hearing) and silent_for_seconds < patience_seconds


class Planes:
    """This plane among the others: before a silent master is fenced they are asked, since every plane hears every broker."""

    def __init__(self, client: RemotingClient, settings: PlaneSettings) -> None:
        self._client, self._settings = client, settings
        # Known when the plane listens.
        self.own_address = settings.advertise_address

    def rank(self, key: GroupKey) -> int:
        """Return this plane's place for one group by rendezvous hashing, 0 for the first and for a plane that is not listed.
        Safety does not rest on it: the compare-and-set decides.
        """
        planes = self._settings.peer_addresses
        ranked = sorted(planes, key=lambda one: hashlib.blake2b(f"{one}|{key}".encode(), digest_size=8).digest())
        return ranked.index(self.own_address) if self.own_address in planes else 0

    @property
    def others(self) -> list[str]:
        return [address for address in self._settings.peer_addresses if address != self.own_address]

    async def who_hears(self, key: GroupKey, broker_name: str, broker_id: int) -> HeardElsewhere:
        """Ask all others at once (1006). One that has not answered by the short deadline counts as not hearing the broker."""
        others = self.others
        answers = await asyncio.gather(*(self._hears(address, key, broker_name, broker_id) for address in others))
        hearing = tuple(address for address, hears in zip(others, answers, strict=True) if hears)
        return HeardElsewhere(hearing=hearing, planes=len(others) + 1)

    async def _hears(self, address: str, key: GroupKey, broker_name: str, broker_id: int) -> bool:
        named, body = {ASKED_NAMESPACE: key.namespace, ASKED_NAME: key.name}, encode_broker_names([broker_name])
        question = request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, ext_fields=named, body=body)
        timeout_seconds = self._settings.other_planes_deadline_seconds
        try:
            answer = await self._client.invoke(address, question, timeout_seconds=timeout_seconds)
            if answer.code != ResponseCode.SUCCESS:
                return False
            seen = BrokerReplicasInfoBody.decode(answer.body).replicas_info_table.get(broker_name)
        except (RemotingError, BodyError, ValueError):
            return False
        members = (*seen.in_sync_replicas, *seen.not_in_sync_replicas) if seen is not None else ()
        return any(member.broker_id == broker_id and member.alive for member in members)


async def dial(address: str, *, deadline_seconds: float) -> None:
    """Connect to `host:port`, and close the connection. Raise `ConnectionRefusedError` if nothing listens there, `TimeoutError`
    after the deadline, another `OSError` if there is no way to the host, `ValueError` for an address that is none.
    """
    if (found := heard_address(address)) is None:
        raise ValueError(f"address {address!r}, expected {EXPECTED}")
    async with asyncio.timeout(deadline_seconds):
        _, writer = await asyncio.open_connection(found.host, found.port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
