"""The operator's order against whoever reaches the port, listens in, or is another pod: only the key's holder kills or proves."""

from __future__ import annotations

import itertools
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
    open_sealed,
    seal,
)

if TYPE_CHECKING:
    from pathlib import Path

KEY, OTHER_KEY = b"k" * KEY_BYTES, b"o" * KEY_BYTES
POD, OTHER_POD = "uid-1", "uid-2"
NONCE = b"n" * 16
STARTED = 12.5


@dataclass
class Broker:
    """Counts how often it was killed; `dies` is what the fence can say of it."""

    dies: bool = True
    kills: int = 0

    def kill(self) -> float | None:
        self.kills += 1
        return STARTED if self.dies else None


@dataclass
class Scene:
    """One fence, and an operator beside it that may know another key or mean another pod."""

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
    """Not even the question: the port is no echo for senders that are forged."""
    assert scene.say(Message(QUESTION, NONCE), key=OTHER_KEY) is None
    assert scene.say(Message(ORDER, NONCE, scene.challenge()), key=OTHER_KEY) is None
    assert scene.broker.kills == 0


def test_an_order_for_another_pod_kills_nobody(scene: Scene) -> None:
    """All fences of a group have one key: the pod's uid is what tells them apart."""
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
    """It may have been held back on its way; the master was heard again meanwhile, and lives."""
    order = Message(ORDER, NONCE, scene.challenge())
    scene.now += CHALLENGE_SECONDS
    assert scene.say(order) is None
    scene.challenge()  # the question was overheard too, and is asked again: another challenge
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
    """Also a listener has only those that an operator once asked."""
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
