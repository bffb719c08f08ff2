"""The fence's loop: ask the controllers, evaluate, kill. All decisions are in ``decide.py``.

The loop sleeps only in the selector, for at most ``TICK_SECONDS``. After a freeze it decides before it reads anything, because
the broker has woken too. After CPU starvation the broker may have run meanwhile, so it reads its sockets first. It asks one
controller at a time, on a connection that stays open; if that one fails to answer, or does not reach the Kubernetes API, it asks
all of them at once. Each answer lists the controllers of the installation, so another number of them needs no restart of the pod
(docs/adr/0019).
"""

from __future__ import annotations

import selectors
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from brokergroup_operator.fence.connection import AddressBook, Line, PlainWire, tls_wires
from brokergroup_operator.fence.datagrams import KeyFile, KillOrders, Peers
from brokergroup_operator.fence.decide import FenceCore, Kill, LocalRole, Member, Told
from brokergroup_operator.fence.deletion import BY_ORDER
from brokergroup_operator.fence.deletion import WHY as STOPPED_WHILE_DELETED
from brokergroup_operator.fence.log import tell
from brokergroup_operator.fence.processes import BrokerProcesses, PauseWatch, boot_seconds, starved_seconds
from brokergroup_operator.fence.rules import FenceRules
from brokergroup_operator.fence.settings import CONTROLLERS_FILE, ROLE_FILE, fence_of
from brokergroup_operator.fence.stopping import StopOrder
from rocketmq_remoting.address import Address, heard_address
from rocketmq_remoting.broker_protocol import HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, encode_broker_names
from rocketmq_remoting.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from brokergroup_operator.fence.connection import Wire
    from brokergroup_operator.fence.processes import Pause
    from brokergroup_operator.fence.settings import FenceSettings, TlsSettings
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.controller_protocol import ReplicasInfo


TICK_SECONDS: Final = 0.05
# While the pod is being deleted, the fence asks more often: a preStop hook waits for the role.
_LEAVING_PERIOD_SECONDS: Final = 0.1
_LOCAL_PERIOD_SECONDS: Final = 0.2
_LOCAL_TIMEOUT_SECONDS: Final = 0.5
_PEERS_PERIOD_SECONDS: Final = 0.1
# Without doubt: only so that this fence knows which of the others answer, and in which form.
_MEETING_PERIOD_SECONDS: Final = 5.0


