"""Rolling updates: why a pod is restarted, the next step, and the turns of groups that roll."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.kube.resources import BROKER_GROUPS, NAMESPACES, PODS
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.decide.rollout import RestartReason, wanted_pod
from brokergroup_operator.reconcile.other_groups import RollingTurns, Turn, turn_of
from brokergroup_operator.reconcile.plan import Verb
from brokergroup_operator.reconcile.tell.status import update_revision
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.world import World, applier_for
from tests.support.draws import WHOLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from kube_sandbox.api_server.server import SandboxApiServer


def strategy(**values: Any) -> Observed:
    return c.settled(updateStrategy=values)


def held_third() -> Observed:
    def order(pod: dict[str, Any]) -> None:
        pod["metadata"]["annotations"][names.ANNOTATION_STOPPED] = pod_fence.STANDS

    return c.with_pods(c.settled(maintenance={"stoppedBrokers": [3]}), order, "orders-3")


def silent_without_volumes(*in_sync: int) -> Observed:
    """No member is heard or ready, all are outdated, and each disk goes with its pod."""
    seen = replace(c.settled(storage={"ephemeral": {"sizeLimit": "2Gi"}}), claims={})
    return c.live(c.not_ready(c.outdated(c.seen_with(seen, b.record(in_sync=in_sync))), *seen.pods))


def with_a_learner() -> Observed:
    """Master, slave and learner."""
    of: dict[str, Any] = {"replicas": 3, "replication": {"learners": 1}, "durability": "Available"}
    seen = c.seen_with(c.settled(**of), b.record(in_sync=(1, 2)))
    made = wanted_pod(seen, b.member(3), b.SETTINGS)

    def learns(pod: dict[str, Any]) -> None:
        pod["metadata"]["annotations"] = made["metadata"]["annotations"]
        pod["spec"] |= {"containers": made["spec"]["containers"]}

    return c.with_pods(seen, learns, "orders-3")


# No waiting mends these: a 5.5.0 slave can't read its master's offsets (apache/rocketmq #10284).
OLDER_OFFSETS = tuple(
    MetadataDifference(one, MetadataKind.CONSUMER_OFFSET, "payments@billing", only_older=True) for one in (2, 3)
)
MASTER_RESTARTS = {"updateStrategy": {"masterUpdate": "Restart"}}
BROKEN_FIRST = c.live(c.not_ready(c.outdated(c.seen_with(c.settled(), b.record(in_sync=(1, 3)))), "orders-2"), 1, 3)
LACKS_A_TOPIC = (MetadataDifference(2, MetadataKind.TOPIC, "payments"),)
LACKING_TO_LEAVE = c.running(
    c.live(c.outdated(c.settled(replicas=2, durability="Available")), 1, 2, metadata_diverged=LACKS_A_TOPIC),
    "Decommission",
    brokerId=1,
)
LEARNER_TO_STAY = c.running(with_a_learner(), "Decommission", brokerId=2)
CASES: list[tuple[str, Observed, list[str]]] = [
    ("nothing is outdated", c.settled(), []),
    ("the first slave", c.outdated(c.settled()), ["replace orders-2"]),
    ("the second slave", c.outdated(c.settled(), "orders-1", "orders-3"), ["replace orders-3"]),
    ("the master hands over", c.outdated(c.settled(), "orders-1"), ["switch orders-1"]),
    ("one slave is still away", c.going(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-2"), []),
    ("one is not ready yet", c.not_ready(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-2"), []),
    ("one is not in sync yet", c.seen_with(c.outdated(c.settled(), "orders-1", "orders-3"), b.record(in_sync=(1, 3))), []),
    ("not safe: metadata, links, silence", c.live(c.outdated(c.settled()), 1, 2, 3, unlinked=frozenset({2})), []),
    ("slaves with older offsets", c.live(c.outdated(c.settled()), 1, 2, 3, metadata_diverged=OLDER_OFFSETS), ["replace orders-2"]),
    (
        "then the master hands over to one of them",
        c.live(c.outdated(c.settled(), "orders-1"), 1, 2, 3, metadata_diverged=OLDER_OFFSETS), ["switch orders-1"],
    ),
    ("OnDelete", c.outdated(strategy(type="OnDelete")), []),
    ("Supervised does slaves", c.outdated(strategy(masterUpdate="Supervised")), ["replace orders-2"]),
    ("Supervised waits before the master", c.outdated(strategy(masterUpdate="Supervised"), "orders-1"), []),
    ("Restart takes the master as it is", c.outdated(strategy(masterUpdate="Restart"), "orders-1"), ["replace orders-1"]),
    ("a broken one is replaced at once", BROKEN_FIRST, ["replace orders-2"]),
    (
        "a whole group that never came up",
        c.live(c.not_ready(c.outdated(c.seen_with(c.settled(), b.reserved(1, 2, 3))), "orders-1", "orders-2", "orders-3")),
        ["replace orders-1", "replace orders-2", "replace orders-3"],
    ),
    (
        "one that catches up gives nothing", c.seen_with(c.outdated(c.settled(), "orders-3"), b.record(in_sync=(1, 2))),
        ["replace orders-3"],
    ),
    (
        "not while a master is missing", c.seen_with(c.outdated(c.settled(), "orders-3"), b.record(in_sync=(1, 2), master=None)),
        [],
    ),
    ("a group of one", c.outdated(c.settled(replicas=1)), ["replace orders-1"]),
    # Its only copy would be stopped for an update that the members to come let it hand over for. Found by the fuzz.
    ("a group of one that is to grow", c.outdated(c.wishing(c.settled(replicas=1), replicas=2)), []),
    (
        "a broken one all the same", c.live(c.not_ready(c.outdated(c.wishing(c.settled(replicas=1), replicas=2)), "orders-1")),
        ["replace orders-1"],
    ),
    ("one may never be master, and has its turn", c.outdated(c.barred(2)), ["replace orders-2"]),
    ("then the only one that may follow", c.outdated(c.barred(2), "orders-1", "orders-3"), ["replace orders-3"]),
    ("then the master hands over to that one", c.outdated(c.barred(2), "orders-1"), ["switch orders-1"]),
    ("no slave may ever be master: one by one", c.outdated(c.barred(2, 3)), ["replace orders-2"]),
    ("each back in sync before the next", c.live(c.outdated(c.barred(2, 3), "orders-1", "orders-3"), 1, 3), []),
    (
        "not while a master is being changed",
        c.live(c.outdated(c.barred(2, 3)), 1, 2, 3, in_progress=replace(c.failing_over(), kind=Kind.SWITCHOVER)), [],
    ),
    ("and the master of such a group is not given up", c.outdated(c.barred(2, 3), "orders-1"), []),
    ("but as the spec says", c.outdated(c.barred(2, 3, **MASTER_RESTARTS), "orders-1"), ["replace orders-1"]),
    ("paused", c.outdated(c.settled(maintenance={"paused": True})), []),
    # Its broker serves, and another container of its former template never gets ready.
    ("one whose pod is not ready comes first", c.not_ready(c.outdated(c.settled()), "orders-3"), ["replace orders-3"]),
    ("so with all of them", c.not_ready(c.outdated(c.settled()), "orders-1", "orders-2", "orders-3"), ["replace orders-2"]),
    ("the master is still last", c.not_ready(c.outdated(c.settled()), "orders-1"), ["replace orders-2"]),
    ("and hands over all the same", c.not_ready(c.outdated(c.settled(), "orders-1"), "orders-1"), ["switch orders-1"]),
    (
        "not beside one that is up to date and not ready",
        c.not_ready(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-2", "orders-3"), [],
    ),
    ("not where another is lost", c.live(c.not_ready(c.outdated(c.settled(), "orders-2"), "orders-2", "orders-3"), 1, 2), []),
    (
        "not one whose link is broken",
        c.live(c.not_ready(c.outdated(c.settled(), "orders-2"), "orders-2"), 1, 2, 3, unlinked=frozenset({2})), [],
    ),
    ("not while it is going", c.going(c.not_ready(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-3"), "orders-2"), []),
    ("not while it is paused", c.not_ready(c.outdated(c.settled(maintenance={"paused": True})), "orders-2"), []),
    ("not with OnDelete", c.not_ready(c.outdated(strategy(type="OnDelete")), "orders-2"), []),
    ("not while a broker is held", c.not_ready(c.outdated(held_third()), "orders-2"), []),
    ("a disk that goes and counts for nothing is given up", silent_without_volumes(1, 2), ["replace orders-3"]),
    ("asked for, OnDelete", c.running(strategy(type="OnDelete"), "Restart", brokerIds=[1]), ["switch orders-1"]),
    ("asked for, Supervised", c.running(strategy(masterUpdate="Supervised"), "Restart", brokerIds=[1]), ["switch orders-1"]),
    # A member that is to leave and can't is still there: the master was restarted as if it were alone.
    ("not for a member that can't leave", LACKING_TO_LEAVE, []),
    ("it takes over from the master", c.outdated(LEARNER_TO_STAY, "orders-1"), ["switch orders-1"]),
    ("in its turn", c.in_line(c.not_ready(c.outdated(c.settled()), "orders-2")), []),
]  # fmt: skip


def test_a_master_without_a_possible_successor_says_what_would_help() -> None:
    [step] = c.course(c.outdated(c.barred(2, 3), "orders-1")).rollout
    assert (step.verb, step.reason) == (Verb.REFUSE, Reason.NOBODY_MAY_FOLLOW)
    told = "another priority in spec.failover.priorities; or set spec.updateStrategy.masterUpdate to Restart"
    assert told in step.why


def test_a_copy_that_goes_with_its_pod_is_never_given_up_unheard() -> None:
    """Three silent pods with all messages on their emptyDir were all deleted in one pass."""
    seen = silent_without_volumes(1, 2, 3)
    assert c.steps(seen) == []
    assert [step.verb for step in c.course(seen).rollout] == [Verb.WAIT]


def test_a_pod_whose_broker_never_ran_has_nothing_on_its_disk() -> None:
    """Under the floor the member keeps its seat; its emptyDir is empty, and a mended image must reach it."""

    def never_ran(pod: dict[str, Any]) -> None:
        waiting = {"reason": "ImagePullBackOff"}
        pod["status"] |= {"phase": "Pending", "containerStatuses": [{"name": "broker", "state": {"waiting": waiting}}]}

    two = {"replicas": 2, "storage": {"ephemeral": {"sizeLimit": "2Gi"}}}
    seen = c.not_ready(c.outdated(c.live(replace(c.settled(**two), claims={}), 1)), "orders-2")
    assert c.steps(seen) == []
    assert c.steps(c.with_pods(seen, never_ran, "orders-2")) == ["replace orders-2"]


TO_AND_FRO: list[tuple[str, Observed, int, list[str]]] = [
    ("only a learner would stay", LEARNER_TO_STAY, 2, ["replace orders-1"]),
    ("only a barred member would stay", c.running(c.barred(2), "Decommission", brokerId=3), 3, ["replace orders-1"]),
]


@pytest.mark.parametrize(("seen", "leaver", "then"), c.table(TO_AND_FRO))
def test_mastership_does_not_move_to_and_fro_with_a_member_that_can_not_leave(
    seen: Observed, leaver: int, then: list[str]
) -> None:
    """The update gave it to that member, which gave it back at once because it is to leave: writes stopped each time."""
    seen = c.outdated(seen, "orders-1")
    assert seen.record is not None
    assert c.steps(seen) == ["switch orders-1"]
    after = c.seen_with(seen, replace(seen.record, master_broker_id=leaver))
    assert c.steps(after) == then
    told = c.message(after, "Stalled")
    assert f"orders-{leaver} can't leave: it is master, and would not be spared after a hand-over to broker 1" in told


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_next_step(seen: Observed, expected: list[str]) -> None:
    """Strimzi #12649: the roller gave up instead of waiting for the in-sync replicas."""
    assert c.steps(seen) == expected


