"""The conditions of a group: what each says in which case, which Events that makes, and that Ready excludes Stalled."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfoNotFoundError

import msgspec
import pytest

from brokergroup_operator.api import names, times
from brokergroup_operator.api.brokergroup_status import MAX_CONDITION_MESSAGE, ConditionType, Reason
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.act.refusals import Refused
from brokergroup_operator.reconcile.clusters.master_looks import Standing
from brokergroup_operator.reconcile.clusters.standing import Seen, is_settled
from brokergroup_operator.reconcile.clusters.standing import status_of as status_of_cluster
from brokergroup_operator.reconcile.clusters.users import UsersStanding
from brokergroup_operator.reconcile.tell.events import transition_notes
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import conditions, message, shown, status_of

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


PAUSED: dict[str, Any] = {"maintenance": {"paused": True}}
LACKING = tuple(MetadataDifference(2, MetadataKind.TOPIC, f"t{n}") for n in range(7))


SMALL = {"phase": "Bound", "capacity": {"storage": "1Gi"}}


def broken(seen: Observed, name: str, reason: str) -> Observed:
    def fall(pod: dict[str, Any]) -> None:
        pod["status"]["conditions"] = []
        pod["status"]["containerStatuses"] = [{"name": "broker", "state": {"waiting": {"reason": reason}}}]

    return c.with_pods(seen, fall, name)


def old(seen: Observed, name: str) -> Observed:
    return c.with_pods(seen, lambda pod: pod["metadata"].update(creationTimestamp=c.EARLIER), name)


def fenced(pod: dict[str, Any]) -> None:
    pod["metadata"]["finalizers"] = [names.FINALIZER_FENCE]


def small(seen: Observed) -> Observed:
    return c.with_claims(seen, lambda claim: claim.update(status=SMALL), "orders-2")


CASES: list[tuple[str, Observed, str, tuple[str, str] | None]] = [
    ("in order", c.settled(), "ReplicationHealthy", ("True", "AllLinked")),
    ("a slave lags", c.seen_with(c.settled(), b.record(in_sync=(1, 2))), "ReplicationHealthy", ("False", "MembersOutOfSync")),
    (
        "a slave has no link", c.live(c.settled(), 1, 2, 3, unlinked=frozenset({2})), "ReplicationHealthy",
        ("False", "MembersNotLinked"),
    ),
    ("a member of the set is not heard", c.live(c.settled(), 1, 3), "ReplicationHealthy", ("False", "MembersNotLinked")),
    ("no master", c.seen_with(c.settled(), b.record(master=None)), "ReplicationHealthy", ("False", "NoMaster")),
    ("in order", c.settled(), "UpToDate", ("True", "AllUpToDate")),
    ("an update", c.outdated(c.settled()), "UpToDate", ("False", "RollingUpdate")),
    ("OnDelete", c.outdated(c.settled(updateStrategy={"type": "OnDelete"})), "UpToDate", ("False", "WaitingForPerson")),
    ("paused", c.outdated(c.settled(**PAUSED)), "UpToDate", ("False", "WaitingForPerson")),
    ("in order", c.settled(), "Reconciling", ("False", "Stable")),
    ("an update", c.outdated(c.settled()), "Reconciling", ("True", "RollingUpdate")),
    ("an update in line", c.in_line(c.outdated(c.settled())), "UpToDate", ("False", "WaitingForOtherGroups")),
    ("an update in line", c.in_line(c.outdated(c.settled())), "Reconciling", ("True", "WaitingForOtherGroups")),
    (
        "an update that is not safe to begin", c.outdated(c.seen_with(c.settled(), b.record(in_sync=(1, 3))), "orders-1"),
        "UpToDate", ("False", "WaitingForMembers"),
    ),
    (
        "an update whose last member is not back", c.rolling(c.seen_with(c.settled(), b.record(in_sync=(1, 3)))), "UpToDate",
        ("False", "RollingUpdate"),
    ),
    ("growing", c.wishing(c.settled(), replicas=4), "Reconciling", ("True", "CreatingMembers")),
    ("shrinking", c.wishing(c.settled(), replicas=2), "Reconciling", ("True", "ScalingIn")),
    ("rebuilding", c.running(c.settled(), "Rebuild", brokerId=2), "Reconciling", ("True", "RebuildingMember")),
    ("another master is preferred", c.settled(failover={"preferredMaster": 2}), "Reconciling", ("True", "MovingMaster")),
    ("falling asleep", c.settled(maintenance={"hibernated": True}), "Reconciling", ("True", "Hibernating")),
    ("paused", c.outdated(c.settled(**PAUSED)), "Reconciling", ("False", "Stable")),
    ("in order", c.settled(), "Stalled", ("False", "NothingStalled")),
    ("no image", broken(c.settled(), "orders-2", "ErrImagePull"), "Stalled", ("True", "ImageUnavailable")),
    ("crashes", broken(c.settled(), "orders-2", "CrashLoopBackOff"), "Stalled", ("True", "MemberCrashes")),
    ("a lost node", c.going(c.settled(), "orders-2", since=c.EARLIER), "Stalled", ("True", "PodStuckTerminating")),
    ("refused by the API server", replace(c.settled(), refusal="Pod: nonsense"), "Stalled", ("True", "InvalidSpec")),
    (
        "no member with all messages is alive", c.seen_with(c.settled(), b.record(master=None, in_sync=(1,)), live=(2, 3)),
        "Stalled", ("True", "NoEligibleReplica"),
    ),
    ("all are barred", c.barred(1, 2, 3), "Stalled", ("True", "NoEligibleReplica")),
    (
        "all are barred from the first election", c.seen_with(c.barred(1, 2, 3), b.record(master=None, in_sync=())), "Stalled",
        ("True", "NoEligibleReplica"),
    ),
    ("all but one are barred", c.barred(1, 2), "Stalled", ("False", "NothingStalled")),
    (
        "all are still starting", c.seen_with(c.settled(), b.record(master=None, in_sync=(1,)), live=()), "Stalled",
        ("False", "NothingStalled"),
    ),
    ("the first election", c.seen_with(c.settled(), b.record(master=None, in_sync=())), "Stalled", ("False", "NothingStalled")),
    (
        "an update that can't go on", c.outdated(c.live(c.settled(), 1, 2, 3, unlinked=frozenset({2}))), "Stalled",
        ("True", "MembersNotLinked"),
    ),
    (
        "an update that waits for long",
        c.outdated(old(c.seen_with(c.settled(), b.record(in_sync=(1, 3))), "orders-2"), "orders-1"), "Stalled",
        ("True", "RolloutStuck"),
    ),
    (
        "an update that waits", c.outdated(c.seen_with(c.settled(), b.record(in_sync=(1, 3))), "orders-1"), "Stalled",
        ("False", "NothingStalled"),
    ),
    ("in order", c.settled(), "Paused", None),
    ("paused", c.settled(**PAUSED), "Paused", ("True", "BySpec")),
    ("in order", c.settled(), "MetadataDiverged", None),
    (
        "topics are missing", c.live(c.settled(), 1, 2, 3, metadata_diverged=LACKING), "MetadataDiverged",
        ("True", "MetadataDiverged"),
    ),
    ("in order", c.settled(), "DegradedDurability", None),
    ("one disk of three", c.seen_with(c.settled(), b.record(in_sync=(1,))), "DegradedDurability", ("True", "BelowDurability")),
    ("two disks of three", c.seen_with(c.settled(), b.record(in_sync=(1, 2))), "DegradedDurability", None),
    ("one disk of one", c.settled(replicas=1), "DegradedDurability", None),
    ("Fast promises nothing", c.seen_with(c.settled(durability="Fast"), b.record(in_sync=(1,))), "DegradedDurability", None),
    ("a master is being killed", c.with_pods(c.settled(), fenced, "orders-1"), "Fenced", ("True", "MasterStopped")),
    ("in order", c.settled(), "Fenced", None),
    ("a volume grows", small(c.settled()), "VolumeResizing", ("True", "ResizePending")),
    ("in order", c.settled(), "VolumeResizing", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "kind", "expected"), [case[1:] for case in CASES], ids=[f"{case[2]}: {case[0]}" for case in CASES]
)
def test_condition(seen: Observed, kind: str, expected: tuple[str, str] | None) -> None:
    """Strimzi #10647: one slow broker, and everything is NotReady: Available and Ready are two conditions."""
    assert shown(seen, kind) == expected


