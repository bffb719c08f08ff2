"""Everything the plane asks of brokers that have credentials is signed, and nothing else is sent to them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.group_directory import Credentials, FixedDirectory
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.signature import SignatureState, verify
from tests.support.fake_broker import NAME, FakeBroker, FakeGroup, eventually
from tests.support.fake_name_server import FakeNameServer

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from tests.controller.conftest import StartPlane

GROUP = Credentials(access_key="group", secret_key="secret-of-the-group")
KEY = GroupKey("standalone", NAME)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, SignatureState]]:
    """What brokers and NameServers were asked, and how it was signed."""
    counted: Counter[tuple[int, SignatureState]] = Counter()

    def watch(kind: type[FakeBroker | FakeNameServer]) -> None:
        plain = kind.handle

        def handle(self: object, command: RemotingCommand, connection: RemotingConnection) -> object:
            counted[command.code, verify(command.ext_fields, command.body, GROUP)] += 1
            return plain(self, command, connection)  # type: ignore[arg-type]

        monkeypatch.setattr(kind, "handle", handle)

    watch(FakeBroker)
    watch(FakeNameServer)
    return counted


async def test_a_failover_and_a_switchover_are_told_with_signatures(
    start_plane: StartPlane, seen: Counter[tuple[int, SignatureState]]
) -> None:
    settings = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
    named = FixedDirectory(settings=settings, credentials=GROUP)
    plane = await start_plane(directory=named)
    fakes = FakeGroup(plane.address)
    brokers = await fakes.three()
    assert (await plane.switch_master(KEY, from_broker_id=1)).to_broker_id in (2, 3)
    await eventually(lambda: len(fakes.master().sync_state_set) == 3, what="all in sync after the switchover")
    before = plane.snapshot(KEY)
    assert before is not None
    await fakes.master().kill()

    def replaced() -> bool:
        snapshot = plane.snapshot(KEY)
        return (
            snapshot is not None and snapshot.writable and snapshot.record != before.record and len(snapshot.live) == 2
        )

    await eventually(replaced, what="another master that was told")
    asked = {code for code, _ in seen}
    assert {
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
    } <= asked
    assert {code: state for code, state in seen if state is not SignatureState.VALID} == {}
    assert brokers
    await fakes.stop()


async def test_without_credentials_nothing_is_signed(
    start_plane: StartPlane, seen: Counter[tuple[int, SignatureState]]
) -> None:
    plane = await start_plane(directory=FixedDirectory())
    fakes = FakeGroup(plane.address)
    await fakes.three()
    assert (await plane.switch_master(KEY, from_broker_id=1)).to_broker_id in (2, 3)
    assert seen
    assert {state for _, state in seen} == {SignatureState.UNSIGNED}
    await fakes.stop()