def test_a_whole_update_touches_each_pod_once_and_never_two() -> None:
    """By the steps alone: a replaced member comes back up to date and in sync.

    Strimzi #3710, #7800, #10936: pods were restarted twice by one upgrade.
    """
    seen, told = c.outdated(c.settled()), []
    while acts := c.steps(seen):
        assert len(acts) == 1
        told += acts
        if acts[0].startswith("switch"):
            seen = c.seen_with(seen, b.record(master=2))
        else:
            pod = acts[0].split()[1]
            fresh = c.settled().pods[pod]
            seen = c.with_pods(seen, lambda old, new=fresh: old.update(new), pod)  # type: ignore[misc]
    assert told == ["replace orders-2", "replace orders-3", "switch orders-1", "replace orders-1"]


def test_what_waits_for_a_person_is_said() -> None:
    waiting = c.course(c.outdated(strategy(masterUpdate="Supervised"), "orders-1"))
    assert [step.reason.value for step in waiting.rollout] == ["WaitingForPerson"]
    assert names.GROUP not in waiting.rollout[0].why
    assert "switch over" in waiting.rollout[0].why


def reasons(seen: Observed) -> dict[str, str]:
    return {item.member.pod: item.why.value for item in c.course(seen).outdated}


def annotated(seen: Observed, name: str, value: str, *pods: str) -> Observed:
    return c.with_pods(seen, lambda pod: pod["metadata"]["annotations"].update({name: value}), *pods)


