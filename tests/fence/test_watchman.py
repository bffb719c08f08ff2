"""The order of things after the fence did not run: with a clock that the test moves, and a controller that is a bare socket."""

from __future__ import annotations

import json
import socket
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.fence import watchman as under_test
from brokergroup_operator.fence.settings import FenceSettings
from brokergroup_operator.fence.watchman import Watchman
from rocketmq_remoting.address import Address
from rocketmq_remoting.codec import FrameDecoder, encode
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, ReplicaIdentity, ReplicasInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketmq_remoting.command import RemotingCommand

HOST, PORT = "127.0.0.1", 10911
DEADLINE_SECONDS = 20.0
TURN_SECONDS = 0.05


class Clock:
    """The boot clock and the scheduler's account, both moved by the test alone: a slow machine changes nothing."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.starved_seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def starved(self) -> float:
        return self.starved_seconds


class Scene:
    """A fence in this process, turn by turn, and its controller."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._listening = socket.create_server((HOST, 0))
        self._connection: socket.socket | None = None
        self._decoder = FrameDecoder()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind((HOST, 0))
            fence_port = free.getsockname()[1]
        self.watchman = Watchman(
            FenceSettings(
                pod_uid=str(uuid.uuid4()),
                broker_name="orders",
                broker_address=Address(HOST, PORT),
                local_address=Address(HOST, fence_port - 2),
                controllers=(Address(HOST, self._listening.getsockname()[1]),),
                isolation_seconds=1.5,
                fence_timeout_seconds=2.0,
                heartbeat_timeout_seconds=3.0,
                heartbeat_interval_seconds=0.5,
                run_dir=None,
            )
        )

    def question(self) -> RemotingCommand:
        """Turn until the controller is asked."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            self.clock.seconds += TURN_SECONDS
            self.watchman.turn(TURN_SECONDS)
            if self._connection is None:
                self._connection = self._listening.accept()[0]
                self._connection.settimeout(0)
            try:
                for command in self._decoder.feed(self._connection.recv(65536)):
                    return command
            except BlockingIOError:
                continue
        raise AssertionError("the controller was not asked")

    def answer(self, question: RemotingCommand) -> None:
        """We are master; it waits in the socket until the next turn."""
        assert self._connection is not None
        own = ReplicaIdentity("orders", 1, f"{HOST}:{PORT}", alive=True)
        info = ReplicasInfo(
            1, own.broker_address, 1, 1, (own, ReplicaIdentity("orders", 2, "127.0.0.2:1", alive=True)), ()
        )
        body = BrokerReplicasInfoBody({"orders": info}).encode()
        self._connection.sendall(encode(question.answer(ResponseCode.SUCCESS, body=body)))

    def close(self) -> None:
        self._listening.close()
        if self._connection is not None:
            self._connection.close()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    clock = Clock()
    monkeypatch.setattr(under_test, "boot_seconds", clock.now)
    monkeypatch.setattr(under_test, "starved_seconds", clock.starved)
    made = Scene(clock)
    yield made
    made.watchman.close()
    made.close()


def killed(capsys: pytest.CaptureFixture[str]) -> bool:
    return any(json.loads(line)["event"] == "killed" for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("starved_share", "stood_seconds", "dies"),
    [
        (1.0, 3.7, False),  # its question was answered 3.7 s ago, and until 4.5 s nobody can be elected
        (1.0, 4.1, True),  # starved past the bound
        (0.0, 4.2, True),  # frozen: the broker has woken with us
        (0.3, 4.2, True),
    ],
)
def test_after_a_stall(
    scene: Scene, capsys: pytest.CaptureFixture[str], starved_share: float, stood_seconds: float, dies: bool
) -> None:
    scene.answer(scene.question())
    waiting = scene.question()  # it was asked a fifth of 1.5 s after the one before
    scene.answer(waiting)
    scene.clock.seconds += stood_seconds
    scene.clock.starved_seconds += stood_seconds * starved_share
    scene.watchman.turn(TURN_SECONDS)
    assert killed(capsys) is dies


def test_the_pods_behind_the_groups_name_are_asked_for_their_word(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All operators are gone, and the member's own address leads to no fence: the master lives as long as its pod answers."""
    monkeypatch.setattr(scene.watchman, "_settings", replace(scene.watchman._settings, pods="orders-members.shop"))
    asked: list[tuple[int, tuple[str, ...]]] = []
    monkeypatch.setattr(
        scene.watchman._peers, "ask", lambda member, *, now, pods=(): asked.append((member.broker_id, pods))
    )
    monkeypatch.setattr(scene.watchman._book, "_numbers", {"orders-members.shop": ("127.0.0.7", "127.0.0.8")})
    scene.answer(scene.question())
    scene.watchman.turn(TURN_SECONDS)
    for _ in range(20):
        scene.clock.seconds += TURN_SECONDS
        scene.watchman.turn(0)
    assert asked
    assert set(asked) == {(2, ("127.0.0.7", "127.0.0.8"))}
    assert not killed(capsys)
