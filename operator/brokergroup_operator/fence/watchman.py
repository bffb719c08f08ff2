"""The fence's loop: asks, listens, looks, kills. Everything that decides is in ``decide.py``.

It sleeps only in the selector, at most for ``TICK_SECONDS``. After a freeze the first thing it does is to look, before it
reads anything: the broker has woken too. After it was starved the broker may well have run, so what waits in the sockets is
read first. One controller is asked at a time, on a connection that stays; when it fails to answer, all of them are asked
at once.
"""

from __future__ import annotations

import selectors
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from brokergroup_operator.fence.addresses import AddressBook
from brokergroup_operator.fence.decide import FenceCore, FenceRules, Kill, LocalRole
from brokergroup_operator.fence.deletion import BY_ORDER
from brokergroup_operator.fence.deletion import WHY as STOPPED_WHILE_DELETED
from brokergroup_operator.fence.kill_order import KeyFile, KillOrders
from brokergroup_operator.fence.lines import Line
from brokergroup_operator.fence.log import tell
from brokergroup_operator.fence.pauses import PauseWatch, boot_seconds, starved_seconds
from brokergroup_operator.fence.peers import Peers
from brokergroup_operator.fence.processes import BrokerProcesses
from brokergroup_operator.fence.questions import (
    broker_question,
    controller_question,
    is_word_of_a_controller,
    local_role,
    told_by,
)
from brokergroup_operator.fence.role_file import RoleFile
from brokergroup_operator.fence.settings import fence_of
from brokergroup_operator.fence.wire import PlainWire, tls_wires
from rocketmq_remoting.address import Address

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.fence.pauses import Pause
    from brokergroup_operator.fence.settings import FenceSettings, TlsSettings
    from brokergroup_operator.fence.wire import Wire
    from rocketmq_remoting.command import RemotingCommand

TICK_SECONDS: Final = 0.05
# While the pod is leaving, the role is asked for more often: a preStop hook waits for it.
_LEAVING_PERIOD_SECONDS: Final = 0.1
_LOCAL_PERIOD_SECONDS: Final = 0.2
_LOCAL_TIMEOUT_SECONDS: Final = 0.5
_PEERS_PERIOD_SECONDS: Final = 0.1


