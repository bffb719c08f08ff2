"""Which pods are outdated, and why: by the spec, a restart mark, an operation, a fence's times and the operator's own settings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.decide.rollout import RestartReason, wanted_pod
from brokergroup_operator.reconcile.tell.status import update_revision
from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


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
