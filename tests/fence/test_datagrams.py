"""The fence's UDP port against strangers: questions need no key and have no effect; kills and proofs need the key."""

from __future__ import annotations

import itertools
import select
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.fence.datagrams import (
    CHALLENGE,
    CHALLENGE_SECONDS,
    CONFIRMATION,
    KEY_BYTES,
    ORDER,
    QUESTION,
    KeyFile,
    KillOrders,
    Message,
    Peers,
    Word,
    open_sealed,
    seal,
)
from brokergroup_operator.fence.decide import Member
from brokergroup_operator.fence.settings import FENCE_PORT_OFFSET
from rocketmq_remoting.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


HOST = "127.0.0.1"


@pytest.fixture
def peers() -> Iterator[Peers]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    made = Peers(Address(HOST, port), "orders", lambda _: None)
    yield made
    made.close()


class Flood:
    """A socket that always has one more datagram; after too many of them the test fails instead of running for ever."""

    def __init__(self, datagram: bytes | OSError) -> None:
        self._datagram = datagram
        self.taken = 0

    def recvfrom(self, _: int) -> tuple[bytes, tuple[str, int]]:
        self.taken += 1
        assert self.taken < 10_000, (
            "the fence is busy with datagrams: it misses a kill, or later kills a healthy broker"
        )
        if isinstance(self._datagram, OSError):
            raise self._datagram
        return self._datagram, (HOST, 9)

    def sendto(self, _: bytes, __: tuple[str, int]) -> None:
        """Drop the answer."""

    def close(self) -> None:
        """No-op."""