def restarted_at(seen: Observed, value: str) -> Observed:
    return c.with_metadata(seen, annotations={names.ANNOTATION_RESTARTED_AT: value})


def born(seen: Observed, time: str, *pods: str) -> Observed:
    return c.with_pods(seen, lambda pod: pod["metadata"].update(creationTimestamp=time), *pods)


def patient(milliseconds: int, **isolation: bool) -> dict[str, Any]:
    return {
        "implementation": "Java",
        "failover": {"heartbeatTimeoutMilliseconds": milliseconds, "isolation": isolation},
    }


def timed(milliseconds: int, *, was: int, **isolation: bool) -> Observed:
    """Java brokers: the fence beside each got other times when its pod was made."""
    return c.wishing(c.settled(**patient(was, **isolation)), **patient(milliseconds, **isolation))


OTHER_IMAGE: Final = replace(b.SETTINGS, replica_image="example.com/operator:0")
PLANES = b.SETTINGS.controller_addresses
ONE_PLANE: Final = replace(b.SETTINGS, controller_addresses=PLANES[:1])
THREE_PLANES: Final = replace(b.SETTINGS, controller_addresses=(*PLANES, "operator-2.operator:9878"))
ANOTHER_NAME: Final = replace(b.SETTINGS, controller_addresses=("former-0.operator:9878", "former-1.operator:9878"))


