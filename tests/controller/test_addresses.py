"""A pod's IP is a fact with an age: who says where a member is, and what is told to whom (safety rule 8)."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer, PodPlace
from brokergroup_operator.controller.group.groups import PROOF_SECONDS, ReceiverCheck
from brokergroup_operator.controller.group.notes import AddressNotes
from brokergroup_operator.observe.group_view import BrokerUnreachableError
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, Replica
from controller_core.settings import ControllerSettings
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import KEY, StartPlane, group_of
from tests.support.fake_broker import FakeGroup, eventually
from tests.support.pods_directory import PodsDirectory

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


def _pod(number: int, *, group: GroupKey = KEY) -> Peer:
    return Peer(namespace=group.namespace, pod_name=f"{group.name}-{number}", group=group)


async def test_an_address_that_changed_hands_is_told_nothing(start_plane: StartPlane, group: FakeGroup) -> None:
    directory = PodsDirectory(settings=STRICT)
    plane = await start_plane(directory=directory)
    group.planes = [plane.address]
    hosts = [f"127.64.8.{number}" for number in (11, 12, 13)]
    for number, host in enumerate(hosts, start=1):
        directory.introduce(host, _pod(number))
    brokers = [await group.broker(host=host) for host in hosts]
    await eventually(lambda: brokers[0].sync_state_set == {1, 2, 3}, what="three in sync")
    directory.introduce(hosts[2], Peer(namespace="other", pod_name="web-0"))
    group.journal.clear()
    with pytest.raises(BrokerUnreachableError, match="belongs to pod other/web-0 now"):
        await plane.set_broker_config(KEY, 3, {"a": "b"})
    await plane.switch_master(KEY, to_broker_id=2)
    assert not [line for line in group.journal if line in ("1008 to 3", "906 to 3")]
    directory.introduce(hosts[2], _pod(3))
    await eventually(lambda: brokers[1].sync_state_set == {1, 2, 3}, what="3 to be told when it is known again")


async def test_where_the_channel_proves_nothing_the_broker_is_asked_once_whose_it_is(
    start_plane: StartPlane, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        AddressNotes, "heard_from", lambda self, broker_id, host: None
    )  # as behind NAT: no member's heartbeats come from its address
    plane = await start_plane(directory=PodsDirectory(settings=STRICT))
    group.planes = [plane.address]
    first, second, third = await group.three()
    await eventually(lambda: RequestCode.GET_BROKER_CONFIG in third.asked, what="the first look")
    await asyncio.sleep(0.2)
    for broker in (first, second, third):
        broker.asked.clear()
    await plane.set_broker_config(KEY, 2, {"a": "1"})
    await plane.set_broker_config(KEY, 2, {"a": "2"})
    assert second.asked.count(RequestCode.UPDATE_BROKER_CONFIG) == 2
    third.config["brokerName"] = "another"
    known = group_of(plane)
    known.addresses.proven.pop(3, None)
    with pytest.raises(BrokerUnreachableError, match="says that it is 'another'"):
        await plane.set_broker_config(KEY, 3, {"a": "1"})
    assert RequestCode.UPDATE_BROKER_CONFIG not in third.asked


SERVICE = "10.96.0.3:10911"


class Behind:
    """The parts of a group of pods behind Services that the check looks at, and what the broker there says of itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        replicas = {3: Replica(3, "c", SERVICE, reserved_for="orders-3", registered=True)}
        record = BrokerGroupRecord("blue", "orders", 4, replicas, 3, 1, frozenset({3}), 1)
        self.key = GroupKey("shop", "orders")
        self.bindings = {self.key: self.bound("orders-3", "10.1.0.3")}
        self.group = SimpleNamespace(
            key=self.key,
            record=record,
            addresses=AddressNotes(),
            identity=lambda broker_id: broker_id,
            table=SimpleNamespace(entry=lambda _: SimpleNamespace(connection_id=7)),
            is_live=lambda _: True,
        )
        self.says = {"brokerName": "orders", "brokerClusterName": "blue", "brokerId": "0"}
        self.asked = 0
        self.seconds = 100.0
        directory = SimpleNamespace(
            pods_known_by=lambda address: {
                (binding.key, pod)
                for binding in self.bindings.values()
                for pod, place in binding.places.items()
                if place.address == address
            },
            known_peer=lambda _: None,
            pod_hosts=lambda _: {},
        )
        groups = SimpleNamespace(members_at=lambda address: [(self.group, 3)] if address == SERVICE else [])
        self._check = ReceiverCheck(groups, directory)  # type: ignore[arg-type]
        monkeypatch.setattr(
            "brokergroup_operator.controller.group.groups.asyncio.get_running_loop",
            lambda: SimpleNamespace(time=lambda: self.seconds),
        )

    def bound(self, pod: str, ip: str, *, key: GroupKey | None = None) -> GroupBinding:
        places = {pod: PodPlace(ip=ip, address=SERVICE)}
        return GroupBinding(
            key=key or self.key, cluster_name="blue", broker_name="orders", translated=True, places=places
        )

    async def why_not(self) -> str | None:
        self.group.binding = self.bindings[self.key]

        async def ask() -> dict[str, str]:
            self.asked += 1
            return self.says

        return await self._check(SERVICE, ask)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Behind:
    return Behind(monkeypatch)


async def test_a_word_is_good_for_a_while_and_for_the_pod_that_gave_it(behind: Behind) -> None:
    """A Service can be made again, and its address be another broker's, while the heartbeats' connection stands."""
    assert [await behind.why_not(), await behind.why_not()] == [None, None]
    assert behind.asked == 1
    behind.bindings[behind.key] = behind.bound("orders-3", "10.1.0.9")
    assert await behind.why_not() is None
    assert behind.asked == 2, "another pod is behind it"
    behind.seconds += PROOF_SECONDS
    behind.says["brokerName"] = "payments"
    assert "says that it is 'payments'" in str(await behind.why_not())


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"brokerId": "3"}, None),
        ({"brokerId": "-1"}, None),
        ({"brokerId": "2"}, "says that it is broker 2, not broker 3"),
        ({"brokerClusterName": "green"}, "of cluster 'green', not of 'blue'"),
    ],
)
async def test_the_word_names_cluster_and_id_too(behind: Behind, says: dict[str, str], why: str | None) -> None:
    behind.says |= says
    told = await behind.why_not()
    assert told is None if why is None else why in str(told)


async def test_an_address_that_another_groups_pod_is_known_by_is_told_nothing(behind: Behind) -> None:
    other = GroupKey("shop", "payments")
    behind.bindings[other] = behind.bound("payments-1", "10.1.0.8", key=other)
    assert await behind.why_not() is None, "both are known by it: the broker says whose it is"
    assert behind.asked == 1
    behind.bindings[behind.key] = replace(behind.bindings[behind.key], places={})
    assert "belongs to pod shop/payments-1 now" in str(await behind.why_not())