def test_what_is_missing_is_named_and_not_endlessly() -> None:
    text = message(c.live(c.settled(), 1, 2, 3, metadata_diverged=LACKING), "MetadataDiverged")
    assert "broker 2: Topic t0" in text
    assert text.endswith("and 2 more")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("UTC", "Asia/Shanghai", "America/Argentina/Buenos_Aires", "Etc/GMT+5")),
        *((name, False) for name in ("Europe/Berln", "europe/berlin", "Europe", "Local", "/etc/passwd", "-", "a" * 64, "a/" * 31)),
    ],
)  # fmt: skip
def test_any_stored_zone_that_is_none_is_a_condition_and_nothing_breaks(name: str, *, is_one: bool) -> None:
    expected = None if is_one else ("True", Reason.TIME_ZONE_UNKNOWN)
    assert shown(zone(name), ConditionType.OBJECTIVE_INVALID) == expected


@pytest.mark.parametrize(
    ("durability", "consequence"),
    [
        ("Strict", "no write is acknowledged until another is in sync"),
        ("Available", "what is acknowledged now is on that disk alone"),
    ],
)
def test_degraded_durability_says_what_becomes_of_writes(durability: str, consequence: str) -> None:
    whole = c.settled(durability=durability)
    alone = c.seen_with(whole, b.record(in_sync=(1,)))
    assert message(alone, "DegradedDurability") == f"In sync and alive: 1; {consequence}"
    doubt = "not heard here: 2, 3; unless they still answer the master, "
    assert message(c.live(whole, 1), "DegradedDurability") == f"In sync and alive: 1; {doubt}{consequence}"


