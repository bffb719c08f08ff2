"""The version in force: a step that is refused rolls nothing, lost pods come back as they were, and the reason is said."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.group_directory import binding_of
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.settings import ReconcileSettings, VersionCatalogue
from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

TIMERS = {"timerRocksDBEnable": "true"}
IMAGE = "registry.example/rocketmq@sha256:" + "a" * 64
LISTED = VersionCatalogue(images=(("5.5.0", IMAGE),), only_listed=True)
LIMITED = replace(b.SETTINGS, catalogue=LISTED)


def java(**spec: Any) -> dict[str, Any]:
    return {"implementation": "Java", "nameServers": ["ns:9876"], "config": TIMERS} | spec


def with_spec(seen: Observed, **spec: Any) -> Observed:
    return c.wishing(seen, **java(**spec))


def running_with(version: str | None, *, wants: dict[str, Any], annotations: dict[str, str] | None = None) -> Observed:
    """A group whose pods run `version`, and whose spec asks for something else since."""
    return c.with_metadata(with_spec(b.settled(**java(version=version)), **wants), annotations=annotations or {})


def stopped_pods(plan: plans.Plan) -> list[str]:
    return [one.name for one in plan.actions if isinstance(one, plans.DeleteObject) and one.resource == PODS]


def made_pods(plan: plans.Plan) -> list[dict[str, Any]]:
    return [one.object for one in plan.actions if isinstance(one, plans.ApplyObject) and one.resource == PODS]


def image_of(pod: dict[str, Any]) -> str:
    return str(b.containers(pod)["broker"]["image"])


def told(plan: plans.Plan) -> dict[str, Any]:
    status = next(one.status for one in plan.actions if isinstance(one, plans.WriteStatus))
    return {"version": status.get("version")} | {
        one["type"]: (one["status"], one["reason"], one["message"]) for one in status["conditions"]
    }


def planned(seen: Observed, settings: ReconcileSettings = b.SETTINGS) -> plans.Plan:
    return evaluate(seen, settings, now=b.NOW)


def test_a_refused_step_back_rolls_nothing_and_says_field_value_and_reason() -> None:
    plan = planned(running_with("5.5.0", wants={"version": "5.3.3"}))
    assert stopped_pods(plan) == []
    said = told(plan)
    status, reason, message = said["Stalled"]
    assert (status, reason) == ("True", "VersionRefused")
    assert message.startswith("spec.version is '5.3.3', expected no such step back from 5.5.0: ")
    assert "timerRocksDBEnable" in message
    command = "kubectl annotate --overwrite brokergroup orders -n shop brokergroup.dev/accept-version=5.3.3"
    assert message.endswith(command)
    assert said["UpToDate"][:2] == ("False", "VersionRefused")
    assert said["version"] == "5.5.0"


def test_a_lost_pod_comes_back_with_the_version_in_force() -> None:
    seen = running_with("5.5.0", wants={"version": "5.3.3"})
    (pod,) = made_pods(planned(b.changed(seen, pods=b.without(seen.pods, "orders-2"))))
    assert image_of(pod) == "apache/rocketmq:5.5.0"
    assert pod["metadata"]["labels"][names.LABEL_APP_VERSION] == "5.5.0"


def test_without_a_pod_the_status_says_what_ran() -> None:
    seen = running_with("5.5.0", wants={"version": "5.3.3"})
    seen = b.changed(seen, pods={}, group_object=seen.group_object | {"status": {"version": "5.5.0"}})
    assert {image_of(pod) for pod in made_pods(planned(seen))} == {"apache/rocketmq:5.5.0"}


def noted_on_claims(seen: Observed, settings: ReconcileSettings = b.SETTINGS) -> Observed:
    """The same group once its claims have what the pass writes on them."""
    claims = copy.deepcopy(dict(seen.claims))
    for one in planned(seen, settings).actions:
        if isinstance(one, plans.PatchMetadata) and one.resource == PERSISTENT_VOLUME_CLAIMS:
            held = claims[one.name]["metadata"].setdefault("annotations", {})
            held |= one.change["annotations"]
            claims[one.name]["metadata"]["annotations"] = {key: text for key, text in held.items() if text is not None}
    return b.changed(seen, claims=claims)


def test_without_pods_status_and_record_the_claims_say_what_wrote_them() -> None:
    """All of them were deleted by hand: a step back would begin on disks of the newer version."""
    ran = noted_on_claims(running_with("5.5.0", wants={"version": "5.5.0"}))
    lost = with_spec(b.changed(ran, pods={}), version="5.3.3")
    for seen in (lost, b.changed(lost, record=None, snapshot=None, state_object=None)):
        said = told(planned(seen))
        assert (said["Stalled"][1], said["version"]) == ("VersionRefused", "5.5.0")
        assert {image_of(pod) for pod in made_pods(planned(seen))} <= {"apache/rocketmq:5.5.0"}


def test_a_claim_is_noted_once_its_broker_has_started_and_follows_it_back() -> None:
    ran = noted_on_claims(running_with("5.5.0", wants={"version": "5.5.0"}))
    assert noted_on_claims(ran) == ran, "noted once"
    pending = copy.deepcopy(dict(ran.pods))
    for pod in pending.values():
        pod["metadata"]["labels"][names.LABEL_APP_VERSION] = "5.5.1"
        pod["status"] = {"phase": "Pending"}
    never = noted_on_claims(b.changed(ran, pods=pending))
    assert never.claims == ran.claims, "an image that was never there wrote nothing"
    accepted = {names.ANNOTATION_ACCEPT_VERSION: "5.3.3"}
    back = noted_on_claims(
        b.changed(running_with("5.3.3", wants={"version": "5.3.3"}, annotations=accepted), claims=ran.claims)
    )
    assert told(planned(with_spec(b.changed(back, pods={}), version="5.3.3")))["version"] == "5.3.3"
    of_image = b.settled(implementation="Java", nameServers=["ns:9876"], image="example.com/rocketmq:1")
    unknown = noted_on_claims(b.changed(of_image, claims=ran.claims))
    assert told(planned(with_spec(b.changed(unknown, pods={}), version="5.3.3")))["version"] is None


def test_the_key_that_forbids_a_step_back_counts_also_where_the_same_edit_takes_it_away() -> None:
    """Else the step would lose what the key's brokers keep, and without a word: its messages are on their disks."""
    ran = noted_on_claims(running_with("5.5.0", wants={"version": "5.5.0"}))
    dropped = with_spec(ran, version="5.3.3", config={})
    for seen in (dropped, b.changed(dropped, pods={})):
        plan = planned(seen)
        assert stopped_pods(plan) == []
        assert told(plan)["Stalled"][1] == "VersionRefused"
        assert "timerRocksDBEnable, with which the group's brokers ran" in told(plan)["Stalled"][2]
        (kept,) = [
            one.object for one in plan.actions if isinstance(one, plans.ApplyObject) and one.resource == CONFIG_MAPS
        ] or [{"data": {"broker.conf": "timerRocksDBEnable=true"}}]
        assert "timerRocksDBEnable=true" in kept["data"]["broker.conf"]


