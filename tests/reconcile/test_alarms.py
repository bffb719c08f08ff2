"""The conditions that wait for a person: when they are there, and that they say what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import STANDING_CONDITIONS, Reason
from brokergroup_operator.api.credentials import CredentialsError, secret_not_found
from brokergroup_operator.reconcile.evaluate import UNSETTLED_SECONDS, evaluate
from brokergroup_operator.reconcile.plan import WriteStatus
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed
    from controller_core.model import BrokerGroupRecord

ALWAYS = {str(kind) for kind in STANDING_CONDITIONS}


def status_of(seen: Observed) -> dict[str, Any]:
    written = [action for action in evaluate(seen, b.SETTINGS, now=b.NOW).actions if isinstance(action, WriteStatus)]
    return written[-1].status


def alarms_of(seen: Observed) -> dict[str, dict[str, Any]]:
    return {item["type"]: item for item in status_of(seen)["conditions"] if item["type"] not in ALWAYS}


def with_record(record: BrokerGroupRecord, **snapshot: Any) -> Observed:
    return b.changed(b.settled(), record=record, snapshot=b.snapshot(record, **snapshot))


def behind(**fields: Any) -> BrokerGroupRecord:
    """As the epoch floor leaves a record: above the brokers, and nobody holds a seat."""
    return replace(b.record(master=None, in_sync=()), **fields)


def test_a_group_in_order_has_no_alarm() -> None:
    assert alarms_of(b.settled()) == {}
    assert alarms_of(b.changed(b.settled(), record=b.reserved(1, 2, 3))) == {}, "nor has a new one"


def test_an_epoch_jump_tells_the_command_that_accepts_it() -> None:
    seen = with_record(b.record(), epoch_jump=25_000)
    alarm = alarms_of(seen)["EpochJump"]

    assert (alarm["status"], alarm["reason"]) == ("True", "EpochFarAboveRecord")
    assert "epoch 25000, the record says 7" in alarm["message"]
    assert "kubectl annotate brokergroup orders -n shop brokergroup.dev/accept-epoch=25000" in alarm["message"]
    assert status_of(seen)["controller"]["epochJump"] == 25_000


def annotated(seen: Observed, text: str) -> Observed:
    metadata = seen.group_object["metadata"] | {"annotations": {names.ANNOTATION_ACCEPT_EPOCH: text}}
    return b.changed(seen, group_object=seen.group_object | {"metadata": metadata})


def test_an_acceptance_is_shown_and_an_unreadable_one_is_named() -> None:
    seen = with_record(b.record(), epoch_jump=25_000)

    assert status_of(annotated(seen, "30000"))["controller"]["acceptedEpoch"] == 30_000
    misspelt = status_of(annotated(seen, "25k"))
    assert "acceptedEpoch" not in misspelt["controller"]
    jump = next(item for item in misspelt["conditions"] if item["type"] == "EpochJump")
    assert "brokergroup.dev/accept-epoch is '25k', expected a number up to 2147483647" in jump["message"]


def test_a_record_behind_its_brokers_says_whom_it_waits_for() -> None:
    alarm = alarms_of(with_record(behind(), live=(1, 3), writable=False))["Recovering"]

    assert alarm["reason"] == "RecordBehindBrokers"
    assert "above epoch 7" in alarm["message"]
    assert "waiting for brokers 2 (one that is gone for good: mqadmin cleanBrokerMetadata)" in alarm["message"]


def test_a_record_rebuilt_from_its_brokers_says_so() -> None:
    """Everything was lost: ids are known again by adoption, from the epoch the brokers tell."""
    record = behind()
    adopted = {
        broker_id: replace(replica, register_check_code=f"{replica.address};adopted")
        for broker_id, replica in list(record.replicas.items())[:2]
    }
    alarm = alarms_of(with_record(replace(record, replicas=adopted, master_epoch=0), live=(1, 2), writable=False))

    assert alarm["Recovering"]["reason"] == "RecordRebuiltFromBrokers"
    assert "every registered broker is heard, and for 1 that have not registered" in alarm["Recovering"]["message"]


def test_lost_seats_show_both_ways_out() -> None:
    record = behind(lost_seats=frozenset({1, 2}))
    marked = {
        broker_id: replace(replica, held_epoch=7, held_offset=broker_id * 1000)
        for broker_id, replica in record.replicas.items()
    }
    seen = with_record(replace(record, replicas=marked), writable=False)
    alarms = alarms_of(seen)

    assert set(alarms) == {"SeatLost"}, "nobody is being recovered: this waits for a person"
    message = alarms["SeatLost"]["message"]
    assert "broker 1 (epoch 7, offset 1000), broker 2 (epoch 7, offset 2000)" in message
    assert "give one of them its volume back" in message
    assert "spec.failover.uncleanElection" in message
    assert [item["seat"] for item in status_of(seen)["members"]] == ["Lost", "Lost", "None"]


def test_members_show_their_seats_and_the_group_its_unclean_elections() -> None:
    record = replace(b.record(in_sync=(1,)), eligible=frozenset({2}), unclean_elections=3)
    status = status_of(with_record(record))

    assert [item["seat"] for item in status["members"]] == ["InSyncStateSet", "Eligible", "None"]
    assert status["uncleanElections"] == 3


@pytest.mark.parametrize(
    ("signature", "consequence"),
    [
        ("Disabled", "Brokers wait for it before they start"),
        ("Accepted", "running ones are known by their address"),
        ("Required", "No request of this group's brokers is heard until then"),
    ],
)
def test_missing_credentials_say_what_follows(signature: str, consequence: str) -> None:
    security = {"signature": signature, "credentialsSecretRef": {"name": "keys"}}
    seen = b.changed(b.settled(security=security), credentials_problem=secret_not_found("shop", "keys"))
    alarm = alarms_of(seen)["CredentialsMissing"]

    assert alarm["reason"] == "SecretNotFound"
    assert "Secret shop/keys does not exist" in alarm["message"]
    assert consequence in alarm["message"]


def test_a_missing_secret_is_looked_for_again_although_nothing_tells_of_it() -> None:
    security = {"credentialsSecretRef": {"name": "keys"}}
    in_order = b.settled(security=security)
    problem = CredentialsError(
        Reason.SECRET_INCOMPLETE, "Secret shop/keys has no key secretKey, expected a text under it"
    )

    assert evaluate(in_order, b.SETTINGS, now=b.NOW).look_again_seconds is None
    waiting = evaluate(b.changed(in_order, credentials_problem=problem), b.SETTINGS, now=b.NOW)
    assert waiting.look_again_seconds == UNSETTLED_SECONDS
