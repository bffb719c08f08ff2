"""The order of steps after the fence was stalled: the test moves the clock, and the controller is a bare socket."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.fence import watchman as under_test
from brokergroup_operator.fence.decide import FenceCore, LocalRole, Member, Told
from brokergroup_operator.fence.processes import BrokerProcesses
from brokergroup_operator.fence.settings import FenceSettings
from brokergroup_operator.fence.watchman import API_SILENCE, CONTROLLERS, Watchman, api_silence_in, local_role
from rocketmq_remoting.address import Address
from rocketmq_remoting.codec import FrameDecoder, encode
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.command import RemotingCommand
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, ReplicaIdentity, ReplicasInfo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST, PORT = "127.0.0.1", 10911
SLAVES_WORD = (
    b'{"haClientRuntimeInfo":{"lastReadTimestamp":1796029414907,"masterAddr":"10.92.0.13:10912"},"master":false}'
)
DEADLINE_SECONDS = 20.0
TURN_SECONDS = 0.05


class Clock:
    """The boot clock and the scheduler's statistics, both moved only by the test: a slow machine changes nothing."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.starved_seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def starved(self) -> float:
        return self.starved_seconds


class Scene:
    """A fence in this process, run turn by turn, and its controller."""

    def __init__(self, clock: Clock, run_dir: Path) -> None:
        self.clock = clock
        self._listening = socket.create_server((HOST, 0))
        self._connection: socket.socket | None = None
        self._decoder = FrameDecoder()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind((HOST, 0))
            fence_port = free.getsockname()[1]
        self.settings = FenceSettings(
            pod_uid=str(uuid.uuid4()),
            broker_name="orders",
            broker_address=Address(HOST, PORT),
            local_address=Address(HOST, fence_port - 2),
            controllers=(Address(HOST, self._listening.getsockname()[1]),),
            isolation_seconds=1.5,
            fence_timeout_seconds=2.0,
            heartbeat_timeout_seconds=3.0,
            heartbeat_interval_seconds=0.5,
            run_dir=run_dir,
        )
        self.watchman = Watchman(self.settings)

    def question(self, wait_seconds: float = TURN_SECONDS) -> RemotingCommand:
        """Run turns until the controller gets a question."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            self.clock.seconds += TURN_SECONDS
            self.watchman.turn(wait_seconds)
            if self._connection is None:
                self._connection = self._listening.accept()[0]
                self._connection.settimeout(0)
            try:
                for command in self._decoder.feed(self._connection.recv(65536)):
                    return command
            except BlockingIOError:
                continue
        raise AssertionError("the controller was not asked")

    def answer(
        self, question: RemotingCommand, *, controllers: str = "", epoch: int = 1, api_silence: str = ""
    ) -> None:
        """Send "you are master", which waits in the socket until the next turn. `controllers`: the answer's list."""
        assert self._connection is not None
        own = ReplicaIdentity("orders", 1, f"{HOST}:{PORT}", alive=True)
        info = ReplicasInfo(
            1, own.broker_address, epoch, 1, (own, ReplicaIdentity("orders", 2, "127.0.0.2:1", alive=True)), ()
        )
        body = BrokerReplicasInfoBody({"orders": info}).encode()
        fields = {name: value for name, value in ((CONTROLLERS, controllers), (API_SILENCE, api_silence)) if value}
        self._connection.sendall(encode(question.answer(ResponseCode.SUCCESS, ext_fields=fields or None, body=body)))

    def question_is_answered(self, *, api_silence: str) -> None:
        """Answer the next question, and let the fence read that."""
        self.answer(self.question(wait_seconds=0.001), api_silence=api_silence)
        self.clock.seconds += TURN_SECONDS
        self.watchman.turn(TURN_SECONDS)

    @property
    def address(self) -> str:
        return f"{HOST}:{self._listening.getsockname()[1]}"

    def asks(self) -> set[str]:
        """Return the controllers that the fence knows after the next turn."""
        self.watchman.turn(TURN_SECONDS)
        return {str(address) for address in self.watchman._controllers}

    def again(self) -> Watchman:
        """Restart the fence in the same pod, with the same environment."""
        self.watchman.close()
        self.watchman = Watchman(self.settings)
        return self.watchman

    def stop_controller(self) -> None:
        self.close()
        self._connection = None

    def close(self) -> None:
        self._listening.close()
        if self._connection is not None:
            self._connection.close()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scene]:
    clock = Clock()
    monkeypatch.setattr(under_test, "boot_seconds", clock.now)
    monkeypatch.setattr(under_test, "starved_seconds", clock.starved)
    made = Scene(clock, tmp_path)
    yield made
    made.watchman.close()
    made.close()