def made_with(settings: ReconcileSettings, **spec: Any) -> Observed:
    """Its pods were made by an operator with these settings."""
    seen = c.settled(**spec)

    def remake(pod: dict[str, Any]) -> None:
        made = wanted_pod(seen, b.member(int(pod["metadata"]["name"][-1])), settings)
        pod["metadata"]["annotations"] = made["metadata"]["annotations"]
        pod["spec"] = made["spec"] | {"nodeName": "node-1"}

    return c.with_pods(seen, remake, *seen.pods)


JAVA: Final = {"implementation": "Java"}
UNGUARDED: Final = {"implementation": "Java", "failover": {"isolation": {"enabled": False}}}
OTHER_IMAGES: Final = c.wishing(made_with(OTHER_IMAGE), image="x:1")
MORE_TIME = timed(6000, was=2000)
MORE_TIME_AND_IMAGE = c.wishing(MORE_TIME, **patient(6000), image="example.com/x:1")
ALL = ("orders-1", "orders-2", "orders-3")
RESTART = c.running(c.settled(), "Restart", brokerIds=[])
OUTDATED: list[tuple[str, Observed, dict[str, str]]] = [
    ("nothing changed", c.settled(), {}),
    ("another image", c.wishing(c.settled(), image="example.com/x:1"), dict.fromkeys(ALL, "PodChanged")),
    ("a cold key", c.wishing(c.settled(), config={"maxMessageSize": "1"}), dict.fromkeys(ALL, "ConfigurationChanged")),
    ("one is of an older revision", c.outdated(c.settled(), "orders-2"), {"orders-2": "PodChanged"}),
    ("a fence is to have more time", MORE_TIME, {}),
    ("a fence is to have less time", timed(2000, was=4000), dict.fromkeys(ALL, "PodChanged")),
    ("without a fence there is to be more time", timed(6000, was=2000, enabled=False), dict.fromkeys(ALL, "ConfigurationChanged")),
    ("a fence is to have more time, of an older revision", c.outdated(MORE_TIME, "orders-2"), {"orders-2": "PodChanged"}),
    ("a fence is to have more time, and another image", MORE_TIME_AND_IMAGE, dict.fromkeys(ALL, "PodChanged")),
    ("a restart mark", restarted_at(c.settled(), "2026-11-21"), dict.fromkeys(ALL, "RestartedAt")),
    (
        "a restart mark that two have followed",
        annotated(restarted_at(c.settled(), "x"), names.ANNOTATION_RESTARTED_AT, "x", "orders-1", "orders-2"),
        {"orders-3": "RestartedAt"},
    ),
    ("a restart mark that was taken away", annotated(c.settled(), names.ANNOTATION_RESTARTED_AT, "x", "orders-1"), {}),
    ("an operation on all", RESTART, dict.fromkeys(ALL, "RestartOperation")),
    ("an operation on one", c.running(c.settled(), "Restart", brokerIds=[3]), {"orders-3": "RestartOperation"}),
    ("a pod made after its start", born(RESTART, "2026-11-21T00:00:01Z", "orders-1", "orders-2"), {"orders-3": "RestartOperation"}),
    ("a pod made in its very second", born(RESTART, b.NOW, *ALL), dict.fromkeys(ALL, "RestartOperation")),
    (
        "a pod made in its very second and course",
        annotated(born(RESTART, b.NOW, *ALL), names.ANNOTATION_OPERATION, c.OPERATION_UID, "orders-1"),
        {"orders-2": "RestartOperation", "orders-3": "RestartOperation"},
    ),
    ("a restart of pods that are outdated too", c.outdated(RESTART), dict.fromkeys(ALL, "RestartOperation")),
    ("an operation of another type", c.running(c.settled(), "Switchover"), {}),
    ("a pod that is going", c.going(c.outdated(c.settled()), *ALL), {}),
    ("another image of the operator, Java", made_with(OTHER_IMAGE, **JAVA), {}),
    ("another image of the operator, Python", made_with(OTHER_IMAGE), {}),
    ("another image of the operator and of the brokers", OTHER_IMAGES, dict.fromkeys(ALL, "PodChanged")),
    ("replicaCount 1 to 2, Java", made_with(ONE_PLANE, **JAVA), {}),
    ("replicaCount 1 to 2, Python", made_with(ONE_PLANE), {}),
    ("replicaCount 1 to 2, Java without a fence", made_with(ONE_PLANE, **UNGUARDED), {}),
    ("replicaCount 3 to 2, Java", made_with(THREE_PLANES, **JAVA), {}),
    ("replicaCount 3 to 2, Python", made_with(THREE_PLANES), {}),
    # Its fence asks none that could name the present ones.
    ("another name of the operator, Java", made_with(ANOTHER_NAME, **JAVA), dict.fromkeys(ALL, "PodChanged")),
    ("another name of the operator, Python", made_with(ANOTHER_NAME), {}),
    ("another name of the operator, Java without a fence", made_with(ANOTHER_NAME, **UNGUARDED), {}),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in OUTDATED], ids=[case[0] for case in OUTDATED])
