"""The UDP protocols of the fence's port: questions between the fences of a group, and the operator's order to kill the broker.

Between fences ("for how long have you heard no controller, and none that reached the Kubernetes API?"):

    question      BGQ2 | nonce 8 | broker id 4 | broker name
    answer        BGA2 | nonce 8 | milliseconds 4 | milliseconds 4
    question      BGQ1 | nonce 8 | broker id 4 | broker name             also asked, and answered, for fences of earlier releases,
    answer        BGA1 | nonce 8 | milliseconds 4                        which drop the other datagrams

Only the fence of the replica that the question names answers, so an address that moved to another pod answers nothing. An answer
counts only with a nonce of the asker's own that has had no answer yet.

The order (docs/adr/0012 has its purpose and its limits):

    question      BGK1 | nonce 16                               | mac 32    operator: are you the fence of this pod?
    challenge     BGC1 | nonce 16 | challenge 16                | mac 32    fence
    order         BGO1 | nonce 16 | challenge 16                | mac 32    operator: kill your broker
    confirmation  BGD1 | nonce 16 | challenge 16 | started 8    | mac 32    fence: the process that I held is dead

Each mac is HMAC-SHA256 with the group's fence key over the bytes before it and the pod's uid. No clock is compared. The fence's
challenge is valid once and for two seconds, so a recorded order kills no master later. The operator's nonce makes an old
confirmation worthless; the uid keeps a pod from answering for another. Without the key the fence answers nothing, so the port
does not reflect forged traffic.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from brokergroup_operator.fence.settings import fence_of
from rocketmq_remoting.address import heard_address, is_ip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from brokergroup_operator.fence.decide import Member
    from rocketmq_remoting.address import Address


_QUESTION: Final = struct.Struct(">4s8si")
_ASKS: Final = b"BGQ2"
_SAYS: Final = b"BGA2"
# A pod keeps its fence for months (docs/adr/0019).
_ASKED_EARLIER: Final = b"BGQ1"
_SAID_EARLIER: Final = b"BGA1"
_ANSWERS: Final = {_SAYS: struct.Struct(">4s8sII"), _SAID_EARLIER: struct.Struct(">4s8sI")}
_NONCE_BYTES: Final = 8
_OUTSTANDING: Final = 128
# A flood of the port must not keep the loop from its other work: that would end in the kill of a healthy master, or in none of an
# isolated one.
_MOST_AT_A_TIME: Final = 64
_LONGEST_MILLISECONDS: Final = 2**32 - 1


class Word(NamedTuple):
    """Another fence's answer: for how long it has heard no controller, and none that reached the Kubernetes API.

    The latter is None of a fence of an earlier release.
    """

    broker_id: int
    asked_at: float
    hears_none_for_seconds: float
    no_contact_for_seconds: float | None = None


def bound_socket(local: Address) -> socket.socket:
    """Return a non-blocking UDP socket. Raises OSError if the port is taken."""
    family = socket.AF_INET6 if ":" in local.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_DGRAM)
    bound.settimeout(0)
    bound.bind((local.host, local.port))
    return bound


def datagrams(bound: socket.socket) -> Iterator[tuple[bytes, tuple[str, int]]]:
    """Yield received datagrams with their senders, at most a fixed number."""
    for _ in range(_MOST_AT_A_TIME):
        try:
            yield bound.recvfrom(2048)
        except BlockingIOError:
            return
        except OSError:  # no process listened at the target of an earlier datagram of ours (ICMP)
            continue


class Peers:
    """One UDP socket, for questions and answers. `ordered` gets every other datagram, and may return an answer to it."""

    def __init__(self, local: Address, broker_name: str, ordered: Callable[[bytes], bytes | None]) -> None:
        self.socket = bound_socket(local)
        self._ordered = ordered
        self._broker_name = broker_name.encode()
        # By the answer's tag and nonce.
        self._asked: dict[bytes, tuple[int, float]] = {}

    def ask(self, member: Member, *, now: float, pods: tuple[str, ...] = ()) -> None:
        """Ask the fence beside that replica, if its address is an IP address.

        With `pods`, the replica is one of these, whatever its address: all are asked, and only its own fence answers.
        """
        broker = heard_address(member.address)
        hosts = [host for host in pods or ((broker.host,) if broker is not None else ()) if is_ip(host)]
        if broker is None or not hosts:
            return
        while len(self._asked) >= _OUTSTANDING:
            del self._asked[next(iter(self._asked))]
        for asks, says in ((_ASKED_EARLIER, _SAID_EARLIER), (_ASKS, _SAYS)):
            nonce = os.urandom(_NONCE_BYTES)
            self._asked[says + nonce] = (member.broker_id, now)
            question = _QUESTION.pack(asks, nonce, member.broker_id) + self._broker_name
            for host in hosts:
                with suppress(OSError):  # a cut network may say so at once; silence is the answer
                    self.socket.sendto(question, (host, fence_of(broker).port))

    def read(
        self, *, own_id: int | None, hears_none_for_seconds: float | None, no_contact_for_seconds: float | None
    ) -> list[Word]:
        """Answer received questions; return received answers. Without a number of our own a question stays unanswered."""
        words: list[Word] = []
        for data, sender in datagrams(self.socket):
            tag = data[:4]
            if tag == _ASKED_EARLIER and len(data) >= _QUESTION.size:
                self._answer(data, sender, own_id, _SAID_EARLIER, (hears_none_for_seconds,))
            elif tag == _ASKS and len(data) >= _QUESTION.size:
                self._answer(data, sender, own_id, _SAYS, (hears_none_for_seconds, no_contact_for_seconds))
            elif tag in _ANSWERS and len(data) == _ANSWERS[tag].size:
                _, nonce, *milliseconds = _ANSWERS[tag].unpack(data)
                if (asked := self._asked.pop(tag + nonce, None)) is not None:
                    words.append(Word(*asked, *(each / 1000 for each in milliseconds)))
            elif (reply := self._ordered(data)) is not None:
                with suppress(OSError):
                    self.socket.sendto(reply, sender)
        return words

    def _answer(
        self,
        data: bytes,
        sender: tuple[str, int],
        own_id: int | None,
        says: bytes,
        seconds: tuple[float | None, ...],
    ) -> None:
        _, nonce, broker_id = _QUESTION.unpack_from(data)
        known = [each for each in seconds if each is not None]
        if broker_id != own_id or data[_QUESTION.size :] != self._broker_name or len(known) < len(seconds):
            return
        milliseconds = [min(_LONGEST_MILLISECONDS, max(0, int(each * 1000))) for each in known]
        with suppress(OSError):
            self.socket.sendto(_ANSWERS[says].pack(says, nonce, *milliseconds), sender)

    def close(self) -> None:
        self.socket.close()


QUESTION: Final = b"BGK1"
CHALLENGE: Final = b"BGC1"
ORDER: Final = b"BGO1"
CONFIRMATION: Final = b"BGD1"
NONCE_BYTES: Final = 16
KEY_BYTES: Final = 32
# Longer than an operator needs between challenge and order.
CHALLENGE_SECONDS: Final = 2.0
_MAC_BYTES: Final = 32
_SHAPES: Final = {
    QUESTION: struct.Struct(">16s"),
    CHALLENGE: struct.Struct(">16s16s"),
    ORDER: struct.Struct(">16s16s"),
    CONFIRMATION: struct.Struct(">16s16sd"),
}
_MOST_CHALLENGES: Final = 16
_KEY_AGE_SECONDS: Final = 1.0


class Message(NamedTuple):
    """A datagram with a valid mac."""

    tag: bytes
    nonce: bytes
    challenge: bytes = b""
    # Start time of the dead process, in seconds since its machine's boot.
    process_started: float = 0.0


def seal(message: Message, key: bytes, pod_uid: str) -> bytes:
    """Return the datagram for a message."""
    shape = _SHAPES[message.tag]
    fields = message[1 : 1 + len(shape.unpack(bytes(shape.size)))]
    body = message.tag + shape.pack(*fields)
    return body + _mac(body, key, pod_uid)


def open_sealed(datagram: bytes, key: bytes, pod_uid: str) -> Message | None:
    """Return the message; None unless its mac is by this key and for this pod."""
    shape = _SHAPES.get(datagram[:4])
    if shape is None or len(datagram) != 4 + shape.size + _MAC_BYTES:
        return None
    body, mac = datagram[:-_MAC_BYTES], datagram[-_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(body, key, pod_uid)):
        return None
    return Message(datagram[:4], *shape.unpack(body[4:]))


def _mac(body: bytes, key: bytes, pod_uid: str) -> bytes:
    return hmac.digest(key, body + pod_uid.encode(), "sha256")


class KeyFile:
    """The group's key in its mounted Secret: hexadecimal. Read at most once a second: a pod may start before its Secret exists."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._key: bytes | None = None
        self._read_at: float | None = None

    def key(self, now: float) -> bytes | None:
        """Return the key; None if the file is missing or holds no key."""
        if self._path is not None and (self._read_at is None or now - self._read_at >= _KEY_AGE_SECONDS):
            self._read_at, self._key = now, self._read(self._path)
        return self._key

    @staticmethod
    def _read(path: Path) -> bytes | None:
        try:
            key = bytes.fromhex(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return key if len(key) == KEY_BYTES else None


@dataclass(slots=True)
class _Asked:
    challenge: bytes
    at: float
    # Start time of the killed process, once the order was carried out.
    killed: float | None = None


@dataclass(slots=True)
class KillOrders:
    """The fence's side. `kill` kills the broker and returns the start time of its process; None if its death is unproven."""

    pod_uid: str
    keys: KeyFile
    kill: Callable[[], float | None]
    _asked: dict[bytes, _Asked] = field(default_factory=dict)

    def answer(self, datagram: bytes, now: float) -> bytes | None:
        """Return the reply to this datagram, or None; `now` is from a clock that continues during suspend."""
        if datagram[:4] not in (QUESTION, ORDER) or (key := self.keys.key(now)) is None:
            return None
        said = open_sealed(datagram, key, self.pod_uid)
        if said is None:
            return None
        reply = self._challenge(said, now) if said.tag == QUESTION else self._obey(said, now)
        return None if reply is None else seal(reply, key, self.pod_uid)

    def _challenge(self, said: Message, now: float) -> Message:
        for nonce in [nonce for nonce, one in self._asked.items() if now - one.at >= CHALLENGE_SECONDS]:
            del self._asked[nonce]
        while len(self._asked) >= _MOST_CHALLENGES:
            del self._asked[next(iter(self._asked))]
        one = self._asked.setdefault(said.nonce, _Asked(os.urandom(NONCE_BYTES), now))
        return Message(CHALLENGE, said.nonce, one.challenge)

    def _obey(self, said: Message, now: float) -> Message | None:
        one = self._asked.get(said.nonce)
        if one is None or now - one.at >= CHALLENGE_SECONDS or not hmac.compare_digest(one.challenge, said.challenge):
            return None
        if one.killed is None:  # an order that comes again has lost its confirmation: the next process is left alone
            one.killed = self.kill()
        return None if one.killed is None else Message(CONFIRMATION, said.nonce, one.challenge, one.killed)