@pytest.mark.parametrize(
    "datagram",
    [
        struct.pack(">4s8si", b"BGQ2", b"anything", 1) + b"orders",
        struct.pack(">4s8si", b"BGQ1", b"anything", 1) + b"orders",
        b"BGA2" + bytes(16),
        b"",
        OSError("ICMP"),
    ],
    ids=["questions", "of an earlier release", "answers", "nothing", "refusals"],
)
def test_a_flood_does_not_keep_the_fence_from_looking(
    peers: Peers, datagram: bytes | OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers.close()
    monkeypatch.setattr(peers, "socket", Flood(datagram))
    assert peers.read(own_id=1, hears_none_for_seconds=1.0, no_contact_for_seconds=None) == []


def test_who_was_not_asked_is_not_believed(peers: Peers) -> None:
    """The fence accepts neither a guessed nonce nor a used one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((HOST, 0))
        other.settimeout(5)
        peers.ask(Member(2, f"{HOST}:{other.getsockname()[1] - 2}", in_sync=True, alive=True), now=7.0)
        nonce = other.recv(2048)[4:12]
        at = peers.socket.getsockname()
        other.sendto(b"BGA1" + bytes(8) + struct.pack(">I", 60_000), at)
        assert peers.read(own_id=1, hears_none_for_seconds=1.0, no_contact_for_seconds=None) == []
        for expected in ([(2, 7.0, 60.0, None)], []):
            other.sendto(b"BGA1" + nonce + struct.pack(">I", 60_000), at)
            assert peers.read(own_id=1, hears_none_for_seconds=1.0, no_contact_for_seconds=None) == expected


def _receive(bound: socket.socket, *, how_many: int) -> dict[bytes, bytes]:
    """Return the next datagrams by their tags."""
    bound.settimeout(5)
    return {data[:4]: data for data in (bound.recv(2048) for _ in range(how_many))}


def test_a_fence_of_an_earlier_release_gets_the_answer_that_it_knows(peers: Peers) -> None:
    """Its pod is as old as that release (docs/adr/0019)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as old:
        old.bind((HOST, 0))
        old.sendto(struct.pack(">4s8si", b"BGQ1", b"12345678", 1) + b"orders", peers.socket.getsockname())
        select.select([peers.socket], [], [], 5.0)
        assert peers.read(own_id=1, hears_none_for_seconds=1.5, no_contact_for_seconds=9.0) == []
        old.settimeout(5)
        assert old.recv(2048) == b"BGA1" + b"12345678" + struct.pack(">I", 1500)


def test_a_fence_of_an_earlier_release_is_understood(peers: Peers) -> None:
    """It drops the question that it does not know."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as old:
        old.bind((HOST, 0))
        peers.ask(Member(2, f"{HOST}:{old.getsockname()[1] - 2}", in_sync=True, alive=True), now=7.0)
        asked = _receive(old, how_many=2)
        assert {tag: data[12:] for tag, data in asked.items()} == {
            tag: struct.pack(">i", 2) + b"orders" for tag in (b"BGQ1", b"BGQ2")
        }
        for nonce, expected in ((asked[b"BGQ2"][4:12], []), (asked[b"BGQ1"][4:12], [Word(2, 7.0, 60.0, None)])):
            old.sendto(b"BGA1" + nonce + struct.pack(">I", 60_000), peers.socket.getsockname())
            select.select([peers.socket], [], [], 5.0)
            assert peers.read(own_id=1, hears_none_for_seconds=1.0, no_contact_for_seconds=1.0) == expected


@pytest.mark.parametrize(
    ("no_contact", "heard"),
    [(9.0, 9.0), (-1.0, 0.0), (1e12, (2**32 - 1) / 1000)],
    ids=["a time", "of the future", "too long"],
)
def test_two_fences_of_this_release_say_both_times(no_contact: float, heard: float) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    asked, asker = (Peers(Address(f"127.77.2.{host}", port), "orders", lambda _: None) for host in (1, 2))
    try:
        asker.ask(Member(1, f"127.77.2.1:{port - FENCE_PORT_OFFSET}", in_sync=True, alive=True), now=5.0)
        words: list[Word] = []
        while len(words) < 2:
            assert select.select([asked.socket, asker.socket], [], [], 5.0)[0]
            asked.read(own_id=1, hears_none_for_seconds=4.0, no_contact_for_seconds=no_contact)
            words += asker.read(own_id=2, hears_none_for_seconds=None, no_contact_for_seconds=None)
        assert sorted(words, key=lambda word: word.no_contact_for_seconds is None) == [
            Word(1, 5.0, 4.0, heard),
            Word(1, 5.0, 4.0, None),
        ]
    finally:
        asked.close()
        asker.close()


@pytest.mark.parametrize(
    "datagram",
    [b"BGQ2", b"BGQ2" + bytes(8) + struct.pack(">i", 2) + b"orders", b"BGQ2" + bytes(8) + struct.pack(">i", 1) + b"payments",
     b"BGA2" + bytes(12), b"BGA2" + bytes(16), b"BGA2" + bytes(17), b"BGQ3" + bytes(8) + struct.pack(">i", 1) + b"orders"],
    ids=["short", "another broker", "another group", "a short answer", "not asked", "a long answer", "of a later release"],
)  # fmt: skip
def test_any_other_datagram_between_fences_is_dropped(peers: Peers, datagram: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((HOST, 0))
        other.sendto(datagram, peers.socket.getsockname())
        other.sendto(struct.pack(">4s8si", b"BGQ2", b"12345678", 1) + b"orders", peers.socket.getsockname())
        select.select([peers.socket], [], [], 5.0)
        while (words := peers.read(own_id=1, hears_none_for_seconds=1.0, no_contact_for_seconds=2.0)) == []:
            if select.select([other], [], [], 0.01)[0]:
                break
        assert words == []
        assert other.recv(2048) == b"BGA2" + b"12345678" + struct.pack(">II", 1000, 2000), "the one that it can answer"


def test_where_addresses_lead_to_no_fence_the_pods_are_asked_and_only_the_right_one_answers() -> None:
    """Members behind load balancers: no fence answers at the advertised address, which may also be a host name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    hosts = tuple(f"127.77.1.{one}" for one in (1, 2, 3))
    fences = [Peers(Address(host, port), "orders", lambda _: None) for host in hosts]
    asker = Peers(Address("127.77.1.9", port), "orders", lambda _: None)
    try:
        for address in (f"203.0.113.2:{port - FENCE_PORT_OFFSET}", f"lb-2.example.org:{port - FENCE_PORT_OFFSET}"):
            asker.ask(Member(2, address, in_sync=True, alive=True), now=5.0, pods=hosts)
            for broker_id, fence in enumerate(fences, start=1):
                _read_one(fence, broker_id)
            words = _read_one(asker, 9)
            assert [(word.broker_id, word.asked_at, word.hears_none_for_seconds) for word in words] == [(2, 5.0, 4.0)]
            assert asker.read(own_id=9, hears_none_for_seconds=4.0, no_contact_for_seconds=None) == []
    finally:
        for one in (*fences, asker):
            one.close()


def _read_one(of: Peers, own_id: int) -> list[Word]:
    """Wait for a datagram, and return the content of those that arrived."""
    ready, _, _ = select.select([of.socket], [], [], 5.0)
    assert ready, "no question or answer arrived"
    return of.read(own_id=own_id, hears_none_for_seconds=4.0, no_contact_for_seconds=None)


KEY, OTHER_KEY = b"k" * KEY_BYTES, b"o" * KEY_BYTES
POD, OTHER_POD = "uid-1", "uid-2"
NONCE = b"n" * 16
STARTED = 12.5


@dataclass
class Broker:
    """Counts its kills; `dies` is the fence's proof of its death."""

    dies: bool = True
    kills: int = 0

    def kill(self) -> float | None:
        self.kills += 1
        return STARTED if self.dies else None


@dataclass
class Scene:
    """One fence, and an operator that may have another key or order another pod."""

    folder: Path
    broker: Broker = field(default_factory=Broker)
    now: float = 100.0

    def __post_init__(self) -> None:
        (self.folder / "key").write_text(KEY.hex(), encoding="ascii")
        self.fence = KillOrders(POD, KeyFile(self.folder / "key"), self.broker.kill)

    def say(self, message: Message, *, key: bytes = KEY, pod: str = POD) -> Message | None:
        answer = self.fence.answer(seal(message, key, pod), self.now)
        return None if answer is None else open_sealed(answer, KEY, POD)

    def challenge(self, nonce: bytes = NONCE) -> bytes:
        answer = self.say(Message(QUESTION, nonce))
        assert answer is not None
        assert (answer.tag, answer.nonce) == (CHALLENGE, nonce)
        return answer.challenge


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_an_order_kills_and_is_confirmed(scene: Scene) -> None:
    answer = scene.say(Message(ORDER, NONCE, scene.challenge()))
    assert answer is not None
    assert (answer.tag, answer.nonce, answer.process_started) == (CONFIRMATION, NONCE, STARTED)
    assert scene.broker.kills == 1


def test_without_the_key_nothing_is_answered_and_nobody_dies(scene: Scene) -> None:
    """Not even a question gets an answer: the port must not send replies to forged addresses."""
    assert scene.say(Message(QUESTION, NONCE), key=OTHER_KEY) is None
    assert scene.say(Message(ORDER, NONCE, scene.challenge()), key=OTHER_KEY) is None
    assert scene.broker.kills == 0


def test_an_order_for_another_pod_kills_nobody(scene: Scene) -> None:
    """All fences of a group share one key: only the pod's uid distinguishes them."""
    assert scene.say(Message(ORDER, NONCE, scene.challenge()), pod=OTHER_POD) is None
    assert scene.say(Message(QUESTION, NONCE), pod=OTHER_POD) is None
    assert scene.broker.kills == 0


@pytest.mark.parametrize("bit", range(0, (4 + 32 + 32) * 8, 7))
def test_a_changed_bit_is_no_order(scene: Scene, bit: int) -> None:
    order = bytearray(seal(Message(ORDER, NONCE, scene.challenge()), KEY, POD))
    order[bit // 8] ^= 1 << bit % 8
    assert scene.fence.answer(bytes(order), scene.now) is None
    assert scene.broker.kills == 0


def test_an_order_that_was_overheard_kills_nobody_later(scene: Scene) -> None:
    """An attacker may delay an order until a controller has heard the master again, which must then live."""
    order = Message(ORDER, NONCE, scene.challenge())
    scene.now += CHALLENGE_SECONDS
    assert scene.say(order) is None
    scene.challenge()  # the attacker repeats the overheard question too, and gets another challenge
    assert scene.say(order) is None
    assert scene.broker.kills == 0


def test_an_order_without_this_fences_challenge_kills_nobody(scene: Scene) -> None:
    assert scene.say(Message(ORDER, NONCE, b"c" * 16)) is None
    scene.challenge()
    assert scene.say(Message(ORDER, NONCE, b"c" * 16)) is None
    assert scene.say(Message(ORDER, b"m" * 16, scene.challenge())) is None
    assert scene.broker.kills == 0


def test_an_order_that_comes_again_is_confirmed_again_and_leaves_the_next_process_alone(scene: Scene) -> None:
    order = Message(ORDER, NONCE, scene.challenge())
    assert [scene.say(order) is not None for _ in range(3)] == [True, True, True]
    assert scene.broker.kills == 1


def test_a_broker_that_is_not_seen_dead_is_not_confirmed_and_is_tried_again(scene: Scene) -> None:
    scene.broker.dies = False
    order = Message(ORDER, NONCE, scene.challenge())
    assert scene.say(order) is None
    scene.broker.dies = True
    assert scene.say(order) is not None
    assert scene.broker.kills == 2


def test_a_pod_that_starts_before_its_secret_obeys_once_the_key_is_there(scene: Scene) -> None:
    (scene.folder / "key").unlink()
    assert scene.say(Message(QUESTION, NONCE)) is None
    (scene.folder / "key").write_text(KEY.hex(), encoding="ascii")
    assert scene.say(Message(QUESTION, NONCE)) is None, "it looks once a second"
    scene.now += 1.0
    assert scene.challenge()


@pytest.mark.parametrize("text", ["", "not hexadecimal", "00" * (KEY_BYTES - 1), "ü"])
def test_what_is_no_key_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text, encoding="utf-8")
    assert KeyFile(tmp_path / "key").key(0.0) is None
    assert KeyFile(None).key(0.0) is None


def test_questions_that_are_said_again_and_again_fill_no_memory(scene: Scene) -> None:
    """An eavesdropper has only an operator's questions to repeat."""
    for number in range(1000):
        scene.challenge(number.to_bytes(16, "big"))
    assert len(scene.fence._asked) <= 16


@pytest.mark.parametrize(
    "datagram", [b"", b"BGK1", b"BGO1" + bytes(64), b"BGK1" + bytes(2000), b"BGC1" + bytes(64), b"BGD1" + bytes(72)]
)
def test_anything_else_is_not_answered(scene: Scene, datagram: bytes) -> None:
    assert scene.fence.answer(datagram, scene.now) is None
    assert scene.broker.kills == 0


def test_a_confirmation_is_read_only_as_that_of_its_pod_key_and_nonce() -> None:
    confirmation = Message(CONFIRMATION, NONCE, b"c" * 16, STARTED)
    sealed = seal(confirmation, KEY, POD)
    for key, pod in itertools.product((KEY, OTHER_KEY), (POD, OTHER_POD)):
        assert open_sealed(sealed, key, pod) == (confirmation if (key, pod) == (KEY, POD) else None)