def test_which_pods_are_outdated_and_why(seen: Observed, expected: dict[str, str]) -> None:
    assert reasons(seen) == expected


def test_every_reason_has_a_case() -> None:
    """Two of them are in test_configuration.py and test_client_certificates.py."""
    told = {why for _, _, expected in OUTDATED for why in expected.values()}
    assert told | {"ConfigurationKeyRemoved", "CertificateRenewed"} == {str(reason) for reason in RestartReason}


def test_a_pod_that_is_made_now_is_not_outdated() -> None:
    seen: Any = restarted_at(c.running(c.settled(config={"fileReservedTime": "24"}), "Restart", brokerIds=[]), "x")
    pods = {name: wanted_pod(seen, b.member(int(name[-1])), b.SETTINGS) for name in ALL}
    assert reasons(b.changed(seen, pods=pods)) == {}


@pytest.mark.parametrize("spec", [{}, JAVA], ids=["Python", "Java"])
def test_the_groups_revision_is_the_same_under_another_operator(spec: dict[str, Any]) -> None:
    for settings in (OTHER_IMAGE, ONE_PLANE, THREE_PLANES, ANOTHER_NAME):
        assert update_revision(c.settled(**spec), settings) == update_revision(c.settled(**spec), b.SETTINGS)


@pytest.mark.parametrize("spec", [{}, JAVA], ids=["Python", "Java"])
def test_a_pod_that_is_made_again_gets_the_present_image_and_addresses(spec: dict[str, Any]) -> None:
    made = wanted_pod(made_with(OTHER_IMAGE, **spec), b.member(1), b.SETTINGS)
    assert b.SETTINGS.replica_image in [container["image"] for container in made["spec"]["containers"]]
    assert "example.com/operator:0" not in json.dumps(made)


