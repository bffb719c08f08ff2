"""The metrics page: every name is one of the shared constants, states come from snapshots, counts from what the plane tells."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

import metric_names
from brokergroup_operator.observe.group_view import GroupSnapshot, MetadataDifference, MetadataKind, Silence
from brokergroup_operator.observe.metrics import Metrics
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome, Step, Trigger
from brokergroup_operator.records.store import GroupKey
from controller_core.decision import ControllerCode, Decision, ElectMasterAnswer
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def __init__(self, shown: GroupSnapshot | None = None) -> None:
        self.shown = shown or snapshot()

    def keys(self) -> list[GroupKey]:
        return [KEY, GroupKey("default", "unknown")]

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        return self.shown if key == KEY else None

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
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


def total(families: dict[str, list[Any]], name: str, **labels: str) -> float:
    return value([s for s in families[name.removesuffix("_total")] if s.name.endswith("_total")], **labels)


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


async def test_the_speed_of_each_members_link_is_told_as_far_as_it_is_known() -> None:
    """Seed 004: the replication speed of each slave. The master has none, and a link that was not asked for has none either."""
    metrics = Metrics()
    metrics.attach(View(replace(snapshot(), replication_speeds={3: 4096})))
    (speed,) = (await scrape(metrics))[metric_names.REPLICATION_BYTES_PER_SECOND]
    assert (speed.labels, speed.value) == (GROUP | {"broker_id": "3"}, 4096)


async def test_members_that_run_unheard_are_counted() -> None:
    """Member 1 answers and is linked; for a silent member without answers there is no sign that it runs.

    A member that another plane hears is a candidate for every plane.
    """
    plain = snapshot()
    silent = Silence(since_unix_seconds=1_780_000_000.0)
    linked, heard = replace(silent, linked=True), replace(silent, linked=True, heard_by=("h9:9878",))
    for silence, count in ((silent, 0), (linked, 1), (replace(silent, answers=True), 1), (heard, 0)):
        metrics = Metrics()
        metrics.attach(View(replace(plain, silences={1: silence})))
        assert value((await scrape(metrics))[metric_names.UNHEARD_MEMBERS], **GROUP) == count, silence


async def test_a_members_place_is_told_and_which_of_them_is_the_masters() -> None:
    facts = {2: {"node": "n2", "zone": "a", "tenant": "shop"}, 3: {"node": "n3"}, 9: {"node": "gone"}}
    metrics = Metrics()
    metrics.attach(View(replace(snapshot(), member_facts=facts)))
    places = (await scrape(metrics))[metric_names.MEMBER_PLACE]
    assert value(places, broker_id="2", node="n2", zone="a", rack="", version="", tenant="shop") == 1
    assert value(places, broker_id="3", node="n3", zone="") == 0
    assert value(places, broker_id="1", node="") == 0
    assert len(places) == 3


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
    assert round(value([s for s in unavailable if s.name.endswith("_total")], cause="unknown"), 6) == 3.2
    failovers = families[metric_names.FAILOVERS_TOTAL.removesuffix("_total")]
    assert value([s for s in failovers if s.name.endswith("_total")], cause="unknown", outcome="completed") == 1


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
    """apache/rocketmq-operator #50: metrics."""
    metrics = Metrics()
    metrics.attach(View())
    metrics.observer.incident_closed(timeline())
    metrics.observer.request_answered(1004, 0)
    metrics.observer.record_conflict(KEY, snapshot().record)
    families = await scrape(metrics)
    shared = metric_names.METRICS | metric_names.UPSTREAM_METRICS
    assert set(families) <= {name.removesuffix("_total") for name in shared}


async def test_what_waits_for_a_person_is_on_the_page() -> None:
    plain = snapshot()
    assert plain.record is not None
    record = replace(
        plain.record,
        eligible=frozenset({1}),
        lost_seats=frozenset({2, 3}),
        unclean_elections=4,
        unfenced=frozenset({2}),
    )
    metrics = Metrics()
    shown = replace(
        plain,
        record=record,
        epoch_jump=25_000,
        unlinked=frozenset({2}),
        metadata_diverged=(MetadataDifference(2, MetadataKind.TOPIC, "t"),),
    )
    metrics.attach(View(shown))
    families = await scrape(metrics)
    assert value(families[metric_names.LOST_SEATS], **GROUP) == 2
    assert value(families[metric_names.ELIGIBLE_SIZE], **GROUP) == 1
    assert value(families[metric_names.EPOCH_JUMP_WAITING], **GROUP) == 1
    assert value(families[metric_names.UNFENCED], **GROUP) == 1
    assert value(families[metric_names.UNLINKED_MEMBERS], **GROUP) == 1
    assert value(families[metric_names.METADATA_DIFFERENCES], **GROUP) == 1
    assert total(families, metric_names.UNCLEAN_ELECTIONS_TOTAL, **GROUP) == 4, (
        "of the record, so no restart forgets it"
    )


