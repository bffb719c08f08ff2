"""What a Retire makes of a group's configuration: read only, then silent, and back again when it ends before the deletion."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import BROKER_GROUPS
from brokergroup_operator.reconcile.plan import (
    ApplyObject,
    DeleteObject,
    PutBackBrokerConfig,
    SetBrokerConfig,
    SetFinalizers,
)
from brokergroup_operator.reconcile.render.broker_config import given_to
from tests.reconcile import cases as c
from tests.reconcile.passes import conditions, run
from tests.reconcile.test_configuration_drift import saying

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

JAVA = {"implementation": "Java", "nameServers": ["ns:9876"]}


def retiring(seen: Observed, step: str, *, uid: str = "") -> Observed:
    """The same group with a running Retire at this step."""
    seen = c.running(seen, "Retire")
    assert seen.operation is not None
    assert seen.operation.status is not None
    group_uid = uid or str(seen.group_object["metadata"]["uid"])
    status = msgspec.convert(
        msgspec.to_builtins(seen.operation.status) | {"retirement": {"step": step, "groupUid": group_uid}},
        type(seen.operation.status),
    )
    return replace(seen, operation=msgspec.structs.replace(seen.operation, status=status))


def noted(seen: Observed, **values: str) -> Observed:
    """Every broker was given these values too."""

    def note(pod: dict[str, Any]) -> None:
        given = {**given_to(pod), **values}
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = json.dumps(given, sort_keys=True)

    return c.with_pods(seen, note, *seen.pods)


def marked(seen: Observed) -> Observed:
    notes = {names.ANNOTATION_CLOSED_BY: c.OPERATION_UID}
    metadata = seen.group_object["metadata"]
    return replace(seen, group_object=seen.group_object | {"metadata": metadata | {"annotations": notes}})


def sent(seen: Observed) -> dict[str, dict[str, str]]:
    return {one.pod: dict(one.values) for one in run(seen).actions if isinstance(one, SetBrokerConfig)}


def broker_conf(seen: Observed) -> str:
    (applied,) = (
        one for one in run(seen).actions if isinstance(one, ApplyObject) and one.object["kind"] == "ConfigMap"
    )
    return str(applied.object["data"][names.CONFIG_FILE])


@pytest.mark.parametrize("spec", [{}, JAVA])
@pytest.mark.parametrize("step", ["ReadOnly", "Draining"])
def test_every_broker_is_read_only_also_one_that_starts(spec: dict[str, Any], step: str) -> None:
    seen = retiring(c.settled(**spec), step)
    assert sent(seen) == {f"orders-{number}": {"brokerPermission": "4"} for number in (1, 2, 3)}
    assert "\nbrokerPermission=4\n" in broker_conf(seen)
    assert not [one for one in run(seen).actions if isinstance(one, DeleteObject)], "no broker is restarted for it"
    told = conditions(seen)
    says = "BrokerGroupOperation op retires the group"
    assert (told["Available"]["status"], told["Available"]["reason"]) == ("False", "Retiring")
    assert told["Available"]["message"] == f"Takes no sends: {says} ({step})"
    assert (told["Reconciling"]["status"], told["Reconciling"]["message"]) == ("True", f"{says} ({step})")
    assert told["FailoverSafe"]["status"] == "True"


@pytest.mark.parametrize("step", ["Closing", "Deleting"])
def test_a_closed_group_acknowledges_nothing_at_any_member(step: str) -> None:
    """A new master would acknowledge what its slave lacks otherwise."""
    seen = noted(retiring(c.settled(), step), brokerPermission="4")
    (mark,) = (one for one in run(seen).actions if isinstance(one, SetFinalizers))
    assert (mark.resource, dict(mark.annotations)) == (BROKER_GROUPS, {names.ANNOTATION_CLOSED_BY: c.OPERATION_UID})
    order = [type(one) for one in run(seen).actions if isinstance(one, SetFinalizers | SetBrokerConfig)]
    assert order == [SetFinalizers, *[SetBrokerConfig] * 3], "marked first: a controller plane would put it right again"
    assert sent(marked(seen)) == {f"orders-{number}": {"minInSyncReplicas": "99"} for number in (1, 2, 3)}
    assert not any(isinstance(one, SetFinalizers) for one in run(marked(seen)).actions)


def test_the_end_of_the_operation_gives_everything_back_without_a_restart() -> None:
    seen = marked(noted(c.settled(), brokerPermission="4", minInSyncReplicas="99"))
    back = {"brokerPermission": "6", "minInSyncReplicas": "2"}
    assert sent(seen) == {f"orders-{number}": back for number in (1, 2, 3)}
    (unmark,) = (one for one in run(seen).actions if isinstance(one, SetFinalizers))
    assert dict(unmark.annotations) == {names.ANNOTATION_CLOSED_BY: None}
    assert "\nbrokerPermission=6\n" in broker_conf(seen)
    after = noted(c.settled(), brokerPermission="6")
    assert sent(after) == {}
    assert not [one for one in run(after).actions if isinstance(one, DeleteObject)], (
        "a key that is left out takes a restart"
    )
    assert conditions(after)["UpToDate"]["status"] == "True"
    assert sent(c.settled()) == {}, "a group that was never retired is not told of the key"


def test_the_users_own_permission_comes_back() -> None:
    spec: dict[str, Any] = {"config": {"brokerPermission": "2"}}
    assert "\nbrokerPermission=4\n" in broker_conf(retiring(c.settled(**spec), "Draining"))
    assert sent(noted(c.settled(**spec), brokerPermission="4"))["orders-1"] == {"brokerPermission": "2"}


def test_a_retire_of_an_earlier_group_of_this_name_changes_nothing() -> None:
    seen = retiring(c.settled(), "Closing", uid="uid-of-an-earlier-group")
    assert sent(seen) == {}
    assert conditions(seen)["Available"]["status"] == "True"


def test_another_writer_does_not_open_a_group_that_is_being_retired() -> None:
    """A master that takes sends again would never be empty."""
    open_again = saying(noted(c.settled(), brokerPermission="6"), brokerPermission="2")
    assert not [one for one in run(open_again).actions if isinstance(one, PutBackBrokerConfig)], (
        "a person's measure is left"
    )
    seen = saying(noted(retiring(c.settled(), "Draining"), brokerPermission="4"), brokerPermission="6")
    put_back = {one.pod: dict(one.values) for one in run(seen).actions if isinstance(one, PutBackBrokerConfig)}
    assert put_back["orders-1"] == {"brokerPermission": "4"}
