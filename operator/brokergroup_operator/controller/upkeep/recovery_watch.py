"""Watches what heartbeats do not show of a recovery: the new master's index has caught up, clients are routed to it and served.

A Java broker that becomes master serves as one only when its consume queues hold all of its log (28). A producer finds the new
master by its NameServer (901). With a `Canary`, its first acknowledged message shows that clients are served. A step without an
answer stays open. No failover waits for any of this.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.peers.broker_calls import WRITE_AND_READ, BrokerCallError, NotPermittedError
from brokergroup_operator.controller.peers.services import Part, Services, wait_at_most
from brokergroup_operator.observe.timeline import FailoverTimeline, Step
from rocketmq_remoting.broker_protocol import TopicConfig
from rocketmq_remoting.client_protocol import SendMessageRequestHeaderV2
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import RemotingCommand, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.records.store import GroupKey

FIRST_PAUSE_SECONDS = 0.02
# Of the time that has passed: a step is seen at most a tenth too late.
PAUSE_SHARE = 0.1
TOPIC = "BROKERGROUP_CANARY"
QUEUES = 1
TOPIC_CONFIG = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
# In Java's words and in the Python replica's, where the topic or the broker takes no messages at all.
_CLOSED_TO_ALL = "forbid"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Watched:
    timeline: FailoverTimeline | None = None


class RecoveryWatch(Part):
    """One task for each step of an incident that has a new master."""

    def __init__(self, services: Services, canary: Canary) -> None:
        super().__init__(services)
        self._canary = canary

    def look_at(self, group: Group) -> None:
        """Begin to watch the group's open incident, once its new master has confirmed its role."""
        recovering, watched = group.incidents.recovering, group.care(_Watched)
        if recovering is None or recovering[0] is watched.timeline:
            return
        timeline, awaited = recovering
        watched.timeline = timeline
        for step in awaited:
            self._tasks.start(self._stamp(group, timeline, step), f"rmq:recovery {group.key}")

    async def _stamp(self, group: Group, timeline: FailoverTimeline, step: Step) -> None:
        address = group.record.address_of(timeline.to_broker_id) if group.record is not None else None
        try:
            seen_seconds = await self._seen_seconds(group, timeline, step, address) if address is not None else None
            if seen_seconds is not None:
                group.incidents.saw(timeline, step, seen_seconds)
        except BrokerCallError as error:
            log.info("a step of the recovery was not seen", group=str(group.key), step=step.value, error=str(error))
        finally:
            group.incidents.await_no_longer(timeline, step)

    async def _seen_seconds(self, group: Group, timeline: FailoverTimeline, step: Step, address: str) -> float | None:
        match step:
            case Step.ROUTE_VISIBLE:
                return await self._sees_route(group, address)
            case Step.FIRST_ACK:
                # From when it can acknowledge: the commit, or the begin of a change that another plane committed.
                since_seconds = timeline.steps.get(Step.COMMITTED, timeline.steps[Step.DETECTED])
                async for _ in self._looks():
                    first = self._canary.first_acknowledged_seconds(group.key, address, since_seconds=since_seconds)
                    if first is not None:
                        return first
            case _:
                async for _ in self._looks():
                    behind_bytes = await self._calls.bytes_behind_dispatch(address)
                    if not behind_bytes:
                        return None if behind_bytes is None else time.monotonic()
        return None

    async def _sees_route(self, group: Group, address: str) -> float | None:
        to_ask, seen = set(group.binding.name_servers), False
        async for _ in self._looks():
            asked = sorted(to_ask)
            told = await asyncio.gather(*(self._master_by(server, group) for server in asked))
            seen = seen or address in told
            to_ask = {server for server, master in zip(asked, told, strict=True) if master not in (None, address)}
            if not to_ask:
                return time.monotonic() if seen else None
        return None

    async def _master_by(self, name_server: str, group: Group) -> str | None:
        """Return the master that a NameServer routes to, empty while it knows none; None if it does not answer."""
        binding = group.binding
        try:
            return await self._calls.routed_master(name_server, binding.cluster_name, binding.broker_name) or ""
        except BrokerCallError as error:
            log.info("a NameServer does not tell its route", name_server=name_server, error=str(error))
            return None

    async def _looks(self) -> AsyncIterator[None]:
        """Yield for each look, until it has lasted too long."""
        began_seconds = self._now_seconds
        while (passed_seconds := self._now_seconds - began_seconds) < self._settings.recovery_watch_seconds:
            yield
            await asyncio.sleep(max(FIRST_PAUSE_SECONDS, passed_seconds * PAUSE_SHARE))