async def test_recoveries_are_counted_from_zero_and_under_the_groups_names() -> None:
    metrics = Metrics()
    metrics.attach(View())
    await scrape(metrics)  # the first scrape meets the group
    families = await scrape(metrics)
    names = (metric_names.SEATS_LOST_TOTAL, metric_names.EPOCH_FLOOR_RAISED_TOTAL, metric_names.BROKERS_ADOPTED_TOTAL)
    assert [total(families, name, **GROUP) for name in names] == [0, 0, 0]
    metrics.observer.seat_lost(KEY, 2, "offset 5 < 9")
    metrics.observer.seat_lost(KEY, 3, "offset 6 < 9")
    metrics.observer.epoch_floor_raised(KEY, 9, "broker 2 reports 9")
    metrics.observer.broker_adopted(KEY, 7)
    families = await scrape(metrics)
    assert [total(families, name, **GROUP) for name in names] == [2, 1, 1]


async def test_the_first_of_a_rare_kind_is_an_increase() -> None:
    """A counter that starts at 1 shows no increase, so a dashboard over a week would lack the week's only failure."""
    metrics = Metrics()
    metrics.attach(View())
    await scrape(metrics)
    families = await scrape(metrics)
    assert total(families, metric_names.RECORD_CONFLICTS_TOTAL, **GROUP) == 0
    for result in metric_names.RESULTS:
        assert total(families, metric_names.ELECTIONS_TOTAL, **GROUP, result=result) == 0
    for outcome in ("completed", "cancelled", "noEligibleReplica", "incomplete"):
        assert total(families, metric_names.FAILOVERS_TOTAL, **GROUP, cause="crash", outcome=outcome) == 0


async def test_the_time_until_enough_are_in_sync_has_that_name() -> None:
    metrics = Metrics()
    metrics.observer.incident_closed(timeline(steps={Step.DETECTED: 100.0, Step.IN_SYNC: 101.0}))
    phases = (await scrape(metrics))[metric_names.FAILOVER_PHASE_SECONDS]
    assert {one.labels["phase"] for one in phases} == {"detected", "in_sync", "total"}


async def test_the_build_is_on_the_page_for_the_alert_that_misses_it() -> None:
    (sample,) = (await scrape(Metrics()))[metric_names.BUILD_INFO]
    assert sample.value == 1
    assert sample.labels["version"] == importlib.metadata.version("brokergroup-operator")


async def test_upstreams_names_are_served_beside_ours() -> None:
    """Labels and values as the Java controller's page has them; an answer that refuses is a success there."""
    metrics = Metrics(controller_address="operator-0:9878")
    metrics.attach(View())
    metrics.observer.request_answered(1002, 2012, 0.0004)
    metrics.observer.request_answered(904, 0, 0.000002)
    metrics.observer.request_answered(1003, 1, 5.0)
    metrics.observer.request_answered(20_000, 3, 0.1)
    elected = Decision(
        code=ControllerCode.SUCCESS, answer=ElectMasterAnswer(), record=snapshot().record, why="the best"
    )
    metrics.observer.election_decided(KEY, elected)
    families = await scrape(metrics)
    common = {"address": "operator-0:9878", "group": "brokergroup", "peer_id": "self"}
    assert value(families["role"], **common) == 3
    assert value(families["active_broker_num"], cluster="DefaultCluster", broker_set="orders", **common) == 2
    result = {"election_result": "new_master_elected", "cluster": "DefaultCluster", "broker_set": "orders"}
    assert total(families, "election_total", **result, **common) == 1
    counted = {
        (sample.labels["request_type"], sample.labels["request_handle_status"]): sample.value
        for sample in families["request"]
    }
    assert counted == {
        ("CONTROLLER_ELECT_MASTER", "success"): 1,
        ("CONTROLLER_BROKER_HEARTBEAT", "success"): 1,
        ("CONTROLLER_REGISTER_BROKER", "failed"): 1,
    }
    latency = families["request_latency_microseconds"]
    sums = {s.labels["request_type"]: round(s.value, 6) for s in latency if s.name.endswith("_sum")}
    assert sums == {"CONTROLLER_ELECT_MASTER": 400, "CONTROLLER_BROKER_HEARTBEAT": 2}
    bounds = [s.labels["le"] for s in latency if s.name.endswith("_bucket") and "ELECT" in s.labels["request_type"]]
    assert [float(bound) for bound in bounds[:-1]] == list(metric_names.UPSTREAM_LATENCY_BUCKETS_MICROSECONDS)


