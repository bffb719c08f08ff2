"""Records as JSON: they survive a round trip, an older operator's record is accepted, and a newer one's is refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.api.brokergroup_state import GroupRecord
from brokergroup_operator.records.serialize import KNOWN_MEMBERS, record_from_json, record_to_json
from brokergroup_operator.records.store import RecordCorruptError
from controller_core.model import Before, BrokerGroupRecord, Change, ChangeKind, Phase, Replica, Restore

IDS = st.integers(1, 5)
REPLICAS = st.builds(
    Replica,
    broker_id=IDS,
    register_check_code=st.sampled_from(("", "a:1;1")),
    address=st.sampled_from(("", "a:1")),
    reserved_for=st.sampled_from(("", "bn-1")),
    registered=st.booleans(),
    held_epoch=st.integers(-1, 2**31 - 1),
    held_offset=st.integers(-1, 2**62),
)
EPOCHS = st.integers(0, 2**31 - 1)
CHANGES = st.builds(
    Change,
    id=st.integers(1, 9),
    kind=st.sampled_from(ChangeKind),
    phase=st.sampled_from(Phase),
    carried_out_by=st.sampled_from(("", "10.0.0.1:9878")),
    from_broker_id=st.none() | IDS,
    to_broker_id=st.none() | IDS,
    epoch=EPOCHS,
    slave=st.none() | IDS,
    before=st.none()
    | st.builds(
        Before,
        master_broker_id=st.none() | IDS,
        master_epoch=EPOCHS,
        sync_state_set=st.frozensets(IDS),
        sync_state_set_epoch=EPOCHS,
    ),
    restore=st.none() | st.builds(Restore, broker_id=IDS, min_in_sync_replicas=st.integers(0, 99)),
    cause=st.sampled_from(("", "drain")),
    unfenced=st.booleans(),
    started_at=st.sampled_from(("", "2026-11-24T22:00:00Z")),
)
RECORDS = st.builds(
    BrokerGroupRecord,
    cluster_name=st.just("cl"),
    broker_name=st.just("bn"),
    next_broker_id=st.integers(1, 9),
    replicas=st.lists(REPLICAS, max_size=4).map(lambda found: {one.broker_id: one for one in found}),
    master_broker_id=st.none() | IDS,
    master_epoch=st.integers(0, 2**31 - 1),
    sync_state_set=st.frozensets(IDS),
    sync_state_set_epoch=st.integers(0, 2**31 - 1),
    master_process_lost=st.booleans(),
    eligible=st.frozensets(IDS),
    lost_seats=st.frozensets(IDS),
    unclean_elections=st.integers(0, 99),
    unfenced=st.frozensets(st.integers(1, 9), max_size=3),
    change_id=st.integers(0, 99),
    change=st.none() | CHANGES,
    restored_from=st.sampled_from(["", "orders/nightly"]),
)


@given(RECORDS)
def test_what_is_written_is_read_back_and_is_what_the_kind_knows(record: BrokerGroupRecord) -> None:
    document = record_to_json(record)
    assert record_from_json(document, source="test") == record
    assert document["schemaVersion"] == 2
    assert document.keys() <= KNOWN_MEMBERS
    known = msgspec.to_builtins(msgspec.convert(document, GroupRecord))
    assert record_from_json(known, source="test") == record
    absent = dict.fromkeys(("masterBrokerId", "change", "restoredFrom"))
    assert {name: value for name, value in (absent | known).items() if name != "change"} == {
        name: value for name, value in (absent | document).items() if name != "change"
    }


def _version_1() -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "clusterName": "cl",
        "brokerName": "bn",
        "nextBrokerId": 3,
        "replicas": [{"brokerId": 1, "registerCheckCode": "a:1;1", "address": "a:1", "registered": True}],
        "masterBrokerId": 1,
        "masterEpoch": 4,
        "syncStateSet": [1],
        "syncStateSetEpoch": 6,
    }


def test_a_record_of_the_version_before_says_nothing_of_seats() -> None:
    record = record_from_json(_version_1(), source="test")
    assert (record.eligible, record.lost_seats, record.unclean_elections) == (frozenset(), frozenset(), 0)
    assert record.unfenced == frozenset()
    assert (record.change_id, record.change) == (0, None)
    assert (record.replicas[1].held_epoch, record.replicas[1].held_offset) == (-1, -1)
    assert record.granted_master_id == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schemaVersion": 3}, "schemaVersion is 3, this operator reads 1 and 2 only"),
        ({"eligible": "1"}, "eligible is '1', expected list"),
        ({"lostSeats": [True]}, "lostSeats is \\[True\\], expected a list of integers"),
        ({"unfenced": ["2"]}, "unfenced is \\['2'\\], expected a list of integers"),
        ({"uncleanElections": 1.5}, "uncleanElections is 1.5, expected int"),
        ({"change": 7}, "change is 7, expected an object"),
        ({"change": {"id": 1, "kind": "Coup", "phase": "Telling"}}, "change.kind is 'Coup', expected one of Failover, "),
        ({"change": {"id": 1, "kind": "Cure", "phase": "Over"}}, "change.phase is 'Over', expected one of Fencing, "),
        ({"change": {"id": 1, "kind": "Cure", "phase": "Telling", "restore": {}}}, "restore: brokerId is None, expected int"),
        ({"replicas": [{"brokerId": 1, "heldOffset": "9"}]}, "heldOffset is '9', expected int"),
    ],
)  # fmt: skip
def test_what_is_half_understood_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordCorruptError, match=message):
        record_from_json(_version_1() | change, source="test")