@dataclass(slots=True)
class _Answers:
    # Of the last acknowledged messages: the time (monotonic clock) and the broker's address. An incident is looked at many times
    # while so many are sent.
    acknowledged: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=64))
    # The last refusal, and its time; None: a message was acknowledged since.
    refusal: NotPermittedError | None = None
    refused_seconds: float = 0.0
    # The user and the missing right that were reported: while they stay, there is nothing new to report.
    told: tuple[str | None, str] = (None, "")
    # Ends the pause before the next message.
    change_began: asyncio.Event = field(default_factory=asyncio.Event)


class Canary(Part):
    """A message a second from the operator's own producer, so that an incident knows the first write that a client saw.

    The plane of rank 0 sends all the time; another one while it changes the master itself. A failed message is not sent again:
    the next one comes sooner. A broker that refuses it for a missing right does so until a person changes that: it is reported
    once. Off by default (`spec.monitoring.canary`): it writes into the group, and creates a topic.
    """

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        # Of each group whose canary runs.
        self._answers: dict[GroupKey, _Answers] = {}

    def look_at(self, group: Group) -> None:
        """Start the group's canary, if its spec asks for one and none runs. Wake it if a change of master has begun."""
        if group.key in self._answers:
            if _is_changing(group):
                self._answers[group.key].change_began.set()
        elif self._is_wanted(group):
            answers = self._answers[group.key] = _Answers()
            self._tasks.start(
                self._send_while_wanted(group, answers),
                f"rmq:canary {group.key}",
                on_end=lambda _: self._answers.pop(group.key, None),
            )

    def first_acknowledged_seconds(self, key: GroupKey, by: str, *, since_seconds: float) -> float | None:
        """Return when this broker acknowledged the first message after that time (monotonic clock); None: none yet.

        Raise `NotPermittedError` if it refused the last one.
        """
        if (answers := self._answers.get(key)) is None:
            return None
        for at_seconds, broker in answers.acknowledged:
            if broker == by and at_seconds >= since_seconds:
                return at_seconds
        refusal = answers.refusal
        if refusal is not None and refusal.address == by and answers.refused_seconds >= since_seconds:
            raise refusal
        return None

    def _is_wanted(self, group: Group) -> bool:
        may_send = group.binding.canary and not group.is_leaving
        return may_send and (_is_changing(group) or self._planes.rank(group.key) == 0)

    async def _send_while_wanted(self, group: Group, answers: _Answers) -> None:
        was_acknowledged = True
        while self._is_wanted(group):
            began_seconds = time.monotonic()
            try:
                broker = await self._send(group)
                now_seconds = time.monotonic()
                answers.acknowledged.append((now_seconds, broker))
                answers.refusal, is_acknowledged = None, True
            except BrokerCallError as error:
                now_seconds, is_acknowledged = time.monotonic(), False
                if isinstance(error, NotPermittedError):
                    answers.refusal, answers.refused_seconds = error, now_seconds
                elif was_acknowledged:
                    log.warning("canary not acknowledged", group=str(group.key), error=str(error))
            was_acknowledged = is_acknowledged
            if self._planes.rank(group.key) == 0:
                self._tell(group.key, answers)
            self._observer.canary_sent(group.key, is_acknowledged, now_seconds - began_seconds)
            await self._pause(group, answers, was_answered=is_acknowledged or answers.refusal is not None)

    async def _pause(self, group: Group, answers: _Answers, *, was_answered: bool) -> None:
        """Wait before the next message. Asleep while the master changes, it would see the first write up to a second late."""
        if not was_answered or _is_changing(group):
            await asyncio.sleep(self._settings.canary_retry_seconds)
            return
        answers.change_began.clear()
        await wait_at_most(answers.change_began, self._settings.canary_period_seconds)

    def _tell(self, key: GroupKey, answers: _Answers) -> None:
        """Report that the canary is refused, or is not any more, if that is news."""
        refusal = answers.refusal
        user, needs = (refusal.access_key, _needs(refusal)) if refusal is not None else (None, "")
        if (user, needs) == answers.told:
            return
        answers.told = (user, needs)
        if refusal is None:
            log.info("canary acknowledged again", group=str(key))
            self._observer.canary_refused(key, "")
            return
        broker, remark = refusal.address, refusal.remark
        log.warning("canary refused", group=str(key), broker=broker, user=user, needs=needs, error=remark)
        sender = f"of user {user!r}" if user is not None else "that is unsigned"
        what = f"broker {broker} refuses the canary {sender}: needed is {needs}; the broker says: {remark}"
        self._observer.canary_refused(key, what)

    async def _send(self, group: Group) -> str:
        """Return the address that acknowledged it."""
        broker = await self._route(group)
        message = _message(group.binding.broker_name)
        # Signed as this group, not by address: a broker that came back elsewhere is routed to before the record has its address.
        calls = self._calls.signed_by(group.binding.credentials)
        if not await calls.deliver(broker, message):
            await calls.put_topic(broker, TOPIC_CONFIG)
            if not await calls.deliver(broker, message):
                raise BrokerCallError(f"{broker}: made topic {TOPIC}, and says that it does not exist")
        return broker

    async def _route(self, group: Group) -> str:
        """Return the master by the first NameServer that knows one."""
        binding, failures = group.binding, list[str]()
        for server in binding.name_servers:
            try:
                master = await self._calls.routed_master(server, binding.cluster_name, binding.broker_name)
            except BrokerCallError as error:
                failures.append(str(error))
                continue
            if master is not None:
                return master
            failures.append(f"{server} knows no master")
        raise BrokerCallError(f"no route to {binding.broker_name}: {'; '.join(failures)}")


