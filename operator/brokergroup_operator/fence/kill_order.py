"""How the operator has the fence in a pod kill its broker, and how the fence proves that it did: two UDP datagrams each way.

    question      BGK1 | nonce 16                               | mac 32    operator: are you the fence of this pod?
    challenge     BGC1 | nonce 16 | challenge 16                | mac 32    fence
    order         BGO1 | nonce 16 | challenge 16                | mac 32    operator: kill your broker
    confirmation  BGD1 | nonce 16 | challenge 16 | started 8    | mac 32    fence: the process that I held is dead

Each mac is HMAC-SHA256 with the group's fence key over all that stands before it and the pod's uid. No clock is compared. The
fence's challenge, good once and for two seconds, keeps an order that was overheard from killing a master later; the operator's
nonce keeps an old confirmation from proving anything; the uid keeps a pod from speaking for another. Without the key nothing is
answered, so the port is no echo for forged senders. What it is for, and what it does not stop: docs/adr/0012.
"""

from __future__ import annotations

import hmac
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUESTION: Final = b"BGK1"
CHALLENGE: Final = b"BGC1"
ORDER: Final = b"BGO1"
CONFIRMATION: Final = b"BGD1"
NONCE_BYTES: Final = 16
KEY_BYTES: Final = 32
# Longer than any operator takes between challenge and order.
CHALLENGE_SECONDS: Final = 2.0
_MAC_BYTES: Final = 32
_SHAPES: Final = {
    QUESTION: struct.Struct(">16s"),
    CHALLENGE: struct.Struct(">16s16s"),
    ORDER: struct.Struct(">16s16s"),
    CONFIRMATION: struct.Struct(">16s16sd"),
}
_OUTSTANDING: Final = 16
_KEY_AGE_SECONDS: Final = 1.0


class Message(NamedTuple):
    """A datagram whose mac is right."""

    tag: bytes
    nonce: bytes
    challenge: bytes = b""
    # When the dead process had been started, in seconds since its machine's boot.
    process_started: float = 0.0


def seal(message: Message, key: bytes, pod_uid: str) -> bytes:
    """The datagram."""
    shape = _SHAPES[message.tag]
    fields = message[1 : 1 + len(shape.unpack(bytes(shape.size)))]
    body = message.tag + shape.pack(*fields)
    return body + _mac(body, key, pod_uid)


def open_sealed(datagram: bytes, key: bytes, pod_uid: str) -> Message | None:
    """What it says; None for anything that a holder of the key has not said for this pod."""
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
    """The group's key as its Secret is mounted: hexadecimal. Read at most once a second; a pod may start before its Secret."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._key: bytes | None = None
        self._read_at: float | None = None

    def key(self, now: float) -> bytes | None:
        """None while there is none, or it is no key."""
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
    # When its process had been started, once the order was carried out.
    killed: float | None = None


@dataclass(slots=True)
class KillOrders:
    """The fence's side. `kill` ends the broker, and tells when its process had been started; None: not known to be dead."""

    pod_uid: str
    keys: KeyFile
    kill: Callable[[], float | None]
    _asked: dict[bytes, _Asked] = field(default_factory=dict)

    def answer(self, datagram: bytes, now: float) -> bytes | None:
        """What goes back to whoever sent this; `now` is of a clock that goes on while the machine sleeps."""
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
        while len(self._asked) >= _OUTSTANDING:
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
