"""Events: the reasons in a group's life, and that a slow or absent API costs only Events."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.kube.errors import ApiUnavailableError
from brokergroup_operator.observe import events
from brokergroup_operator.observe.events import EventObserver, GroupEvent, KubernetesEventSink, event_object
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.observe.observer import ObserverGroup
from brokergroup_operator.observe.timeline import Kind, Outcome
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord
from tests.observe.test_metrics import KEY, timeline


class Sink:
    def __init__(self) -> None:
        self.events: list[GroupEvent] = []

    def post(self, event: GroupEvent) -> None:
        self.events.append(event)

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]


def record(epoch: int, master: int | None, members: set[int]) -> BrokerGroupRecord:
    return BrokerGroupRecord(
        "c", "orders", master_broker_id=master, master_epoch=epoch, sync_state_set=frozenset(members)
    )


def test_a_failover_in_events() -> None:
    sink = Sink()
    observer = EventObserver(sink)
    made = timeline(evidence=["connection refused"])
    observer.master_lost(made)
    observer.record_changed(KEY, record(4, 1, {1, 2}), record(5, 2, {2}), "2 is the best")
    observer.master_changed(made)
    observer.record_changed(KEY, record(5, 2, {2}), record(5, 2, {2, 3}), "")
    observer.record_changed(KEY, record(5, 2, {2, 3}), record(5, 2, {2}), "")
    assert sink.reasons == [
        "MasterLost",
        "FailoverStarted",
        "MasterElected",
        "FailoverCompleted",
        "SyncStateSetExpanded",
        "SyncStateSetShrunk",
    ]
    completed = sink.events[3].message
    assert completed == "from broker 1 to 2, epoch 5, 200 ms"
    assert [event.reason for event in sink.events if event.warning] == ["MasterLost", "SyncStateSetShrunk"]


def test_what_members_lack_and_who_is_not_linked_is_said() -> None:
    sink = Sink()
    observer = EventObserver(sink)
    lacking = tuple(MetadataDifference(3, MetadataKind.TOPIC, f"t{number}", "4/7") for number in range(10))
    observer.metadata_diverged(KEY, lacking)
    observer.metadata_copied_again(KEY, lacking[:1])
    observer.offsets_carried(KEY, 3)
    observer.members_unlinked(KEY, frozenset({2, 3}))
    observer.member_relinked(KEY, 3, 9)
    observer.members_unlinked(KEY, frozenset())
    # A renewed mastership is not an election.
    observer.record_changed(KEY, record(8, 1, {1, 2}), record(9, 1, {1, 2}), "the master 1 goes on under epoch 9")
    assert [(event.reason, event.warning) for event in sink.events] == [
        ("MetadataDiverged", True),
        ("MetadataCopiedAgain", False),
        ("OffsetsCarried", False),
        ("MembersUnlinked", True),
        ("MemberRelinked", True),
        ("MembersLinked", False),
    ]
    assert "Topic t0 at broker 3" in sink.events[0].message
    assert sink.events[0].message.endswith("and 2 more")
    assert sink.events[1].message.endswith("by itself: Topic t0 at broker 3")
    assert sink.events[2].message.startswith("broker 3 does not copy its master's consumer offsets")


def test_a_canary_that_is_refused_and_is_not_any_more() -> None:
    sink = Sink()
    observer = ObserverGroup([EventObserver(sink)])
    observer.canary_refused(KEY, "broker b:1 refuses the canary of user 'orders'")
    observer.canary_refused(KEY, "")
    assert [(event.reason, event.warning) for event in sink.events] == [
        ("CanaryRefused", True),
        ("CanaryAcknowledged", False),
    ]
    assert sink.events[0].message == "broker b:1 refuses the canary of user 'orders'"


def test_an_unclean_election_is_said_beside_the_election() -> None:
    sink = Sink()
    after = replace(record(6, 3, {3}), unclean_elections=1)
    EventObserver(sink).record_changed(KEY, record(5, None, set()), after, "nobody of the set is left")
    assert [(event.reason, event.warning) for event in sink.events] == [
        ("UncleanElection", True),
        ("MasterElected", False),
    ]
    assert "messages may be lost (nobody of the set is left)" in sink.events[0].message


def test_recoveries_have_reasons_of_their_own() -> None:
    sink = Sink()
    observer = EventObserver(sink)
    observer.seat_lost(KEY, 2, "it reports offset 5, and held 9")
    observer.broker_adopted(KEY, 7)
    observer.epoch_floor_raised(KEY, 12, "broker 2 reports epoch 12")
    assert [(event.reason, event.warning) for event in sink.events] == [
        ("SeatLost", True),
        ("BrokerAdopted", False),
        ("EpochFloorRaised", True),
    ]


def test_a_broker_that_is_too_old_is_named_with_what_is_expected() -> None:
    sink = Sink()
    EventObserver(sink).broker_too_old(KEY, "10.0.0.7")
    assert [(event.reason, event.warning) for event in sink.events] == [("BrokerTooOld", True)]
    assert "10.0.0.7 gets no role: brokers before 5.1.1" in sink.events[0].message
    assert sink.events[0].message.endswith("RocketMQ 5.1.1 or later, and not 5.1.2")


def test_an_epoch_jump_says_how_it_is_accepted() -> None:
    sink = Sink()
    EventObserver(sink).epoch_jump(KEY, 26_000)
    assert [(event.reason, event.warning) for event in sink.events] == [("EpochJump", True)]
    assert "brokergroup.dev/accept-epoch=26000" in sink.events[0].message


def test_what_went_wrong_has_a_reason_of_its_own() -> None:
    sink = Sink()
    observer = EventObserver(sink)
    observer.master_changed(timeline(outcome=Outcome.NO_ELIGIBLE_REPLICA))
    observer.master_changed(timeline(unfenced=True))
    observer.master_changed(timeline(outcome=Outcome.CANCELLED))
    assert sink.reasons == ["NoEligibleReplica", "Unfenced", "FailoverCompleted", "FailoverCancelled"]


def test_an_unfenced_failover_says_what_may_be_trusted() -> None:
    sink = Sink()
    EventObserver(sink).master_changed(timeline(unfenced=True, unconfirmed_trust="the fence inside its pod kills it"))
    assert sink.events[0].message == (
        "the death of broker 1 was not confirmed before the election; the fence inside its pod kills it"
    )


def test_a_switchover_in_events() -> None:
    sink = Sink()
    observer = EventObserver(sink)
    made = timeline(kind=Kind.SWITCHOVER)
    observer.master_lost(made)
    observer.master_changed(made)
    assert sink.reasons == ["SwitchoverStarted", "SwitchoverCompleted"]


def test_a_group_that_has_no_master_yet_elects_nobody_in_events() -> None:
    sink = Sink()
    EventObserver(sink).record_changed(KEY, None, record(0, None, set()), "1 was next")
    assert sink.reasons == []


class FlakyApi:
    """Loses the first call, then remembers what was created."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.calls = 0

    async def get(self, resource: object, name: str, **_: object) -> dict[str, Any]:
        self.calls += 1
        if self.calls == 1:
            raise ApiUnavailableError("away")
        return {"metadata": {"name": name, "uid": "u1", "resourceVersion": "7"}}

    async def create(self, resource: object, obj: dict[str, Any], **_: object) -> dict[str, Any]:
        self.created.append(obj)
        return obj