def _is_changing(group: Group) -> bool:
    """Whether this plane changes the master, or did and the first acknowledged message after it is not known yet."""
    recovering = group.incidents.recovering
    return group.incidents.in_progress is not None or (recovering is not None and Step.FIRST_ACK in recovering[1])


def _message(broker_name: str) -> RemotingCommand:
    now_ms = time.time_ns() // 1_000_000
    header = SendMessageRequestHeaderV2(
        producer_group="brokergroup-operator-canary",
        topic=TOPIC,
        default_topic="TBW102",  # a broker that makes topics by itself makes them as this one is
        default_topic_queue_nums=QUEUES,
        queue_id=0,
        sys_flag=0,
        born_timestamp=now_ms,
        flag=0,
        properties="",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name=broker_name,
    )
    return request(RequestCode.SEND_MESSAGE_V2, ext_fields=header.encode(), body=str(now_ms).encode())


def _needs(refusal: NotPermittedError) -> str:
    """Return what must be granted for the message to be taken. A broker answers 16 also if no one may write into the topic."""
    if _CLOSED_TO_ALL in refusal.remark:
        return f"perm {WRITE_AND_READ} of topic {TOPIC}, and a brokerPermission that lets it be written"
    if refusal.code != RequestCode.SEND_MESSAGE_V2:
        return f"Create on Topic:{TOPIC}, or that topic, made by a user who may"
    right = f"Pub on Topic:{TOPIC} (and Create, where it does not exist)"
    if refusal.access_key is None:
        return f"spec.security.credentialsSecretRef of a user of the broker's ACL who has {right}"
    return f"that user with the group's secret in the broker's ACL, and {right}"
