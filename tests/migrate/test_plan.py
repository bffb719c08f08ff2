"""From what was read to records, and every doubt by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.migrate.java import BrokerSaid, JavaGroup, JavaState, parse_peers, record_of
from brokergroup_operator.migrate.plan import Kind, Standing, compare, plan_group

if TYPE_CHECKING:
    from controller_core.model import BrokerGroupRecord

STATE = JavaState(
    broker_name="bn",
    addresses={1: "h:1", 2: "h:2", 3: "h:3"},
    master_broker_id=1,
    master_epoch=4,
    sync_state_set=frozenset({1, 2, 3}),
    sync_state_set_epoch=9,
    alive=frozenset({1, 2, 3}),
)


def said(broker_id: int, **changes: object) -> BrokerSaid:
    master = broker_id == 1
    usual = BrokerSaid(
        address=f"h:{broker_id}",
        cluster_name="cl",
        broker_name="bn",
        slave_id=None if master else broker_id,
        version="V5_5_0",
        last_epoch=4,
        acts_as_master=master,
        in_sync_slaves=2 if master else 0,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


HEALTHY = JavaGroup(
    state=STATE,
    next_broker_id=4,
    cluster_names=frozenset({"cl"}),
    brokers={broker_id: said(broker_id) for broker_id in (1, 2, 3)},
)


def with_broker(broker_id: int, what: BrokerSaid | str) -> JavaGroup:
    return replace(HEALTHY, brokers={**HEALTHY.brokers, broker_id: what})


def test_a_healthy_group_becomes_a_record_with_nothing_in_the_way() -> None:
    plan = plan_group(HEALTHY)
    assert not plan.blocked
    record = plan.record
    assert (record.cluster_name, record.broker_name, record.next_broker_id) == ("cl", "bn", 4)
    assert (record.master_broker_id, record.master_epoch) == (1, 4)
    assert record.sync_state_set == {1, 2, 3}
    assert record.sync_state_set_epoch == 9
    assert {one.broker_id: one.address for one in record.replicas.values()} == STATE.addresses
    assert all(one.registered for one in record.replicas.values())
    assert record.replicas[2].register_check_code == "h:2;migrated"


CASES = {
    "no master": (replace(HEALTHY, state=replace(STATE, master_broker_id=None)), Kind.NO_MASTER, True),
    "not steady": (replace(HEALTHY, steady=False), Kind.NOT_STEADY, True),
    "a silent member": (replace(HEALTHY, state=replace(STATE, alive=frozenset({1, 2}))), Kind.NOT_ALIVE, True),
    "a member that does not answer": (with_broker(2, "refused"), Kind.UNREACHABLE, True),
    "another broker at the address": (with_broker(2, said(2, slave_id=7)), Kind.WRONG_BROKER, True),
    "another name at the address": (with_broker(2, said(2, broker_name="other")), Kind.WRONG_BROKER, True),
    "a slave that acts as master": (with_broker(2, said(2, acts_as_master=True)), Kind.WRONG_MASTER, True),
    "a master that does not": (with_broker(1, said(1, acts_as_master=False)), Kind.WRONG_MASTER, True),
    "a broker ahead of the controller": (with_broker(3, said(3, last_epoch=5)), Kind.EPOCH_AHEAD, True),
    "a master with another set": (with_broker(1, said(1, in_sync_slaves=1)), Kind.SET_DISAGREES, True),
    "an old broker": (with_broker(3, said(3, version="V5_1_0")), Kind.OLD_BROKER, True),
    "an older broker": (with_broker(3, said(3, version="V4_9_8")), Kind.OLD_BROKER, True),
    "a broker without a version": (with_broker(3, said(3, version="")), Kind.UNKNOWN_VERSION, False),
    "the name in two clusters": (
        replace(HEALTHY, cluster_names=frozenset({"cl", "other"})),
        Kind.TWO_CLUSTERS,
        True,
    ),
    "a broker of another cluster": (with_broker(3, said(3, cluster_name="other")), Kind.TWO_CLUSTERS, True),
    "nobody knows the cluster": (
        replace(HEALTHY, cluster_names=frozenset(), brokers=dict.fromkeys((1, 2, 3), "refused")),
        Kind.NO_CLUSTER,
        True,
    ),
    "an id nobody holds": (replace(HEALTHY, next_broker_id=6), Kind.HOLES, False),
    "an id beyond the next one": (replace(HEALTHY, next_broker_id=3), Kind.HOLES, False),
    "a replica out of sync": (
        replace(
            HEALTHY,
            state=replace(STATE, sync_state_set=frozenset({1, 2})),
            brokers={**HEALTHY.brokers, 1: said(1, in_sync_slaves=1)},
        ),
        Kind.SMALL_SET,
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_doubt_has_a_name_and_says_what_to_do(name: str) -> None:
    group, kind, blocks = CASES[name]
    plan = plan_group(group)
    found = [doubt for doubt in plan.doubts if doubt.kind is kind]
    assert found, plan.doubts
    assert all(doubt.blocks == blocks and doubt.what and doubt.remedy for doubt in found)
    assert plan.blocked == blocks
    assert kind.value in plan.as_text()
    assert kind.value in [doubt["kind"] for doubt in plan.as_json()["doubts"]]


def test_a_replica_out_of_sync_that_does_not_answer_does_not_block() -> None:
    group = replace(
        HEALTHY,
        state=replace(STATE, sync_state_set=frozenset({1, 2})),
        brokers={1: said(1, in_sync_slaves=1), 2: said(2), 3: "refused"},
    )
    assert not plan_group(group).blocked


def test_the_next_id_is_above_every_id_ever_seen() -> None:
    assert plan_group(replace(HEALTHY, next_broker_id=3)).record.next_broker_id == 4
    assert plan_group(replace(HEALTHY, next_broker_id=9)).record.next_broker_id == 9


def planned() -> BrokerGroupRecord:
    return record_of(STATE, cluster_name="cl", next_broker_id=4)


@pytest.mark.parametrize(
    ("stored", "standing"),
    [
        (None, Standing.ABSENT),
        (planned(), Standing.SAME),
        (replace(planned(), master_epoch=3, sync_state_set_epoch=8), Standing.BEHIND),
        (replace(planned(), sync_state_set_epoch=8), Standing.BEHIND),
        (replace(planned(), master_epoch=5), Standing.DIFFERENT),
        (replace(planned(), sync_state_set_epoch=10), Standing.DIFFERENT),
        (replace(planned(), next_broker_id=5), Standing.DIFFERENT),
        (replace(planned(), cluster_name="other"), Standing.DIFFERENT),
        (replace(planned(), master_broker_id=2), Standing.DIFFERENT),
    ],
)
def test_a_stored_record_is_overwritten_only_if_nothing_is_lost(
    stored: BrokerGroupRecord | None, standing: Standing
) -> None:
    assert compare(stored, planned()) is standing


@pytest.mark.parametrize(
    ("text", "peers"),
    [
        ("n0:127.0.0.1:29878;", ("127.0.0.1:29878",)),
        ("n0:host-a:9878;n1:host-b:9878;", ("host-a:9878", "host-b:9878")),
        ("localhost:9770;localhost:9771;", ("localhost:9770", "localhost:9771")),
        ("n0:[::1]:9878;", ("[::1]:9878",)),
        ("", ()),
    ],
)
def test_members_of_both_kinds_of_controller(text: str, peers: tuple[str, ...]) -> None:
    assert parse_peers(text) == peers