async def test_an_api_that_is_away_costs_one_event(monkeypatch: Any) -> None:
    api = FlakyApi()
    sink = KubernetesEventSink(api)  # type: ignore[arg-type]
    sink.start()
    for reason in ("MasterLost", "FailoverStarted", "FailoverCompleted"):
        sink.post(GroupEvent(KEY, reason, "m"))
    await asyncio.sleep(0)
    await sink.stop()
    assert [event["reason"] for event in api.created] == ["FailoverStarted", "FailoverCompleted"]


async def test_the_first_event_of_a_change_leaves_it_a_moment_and_says_when_it_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    class Api(FlakyApi):
        async def get(self, resource: object, name: str, **more: object) -> dict[str, Any]:
            asked.append(asyncio.get_running_loop().time())
            return {"metadata": {"name": name, "uid": "u1"}}

    api, loop = Api(), asyncio.get_running_loop()
    sink = KubernetesEventSink(api)  # type: ignore[arg-type]
    sink.start()
    began = loop.time()
    # A second ends between the moment in which it happens and the one in which it is posted.
    monkeypatch.setattr(events, "time", SimpleNamespace(time=lambda: 1000.95 + loop.time() - began))
    for reason in ("MasterLost", "FailoverStarted"):
        sink.post(GroupEvent(KEY, reason, "m"))
    await sink.stop()
    assert asked[0] - began >= events.POST_LATER_SECONDS
    assert [event["firstTimestamp"] for event in api.created] == [rfc3339(1000.95)] * 2


def test_an_event_is_about_its_group() -> None:
    made = event_object(GroupEvent(GroupKey("ns", "g"), "R", "m", warning=True), {"metadata": {"uid": "u1"}})
    assert made["metadata"]["namespace"] == "ns"
    assert made["metadata"]["name"].startswith("g.")
    assert made["involvedObject"]["kind"] == "BrokerGroup"
    assert made["involvedObject"]["uid"] == "u1"
    assert made["type"] == "Warning"
