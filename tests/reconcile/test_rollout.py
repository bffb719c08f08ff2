"""Rolling updates: every reason for which a pod is restarted, and the next step, case by case."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.reconcile.decide.rollout import RestartReason, wanted_pod
from brokergroup_operator.reconcile.plan import Verb
from brokergroup_operator.reconcile.tell.status import update_revision
from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


def strategy(**values: Any) -> Observed:
    return c.settled(updateStrategy=values)


MASTER_RESTARTS = {"updateStrategy": {"masterUpdate": "Restart"}}
BROKEN_FIRST = c.live(c.not_ready(c.outdated(c.seen_with(c.settled(), b.record(in_sync=(1, 3)))), "orders-2"), 1, 3)
CASES: list[tuple[str, Observed, list[str]]] = [
    ("nothing is outdated", c.settled(), []),
    ("the first slave", c.outdated(c.settled()), ["replace orders-2"]),
    ("the second slave", c.outdated(c.settled(), "orders-1", "orders-3"), ["replace orders-3"]),
    ("the master hands over", c.outdated(c.settled(), "orders-1"), ["switch orders-1"]),
    ("one slave is still away", c.going(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-2"), []),
    ("one is not ready yet", c.not_ready(c.outdated(c.settled(), "orders-1", "orders-3"), "orders-2"), []),
    (
        "one is not in sync yet",
        c.seen_with(c.outdated(c.settled(), "orders-1", "orders-3"), b.record(in_sync=(1, 3))),
        [],
    ),
    ("not safe: metadata, links, silence", c.live(c.outdated(c.settled()), 1, 2, 3, unlinked=frozenset({2})), []),
    ("OnDelete", c.outdated(strategy(type="OnDelete")), []),
    ("Supervised does slaves", c.outdated(strategy(masterUpdate="Supervised")), ["replace orders-2"]),
    ("Supervised waits before the master", c.outdated(strategy(masterUpdate="Supervised"), "orders-1"), []),
    (
        "Restart takes the master as it is",
        c.outdated(strategy(masterUpdate="Restart"), "orders-1"),
        ["replace orders-1"],
    ),
    ("a broken one is replaced at once", BROKEN_FIRST, ["replace orders-2"]),
    (
        "a whole group that never came up",
        c.live(
            c.not_ready(c.outdated(c.seen_with(c.settled(), b.reserved(1, 2, 3))), "orders-1", "orders-2", "orders-3")
        ),
        ["replace orders-1", "replace orders-2", "replace orders-3"],
    ),
    (
        "one that catches up gives nothing",
        c.seen_with(c.outdated(c.settled(), "orders-3"), b.record(in_sync=(1, 2))),
        ["replace orders-3"],
    ),
    (
        "not while a master is missing",
        c.seen_with(c.outdated(c.settled(), "orders-3"), b.record(in_sync=(1, 2), master=None)),
        [],
    ),
    ("a group of one", c.outdated(c.settled(replicas=1)), ["replace orders-1"]),
    # Its only copy would be stopped for an update that the members to come let it hand over for. Found by the fuzz.
    ("a group of one that is to grow", c.outdated(c.wishing(c.settled(replicas=1), replicas=2)), []),
    (
        "a broken one all the same",
        c.live(c.not_ready(c.outdated(c.wishing(c.settled(replicas=1), replicas=2)), "orders-1")),
        ["replace orders-1"],
    ),
    ("one may never be master, and has its turn", c.outdated(c.barred(2)), ["replace orders-2"]),
    ("then the only one that may follow", c.outdated(c.barred(2), "orders-1", "orders-3"), ["replace orders-3"]),
    ("then the master hands over to that one", c.outdated(c.barred(2), "orders-1"), ["switch orders-1"]),
    ("no slave may ever be master: one by one", c.outdated(c.barred(2, 3)), ["replace orders-2"]),
    (
        "each back in sync before the next",
        c.live(c.outdated(c.barred(2, 3), "orders-1", "orders-3"), 1, 3),
        [],
    ),
    (
        "not while a master is being changed",
        c.live(c.outdated(c.barred(2, 3)), 1, 2, 3, in_progress=replace(c.failing_over(), kind=Kind.SWITCHOVER)),
        [],
    ),
    ("and the master of such a group is not given up", c.outdated(c.barred(2, 3), "orders-1"), []),
    ("but as the spec says", c.outdated(c.barred(2, 3, **MASTER_RESTARTS), "orders-1"), ["replace orders-1"]),
    ("paused", c.outdated(c.settled(maintenance={"paused": True})), []),
]


def test_a_master_without_a_possible_successor_says_what_would_help() -> None:
    [step] = c.course(c.outdated(c.barred(2, 3), "orders-1")).rollout

    assert (step.verb, step.reason) == (Verb.REFUSE, Reason.NOBODY_MAY_FOLLOW)
    assert (
        "another priority in spec.failover.priorities; or set spec.updateStrategy.masterUpdate to Restart" in step.why
    )


def silent_without_volumes(*in_sync: int) -> Observed:
    """No member is heard or ready, all are outdated, and each disk goes with its pod."""
    seen = replace(c.settled(storage={"ephemeral": {"sizeLimit": "2Gi"}}), claims={})
    return c.live(c.not_ready(c.outdated(c.seen_with(seen, b.record(in_sync=in_sync))), *seen.pods))


def test_a_copy_that_goes_with_its_pod_is_never_given_up_unheard() -> None:
    """Three silent pods with all messages on their emptyDir were all deleted in one pass."""
    seen = silent_without_volumes(1, 2, 3)
    assert c.steps(seen) == []
    assert [step.verb for step in c.course(seen).rollout] == [Verb.WAIT]


def test_a_disk_that_goes_and_counts_for_nothing_is_given_up() -> None:
    assert c.steps(silent_without_volumes(1, 2)) == ["replace orders-3"]


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
            record = b.record(master=2)
            seen = c.seen_with(seen, record)
        else:
            pod = acts[0].split()[1]
            fresh = c.settled().pods[pod]
            seen = c.with_pods(seen, lambda old, new=fresh: old.update(new), pod)  # type: ignore[misc]
    assert told == ["replace orders-2", "replace orders-3", "switch orders-1", "replace orders-1"]


@pytest.mark.parametrize("values", [{"type": "OnDelete"}, {"masterUpdate": "Supervised"}])
def test_a_restart_that_was_asked_for_is_done_whatever_the_strategy(values: dict[str, str]) -> None:
    seen = c.running(strategy(**values), "Restart", brokerIds=[1])
    assert c.steps(seen) == ["switch orders-1"]


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
    group = b.group_object()
    group["metadata"]["annotations"] = {names.ANNOTATION_RESTARTED_AT: value}
    return b.changed(seen, group_object=group)


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
FIRST, *OTHERS = b.SETTINGS.controller_addresses
ONE_PLANE: Final = replace(b.SETTINGS, controller_addresses=(FIRST,))
THREE_PLANES: Final = replace(
    b.SETTINGS, controller_addresses=(*b.SETTINGS.controller_addresses, "operator-2.operator:9878")
)
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
    """One of them is in test_configuration.py."""
    told = {why for _, _, expected in OUTDATED for why in expected.values()}
    assert told | {"ConfigurationKeyRemoved"} == {str(reason) for reason in RestartReason}


def test_a_pod_that_is_made_now_is_not_outdated() -> None:
    seen: Any = restarted_at(c.running(c.settled(config={"fileReservedTime": "24"}), "Restart", brokerIds=[]), "x")
    pods = {name: wanted_pod(seen, b.member(int(name[-1])), b.SETTINGS) for name in ALL}
    assert reasons(b.changed(seen, pods=pods)) == {}


@pytest.mark.parametrize("settings", [OTHER_IMAGE, ONE_PLANE, THREE_PLANES, ANOTHER_NAME])
@pytest.mark.parametrize("spec", [{}, JAVA], ids=["Python", "Java"])
def test_the_groups_revision_is_the_same_under_another_operator(
    settings: ReconcileSettings, spec: dict[str, Any]
) -> None:
    assert update_revision(c.settled(**spec), settings) == update_revision(c.settled(**spec), b.SETTINGS)


@pytest.mark.parametrize("spec", [{}, JAVA], ids=["Python", "Java"])
def test_a_pod_that_is_made_again_gets_the_present_image_and_addresses(spec: dict[str, Any]) -> None:
    made = wanted_pod(made_with(OTHER_IMAGE, **spec), b.member(1), b.SETTINGS)
    assert b.SETTINGS.replica_image in [container["image"] for container in made["spec"]["containers"]]
    assert "example.com/operator:0" not in json.dumps(made)