async def test_upstreams_names_can_be_switched_off() -> None:
    metrics = Metrics(upstream_names=False)
    metrics.attach(View())
    metrics.observer.request_answered(1002, 0, 0.1)
    assert not set(metric_names.UPSTREAM_METRICS) & set(await scrape(metrics))


async def test_the_conditions_of_a_status_are_a_metric_while_this_pod_reconciles() -> None:
    metrics = Metrics()
    held = [{"type": "FailoverSafe", "status": "False"}, {"type": "Stalled", "status": "True"}]
    unknown = {"type": "Ready", "status": "Unknown"}
    metrics.conditions.note(KEY, cluster_name="DefaultCluster", broker_name="orders", conditions=[*held, unknown])
    told = (await scrape(metrics))[metric_names.CONDITION]
    assert {sample.labels["condition"]: sample.value for sample in told} == {"FailoverSafe": 0, "Stalled": 1}
    assert value(told, **GROUP, condition="Stalled") == 1
    metrics.conditions.note(KEY, cluster_name="DefaultCluster", broker_name="orders", conditions=held[:1])
    assert [one.labels["condition"] for one in (await scrape(metrics))[metric_names.CONDITION]] == ["FailoverSafe"]
    metrics.conditions.forget(KEY)
    assert (await scrape(metrics))[metric_names.CONDITION] == []


async def test_how_many_members_vote_and_are_lacking_is_a_metric_while_this_pod_reconciles() -> None:
    metrics = Metrics()
    metrics.conditions.note(
        KEY, cluster_name="DefaultCluster", broker_name="orders", conditions=[], voting_replicas=2, lacking_members=1
    )
    told = await scrape(metrics)
    assert value(told[metric_names.VOTING_REPLICAS], **GROUP) == 2
    assert value(told[metric_names.LACKING_MEMBERS], **GROUP) == 1
    metrics.conditions.forget(KEY)
    told = await scrape(metrics)
    assert told[metric_names.VOTING_REPLICAS] == told[metric_names.LACKING_MEMBERS] == []


async def test_when_a_group_was_created_is_a_metric_while_this_pod_reconciles() -> None:
    metrics = Metrics()
    metrics.conditions.note(
        KEY, cluster_name="DefaultCluster", broker_name="orders", conditions=[], created="2026-10-01T12:00:00Z"
    )
    assert value((await scrape(metrics))[metric_names.CREATED_TIMESTAMP_SECONDS], **GROUP) == 1_790_856_000
    metrics.conditions.clear()
    assert (await scrape(metrics))[metric_names.CREATED_TIMESTAMP_SECONDS] == []


async def test_healthz_tells_each_trouble() -> None:
    metrics = Metrics()
    trouble: str | None = None
    metrics.health.ask(lambda: trouble)
    metrics.health.ask(lambda: None)
    await metrics.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{metrics.port}") as session:
            async with session.get("/healthz") as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
            trouble = "no watch for 61 s: KeyError('getpwuid()')"
            async with session.get("/healthz") as answer:
                assert (answer.status, await answer.text()) == (503, trouble + "\n")
    finally:
        await metrics.stop()


def test_every_metric_constant_is_described_and_named_well() -> None:
    names = {
        value for value in vars(metric_names).values() if isinstance(value, str) and value.startswith("brokergroup_")
    }
    names.discard(metric_names.PREFIX)
    assert names == set(metric_names.METRICS)
    for name, metric in metric_names.METRICS.items():
        assert re.fullmatch(r"brokergroup_[a-z][a-z_]*[a-z]", name)
        assert (metric.kind == "counter") == name.endswith("_total"), name
        assert metric.help.endswith("."), name
        assert not {"address", "pod_ip", "ip", "instance"} & set(metric.labels), name


def test_histogram_buckets_ascend() -> None:
    buckets = metric_names.FAILOVER_PHASE_BUCKETS_SECONDS
    assert list(buckets) == sorted(set(buckets))


def test_how_long_a_change_took_ends_when_the_new_master_has_confirmed_its_role() -> None:
    """`status.result.milliseconds` and the duration of the incident are one figure."""
    steps = {Step.DETECTED: 100.0, Step.COMMITTED: 100.02, Step.ROLE_CHANGED: 100.2, Step.IN_SYNC: 109.0}
    made = timeline(steps=steps)
    assert made.duration_seconds is not None
    assert made.took_milliseconds == pytest.approx(200) == pytest.approx(1000 * made.duration_seconds)
    assert timeline(steps={Step.DETECTED: 100.0, Step.COMMITTED: 100.02}).took_milliseconds == pytest.approx(20)
    assert timeline(steps={}).took_milliseconds == 0