def test_a_message_of_another_program_is_cut_to_what_a_status_takes() -> None:
    """A webhook's refusal has any length: the API server refused the status with it, and the group said nothing of it."""
    seen = replace(c.settled(), refusal=f"admission webhook denied the request: {'x' * 40_000}")
    assert len(message(seen, "Stalled")) == MAX_CONDITION_MESSAGE
    assert shown(seen, "Stalled") == ("True", "InvalidSpec")


def test_a_claim_that_may_not_grow_hides_no_other_reason() -> None:
    """It may stay so for good, and said that updates go on while one had failed."""
    seen = replace(c.settled(), refusal="no growth", claim_refused=True)
    assert shown(seen, "Stalled") == ("True", "InvalidSpec")
    assert message(seen, "Stalled") == "The API server refuses what the spec asks for: no growth"
    waiting = {"containerStatuses": [{"name": "broker", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
    crashes = c.with_pods(seen, lambda pod: pod["status"].update(waiting), "orders-2")
    assert shown(crashes, "Stalled") == ("True", "MemberCrashes")
    assert shown(replace(crashes, claim_refused=False), "Stalled") == ("True", "InvalidSpec")


def test_an_update_with_a_bad_image_has_failed() -> None:
    """Until it is taken back: then an update is under way."""
    here = c.live(c.settled(), 1, 3)
    bad = c.rolling(broken(c.outdated(here, "orders-1", "orders-3"), "orders-2", "ErrImagePull"))
    assert shown(bad, "Stalled") == ("True", "ImageUnavailable")
    assert shown(bad, "Reconciling") == ("False", "ImageUnavailable")
    taken_back = broken(c.outdated(here, "orders-2"), "orders-2", "ErrImagePull")
    assert shown(taken_back, "Stalled") == ("False", "NothingStalled")
    assert shown(taken_back, "Reconciling") == ("True", "RollingUpdate")


@pytest.mark.parametrize("durability", ["Strict", "Available"])
@pytest.mark.parametrize("alive", [(), (2,), (2, 3)])
def test_a_master_that_is_not_heard_has_no_durability_condition(durability: str, alive: tuple[int, ...]) -> None:
    """It may acknowledge every write: seen with a group whose heartbeats were taken for another group's."""
    seen = c.live(c.settled(durability=durability), *alive, writable=False)
    assert shown(seen, "DegradedDurability") is None
    assert shown(seen, "Available") == ("False", "MasterNotReady")


def test_an_update_that_stopped_names_the_spared_member() -> None:
    seen = broken(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-2", "ErrImagePull")
    assert "The rolling update has stopped here; orders-1, orders-3 run on as they were" in message(seen, "Stalled")


@pytest.mark.parametrize("seen", [case[1] for case in CASES], ids=[f"{case[2]}: {case[0]}" for case in CASES])
def test_kstatus_reads_that_it_is_under_way_or_that_it_has_failed(seen: Observed) -> None:
    """kstatus takes the first condition that is True: with both, a bad image stayed InProgress and was never Failed."""
    assert [shown(seen, kind)[0] for kind in ("Reconciling", "Stalled")] != ["True", "True"]  # type: ignore[index]


def unfenced(seen: Observed) -> Observed:
    return c.recorded(seen, unfenced=frozenset({2}))


def events(before: Observed, after: Observed) -> list[str]:
    seen = replace(after, group_object=c.with_status(c.settled(), status_of(before)).group_object)
    return [note.reason for action in c.actions(seen, plans.WriteStatus) for note in action.notes]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (c.settled(), c.settled(**PAUSED), ["Paused"]),
        (c.settled(**PAUSED), c.settled(), ["Resumed"]),
        (c.settled(), c.outdated(c.settled()), ["RollingUpdateStarted"]),
        (c.settled(), c.in_line(c.outdated(c.settled())), []),
        (c.in_line(c.outdated(c.settled())), c.outdated(c.settled()), ["RollingUpdateStarted"]),
        (c.outdated(c.settled()), c.settled(), ["RollingUpdateCompleted"]),
        (c.settled(), c.outdated(c.settled(updateStrategy={"type": "OnDelete"})), []),
        (c.settled(), broken(c.settled(), "orders-2", "ErrImagePull"), ["ImageUnavailable", "NotFailoverSafe"]),
        (broken(c.settled(), "orders-2", "ErrImagePull"), broken(c.settled(), "orders-2", "ImagePullBackOff"), []),
        (broken(c.settled(), "orders-2", "ErrImagePull"), broken(c.settled(), "orders-2", "CrashLoopBackOff"), ["MemberCrashes"]),
        (c.settled(), c.live(c.settled(), 1, 2), ["NotFailoverSafe"]),
        (c.live(c.settled(), 1, 2), c.live(c.settled(), 1), ["DegradedDurability"]),
        (c.settled(), c.wishing(c.going(c.settled(), "orders-3"), replicas=2), []),
        (small(c.settled()), c.settled(), ["VolumeResized"]),
        (unfenced(c.settled()), c.settled(), ["PromiseRestored"]),
        (c.settled(), unfenced(c.settled()), []),  # the controller plane posts that at once
    ],
)  # fmt: skip
def test_transitions(before: Observed, after: Observed, expected: list[str]) -> None:
    assert events(before, after) == expected


def test_the_first_status_of_a_group_is_no_change() -> None:
    assert [action.notes for action in c.actions(c.settled(), plans.WriteStatus)] == [()]


WORDS = "the words"
# What can be amiss beside all that the cases of the conditions have.
HINDRANCES: dict[str, Any] = {
    "nothing": {},
    "the API server refuses an object": {"refusal": WORDS},
    "a node port is taken": {"refusal": WORDS, "node_port_taken": True},
    "an object is another's": {"name_taken": WORDS},
    "the broker name is another group's": {"broker_name_taken": WORDS},
    "a ConfigMap is missing": {"config_problem": WORDS},
}


@pytest.mark.parametrize("seen", [case[1] for case in CASES], ids=[f"{case[2]}: {case[0]}" for case in CASES])
def test_of_a_group(seen: Observed) -> None:
    for hindrance, found in HINDRANCES.items():
        told = conditions(dataclasses.replace(seen, **found))
        if told["Stalled"]["status"] == "True":
            assert (told["Ready"]["status"], told["Reconciling"]["status"]) == ("False", "False"), hindrance
        if hindrance != "nothing":
            assert told["Ready"]["status"] == "False", hindrance


def test_a_group_that_is_whole_says_why_it_is_not_ready() -> None:
    seen = Refused(name_taken=WORDS).shown_to(c.settled())
    told = {one["type"]: (one["status"], one["reason"], one["message"]) for one in status_of(seen)["conditions"]}
    assert told["Ready"] == ("False", "NameTaken", WORDS)
    assert told["Stalled"] == ("True", "NameTaken", WORDS)


def cluster(**seen: Any) -> Seen:
    """Return a cluster of which every part is ready."""
    metadata = {"name": "shop", "namespace": "default", "uid": "u", "generation": 1}
    obj = {"metadata": metadata, "spec": {"nameServer": {"replicas": 1}}}
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "Available", "FailoverSafe")]
    group_status = {"observedGeneration": 1, "conditions": conditions}
    server_status = {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1}
    whole: dict[str, Any] = {
        "cluster": msgspec.convert(obj, RocketMQCluster),
        "cluster_object": obj,
        "name_servers": {"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": server_status},
        "groups": {"shop-0": {"metadata": {"name": "shop-0", "generation": 1}, "status": group_status}},
    }
    return Seen(**(whole | seen))