def test_a_key_that_is_dropped_by_itself_is_dropped_and_forbids_nothing_after_that() -> None:
    ran = noted_on_claims(running_with("5.5.0", wants={"version": "5.5.0"}))
    assert stopped_pods(planned(with_spec(ran, version="5.5.0", config={}))) == ["orders-2"]
    rolled = b.changed(running_with("5.5.0", wants={"version": "5.5.0", "config": {}}), claims=ran.claims)
    pods = b.settled(**java(version="5.5.0", config={})).pods
    rolled = noted_on_claims(b.changed(rolled, pods=pods))
    assert stopped_pods(planned(with_spec(rolled, version="5.3.3", config={}))) == ["orders-2"]


def test_an_acceptance_goes_once_it_was_used() -> None:
    """Else it would accept the same loss again, after the next upgrade."""
    accepted = {names.ANNOTATION_ACCEPT_VERSION: "5.3.3"}
    done = running_with("5.3.3", wants={"version": "5.3.3"}, annotations=accepted)
    half = beside(done, 1, version="5.5.0")
    not_yet = running_with("5.5.0", wants={"version": "5.5.0"}, annotations=accepted)

    def taken_off(seen: Observed) -> list[Any]:
        changes = [one for one in planned(seen).actions if isinstance(one, plans.PatchMetadata)]
        return [one.change for one in changes if one.resource == BROKER_GROUPS]

    assert taken_off(half) == taken_off(not_yet) == []
    assert taken_off(done) == [{"annotations": {names.ANNOTATION_ACCEPT_VERSION: None}}]


def beside(seen: Observed, broker_id: int, **spec: Any) -> Observed:
    """One pod is of another spec than the others."""
    pod = b.running_pod(b.group(**java(**spec)), broker_id, role="master" if broker_id == 1 else "slave")
    return b.changed(seen, pods={**seen.pods, f"orders-{broker_id}": pod})