FLEET = 4 if WHOLE else 3
GROUP_A, GROUP_B, GROUP_C = (GroupKey("shop", name) for name in ("a", "b", "c"))


def turns(maximum: int = 1) -> tuple[RollingTurns, list[GroupKey]]:
    woken: list[GroupKey] = []
    return RollingTurns(maximum, woken.append), woken


def group_with(key: GroupKey, reason: str, since: str = b.NOW, status: str = "False") -> dict[str, Any]:
    condition = {"type": "UpToDate", "status": status, "reason": reason, "lastTransitionTime": since}
    return {"metadata": {"namespace": key.namespace, "name": key.name}, "status": {"conditions": [condition]}}


def test_the_group_with_the_turn_keeps_it_and_the_next_is_woken() -> None:
    table, woken = turns()
    assert table.before(GROUP_B, since="1") == ()
    table.tell(GROUP_B, Turn.HOLDS, since="1")
    assert table.before(GROUP_B, since="1") == ()
    assert table.before(GROUP_A, since="0") == (GROUP_B,)
    table.tell(GROUP_A, Turn.WAITS, since="0")
    assert woken == []
    table.tell(GROUP_B, Turn.NONE, since="1")
    assert woken == [GROUP_A]
    assert table.before(GROUP_A, since="0") == ()


def test_the_longest_outdated_comes_first_and_then_the_name() -> None:
    table, woken = turns()
    table.tell(GROUP_C, Turn.HOLDS, since="9")
    for key, since in ((GROUP_B, "5"), (GROUP_A, "7")):
        table.tell(key, Turn.WAITS, since=since)
    table.tell(GROUP_C, Turn.NONE, since="9")
    assert woken == [GROUP_B]
    assert table.before(GROUP_A, since="7") == (GROUP_B,)
    assert table.before(GROUP_C, since="5") == (GROUP_B,)
    assert table.before(GroupKey("shop", "0"), since="5") == ()