GROUP = cluster().groups["shop-0"]
CLUSTERS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    # Reasons of Ready and of Stalled.
    "whole": ({}, ("AllReady", "NothingToDo")),
    "an object is another's": ({"strangers": ("Service shop-nameserver",)}, ("NotOurs", "NotOurs")),
    "a part is refused": ({"refusals": (WORDS,)}, ("Refused", "Refused")),
    "a group too many": (
        {"groups": {"shop-0": GROUP, "shop-1": GROUP | {"metadata": {"name": "shop-1", "generation": 1}}}},
        ("GroupsBeyondCount", "GroupsBeyondCount"),
    ),
    "a topic differs": ({"topics": Standing(desired=0, differing=("t",))}, ("TopicDiffers", "TopicDiffers")),
    "a declared topic differs": (
        {"topics": Standing(desired=1, differing=("t",))}, ("TopicsPending", "TopicDiffers"),
    ),
    "a declared topic differs, and a group is waited for": (
        {"topics": Standing(desired=2, differing=("t",), pending=("shop-0",))}, ("TopicsPending", "TopicDiffers"),
    ),
    "a declared consumer group is waited for": (
        {"consumer_groups": Standing(desired=1, pending=("shop-0",))}, ("ConsumerGroupsPending", "NothingToDo"),
    ),
    "a declared topic differs, and a consumer group is waited for": (
        {"topics": Standing(desired=1, differing=("t",)), "consumer_groups": Standing(desired=1, ready=1, pending=("shop-0",))},
        ("TopicsPending", "TopicDiffers"),
    ),
    "a declared user has no password": (
        {"users": UsersStanding(users=1), "password_problems": ("Secret",)}, ("UsersPending", "UserDiffers"),
    ),
    "a declared user has no password, and a member is waited for": (
        {"users": UsersStanding(users=2, pending=("broker 1",)), "password_problems": ("Secret",)},
        ("UsersPending", "UserDiffers"),
    ),
    "no NameServer, and a part is refused": ({"name_servers": None, "refusals": (WORDS,)}, ("NameServersPending", "Refused")),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CLUSTERS))