def never_started(seen: Observed, name: str) -> Observed:
    return c.with_pods(seen, lambda pod: pod.update(status={"phase": "Pending"}), name)


ACCEPTED = {names.ANNOTATION_ACCEPT_VERSION: "5.3.3"}
OF_ANOTHER = {names.ANNOTATION_ACCEPT_VERSION: "5.1.4"}
BACK = running_with("5.3.3", wants={"version": "5.3.3"})
CAME_FROM = c.with_status(BACK, {"version": "5.5.0"})
# What is seen; the version that the status has, the pods that are stopped, whether the version is refused.
JUDGED: list[tuple[str, Observed, dict[str, Any]]] = [
    ("upgrade", running_with("5.3.3", wants={"version": "5.5.0"}), {"stopped": ["orders-2"], "refused": False}),
    (
        "accepted", running_with("5.5.0", wants={"version": "5.3.3"}, annotations=ACCEPTED),
        {"stopped": ["orders-2"], "refused": False},
    ),
    (
        "an image says nothing", running_with("5.5.0", wants={"image": "example.com/rocketmq:5.3.3"}),
        {"stopped": ["orders-2"], "refused": False},
    ),
    ("newer than tested", running_with("5.5.1", wants={"version": "6.0.0"}), {"stopped": ["orders-2"], "refused": False}),
    ("an acceptance of another", running_with("5.5.0", wants={"version": "5.3.3"}, annotations=OF_ANOTHER), {"refused": True}),
    # An image that is not there is taken back by the former version, whatever the spec turns on.
    (
        "a pod that never started counts for nothing", never_started(beside(BACK, 2, version="5.5.0"), "orders-2"),
        {"version": "5.3.3", "refused": False},
    ),
    # The pod of the first member to be updated is made anew: its disk is the newer version's, though no pod of it has started.
    (
        "a version counts until every member has started with another", c.without_pods(CAME_FROM, "orders-2"),
        {"version": "5.5.0", "refused": True},
    ),
    ("and then no more", CAME_FROM, {"version": "5.3.3"}),
    # An operator of before took any tag as its default; the API server would refuse the whole status for it.
    ("what is no version", running_with("latest", wants={"version": "5.5.0"}), {"version": None}),
    # The image may be of any version, and its pod the master.
    ("a pod of an image runs", beside(BACK, 1, version=None, image="example.com/rocketmq:1"), {"version": None}),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(JUDGED))
def test_which_version_is_in_force_and_what_rolls(seen: Observed, expected: dict[str, Any]) -> None:
    said = told(planned(seen))
    found = {
        "version": said["version"],
        "stopped": stopped_pods(planned(seen)),
        "refused": said["Stalled"][1] == "VersionRefused",
    }
    assert found.items() >= expected.items()


def test_a_refusal_in_the_middle_of_an_update_rolls_no_further_pod() -> None:
    catalogue = VersionCatalogue(images=(("5.1.4", IMAGE),), only_listed=True)
    others = replace(b.SETTINGS, catalogue=catalogue, rocketmq_version="5.1.4")
    plan = planned(beside(running_with("5.3.3", wants={"version": "5.4.0"}), 2, version="5.5.0"), others)
    assert stopped_pods(plan) == []
    assert told(plan)["Stalled"][1] == "VersionRefused"


def test_a_refusal_holds_back_no_change_of_the_configuration() -> None:
    seen = running_with("5.5.0", wants={"version": "5.3.3", "config": TIMERS | {"sendMessageThreadPoolNums": "7"}})
    plan = planned(seen)
    (kept,) = [one.object for one in plan.actions if isinstance(one, plans.ApplyObject) and one.resource == CONFIG_MAPS]
    assert "sendMessageThreadPoolNums=7" in kept["data"]["broker.conf"]


def test_without_its_config_maps_a_group_takes_no_step_back() -> None:
    """The key that forbids it may stand in the ConfigMap that is missing."""
    seen = running_with("5.5.0", wants={"version": "5.3.3", "config": {}})
    seen = b.changed(seen, pods=b.without(seen.pods, "orders-2"), config_problem="ConfigMap extra is missing")
    (pod,) = made_pods(planned(seen))
    assert image_of(pod) == "apache/rocketmq:5.5.0"


