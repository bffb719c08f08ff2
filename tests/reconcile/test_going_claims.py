"""A claim that is deleted under a running pod: told at once, and the operator stops that pod for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionType, Reason
from brokergroup_operator.kube.resources import BROKER_GROUPS, EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.reconcile.other_groups import Turn
from brokergroup_operator.reconcile.plan import WriteStatus
from brokergroup_operator.reconcile.tell.events import transition_notes
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import run, told
from tests.reconcile.test_storage import COMMIT_LOG, LOGS
from tests.reconcile.test_storage import settled as with_logs
from tests.reconcile.world import make_ready, named, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.reconcile.world import World

IMAGE = {"image": "example/other:2"}
RESTARTED = {names.ANNOTATION_RESTARTED_AT: "2026-11-27T08:00:00Z"}


def going(seen: Any, *claims: str) -> Any:
    """These claims are being deleted, each under the pod that uses it."""
    changed = {
        name: claim | {"metadata": claim["metadata"] | {"deletionTimestamp": b.NOW}} if name in claims else claim
        for name, claim in seen.claims.items()
    }
    return replace(seen, claims=changed)


def conditions(seen: Any) -> dict[str, dict[str, Any]]:
    [written] = [one for one in run(seen).actions if isinstance(one, WriteStatus)]
    return {one["type"]: one for one in written.status["conditions"]}


def test_it_is_a_condition_that_names_claim_pod_and_the_way_out() -> None:
    alarm = conditions(going(c.settled(), "orders-2"))[ConditionType.CLAIM_TERMINATING]
    assert (alarm["status"], alarm["reason"]) == ("True", Reason.CLAIM_BEING_DELETED)
    for part in (
        "claim orders-2.",
        "pod orders-2",
        "kubectl brokergroup rebuild orders 2 -n shop",
        "Retain",
        "gitops.md",
    ):
        assert part in alarm["message"]
    assert ConditionType.CLAIM_TERMINATING not in conditions(c.settled())


def test_a_commit_logs_claim_counts_as_well() -> None:
    seen = going(with_logs(**COMMIT_LOG), LOGS[2])
    assert f"claim {LOGS[2]}." in conditions(seen)[ConditionType.CLAIM_TERMINATING]["message"]


@pytest.mark.parametrize("why", ["the pod is going", "no pod", "another's claim"])
def test_what_is_no_danger_is_no_alarm(why: str) -> None:
    seen = going(c.settled(), "orders-2")
    if why == "the pod is going":
        seen = c.with_pods(seen, lambda pod: pod["metadata"].update(deletionTimestamp=b.NOW), "orders-2")
    elif why == "no pod":
        seen = replace(seen, pods=b.without(seen.pods, "orders-2"))
    else:
        copy = seen.claims["orders-2"]
        copy = copy | {"metadata": copy["metadata"] | {"name": "orders-2-backup"}}
        seen = replace(c.settled(), claims={**c.settled().claims, "orders-2-backup": copy})
    assert ConditionType.CLAIM_TERMINATING not in conditions(seen)


def test_every_further_claim_is_an_event() -> None:
    settled, one, two = (
        list(conditions(seen).values())
        for seen in (c.settled(), going(c.settled(), "orders-2"), going(c.settled(), "orders-2", "orders-3"))
    )

    def events(before: Any, after: Any) -> list[str]:
        return [note.reason for note in transition_notes(before, after) if note.reason == "ClaimBeingDeleted"]

    assert events(settled, one) == ["ClaimBeingDeleted"]
    assert events(one, one) == []
    assert events(one, two) == ["ClaimBeingDeleted"]
    assert events(two, settled) == []


def test_a_rolling_update_passes_over_its_pod_and_then_waits_for_a_person() -> None:
    outdated = c.wishing(c.settled(), **IMAGE)
    assert told(run(outdated))[-1] == "delete Pod orders-2"
    held = going(outdated, "orders-2")
    assert told(run(held))[-1] == "delete Pod orders-3"
    alone = going(c.settled(), "orders-2")
    alone = c.with_pods(
        alone, lambda pod: pod["metadata"]["annotations"].update({names.ANNOTATION_REVISION: "another"}), "orders-2"
    )
    assert not [line for line in told(run(alone)) if "Pod" in line]
    stalled = conditions(alone)[ConditionType.STALLED]
    assert (stalled["status"], stalled["reason"]) == ("True", Reason.CLAIM_BEING_DELETED)
    assert "orders-2: a claim is being deleted" in stalled["message"]


def test_it_keeps_no_other_group_waiting() -> None:
    """An update that has come to its last pod, and may not stop that one, gives its turn back."""
    last = c.with_pods(
        c.settled(),
        lambda pod: pod["metadata"]["annotations"].update({names.ANNOTATION_REVISION: "another"}),
        "orders-2",
    )
    assert run(c.rolling(last)).turn is Turn.HOLDS
    held = c.rolling(going(last, "orders-2"))
    assert run(held).turn is Turn.NONE
    told_of = conditions(held)[ConditionType.UP_TO_DATE]
    assert (told_of["status"], told_of["reason"]) == ("False", Reason.CLAIM_BEING_DELETED)


def test_an_asked_for_restart_is_refused_as_well() -> None:
    seen = going(c.settled(), "orders-1", "orders-2", "orders-3")
    marked = seen.group_object | {"metadata": seen.group_object["metadata"] | {"annotations": RESTARTED}}
    seen = replace(seen, group_object=marked)
    assert not [line for line in told(run(seen)) if "Pod" in line or "switch" in line]
    assert conditions(seen)[ConditionType.STALLED]["reason"] == Reason.CLAIM_BEING_DELETED


def test_a_pod_that_is_not_heard_is_left_alone_too() -> None:
    """Elsewhere its disk would stay: here it would go."""
    seen = c.live(going(c.wishing(c.settled(), **IMAGE), "orders-3"), 1, 2)
    seen = c.with_pods(seen, lambda pod: pod["status"].update(conditions=[]), "orders-3")
    assert "delete Pod orders-3" not in told(run(seen))


@pytest.mark.parametrize("phase", ["Failed", "Pending"])
def test_a_pod_that_never_runs_is_not_made_again(phase: str) -> None:
    seen = going(c.settled(), "orders-2")
    seen = c.with_pods(seen, lambda pod: pod["status"].update(phase=phase), "orders-2")
    assert "delete Pod orders-2" not in told(run(seen))


def test_a_group_is_not_put_to_sleep_on_it() -> None:
    """All its pods would stop, and wake without those disks. Nor is its master kept from acknowledging meanwhile."""
    asleep = c.wishing(c.settled(), maintenance={"hibernated": True})
    assert told(run(asleep)) != []
    held = going(asleep, "orders-3")
    assert not [line for line in told(run(held)) if "Pod" in line or "minInSyncReplicas=99" in line or "config" in line]
    stalled = conditions(held)[ConditionType.STALLED]
    assert (stalled["status"], stalled["reason"]) == ("True", Reason.CLAIM_BEING_DELETED)
    assert stalled["message"].startswith("Not hibernated: orders-3")


def test_a_rebuild_is_the_way_out() -> None:
    """Its pod is stopped, because a person asked for just that; the claim is gone by then, and the id follows."""
    seen = c.running(going(c.settled(), "orders-3"), "Rebuild", brokerId=3)
    assert told(run(seen))[-1] == "delete Pod orders-3"
    stopped = c.live(b.changed(seen, pods=b.without(seen.pods, "orders-3")), 1, 2)
    assert c.steps(stopped) == []
    gone = b.changed(stopped, claims=b.without(seen.claims, "orders-3"))
    assert told(run(gone)) == ["reserve orders-4"]


@pytest.mark.parametrize("access", ["sandbox"], indirect=True)
async def test_it_is_told_at_once_and_the_claim_stays_until_the_pod_stops(
    world: World,
    start_plane: Callable[..., Any],
) -> None:
    """What an Argo CD that prunes does: all claims at once. Reports: argo-cd #1250."""
    await start_plane(resync_seconds=600.0)
    await make_ready(world)
    pods = {name: pod["metadata"]["uid"] for name, pod in (await named(world, PODS)).items()}
    for name in pods:
        await world.api.delete(PERSISTENT_VOLUME_CLAIMS, name, namespace=world.key.namespace)

    async def alarm() -> Any:
        group = await world.api.get(BROKER_GROUPS, "orders", namespace=world.key.namespace)
        found = [one for one in group["status"]["conditions"] if one["type"] == "ClaimTerminating"]
        return found and found[0]["message"].count("rebuild") == 3

    await until("the alarm names all three", alarm)
    events = [one for one in (await named(world, EVENTS)).values() if one["reason"] == "ClaimBeingDeleted"]
    assert events
    assert {one["type"] for one in events} == {"Warning"}
    assert {name: pod["metadata"]["uid"] for name, pod in (await named(world, PODS)).items()} == pods
    assert sorted(await named(world, PERSISTENT_VOLUME_CLAIMS)) == sorted(pods)
