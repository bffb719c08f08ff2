"""The metrics page: every name is one of the shared constants, states come from snapshots, counts from what the plane tells."""

from collections.abc import Callable
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from brokergroup_operator.observe.group_view import GroupSnapshot
from brokergroup_operator.observe.metrics import Metrics
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome, Step, Trigger
from brokergroup_operator.records.store import GroupKey
from controller_core import metric_names
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica

KEY = GroupKey("default", "orders")
GROUP = {"namespace": "default", "cluster": "DefaultCluster", "broker_group": "orders"}


def snapshot() -> GroupSnapshot:
    record = BrokerGroupRecord(
        "DefaultCluster",
        "orders",
        next_broker_id=4,
        replicas={broker_id: Replica(broker_id, f"c{broker_id}", f"h{broker_id}:1") for broker_id in (1, 2, 3)},
        master_broker_id=2,
        master_epoch=5,
        sync_state_set=frozenset({2, 3}),
        sync_state_set_epoch=9,
    )
    live = {2: LiveReplica(2, epoch=5, max_offset=1000), 3: LiveReplica(3, epoch=5, max_offset=900)}
    return GroupSnapshot(key=KEY, record=record, live=live, writable=True, heartbeat_age_seconds={2: 0.1, 3: 0.25})


class View:
    """A plane with one group."""

    def keys(self) -> list[GroupKey]:
        return [KEY, GroupKey("default", "unknown")]

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        return snapshot() if key == KEY else None

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
        raise NotImplementedError

    async def reserve_broker_id(self, key: GroupKey, pod_name: str) -> int:
        raise NotImplementedError

    async def switch_master_away(self, key: GroupKey, broker_id: int) -> int | None:
        raise NotImplementedError


def timeline(**changes: Any) -> FailoverTimeline:
    made = FailoverTimeline(
        group=KEY,
        cluster_name="DefaultCluster",
        broker_name="orders",
        kind=Kind.FAILOVER,
        trigger=Trigger.SILENCE,
        from_broker_id=1,
        epoch_before=4,
        started_at_unix_seconds=1_780_000_000.5,
        last_sign_of_life_seconds=97.0,
        to_broker_id=2,
        epoch_after=5,
        outcome=Outcome.COMPLETED,
        steps={Step.DETECTED: 100.0, Step.DECIDED: 100.01, Step.COMMITTED: 100.02, Step.ROLE_CHANGED: 100.2},
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


async def scrape(metrics: Metrics) -> dict[str, list[Any]]:
    await metrics.start("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{metrics.port}/metrics") as response:
        assert response.status == 200
        text = await response.text()
    await metrics.stop()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def value(samples: list[Any], **labels: str) -> float:
    (found,) = [sample.value for sample in samples if labels.items() <= sample.labels.items()]
    return float(found)


async def test_states_are_computed_from_the_snapshots_at_the_scrape() -> None:
    metrics = Metrics()
    metrics.attach(View())
    families = await scrape(metrics)
    assert value(families[metric_names.MASTER_EPOCH], **GROUP) == 5
    assert value(families[metric_names.SYNC_STATE_SET_EPOCH], **GROUP) == 9
    assert value(families[metric_names.SYNC_STATE_SET_SIZE], **GROUP) == 2
    assert value(families[metric_names.GROUP_WRITABLE], **GROUP) == 1
    roles = families[metric_names.MEMBER_ROLE]
    assert value(roles, broker_id="1", role=metric_names.ROLE_ABSENT) == 1
    assert value(roles, broker_id="2", role=metric_names.ROLE_MASTER) == 1
    assert value(roles, broker_id="2", role=metric_names.ROLE_IN_SYNC) == 0
    assert value(roles, broker_id="3", role=metric_names.ROLE_IN_SYNC) == 1
    assert value(families[metric_names.REPLICA_LAG_BYTES], broker_id="3") == 100
    assert value(families[metric_names.HEARTBEAT_AGE_SECONDS], broker_id="3") == 0.25


async def test_an_incident_is_counted_from_the_fault_and_not_from_its_detection() -> None:
    metrics = Metrics()
    metrics.observer.incident_closed(timeline())
    families = await scrape(metrics)
    phases = families[metric_names.FAILOVER_PHASE_SECONDS]
    sums = {s.labels["phase"]: s.value for s in phases if s.name.endswith("_sum")}
    assert round(sums[metric_names.PHASE_DETECTED], 6) == 3.0
    assert round(sums[metric_names.PHASE_ROLE_CHANGED], 6) == 3.2
    assert round(sums[metric_names.PHASE_TOTAL], 6) == 3.2
    unavailable = families[metric_names.UNAVAILABLE_SECONDS_TOTAL.removesuffix("_total")]
    assert round(value([s for s in unavailable if s.name.endswith("_total")], cause="silence"), 6) == 3.2
    failovers = families[metric_names.FAILOVERS_TOTAL.removesuffix("_total")]
    assert value([s for s in failovers if s.name.endswith("_total")], trigger="silence", result="completed") == 1


async def test_a_cancelled_incident_is_counted_and_costs_nothing() -> None:
    metrics = Metrics()
    metrics.observer.incident_closed(timeline(outcome=Outcome.CANCELLED))
    families = await scrape(metrics)
    unavailable = families[metric_names.UNAVAILABLE_SECONDS_TOTAL.removesuffix("_total")]
    assert unavailable == []


async def test_a_peer_can_make_no_labels_up() -> None:
    metrics = Metrics()
    metrics.observer.request_answered(1004, 0)
    for code in range(20_000, 20_050):
        metrics.observer.request_answered(code, 3)
    families = await scrape(metrics)
    requests = families[metric_names.REQUESTS_TOTAL.removesuffix("_total")]
    totals = [sample for sample in requests if sample.name.endswith("_total")]
    assert len(totals) == 2
    assert value(totals, request="unknown", code="REQUEST_CODE_NOT_SUPPORTED") == 50
    assert value(totals, request="CONTROLLER_GET_REPLICA_INFO", code="SUCCESS") == 1


async def test_every_family_on_the_page_is_a_shared_name() -> None:
    metrics = Metrics()
    metrics.attach(View())
    metrics.observer.incident_closed(timeline())
    metrics.observer.request_answered(1004, 0)
    metrics.observer.record_conflict(KEY, snapshot().record)
    families = await scrape(metrics)
    known = {name.removesuffix("_total") for name in metric_names.METRICS}
    assert set(families) <= known