class Watchman:
    """The fence's loop. ``run()`` returns when the pod is being deleted and the broker has ended."""

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
        self._stop_order = StopOrder(settings.stop_order_file, settings.pod_uid, settings.stop_seconds)
        self._selector = selectors.DefaultSelector()
        self._orders = KillOrders(settings.pod_uid, KeyFile(settings.key_file), self._kill_by_order)
        self._peers = Peers(fence_of(settings.local_address), settings.broker_name, self._on_order)
        self._selector.register(self._peers.socket, selectors.EVENT_READ)
        self._pods = (Address(settings.pods, settings.local_address.port),) if settings.pods else ()
        self._book = book = AddressBook(self._pods)
        self._to_controllers, to_broker = _wires(settings.controller_tls), _wires(settings.broker_tls)
        self._controllers: dict[Address, Line] = {}
        self._controllers_file = ControllersFile(settings.run_dir)
        self._ask_these((*self._controllers_file.read(), *settings.controllers))
        self._broker = Line(settings.local_address, book, self._selector, to_broker, self._on_broker)
        self._question = controller_question(settings.broker_name)
        self._current: Address | None = None
        self._not_understood: dict[Address, str | None] = {}
        self._controllers_due = self._local_due = self._peers_due = self._meeting_due = 0.0
        self._round = 0
        self._pauses = PauseWatch(boot_seconds(), starved_seconds())
        self._leaving = False

    def leave(self) -> None:
        """Note the pod's deletion: stay until the broker has ended, and ask for its role more often."""
        self._leaving = True

    def run(self) -> None:
        """Run until the pod is being deleted and its broker has ended."""
        tell("watching", controllers=[str(address) for address in self._controllers])
        while True:
            now = self.turn(TICK_SECONDS)
            if self._leaving and not self._processes.any_left(now):
                return

    def close(self) -> None:
        """Close all sockets."""
        for line in (*self._controllers.values(), self._broker):
            line.close()
        self._peers.close()
        self._selector.close()

    def turn(self, wait_seconds: float) -> float:
        """Wait, read, evaluate, ask; return the time of this turn."""
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
        if not self._leaving and self._stop_order.look(now, may_stop=self.core.is_known_as_slave(now)):
            self.core.killed(now)
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
        words = self._peers.read(
            own_id=own_id,
            hears_none_for_seconds=self.core.hears_none_for_seconds(now),
            no_contact_for_seconds=self.core.no_contact_for_seconds(now),
        )
        for word in words:
            self.core.peer_answered(
                word.asked_at, word.broker_id, word.hears_none_for_seconds, word.no_contact_for_seconds
            )

    def _on_order(self, datagram: bytes) -> bytes | None:
        return self._orders.answer(datagram, boot_seconds())

    def _kill_by_order(self) -> float | None:
        pids, started = self._processes.kill_and_prove(boot_seconds())
        self.core.killed(boot_seconds())
        tell("killed", why=BY_ORDER, pids=pids, dead=started is not None)
        return started

    def _ask(self, now: float) -> None:
        for line in (*self._controllers.values(), self._broker):
            line.expire(now)
        if now >= self._controllers_due:
            self._controllers_due = now + (
                _LEAVING_PERIOD_SECONDS if self._leaving else self._rules.question_period_seconds
            )
            for line in self._wanted(now):
                if not line.is_busy:
                    line.ask(self._question, now=now, timeout_seconds=self._rules.question_period_seconds)
        if now >= self._local_due and not self._broker.is_busy and self.core.asks_local(now):
            self._local_due = now + _LOCAL_PERIOD_SECONDS
            self._broker.ask(broker_question(), now=now, timeout_seconds=_LOCAL_TIMEOUT_SECONDS)
        if now >= self._peers_due and (members := self.core.asks_others(now)):
            self._peers_due = now + _PEERS_PERIOD_SECONDS
            self._ask_fences(members, now)
        elif now >= self._meeting_due:
            self._meeting_due = now + _MEETING_PERIOD_SECONDS
            self._ask_fences(self.core.candidates(), now)

    def _wanted(self, now: float) -> list[Line]:
        """Return the controllers to ask in this round."""
        if self._current is not None:
            return [self._controllers[self._current]]
        lines = [*self._controllers.values()]
        answering = [line for line in lines if line.has_answered]
        if len(answering) < 2 or self._leaving or not self.core.asks_half(now):
            return lines
        self._round += 1
        skipped = answering[self._round % 2 :: 2]
        return [line for line in lines if line not in skipped]

    def _ask_fences(self, members: tuple[Member, ...], now: float) -> None:
        pods = self._book.resolve_all(self._settings.pods) if self._settings.pods and members else ()
        for member in members:
            self._peers.ask(member, now=now, pods=pods)

    def _on_controller(self, address: Address, answer: RemotingCommand | None) -> None:
        self._tell_what_is_not_understood(address)
        if answer is None or not is_word_of_a_controller(answer):
            if self._current == address:
                self._current, self._controllers_due = None, 0.0  # all of them, at once
            return
        told = told_by(answer, self._settings.broker_name, self._settings.broker_address)
        silence_seconds = api_silence_in(answer)
        is_current = self.core.controller_answered(
            boot_seconds(), told, asked_at=self._controllers[address].asked_at, api_silence_seconds=silence_seconds
        )
        if is_current and silence_seconds < self._rules.asking_others_after_seconds:
            self._current = address
        elif self._current == address:
            # Its copy of the record is old, or it does not reach the Kubernetes API: the others are asked beside it.
            self._current = None
        if listed := controllers_in(answer):
            self._ask_these((address, *listed))  # the one that answered is kept in any case
            self._controllers_file.write(listed)

    def _ask_these(self, addresses: tuple[Address, ...]) -> None:
        """Ask these controllers from now on, and no others."""
        if set(addresses) == self._controllers.keys():
            return
        for address in self._controllers.keys() - set(addresses):
            self._controllers.pop(address).close()
            self._not_understood.pop(address, None)
        for address in dict.fromkeys(addresses):
            if address not in self._controllers:
                answered = partial(self._on_controller, address)
                self._controllers[address] = Line(address, self._book, self._selector, self._to_controllers, answered)
        self._book.set_names((*self._controllers, *self._pods))

    def _tell_what_is_not_understood(self, address: Address) -> None:
        """Log once for each reason, not five times a second."""
        line = self._controllers[address]
        if line.not_understood != self._not_understood.get(address):
            self._not_understood[address] = line.not_understood
            tell("controller not understood", controller=str(line.address), why=line.not_understood)

    def _on_broker(self, answer: RemotingCommand | None) -> None:
        now = boot_seconds()
        self._processes.search(now)
        age = self._processes.age_seconds(now)
        role, last_read_ms = (LocalRole.SILENT, 0) if age is None else local_role(answer)
        self.core.local_answered(now, role, process_age_seconds=age, last_read_ms=last_read_ms)

    def _look(self, now: float) -> None:
        verdict = self.core.look(now)
        if verdict is None and self._leaving and self._processes.broker_is_stopped():
            # Its SIGTERM would stay pending, and the kubelet would wait for preStop hook and grace period before SIGKILL.
            verdict = Kill(STOPPED_WHILE_DELETED)
        if verdict is not None:
            self._kill(verdict, now)

    def _kill(self, verdict: Kill, now: float) -> None:
        began = time.monotonic()
        pids = self._processes.kill(now)
        self.core.killed(now)
        tell("killed", why=verdict.why, pids=pids, milliseconds=round((time.monotonic() - began) * 1000, 1))