def test_of_a_cluster(case: str) -> None:
    changed, reasons = CLUSTERS[case]
    seen = cluster(**changed)
    status = status_of_cluster(seen, now=b.NOW)
    told = {one.type: one for one in status.conditions or ()}
    assert (told["Ready"].reason, told["Stalled"].reason) == reasons
    assert sum(told[kind].status == "True" for kind in ("Ready", "Reconciling", "Stalled")) == 1
    assert is_settled(seen, status) is not ("waited for" in case or case.startswith("no NameServer"))


SAID = f"spec.slo.timeZone is 'Europe/Berln': no such time zone; {times.EXPECTED_ZONE}"


def zone(name: str) -> Any:
    return c.settled(slo={"availabilityPercent": "99.9", "window": "1M", "timeZone": name})


def test_a_zone_that_is_none_is_a_condition_with_field_value_and_what_is_expected() -> None:
    found = conditions(zone("Europe/Berln"))
    alarm = found[ConditionType.OBJECTIVE_INVALID]
    assert (alarm["status"], alarm["reason"]) == ("True", Reason.TIME_ZONE_UNKNOWN)
    assert alarm["message"].startswith(SAID)
    # Reports and alerts go by it, and brokers do not.
    assert (found["Ready"]["status"], found["Stalled"]["status"]) == ("True", "False")


def test_its_event_is_posted_once_and_the_condition_ends_with_the_correction() -> None:
    before, wrong = (list(conditions(zone(name)).values()) for name in ("Europe/Berlin", "Europe/Berln"))
    [note] = transition_notes(before, wrong)
    assert (note.reason, note.warning) == ("ObjectiveInvalid", True)
    assert note.message.startswith(SAID)
    assert list(transition_notes(wrong, wrong)) == []
    assert ConditionType.OBJECTIVE_INVALID not in {one["type"] for one in before}


def test_without_a_time_zone_database_the_list_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image without one would else call every group's zone wrong."""

    def none_of_them(name: str) -> None:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(times, "ZoneInfo", none_of_them)
    assert ConditionType.OBJECTIVE_INVALID not in conditions(zone("Asia/Shanghai"))
    assert ConditionType.OBJECTIVE_INVALID in conditions(zone("Europe/Berln"))