class Watchman:
    """Run ``run()``; it returns when the pod is leaving and the broker has ended."""

    def __init__(self, settings: FenceSettings) -> None:
        self._settings = settings
        self._rules = FenceRules(
            settings.isolation_seconds,
            settings.fence_timeout_seconds,
            settings.heartbeat_timeout_seconds,
            settings.heartbeat_interval_seconds,
        )
        self._role_file = RoleFile(settings.run_dir)
        self.core = FenceCore(self._rules, started_at=boot_seconds(), heard_before=self._role_file.was_known)
        self._processes = BrokerProcesses(settings.pod_uid)
        self._selector = selectors.DefaultSelector()
        self._orders = KillOrders(settings.pod_uid, KeyFile(settings.key_file), self._kill_by_order)
        self._peers = Peers(fence_of(settings.local_address), settings.broker_name, self._on_order)
        self._selector.register(self._peers.socket, selectors.EVENT_READ)
        pods = (Address(settings.pods, settings.local_address.port),) if settings.pods else ()
        self._book = book = AddressBook((*settings.controllers, *pods))
        book.start()
        to_controllers, to_broker = _wires(settings.controller_tls), _wires(settings.broker_tls)
        self._controllers = [
            Line(address, book, self._selector, to_controllers, partial(self._on_controller, index))
            for index, address in enumerate(settings.controllers)
        ]
        self._broker = Line(settings.local_address, book, self._selector, to_broker, self._on_broker)
        self._question = controller_question(settings.broker_name)
        self._current: int | None = None
        self._not_understood: dict[int, str | None] = {}
        self._controllers_due = self._local_due = self._peers_due = 0.0
        self._pauses = PauseWatch(boot_seconds(), starved_seconds())
        self._leaving = False

    def leave(self) -> None:
        """The pod is to go: stay until the broker has ended, and ask for its role more often."""
        self._leaving = True

    def run(self) -> None:
        """Watch."""
        tell("watching", controllers=[str(address) for address in self._settings.controllers])
        while True:
            now = self.turn(TICK_SECONDS)
            if self._leaving and not self._processes.any_left(now):
                return

    def close(self) -> None:
        """Let go of all sockets."""
        for line in (*self._controllers, self._broker):
            line.close()
        self._peers.close()
        self._selector.close()

    def turn(self, wait_seconds: float) -> float:
        """Wait, read, look, ask; returns the time of it."""
        ready = self._selector.select(wait_seconds)
        now = boot_seconds()
        if (pause := self._pauses.look(now, starved_seconds(), waited_at_most_seconds=wait_seconds)) is not None:
            self._woke(pause, now)
            ready = self._selector.select(0)  # what came while we stood still, as much of it as there is
        for key, events in ready:
            self._on_ready(key, events, now)
        self._look(now)
        self._ask(now)
        self._processes.refresh(now)
        if (trouble := self._role_file.write(self.core.role_word)) is not None:
            tell("role not written", why=trouble)
        return now

    def _woke(self, pause: Pause, now: float) -> None:
        self.core.woke(now, pause.seconds, starved_seconds=pause.starved_seconds)
        tell("did not run", seconds=round(pause.seconds, 2), starved_seconds=round(pause.starved_seconds, 2))
        if not pause.was_starved:
            self._look(now)

    def _on_ready(self, key: selectors.SelectorKey, events: int, now: float) -> None:
        if isinstance(key.data, Line):
            key.data.on_ready(events)
            return
        own_id = self.core.told.own_id if self.core.told is not None else None
        hears_none = self.core.hears_none_for_seconds(now)
        for word in self._peers.read(own_id=own_id, hears_none_for_seconds=hears_none):
            self.core.peer_answered(word.asked_at, word.broker_id, word.hears_none_for_seconds)

    def _on_order(self, datagram: bytes) -> bytes | None:
        return self._orders.answer(datagram, boot_seconds())

    def _kill_by_order(self) -> float | None:
        pids, started = self._processes.kill_and_prove(boot_seconds())
        self.core.killed()
        tell("killed", why=BY_ORDER, pids=pids, dead=started is not None)
        return started

    def _ask(self, now: float) -> None:
        for line in (*self._controllers, self._broker):
            line.expire(now)
        if now >= self._controllers_due:
            period = _LEAVING_PERIOD_SECONDS if self._leaving else self._rules.question_period_seconds
            self._controllers_due = now + period
            wanted = self._controllers if self._current is None else [self._controllers[self._current]]
            for line in wanted:
                if not line.is_busy:
                    line.ask(self._question, now=now, timeout_seconds=self._rules.question_period_seconds)
        if now >= self._local_due and not self._broker.is_busy and self.core.asks_local(now):
            self._local_due = now + _LOCAL_PERIOD_SECONDS
            self._broker.ask(broker_question(), now=now, timeout_seconds=_LOCAL_TIMEOUT_SECONDS)
        if now >= self._peers_due and (members := self.core.asks_others(now)):
            self._peers_due = now + _PEERS_PERIOD_SECONDS
            pods = self._book.resolve_all(self._settings.pods) if self._settings.pods else ()
            for member in members:
                self._peers.ask(member, now=now, pods=pods)

    def _on_controller(self, index: int, answer: RemotingCommand | None) -> None:
        self._tell_what_is_not_understood(index)
        if answer is None or not is_word_of_a_controller(answer):
            if self._current == index:
                self._current, self._controllers_due = None, 0.0  # all of them, at once
            return
        self._current = index
        told = told_by(answer, self._settings.broker_name, self._settings.broker_address)
        self.core.controller_answered(boot_seconds(), told, asked_at=self._controllers[index].asked_at)

    def _tell_what_is_not_understood(self, index: int) -> None:
        """Once for each reason, not five times a second."""
        line = self._controllers[index]
        if line.not_understood != self._not_understood.get(index):
            self._not_understood[index] = line.not_understood
            tell("controller not understood", controller=str(line.address), why=line.not_understood)

    def _on_broker(self, answer: RemotingCommand | None) -> None:
        now = boot_seconds()
        self._processes.search(now)
        age = self._processes.age_seconds(now)
        role = LocalRole.SILENT if age is None else local_role(answer)
        self.core.local_answered(now, role, process_age_seconds=age)

    def _look(self, now: float) -> None:
        verdict = self.core.look(now)
        if verdict is None and self._leaving and self._processes.broker_is_stopped():
            # Its SIGTERM would stay pending, and the kubelet would wait out preStop hook and grace before it kills.
            verdict = Kill(STOPPED_WHILE_DELETED)
        if verdict is not None:
            self._kill(verdict, now)

    def _kill(self, verdict: Kill, now: float) -> None:
        began = time.monotonic()
        pids = self._processes.kill(now)
        self.core.killed()
        tell("killed", why=verdict.why, pids=pids, milliseconds=round((time.monotonic() - began) * 1000, 1))


def _wires(settings: TlsSettings | None) -> Callable[[], Wire]:
    return PlainWire if settings is None else tls_wires(settings, boot_seconds)