def _wires(settings: TlsSettings | None) -> Callable[[], Wire]:
    return PlainWire if settings is None else tls_wires(settings, boot_seconds)


# Fields of the answer to 1006, beside Java's body: those of the requested groups that are deleted or hibernated, the addresses of
# all controllers, and for how many milliseconds this one has not reached the Kubernetes API.
STOPPING_GROUPS: Final = "brokergroupStopping"
CONTROLLERS: Final = "brokergroupControllers"
API_SILENCE: Final = "brokergroupApiSilence"
LONGEST_API_SILENCE_MILLISECONDS: Final = 2**31 - 1
_MOST_DIGITS: Final = 10
# A false answer cannot make the fence ask without end.
_MOST_CONTROLLERS: Final = 16


def controller_question(broker_name: str) -> RemotingCommand:
    """Return the request for master and SyncStateSet (1006): it needs no signature, and is answered from memory."""
    return request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode_broker_names([broker_name]))


def broker_question() -> RemotingCommand:
    """Return the request for the broker's role (907, GET_BROKER_HA_STATUS)."""
    return request(RequestCode.GET_BROKER_HA_STATUS)


def is_word_of_a_controller(answer: RemotingCommand | None) -> bool:
    """Whether the answer is from a controller that can decide; a Java controller that does not lead (2007) cannot."""
    return answer is not None and answer.code == ResponseCode.SUCCESS


def told_by(answer: RemotingCommand, broker_name: str, own_address: Address) -> Told | None:
    """Return a controller's answer about our group; None if it does not know the group, or is unreadable."""
    try:
        info = BrokerReplicasInfoBody.decode(answer.body).replicas_info_table.get(broker_name)
    except BodyError:
        return None
    if info is None:
        return None
    members = _members(info)
    own = [member.broker_id for member in members if heard_address(member.address) == own_address]
    return Told(
        own_id=own[0] if len(own) == 1 else None,
        master_id=info.master_broker_id,
        master_epoch=info.master_epoch,
        members=members,
        stops=broker_name in (answer.ext_fields or {}).get(STOPPING_GROUPS, "").split(";"),
    )


