"""What the fences of one group ask each other: "since when have you heard no controller?" One UDP datagram each way.

    question  BGQ1 | nonce 8 | broker id 4 | broker name
    answer    BGA1 | nonce 8 | milliseconds 4

Only the fence of the very replica that is asked for answers, so an address that changed hands says nothing; and only to a
nonce of its own that it has not seen answered does the asker listen. The operator's orders come to the same port
(``kill_order.py``).
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from brokergroup_operator.fence.settings import fence_of
from rocketmq_remoting.address import heard_address, is_ip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from brokergroup_operator.fence.decide import Member
    from rocketmq_remoting.address import Address

_QUESTION: Final = struct.Struct(">4s8si")
_ANSWER: Final = struct.Struct(">4s8sI")
_ASKS: Final = b"BGQ1"
_SAYS: Final = b"BGA1"
_NONCE_BYTES: Final = 8
_OUTSTANDING: Final = 64
# Whoever reaches the port can fill it without end; meanwhile nothing else would be done, and that ends as a kill of a
# healthy master, or as none of an isolated one.
_MOST_AT_A_TIME: Final = 64
_LONGEST_MILLISECONDS: Final = 2**32 - 1


class Word(NamedTuple):
    """What another fence said when it was asked: since when it has heard no controller."""

    broker_id: int
    asked_at: float
    hears_none_for_seconds: float


def bound_socket(local: Address) -> socket.socket:
    """A UDP socket that never waits. OSError where the port is taken."""
    family = socket.AF_INET6 if ":" in local.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_DGRAM)
    bound.settimeout(0)
    bound.bind((local.host, local.port))
    return bound


def datagrams(bound: socket.socket) -> Iterator[tuple[bytes, tuple[str, int]]]:
    """What has come, and from where; not more than a bound at a time."""
    for _ in range(_MOST_AT_A_TIME):
        try:
            yield bound.recvfrom(2048)
        except BlockingIOError:
            return
        except OSError:  # an earlier datagram of ours met nobody (ICMP)
            continue


class Peers:
    """One UDP socket, for questions and answers. `ordered` gets whatever is neither, and may hand back an answer to it."""

    def __init__(self, local: Address, broker_name: str, ordered: Callable[[bytes], bytes | None]) -> None:
        self.socket = bound_socket(local)
        self._ordered = ordered
        self._broker_name = broker_name.encode()
        self._asked: dict[bytes, tuple[int, float]] = {}

    def ask(self, member: Member, *, now: float, pods: tuple[str, ...] = ()) -> None:
        """Ask the fence beside that replica; its address has to be a number.

        Where `pods` is given, the replica is one of those whatever its address is: each is asked, and none but its own answers.
        """
        broker = heard_address(member.address)
        hosts = [host for host in pods or ((broker.host,) if broker is not None else ()) if is_ip(host)]
        if broker is None or not hosts:
            return
        nonce = os.urandom(_NONCE_BYTES)
        while len(self._asked) >= _OUTSTANDING:
            del self._asked[next(iter(self._asked))]
        self._asked[nonce] = (member.broker_id, now)
        question = _QUESTION.pack(_ASKS, nonce, member.broker_id) + self._broker_name
        for host in hosts:
            with suppress(OSError):  # a cut network may say so at once; silence is the answer
                self.socket.sendto(question, (host, fence_of(broker).port))

    def read(self, *, own_id: int | None, hears_none_for_seconds: float | None) -> list[Word]:
        """Answer what was asked of us; returns what others said."""
        words: list[Word] = []
        for data, sender in datagrams(self.socket):
            if data.startswith(_ASKS) and len(data) >= _QUESTION.size:
                self._answer(data, sender, own_id, hears_none_for_seconds)
            elif data.startswith(_SAYS) and len(data) == _ANSWER.size:
                _, nonce, milliseconds = _ANSWER.unpack(data)
                if (asked := self._asked.pop(nonce, None)) is not None:
                    words.append(Word(*asked, hears_none_for_seconds=milliseconds / 1000))
            elif (reply := self._ordered(data)) is not None:
                with suppress(OSError):
                    self.socket.sendto(reply, sender)
        return words

    def _answer(self, data: bytes, sender: tuple[str, int], own_id: int | None, hears_none: float | None) -> None:
        _, nonce, broker_id = _QUESTION.unpack_from(data)
        if broker_id != own_id or data[_QUESTION.size :] != self._broker_name or hears_none is None:
            return
        milliseconds = min(_LONGEST_MILLISECONDS, max(0, int(hears_none * 1000)))
        with suppress(OSError):
            self.socket.sendto(_ANSWER.pack(_SAYS, nonce, milliseconds), sender)

    def close(self) -> None:
        self.socket.close()