def killed(capsys: pytest.CaptureFixture[str]) -> bool:
    return any(json.loads(line)["event"] == "killed" for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("starved_share", "stood_seconds", "dies"),
    [
        (1.0, 3.7, False),  # its question was answered 3.7 s ago, and no member can be elected before 4.5 s
        (1.0, 4.1, True),  # starved past the bound
        (0.0, 4.2, True),  # frozen: the broker has woken with us
        (0.3, 4.2, True),
    ],
)
def test_after_a_stall(
    scene: Scene, capsys: pytest.CaptureFixture[str], starved_share: float, stood_seconds: float, dies: bool
) -> None:
    scene.answer(scene.question())
    waiting = scene.question()  # it was sent a fifth of 1.5 s after the previous one
    scene.answer(waiting)
    scene.clock.seconds += stood_seconds
    scene.clock.starved_seconds += stood_seconds * starved_share
    scene.watchman.turn(TURN_SECONDS)
    assert killed(capsys) is dies


def test_the_pods_behind_the_groups_name_are_asked_for_their_word(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All operators are down, and the peer's address leads to no fence: the master lives as long as the peer's pod answers."""
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


def test_another_number_of_controllers_is_learned_from_their_answers(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """replicaCount 1 to 2: the controller of the pod's creation stops, and the other one answers the fence."""
    with socket.create_server((HOST, 0)) as other:
        added = f"{HOST}:{other.getsockname()[1]}"
        scene.answer(scene.question(), controllers=f"{scene.address};{added}")
        assert scene.asks() == {scene.address, added}
        scene.stop_controller()
        other.settimeout(0)
        asked = None
        deadline = time.monotonic() + DEADLINE_SECONDS
        while asked is None and time.monotonic() < deadline:
            scene.clock.seconds += TURN_SECONDS
            scene.watchman.turn(TURN_SECONDS)
            with contextlib.suppress(BlockingIOError):
                asked = other.accept()[0]
        assert asked is not None, "the added controller was not asked"
        asked.close()
    assert not killed(capsys)


def test_beside_a_controller_whose_record_is_old_the_others_are_asked(scene: Scene) -> None:
    """It may be cut off from the API, and answers for as long as that lasts."""
    with socket.create_server((HOST, 0)) as other:
        other.settimeout(0)
        scene.answer(scene.question(), controllers=f"{scene.address};{HOST}:{other.getsockname()[1]}", epoch=2)
        scene.answer(scene.question(), epoch=2)
        with pytest.raises(BlockingIOError):
            other.accept()
        scene.answer(scene.question(), epoch=1)
        scene.question()
        other.accept()[0].close()


@pytest.mark.parametrize(("api_silence", "asks_others"), [("700", False), ("750", True), ("", False), ("soon", False)])
def test_beside_a_controller_that_does_not_reach_the_api_the_others_are_asked(
    scene: Scene, api_silence: str, *, asks_others: bool
) -> None:
    """One that can elect may hear this fence: half of the isolation time, 1.5 s, is the most that its word is worth alone."""
    with socket.create_server((HOST, 0)) as other:
        other.settimeout(0)
        scene.answer(scene.question(), controllers=f"{scene.address};{HOST}:{other.getsockname()[1]}")
        scene.answer(scene.question())
        with pytest.raises(BlockingIOError):
            other.accept()
        scene.answer(scene.question(), api_silence=api_silence)
        scene.question()
        if asks_others:
            other.accept()[0].close()
        else:
            with pytest.raises(BlockingIOError):
                other.accept()


def test_a_master_whose_controller_does_not_reach_the_api_is_killed_once(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other fence answered before the cut, and does not any more. Its controller goes on naming the broker."""
    scene.answer(scene.question())
    scene.question_is_answered(api_silence="100")
    scene.watchman.core.peer_answered(scene.clock.seconds, 2, 0.1, 0.1)
    began = scene.clock.seconds
    while scene.clock.seconds < began + 4.2 - 0.5:
        scene.question_is_answered(api_silence=str(int((scene.clock.seconds - began) * 1000)))
    assert not killed(capsys)
    while scene.clock.seconds < began + 4.5:
        scene.question_is_answered(api_silence=str(int((scene.clock.seconds - began) * 1000)))
    assert killed(capsys)
    while scene.clock.seconds < began + 10.0:
        scene.question_is_answered(api_silence=str(int((scene.clock.seconds - began) * 1000)))
    assert not killed(capsys)


def test_the_other_fences_are_met_while_nothing_is_in_doubt(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that never answered, silence shows no cut."""
    asked: list[int] = []
    monkeypatch.setattr(scene.watchman._peers, "ask", lambda member, **_: asked.append(member.broker_id))
    began = scene.clock.seconds
    while scene.clock.seconds < began + 21.0:
        scene.question_is_answered(api_silence="100")
    assert set(asked) == {2}
    assert 4 <= len(asked) <= 5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("1500", 1.5), ("2147483647", 2147483.647), ("9" * 5000, 2147483.647), ("", 0.0), ("-1", 0.0), ("1.5", 0.0),
     ("٣", 0.0), ("²", 0.0), ("inf", 0.0), (" 1500", 0.0)],
)  # fmt: skip
def test_the_field_of_a_controllers_silence(text: str, seconds: float) -> None:
    assert api_silence_in(RemotingCommand(ResponseCode.SUCCESS, ext_fields={API_SILENCE: text})) == seconds
    assert api_silence_in(RemotingCommand(ResponseCode.SUCCESS)) == 0.0


