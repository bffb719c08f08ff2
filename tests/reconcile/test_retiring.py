"""What a Retire makes of a group's configuration: read only, then silent, and back again when it ends before the deletion."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.times import moment, rfc3339
from brokergroup_operator.kube.resources import BROKER_GROUPS
from brokergroup_operator.reconcile.plan import DeleteObject, PutBackBrokerConfig, SetBrokerConfig, SetFinalizers
from brokergroup_operator.reconcile.render.broker_config import given_to
from tests.reconcile import cases as c
from tests.reconcile.builders import NOW
from tests.reconcile.cases import conditions, run
from tests.reconcile.test_configuration import saying

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


def rendered(seen: Observed) -> Observed:
    """The same after a pass has written the ConfigMap."""
    return replace(seen, config_maps={**seen.config_maps, **c.applied(seen, "ConfigMap")})


def noted(seen: Observed, **values: str) -> Observed:
    """Every broker was given these values too."""

    def note(pod: dict[str, Any]) -> None:
        given = {**given_to(pod), **values}
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = json.dumps(given, sort_keys=True)

    return c.with_pods(seen, note, *seen.pods)


def marked(seen: Observed) -> Observed:
    return c.with_metadata(seen, annotations={names.ANNOTATION_CLOSED_BY: c.OPERATION_UID})


def sent(seen: Observed) -> dict[str, dict[str, str]]:
    return {one.pod: dict(one.values) for one in c.actions(seen, SetBrokerConfig)}


def sent_to_all(**values: str) -> dict[str, dict[str, str]]:
    return {f"orders-{number}": values for number in (1, 2, 3)}


def broker_conf(seen: Observed) -> str:
    return str(c.applied(seen, "ConfigMap")["orders-broker"]["data"][names.CONFIG_FILE])


@pytest.mark.parametrize("spec", [{}, JAVA])
@pytest.mark.parametrize("step", ["ReadOnly", "Draining"])
def test_every_broker_is_read_only_also_one_that_starts(spec: dict[str, Any], step: str) -> None:
    seen = retiring(c.settled(**spec), step)
    assert sent(seen) == {}, "first the ConfigMap, by which a later pass knows what to give back"
    assert "\nbrokerPermission=4\n" in broker_conf(seen)
    seen = rendered(seen)
    assert sent(seen) == sent_to_all(brokerPermission="4")
    assert c.actions(seen, DeleteObject) == [], "no broker is restarted for it"
    told = conditions(seen)
    says = "BrokerGroupOperation op retires the group"
    assert (told["Available"]["status"], told["Available"]["reason"]) == ("False", "Retiring")
    assert told["Available"]["message"] == f"Takes no sends: {says} ({step})"
    assert (told["Reconciling"]["status"], told["Reconciling"]["message"]) == ("True", f"{says} ({step})")
    assert told["FailoverSafe"]["status"] == "True"


@pytest.mark.parametrize("step", ["Closing", "Deleting"])
def test_a_closed_group_acknowledges_nothing_at_any_member(step: str) -> None:
    """A new master would acknowledge what its slave lacks otherwise."""
    seen = noted(rendered(retiring(c.settled(implementation="Python"), step)), brokerPermission="4")
    [mark] = c.actions(seen, SetFinalizers)
    assert (mark.resource, dict(mark.annotations)) == (BROKER_GROUPS, {names.ANNOTATION_CLOSED_BY: c.OPERATION_UID})
    order = [type(one) for one in run(seen).actions if isinstance(one, SetFinalizers | SetBrokerConfig)]
    assert order == [SetFinalizers, *[SetBrokerConfig] * 3], "marked first: a controller plane would put it right again"
    assert sent(marked(seen)) == sent_to_all(minInSyncReplicas="99")
    assert c.actions(marked(seen), SetFinalizers) == []


def test_the_end_of_the_operation_gives_everything_back_without_a_restart() -> None:
    seen = marked(noted(c.settled(), brokerPermission="4", minInSyncReplicas="99"))
    back = {"brokerPermission": "6", "minInSyncReplicas": "2"}
    assert sent(seen) == sent_to_all(**back)
    [unmark] = c.actions(seen, SetFinalizers)
    assert dict(unmark.annotations) == {names.ANNOTATION_CLOSED_BY: None}
    assert "\nbrokerPermission=6\n" in broker_conf(seen)
    after = noted(c.settled(), brokerPermission="6")
    assert sent(after) == {}
    assert c.actions(after, DeleteObject) == [], "a key that is left out takes a restart"
    assert conditions(after)["UpToDate"]["status"] == "True"
    assert sent(c.settled()) == {}, "a group that was never retired is not told of the key"


def test_a_group_that_is_still_closed_is_not_available() -> None:
    """The Retire was given up, and the brokers have not had their configuration back yet."""
    seen = c.settled()
    assert seen.snapshot is not None
    closed = replace(seen, snapshot=replace(seen.snapshot, closed=True))
    told = conditions(closed)
    assert (told["Available"]["status"], told["Available"]["reason"]) == ("False", "Retiring")
    assert told["Ready"]["status"] == "False"
    assert told["FailoverSafe"]["status"] == "True", "what its members lack is no matter of the Retire"
    assert (seen.snapshot.takes_writes, closed.snapshot and closed.snapshot.takes_writes) == (True, False)


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
    assert c.actions(open_again, PutBackBrokerConfig) == [], "a person's measure is left"
    seen = saying(noted(retiring(c.settled(), "Draining"), brokerPermission="4"), brokerPermission="6")
    put_back = {one.pod: dict(one.values) for one in c.actions(seen, PutBackBrokerConfig)}
    assert put_back["orders-1"] == {"brokerPermission": "4"}


DAY = 86_400


def closed_java() -> Observed:
    return marked(noted(rendered(retiring(c.settled(**JAVA), "Closing")), brokerPermission="4"))


def accepts_from(seen: Observed) -> int:
    (value,) = {values["startAcceptSendRequestTimeStamp"] for values in sent(seen).values()}
    return int(value) // 1000


def test_a_closed_java_broker_refuses_sends_that_wait_for_no_slave() -> None:
    """minInSyncReplicas says nothing of sends with WAIT=false. The time is weeks ahead: the operator may be away right after the
    deletion. It is prolonged once a day, without an Event.
    """
    seen = closed_java()
    now = int(moment(NOW).timestamp())
    assert all(values["minInSyncReplicas"] == "99" for values in sent(seen).values())
    first = accepts_from(seen)
    assert 30 * DAY < first - now <= 31 * DAY
    given = noted(seen, minInSyncReplicas="99", startAcceptSendRequestTimeStamp=str(first * 1000))
    assert sent(given) == {}
    later = rfc3339(now + DAY)
    assert run(given).look_again_seconds is not None, "nothing else may happen meanwhile"
    prolonged = [one for one in run(given, now=later).actions if isinstance(one, SetBrokerConfig)]
    assert {int(one.values["startAcceptSendRequestTimeStamp"]) // 1000 for one in prolonged} == {first + DAY}
    assert [one.note for one in prolonged] == [None] * 3


def test_an_end_lets_a_java_broker_take_sends_at_once() -> None:
    ended = replace(
        noted(closed_java(), minInSyncReplicas="99", startAcceptSendRequestTimeStamp="9999999999000"), operation=None
    )
    back = {"brokerPermission": "6", "minInSyncReplicas": "2", "startAcceptSendRequestTimeStamp": "0"}
    assert sent(ended) == sent_to_all(**back)
    assert sent(noted(ended, **back)) == {}


def test_a_closed_java_broker_stays_so_on_its_way_down() -> None:
    """The group is being deleted, and its Retire was deleted meanwhile: what was acknowledged now went with it."""
    seen = noted(closed_java(), minInSyncReplicas="99", startAcceptSendRequestTimeStamp="9999999999000")
    going = c.with_metadata(replace(seen, operation=None), deletionTimestamp=NOW)
    given = [values for values in sent(going).values() if "startAcceptSendRequestTimeStamp" in values]
    assert given == []


def without_note(seen: Observed, *keys: str) -> Observed:
    """As a request leaves the notes that was under way when the operator died, or that failed: without the keys that it changes."""

    def forget(pod: dict[str, Any]) -> None:
        given = {key: value for key, value in given_to(pod).items() if key not in keys}
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = json.dumps(given, sort_keys=True)

    return c.with_pods(seen, forget, *seen.pods)


@pytest.mark.parametrize("step", ["ReadOnly", "Closing"])
def test_an_end_gives_back_what_no_note_tells_of(step: str) -> None:
    """The operator died between the request and its note, and the operation was deleted before it was back."""
    during = rendered(retiring(c.settled(), step))
    ended = replace(without_note(during, "brokerPermission", "minInSyncReplicas"), operation=None)
    for values in sent(ended).values():
        assert (values["brokerPermission"], values["minInSyncReplicas"]) == ("6", "2")
    assert len(sent(ended)) == 3
    after = noted(rendered(ended), brokerPermission="6", minInSyncReplicas="2")
    assert sent(after) == {}
    assert c.actions(after, DeleteObject) == []


@pytest.mark.parametrize("how", ["paused", "invalid"])
def test_an_end_gives_writes_back_while_nothing_else_is_done(how: str) -> None:
    """The group is paused, or its spec names what does not exist: only what the Retire has taken is given back."""
    spec: dict[str, Any] = {"maintenance": {"paused": True}} if how == "paused" else {}
    seen = marked(noted(rendered(retiring(c.settled(), "Closing")), brokerPermission="4", minInSyncReplicas="99"))
    during = c.wishing(seen, **spec, config={"fileReservedTime": "1"}) if how == "paused" else seen
    if how == "invalid":
        during = replace(during, config_problem="spec.configFrom names ConfigMap a, which does not exist")
    during = marked(during)
    assert sent(during) == {}, "while it runs"
    ended = replace(during, operation=None)
    back = {"brokerPermission": "6", "minInSyncReplicas": "2"}
    assert sent(ended) == sent_to_all(**back)
    [unmark] = c.actions(ended, SetFinalizers)
    assert dict(unmark.annotations) == {names.ANNOTATION_CLOSED_BY: None}
    assert sent(noted(ended, **back)) == {}