def controllers_in(answer: RemotingCommand) -> tuple[Address, ...]:
    """Return the controllers that an answer lists; empty if one is unreadable, or if it is from a release that lists none."""
    return _addresses((answer.ext_fields or {}).get(CONTROLLERS, ""))


def api_silence_in(answer: RemotingCommand) -> float:
    """Return for how many seconds the controller had not reached the Kubernetes API; 0 without a readable number."""
    text = (answer.ext_fields or {}).get(API_SILENCE, "")
    if not (text.isascii() and text.isdecimal()):
        return 0.0
    return min(int(text[:_MOST_DIGITS]), LONGEST_API_SILENCE_MILLISECONDS) / 1000


def _addresses(text: str) -> tuple[Address, ...]:
    found = [heard_address(one) for one in text.split(";", _MOST_CONTROLLERS)[:_MOST_CONTROLLERS]]
    return () if None in found else tuple(one for one in found if one is not None)


def _members(info: ReplicasInfo) -> tuple[Member, ...]:
    return tuple(
        Member(one.broker_id, one.broker_address or "", in_sync=in_sync, alive=one.alive)
        for in_sync, replicas in ((True, info.in_sync_replicas), (False, info.not_in_sync_replicas))
        for one in replicas
    )


def local_role(answer: RemotingCommand | None) -> tuple[LocalRole, int]:
    """Return the role in the broker's answer to 907, and when a slave last read from its master (Unix milliseconds; else 0)."""
    if answer is None:
        return LocalRole.SILENT, 0
    if answer.code != ResponseCode.SUCCESS:
        return LocalRole.UNKNOWN, 0
    try:
        body = HARuntimeInfoBody.decode(answer.body)
    except BodyError:
        return LocalRole.UNKNOWN, 0
    role = LocalRole.MASTER if body.master else LocalRole.SLAVE
    return role, body.ha_client_runtime_info.last_read_timestamp


KNOWN_ROLES: Final = ("master", "alone", "slave")


class KeptLine:
    """A file with one line, which survives the container. After an error it is written no more."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._file = None if folder is None else folder / name
        self._written: str | None = None

    def read(self) -> str:
        """Return what an earlier fence of this pod wrote; empty if there is nothing readable."""
        try:
            return "" if self._file is None else self._file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def write(self, line: str) -> str | None:
        """Write the line if it has changed; return the error, or None."""
        if self._file is None or line == self._written:
            return None
        self._written = line
        try:
            temporary = self._file.with_suffix(".new")
            temporary.write_text(line + "\n", encoding="ascii")
            temporary.replace(self._file)
        except OSError as error:
            self._file, failed = None, self._file
            return f"{failed} cannot be written: {error}"
        return None


class RoleFile:
    """The file with the broker's role for the preStop hook. An unwritable folder is logged once; the hook then does not wait."""

    def __init__(self, folder: Path | None) -> None:
        self._line = KeptLine(folder, ROLE_FILE)

    @property
    def was_known(self) -> bool:
        """Whether an earlier fence of this pod had heard a controller."""
        return self._line.read() in KNOWN_ROLES

    def write(self, word: str) -> str | None:
        """Write the role if it has changed; return the error, or None.

        An unknown role is not written: the last one stays, as the sign that a controller was heard once.
        """
        return self._line.write(word) if word in KNOWN_ROLES else None


class ControllersFile:
    """The controllers that were listed last: the variable in a pod's environment may name none of them any more.

    Without it, a fence that is started again while those are gone would take its broker for isolated.
    """

    def __init__(self, folder: Path | None) -> None:
        self._line = KeptLine(folder, CONTROLLERS_FILE)

    def read(self) -> tuple[Address, ...]:
        """Return the addresses; empty before the first answer."""
        return _addresses(self._line.read())

    def write(self, addresses: tuple[Address, ...]) -> None:
        """Write them if they have changed. The role's file reports an unwritable folder."""
        self._line.write(";".join(map(str, addresses)))