def test_a_controller_that_is_listed_no_more_is_asked_no_more(scene: Scene) -> None:
    scene.answer(scene.question(), controllers=f"{scene.address};127.0.0.1:1;127.0.0.1:2")
    assert scene.asks() == {scene.address, "127.0.0.1:1", "127.0.0.1:2"}
    scene.answer(scene.question(), controllers=scene.address)
    assert scene.asks() == {scene.address}


@pytest.mark.parametrize("listed", ["", "nowhere", "127.0.0.1:1;nowhere"])
def test_without_a_readable_list_it_asks_those_that_it_knows(scene: Scene, listed: str) -> None:
    """As of a controller of an earlier release."""
    scene.answer(scene.question(), controllers=listed)
    assert scene.asks() == {scene.address}


def test_in_a_long_outage_of_the_api_each_round_asks_half_of_those_that_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all that do not: one of them may be across a cut, and elect. A round without any question would be one of silence."""
    scene.answer(scene.question(), controllers=f"{scene.address};127.0.0.1:1;127.0.0.1:2", api_silence="60000")
    scene.asks()
    monkeypatch.setattr(FenceCore, "asks_half", lambda *_: True)
    first, second, silent = scene.watchman._controllers.values()
    first.has_answered, second.has_answered, silent.has_answered = True, True, False
    rounds = [scene.watchman._wanted(scene.clock.seconds) for _ in range(3)]
    assert sorted(map(len, rounds)) == [2, 2, 2]
    assert all(silent in asked for asked in rounds)
    assert (first in rounds[0], first in rounds[1]) in ((True, False), (False, True))
    second.has_answered = False
    assert scene.watchman._wanted(scene.clock.seconds) == [first, second, silent]


def test_the_one_that_answers_is_asked_on_though_the_list_lacks_it(scene: Scene) -> None:
    scene.answer(scene.question(), controllers="127.0.0.1:1")
    assert scene.asks() == {scene.address, "127.0.0.1:1"}


def test_a_false_list_cannot_make_it_ask_without_end(scene: Scene) -> None:
    scene.answer(scene.question(), controllers=";".join(f"127.0.0.1:{port}" for port in range(1, 200)))
    assert len(scene.asks()) == 17


def test_a_fence_started_again_asks_those_that_were_listed_last(scene: Scene) -> None:
    """The list in the pod's environment is as old as the pod."""
    scene.answer(scene.question(), controllers="127.0.0.1:1;127.0.0.1:2")
    scene.asks()
    again = scene.again()
    assert {str(address) for address in again._controllers} == {scene.address, "127.0.0.1:1", "127.0.0.1:2"}


@pytest.mark.parametrize(
    ("answer", "role"),
    [
        (None, (LocalRole.SILENT, 0)),
        (RemotingCommand(ResponseCode.NO_PERMISSION), (LocalRole.UNKNOWN, 0)),
        (RemotingCommand(ResponseCode.SUCCESS, body=b"{"), (LocalRole.UNKNOWN, 0)),
        (RemotingCommand(ResponseCode.SUCCESS, body=b'{"master":true}'), (LocalRole.MASTER, 0)),
        (RemotingCommand(ResponseCode.SUCCESS, body=SLAVES_WORD), (LocalRole.SLAVE, 1796029414907)),
    ],
)
def test_what_the_broker_answers_about_its_role(answer: RemotingCommand | None, role: tuple[LocalRole, int]) -> None:
    assert local_role(answer) == role


def test_a_former_masters_answers_reach_the_decision(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerProcesses, "age_seconds", lambda _self, _now: 100.0)
    core, now = scene.watchman.core, scene.clock.seconds
    members = tuple(Member(one, f"127.0.0.{one}:1", in_sync=True, alive=True) for one in (1, 2))
    core.controller_answered(now, Told(1, 1, 1, members), asked_at=now)
    core.controller_answered(now, Told(1, 2, 2, members), asked_at=now)
    later = SLAVES_WORD.replace(b"414907", b"415007")
    for word, role in ((SLAVES_WORD, "master"), (SLAVES_WORD, "master"), (later, "slave")):
        scene.watchman._on_broker(RemotingCommand(ResponseCode.SUCCESS, body=word))
        assert core.look(now) is None
        assert core.role_word == role