def test_pods_of_an_image_keep_their_roles_while_the_version_after_it_is_refused() -> None:
    seen = b.settled(implementation="Java", nameServers=["ns:9876"], image="example.com/rocketmq:1")
    seen = c.with_pods(seen, lambda pod: pod["metadata"]["labels"].pop(names.LABEL_ROLE), "orders-1")
    plan = planned(with_spec(seen, version="5.3.3"), LIMITED)
    assert told(plan)["Stalled"][1] == "VersionRefused"
    assert [(one.pod, one.role) for one in plan.actions if isinstance(one, plans.SetRole)] == [("orders-1", "master")]
    assert stopped_pods(plan) == []


def test_a_limit_lets_no_new_group_begin_and_leaves_a_running_one_as_it_is() -> None:
    new = b.changed(running_with("5.5.0", wants={"version": "5.3.3"}), pods={}, record=None, snapshot=None)
    plan = planned(new, LIMITED)
    assert made_pods(plan) == []
    assert told(plan)["Ready"][1] == "VersionRefused"
    assert "limited to 5.5.0 (chart: brokers.onlyListedVersions)" in told(plan)["Stalled"][2]
    seen = running_with("5.3.3", wants={"version": "5.4.0"})
    kept = planned(b.changed(seen, pods=b.without(seen.pods, "orders-3")), LIMITED)
    assert stopped_pods(kept) == []
    assert {image_of(pod) for pod in made_pods(kept)} == {"apache/rocketmq:5.3.3"}
    assert "The group goes on with 5.3.3" in told(kept)["Stalled"][2]


def test_the_operators_default_is_judged_as_a_version_of_the_spec_is() -> None:
    seen = running_with("5.5.0", wants={})
    plan = planned(seen, replace(b.SETTINGS, rocketmq_version="5.3.3"))
    assert stopped_pods(plan) == []
    assert told(plan)["Stalled"][2].startswith("spec.version is absent, and the operator's default version is '5.3.3'")


def test_a_listed_version_runs_its_image_and_rolls_to_another() -> None:
    pinned = replace(b.SETTINGS, catalogue=VersionCatalogue(images=(("5.5.0", IMAGE),)))
    seen = running_with("5.5.0", wants={"version": "5.5.0"})
    assert stopped_pods(planned(seen, pinned)) == ["orders-2"]
    (pod,) = made_pods(planned(b.changed(seen, pods=b.without(seen.pods, "orders-2")), pinned))
    assert image_of(pod) == IMAGE


def test_a_version_without_ids_begins_no_group() -> None:
    """The CRD refuses it; this holds for an object that was stored before it did."""
    seen = b.changed(running_with("5.5.0", wants={"version": "5.0.0"}), pods={})
    plan = planned(seen)
    assert made_pods(plan) == []
    assert "brokers before 5.1.1 have no persistent broker ids" in told(plan)["Stalled"][2]


def test_a_version_beyond_the_tests_is_noted() -> None:
    assert "newer than 5.5.1" in told(planned(running_with("5.6.0", wants={"version": "5.6.0"})))["UpToDate"][2]
    assert "newer" not in told(planned(running_with("5.5.1", wants={"version": "5.5.1"})))["UpToDate"][2]


def test_masters_shrink_first_until_no_pod_of_the_newer_version_is_left() -> None:
    found = b.group_object(**java(version="5.3.3"))
    assert binding_of(found | {"status": {"version": "5.5.0"}}).settings.masters_shrink_first
    assert not binding_of(found | {"status": {"version": "5.3.3"}}).settings.masters_shrink_first
    assert binding_of(found).settings.masters_shrink_first, "with its status gone they may be of any version"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rocketmq_version": "5.0.0"}, "rocketmq_version is '5.0.0', expected another: brokers before 5.1.1"),
        ({"rocketmq_version": "latest"}, "rocketmq_version is 'latest', expected a version like 5.5.0"),
        ({"rocketmq_version": "5.1.2"}, "does not start in controller mode"),
        ({"rocketmq_version": "5.3.3", "catalogue": LISTED}, "limited to 5.5.0"),
    ],
)
def test_a_default_that_no_group_could_run_is_refused_at_the_start(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        replace(b.SETTINGS, **settings)


def test_a_catalogue_names_each_version_once_and_limits_to_something() -> None:
    with pytest.raises(ValueError, match=r"lists 5\.5\.0 twice"):
        VersionCatalogue(images=(("5.5.0", "a:1"), ("5.5.0", "a:2")))
    with pytest.raises(ValueError, match="images is empty"):
        VersionCatalogue(only_listed=True)