def test_as_many_as_allowed_and_without_a_limit_all() -> None:
    two, _ = turns(2)
    two.tell(GROUP_A, Turn.HOLDS, since="1")
    assert two.before(GROUP_B, since="1") == ()
    two.tell(GROUP_B, Turn.HOLDS, since="1")
    assert two.before(GROUP_C, since="1") == (GROUP_A, GROUP_B)
    unlimited, _ = turns(0)
    unlimited.tell(GROUP_A, Turn.HOLDS, since="1")
    assert unlimited.before(GROUP_B, since="2") == ()


def test_a_group_that_fails_in_line_keeps_no_other_waiting() -> None:
    table, _ = turns()
    table.tell(GROUP_A, Turn.WAITS, since="1")
    assert table.before(GROUP_B, since="2") == (GROUP_A,)
    table.step_aside(GROUP_A)
    assert table.before(GROUP_B, since="2") == ()
    table.tell(GROUP_A, Turn.HOLDS, since="1")
    table.step_aside(GROUP_A)
    assert table.before(GROUP_B, since="2") == (GROUP_A,), "half rolled is not rolled"


def test_a_new_operator_reads_the_line_from_the_groups() -> None:
    groups = [
        group_with(GROUP_A, "RollingUpdate"),
        group_with(GROUP_B, "WaitingForOtherGroups", since="2026-11-21T00:00:02Z"),
        group_with(GROUP_C, "WaitingForOtherGroups", since="2026-11-21T00:00:01Z"),
        group_with(GroupKey("shop", "d"), "AllUpToDate", status="True"),
        group_with(GroupKey("shop", "e"), "WaitingForPerson"),
        {"metadata": {"namespace": "shop", "name": "new"}},
    ]
    table, woken = turns()
    table.restore(groups)
    assert table.before(GROUP_B, since="2026-11-21T00:00:02Z") == (GROUP_A, GROUP_C)
    assert table.before(GROUP_A, since=b.NOW) == ()
    table.keep_only(groups[1:])
    assert woken == [GROUP_C], "a group that is gone holds no turn"


def restarted(seen: Observed) -> Observed:
    return c.running(seen, "Restart", brokerIds=[])


def silent(seen: Observed) -> Observed:
    return c.live(c.not_ready(seen, "orders-2"), 1, 3)


def catching_up(seen: Observed) -> Observed:
    return c.seen_with(seen, b.record(in_sync=(1, 3)))


def refused(seen: Observed) -> Observed:
    return replace(seen, refusal="pods orders-2-rehearsal is forbidden")


def no_growth(seen: Observed) -> Observed:
    return replace(refused(seen), claim_refused=True)


SUPERVISED = {"updateStrategy": {"masterUpdate": "Supervised"}}
TURNS: list[tuple[str, Observed, Turn, list[str]]] = [
    ("nothing to do", c.settled(), Turn.NONE, []),
    ("its turn", c.outdated(c.settled()), Turn.HOLDS, ["replace orders-2"]),
    ("not its turn", c.in_line(c.outdated(c.settled())), Turn.WAITS, []),
    ("begun", c.rolling(c.in_line(c.outdated(c.settled(), "orders-1"))), Turn.HOLDS, ["switch orders-1"]),
    ("one is not back", c.rolling(catching_up(c.outdated(c.settled(), "orders-1"))), Turn.HOLDS, []),
    ("the last is not back", c.rolling(catching_up(c.settled())), Turn.HOLDS, []),
    ("all are back", c.rolling(c.settled()), Turn.NONE, []),
    ("not safe to begin", catching_up(c.outdated(c.settled(), "orders-1")), Turn.NONE, []),
    ("a member that gives nothing", c.in_line(silent(c.outdated(c.settled()))), Turn.NONE, ["replace orders-2"]),
    ("asked for", c.in_line(restarted(c.settled())), Turn.HOLDS, ["replace orders-2"]),
    ("asked for, and outdated too", c.in_line(restarted(c.outdated(c.settled()))), Turn.HOLDS, ["replace orders-2"]),
    ("left to a person", c.rolling(c.outdated(c.settled(**SUPERVISED), "orders-1")), Turn.NONE, []),
    ("refused", c.rolling(refused(c.outdated(c.settled()))), Turn.NONE, ["rehearse orders-2"]),
    ("refused, the master is left", c.rolling(refused(c.outdated(c.settled(), "orders-1"))), Turn.NONE, ["rehearse orders-1"]),
    ("refused, and one is away", c.rolling(refused(catching_up(c.outdated(c.settled(), "orders-1")))), Turn.HOLDS, []),
    ("refused is the growth of a claim alone", no_growth(c.outdated(c.settled())), Turn.HOLDS, ["replace orders-2"]),
    ("refused, and asked for", refused(restarted(c.settled())), Turn.HOLDS, ["replace orders-2"]),
    ("paused", c.rolling(c.outdated(c.settled(maintenance={"paused": True}))), Turn.NONE, []),
    ("hibernated", c.rolling(c.outdated(c.settled(maintenance={"hibernated": True}))), Turn.NONE, []),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "turn", "steps"), [case[1:] for case in TURNS], ids=[case[0] for case in TURNS])
def test_when_a_group_needs_its_turn_and_how_long_it_keeps_it(seen: Observed, turn: Turn, steps: list[str]) -> None:
    assert c.course(seen).turn is turn
    assert c.steps(seen) == steps


@pytest.fixture
async def fleet(api: KubernetesApi, sandbox: SandboxApiServer) -> AsyncIterator[list[World]]:
    """Groups of three, all in sync."""
    await api.create(NAMESPACES, {"metadata": {"name": "shop"}})
    applier = applier_for(ClusterAccess(url=sandbox.url))
    worlds = [World(api, applier, GroupKey("shop", f"group-{number}")) for number in range(FLEET)]
    for world in worlds:
        await world.create_group()
        while not await up_to_date(world):
            await world.run_round()
    yield worlds
    await applier.close()


async def up_to_date(world: World) -> bool:
    """Whether its own status says that three members are in sync and every pod is as in the spec."""
    group = await world.group()
    status = group.get("status") or {}
    new = status.get("observedGeneration") == group["metadata"]["generation"]
    true = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
    return new and {"UpToDate", "Ready"} <= true


async def rolls(world: World) -> bool:
    """Whether its pods show a roll: some are missing, or their images differ."""
    pods = await world.items(PODS)
    own = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{world.key.name}-")]
    images = {pod["spec"]["containers"][0]["image"] for pod in own if "deletionTimestamp" not in pod["metadata"]}
    return len(own) < 3 or len(images) > 1


async def groups_of(world: World) -> list[dict[str, Any]]:
    return await world.items(BROKER_GROUPS)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.longer)])
async def test_an_outdated_fleet_rolls_one_group_after_another_though_the_operator_dies(
    fleet: list[World], seed: int
) -> None:
    """Passes in any order; after every seven a new operator, which knows only what the API holds."""
    chance, limit = random.Random(seed), 1
    for world in fleet:
        patch = {"spec": {"image": "example.com/replica:2"}}
        await world.api.patch(BROKER_GROUPS, world.key.name, patch, namespace="shop")
    for number in range(400):
        if number % 7 == 0:
            table, _ = turns(limit)
            table.restore(await groups_of(fleet[0]))
        world = chance.choice(fleet)
        world.turns = table
        await world.run_pass()
        rolling = [str(each.key) for each in fleet if await rolls(each)]
        assert len(rolling) <= limit, f"{rolling} roll at once"
        await world.run_kubelet()
        for each in fleet:
            await each.run_brokers()
        if all([await up_to_date(each) for each in fleet]):
            return
    raise AssertionError(f"not all were rolled: {[turn_of(one) for one in await groups_of(fleet[0])]}")
