"""The metrics page and `/healthz`.

The observer's calls raise counters and histograms, a few dict operations each. States (epochs, roles, ages) are computed from the
plane's snapshots at each scrape, so a failover never waits for a metric. Names, labels and help texts come from ``metric_names``,
which the dashboards and the SLA reports read too.

``brokergroup_failover_phase_seconds`` counts from the fault: from the master's last sign of life where one was heard, else from
the detection. ``brokergroup_unavailable_seconds_total`` is raised when an incident is closed, by the time from the fault until a
write could be acknowledged again.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

import metric_names
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.observe.observer import Observer, ObserverGroup
from brokergroup_operator.observe.timeline import Cause, FailoverTimeline, Outcome, Step
from brokergroup_operator.observe.upstream_metrics import (
    RESULT_OF_CODE,
    UpstreamCollector,
    UpstreamMetrics,
    described,
    gauge,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.server import dual_stack_socket

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from brokergroup_operator.observe.group_view import GroupSnapshot, ShownGroups
    from brokergroup_operator.observe.member_view import MemberView
    from brokergroup_operator.records.store import GroupKey
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord

# Holds the commit that an image was built from.
REVISION_VARIABLE: Final = "BROKERGROUP_REVISION"

_PHASE_OF_STEP = {
    Step.DETECTED: metric_names.PHASE_DETECTED,
    Step.FENCED: metric_names.PHASE_FENCED,
    Step.DECIDED: metric_names.PHASE_DECIDED,
    Step.COMMITTED: metric_names.PHASE_COMMITTED,
    Step.NOTIFIED: metric_names.PHASE_NOTIFIED,
    Step.ROLE_CHANGED: metric_names.PHASE_ROLE_CHANGED,
    Step.INDEX_CAUGHT_UP: metric_names.PHASE_INDEX_CAUGHT_UP,
    Step.ROUTE_VISIBLE: metric_names.PHASE_ROUTE_VISIBLE,
    Step.IN_SYNC: metric_names.PHASE_IN_SYNC,
    Step.FIRST_ACK: metric_names.PHASE_CANARY_ACK,
}
_ENDINGS = tuple(outcome for outcome in Outcome if outcome is not Outcome.RUNNING)
_REQUEST_CODES = frozenset(int(code) for code in RequestCode)
_RESPONSE_CODES = frozenset(int(code) for code in ResponseCode)


class MetricsObserver(Observer):
    """Counts what the plane reports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str) -> Counter:
            return Counter(*described(name), registry=registry)

        self._requests = counter(metric_names.REQUESTS_TOTAL)
        self._elections = counter(metric_names.ELECTIONS_TOTAL)
        self._conflicts = counter(metric_names.RECORD_CONFLICTS_TOTAL)
        self._failovers = counter(metric_names.FAILOVERS_TOTAL)
        self._unavailable = counter(metric_names.UNAVAILABLE_SECONDS_TOTAL)
        self._seats_lost = counter(metric_names.SEATS_LOST_TOTAL)
        self._floors = counter(metric_names.EPOCH_FLOOR_RAISED_TOTAL)
        self._adopted = counter(metric_names.BROKERS_ADOPTED_TOTAL)
        self._cures = counter(metric_names.EPOCH_CURES_TOTAL)
        self._canaries = counter(metric_names.CANARY_MESSAGES_TOTAL)
        phases = described(metric_names.FAILOVER_PHASE_SECONDS)
        self._phases = Histogram(*phases, buckets=metric_names.FAILOVER_PHASE_BUCKETS_SECONDS, registry=registry)
        canary = described(metric_names.CANARY_SECONDS)
        self._canary_seconds = Histogram(*canary, buckets=metric_names.CANARY_BUCKETS_SECONDS, registry=registry)
        # Each group's labels by its last record: some calls have only the key.
        self._labels: dict[GroupKey, list[str]] = {}
        # The last closed incident of each group: every view of it has the same id and the same milliseconds.
        self.last_incidents: dict[GroupKey, FailoverTimeline] = {}
        # The series of each pair of codes: finding one by its labels is too slow for every heartbeat.
        self._requests_of: dict[tuple[int | None, int | None], Counter] = {}

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:  # noqa: ARG002 - upstream's page has a histogram of it
        # Unknown numbers share one label, so that a peer cannot make labels up.
        known_request, known_answer = request_code in _REQUEST_CODES, response_code in _RESPONSE_CODES
        codes = (request_code if known_request else None, response_code if known_answer else None)
        series = self._requests_of.get(codes)
        if series is None:
            request = RequestCode(request_code).name if known_request else "unknown"
            code = ResponseCode(response_code).name if known_answer else "unknown"
            series = self._requests_of[codes] = self._requests.labels(request, code)
        series.inc()

    def election_decided(self, key: GroupKey, decision: Decision) -> None:
        if decision.record is not None:
            result = RESULT_OF_CODE.get(decision.code, metric_names.RESULT_NO_MASTER_ELECTED)
            self._elections.labels(*_group_labels(key, decision.record), result).inc()

    def record_conflict(self, key: GroupKey, record: BrokerGroupRecord | None) -> None:
        if record is not None:
            self._conflicts.labels(*_group_labels(key, record)).inc()

    def know(self, key: GroupKey, record: BrokerGroupRecord) -> None:
        """Create a group's series at 0: Prometheus sees no increase in a counter that begins at 1."""
        labels = _group_labels(key, record)
        if self._labels.get(key) != labels:
            self._labels[key] = labels
            for counter in (self._seats_lost, self._floors, self._adopted, self._cures, self._conflicts):
                counter.labels(*labels)
            for result in metric_names.RESULTS:
                self._elections.labels(*labels, result)
            self._phases.labels(*labels, metric_names.PHASE_TOTAL)
            for cause in Cause:
                for outcome in _ENDINGS:
                    self._failovers.labels(*labels, cause.value, outcome.value)
                self._unavailable.labels(*labels, cause.value)

    def seat_lost(self, key: GroupKey, broker_id: int, why: str) -> None:  # noqa: ARG002
        self._seats_lost.labels(*self._labels_of(key)).inc()

    def epoch_floor_raised(self, key: GroupKey, epoch: int, why: str) -> None:  # noqa: ARG002
        self._floors.labels(*self._labels_of(key)).inc()

    def broker_adopted(self, key: GroupKey, broker_id: int) -> None:  # noqa: ARG002
        self._adopted.labels(*self._labels_of(key)).inc()

    def member_relinked(self, key: GroupKey, broker_id: int, epoch: int) -> None:  # noqa: ARG002
        self._cures.labels(*self._labels_of(key)).inc()

    def canary_sent(self, key: GroupKey, acknowledged: bool, duration_seconds: float) -> None:
        labels = self._labels_of(key)
        result = metric_names.RESULT_ACKNOWLEDGED if acknowledged else metric_names.RESULT_FAILED
        self._canaries.labels(*labels, result).inc()
        if acknowledged:
            self._canary_seconds.labels(*labels).observe(duration_seconds)

    def _labels_of(self, key: GroupKey) -> list[str]:
        return self._labels.get(key, [key.namespace, "", key.name])

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        labels = (timeline.group.namespace, timeline.cluster_name, timeline.broker_name)
        self._failovers.labels(*labels, timeline.cause.value, timeline.outcome.value).inc()
        if timeline.outcome is Outcome.CANCELLED or Step.DETECTED not in timeline.steps:
            return
        self.last_incidents[timeline.group] = timeline
        fault_seconds = timeline.steps[Step.DETECTED] - (timeline.detection_seconds or 0.0)
        for step, reached_seconds in timeline.steps.items():
            self._phases.labels(*labels, _PHASE_OF_STEP[step]).observe(max(0.0, reached_seconds - fault_seconds))
        end_seconds = max(timeline.steps.values())
        self._phases.labels(*labels, metric_names.PHASE_TOTAL).observe(max(0.0, end_seconds - fault_seconds))
        self._unavailable.labels(*labels, timeline.cause.value).inc(max(0.0, end_seconds - fault_seconds))


_GROUP_GAUGES = (
    metric_names.MASTER_EPOCH, metric_names.SYNC_STATE_SET_EPOCH, metric_names.SYNC_STATE_SET_SIZE,
    metric_names.GROUP_WRITABLE, metric_names.MEMBER_ROLE, metric_names.MEMBER_PLACE, metric_names.REPLICA_LAG_BYTES,
    metric_names.REPLICATION_BYTES_PER_SECOND, metric_names.HEARTBEAT_AGE_SECONDS, metric_names.LOST_SEATS,
    metric_names.ELIGIBLE_SIZE, metric_names.EPOCH_JUMP_WAITING, metric_names.UNFENCED,
    metric_names.METADATA_DIFFERENCES, metric_names.UNLINKED_MEMBERS, metric_names.UNHEARD_MEMBERS,
    metric_names.LAST_INCIDENT_TIMESTAMP_SECONDS, metric_names.LAST_INCIDENT_STEP_SECONDS,
)  # fmt: skip


class GroupCollector:
    """Answers a scrape from the snapshots of all groups."""

    def __init__(self, view: ShownGroups, counts: MetricsObserver) -> None:
        self._view = view
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus-client for each scrape."""
        name, text, labels = described(metric_names.UNCLEAN_ELECTIONS_TOTAL)
        unclean = CounterMetricFamily(name, text, labels=labels)
        gauges = {name: gauge(name) for name in _GROUP_GAUGES}
        for key in self._view.keys():  # noqa: SIM118 - ShownGroups is no mapping
            snapshot = self._view.snapshot(key)
            if snapshot is not None and snapshot.record is not None:
                self._counts.know(key, snapshot.record)
                _add_group(gauges, snapshot, snapshot.record)
                if (incident := self._counts.last_incidents.get(key)) is not None:
                    _add_incident(gauges, incident)
                unclean.add_metric(_group_labels(key, snapshot.record), snapshot.record.unclean_elections)
        return [*gauges.values(), unclean]


class Metrics:
    """One registry: ``observer`` feeds it, ``attach`` adds the groups of a plane, ``start`` serves ``/metrics`` and ``/healthz``.

    With ``upstream_names`` the page also has the Java controller's metrics, with ``controller_address`` as their label.
    """

    def __init__(self, *, upstream_names: bool = True, controller_address: str = "") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each counter, which nothing reads
        self.registry = CollectorRegistry()
        self.health = Health()
        self.conditions = ConditionGauges()
        self.registry.register(self.conditions)
        self.registry.register(self.conditions.created)
        self.registry.register(self.conditions.voting)
        self.registry.register(self.conditions.lacking)
        self._counts = MetricsObserver(self.registry)
        self._upstream = UpstreamMetrics(self.registry, controller_address) if upstream_names else None
        self.observer: Observer = ObserverGroup([self._counts, *([self._upstream] if self._upstream else [])])
        self.port = 0
        self._runner: web.AppRunner | None = None
        info = Gauge(*described(metric_names.BUILD_INFO), registry=self.registry)
        info.labels(_version(), os.environ.get(REVISION_VARIABLE, "unknown"), platform.python_version()).set(1)

    def attach(self, view: ShownGroups) -> None:
        """Answer scrapes from this plane's snapshots too."""
        collectors: list[Collector] = [GroupCollector(view, self._counts)]
        if self._upstream is not None:
            collectors.append(UpstreamCollector(view, self._upstream.labels))
        for collector in collectors:
            self.registry.register(collector)

    async def start(self, host: str, port: int) -> None:
        """Listen; ``port`` is the bound one afterwards."""
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await listen(self._runner, host, port)
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        troubles = self.health.troubles()
        return web.Response(text="\n".join(troubles or ["ok"]) + "\n", status=503 if troubles else 200)


def _add_group(gauges: dict[str, GaugeMetricFamily], snapshot: GroupSnapshot, record: BrokerGroupRecord) -> None:
    labels = _group_labels(snapshot.key, record)
    views = {broker_id: member_view(record, snapshot, broker_id) for broker_id in record.replicas}
    # Members that another plane hears do not count: a plane that has just started hears none of them yet.
    unheard = [view for view in views.values() if view.silence is not None and view.silence.is_unheard_by_all]
    values: dict[str, float] = {
        metric_names.MASTER_EPOCH: record.master_epoch,
        metric_names.SYNC_STATE_SET_EPOCH: record.sync_state_set_epoch,
        metric_names.SYNC_STATE_SET_SIZE: len(record.sync_state_set),
        metric_names.GROUP_WRITABLE: float(snapshot.takes_writes),
        metric_names.LOST_SEATS: len(record.lost_seats),
        metric_names.ELIGIBLE_SIZE: len(record.eligible),
        metric_names.EPOCH_JUMP_WAITING: float(snapshot.epoch_jump is not None),
        metric_names.UNFENCED: float(bool(record.unfenced)),
        metric_names.METADATA_DIFFERENCES: len(snapshot.metadata_diverged),
        metric_names.UNLINKED_MEMBERS: len(snapshot.unlinked),
        metric_names.UNHEARD_MEMBERS: len(unheard),
    }
    for name, value in values.items():
        gauges[name].add_metric(labels, value)
    master = snapshot.live.get(record.granted_master_id or 0)
    for broker_id in record.replicas:
        member = [*labels, str(broker_id)]
        present = _role(views[broker_id])
        for role in metric_names.ROLES:
            gauges[metric_names.MEMBER_ROLE].add_metric([*member, role], float(role == present))
        facts = snapshot.member_facts.get(broker_id, {})
        place = [*member, *(facts.get(name, "") for name in metric_names.MEMBER_FACTS)]
        gauges[metric_names.MEMBER_PLACE].add_metric(place, float(broker_id == record.granted_master_id))
        if broker_id in snapshot.heartbeat_age_seconds:
            age_seconds = snapshot.heartbeat_age_seconds[broker_id]
            gauges[metric_names.HEARTBEAT_AGE_SECONDS].add_metric(member, age_seconds)
        if broker_id in snapshot.replication_speeds:
            speed = snapshot.replication_speeds[broker_id]
            gauges[metric_names.REPLICATION_BYTES_PER_SECOND].add_metric(member, speed)
        replica = snapshot.live.get(broker_id)
        if master is not None and replica is not None:
            lag_bytes = max(0, master.max_offset - replica.max_offset)
            gauges[metric_names.REPLICA_LAG_BYTES].add_metric(member, lag_bytes)


def _add_incident(gauges: dict[str, GaugeMetricFamily], timeline: FailoverTimeline) -> None:
    labels = [timeline.group.namespace, timeline.cluster_name, timeline.broker_name, timeline.incident_id]
    started_seconds = timeline.started_at_milliseconds / 1000
    ended_as = [timeline.cause.value, timeline.outcome.value]
    gauges[metric_names.LAST_INCIDENT_TIMESTAMP_SECONDS].add_metric([*labels, *ended_as], started_seconds)
    for step, milliseconds in timeline.milliseconds().items():
        gauges[metric_names.LAST_INCIDENT_STEP_SECONDS].add_metric([*labels, step], milliseconds / 1000)


def _role(view: MemberView) -> str:
    if not view.heard:
        return metric_names.ROLE_ABSENT
    if view.is_master:
        return metric_names.ROLE_MASTER
    return metric_names.ROLE_IN_SYNC if view.in_set else metric_names.ROLE_OUT_OF_SYNC


def _group_labels(key: GroupKey, record: BrokerGroupRecord) -> list[str]:
    return [key.namespace, record.cluster_name, record.broker_name]


def _version() -> str:
    try:
        return importlib.metadata.version("brokergroup-operator")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class ConditionGauges:
    """The conditions of each group's status, so that alerts need no kube-state-metrics.

    `created`: when each BrokerGroup was created, so that an SLA report can distinguish a new group from one that was not scraped.
    `lacking`: how many voting members are not in sync for another reason than `spec.maintenance.stoppedBrokers`.
    `voting`: how many of its members vote, so that an alert can leave out a group that has none to fail over to, or hibernates (0).
    Only the operator pod that reconciles knows them: it notes them at each pass, and forgets all when it loses the Lease.
    """

    def __init__(self) -> None:
        self._noted: dict[GroupKey, tuple[list[str], dict[str, bool]]] = {}
        self.created = NotedGauge(metric_names.CREATED_TIMESTAMP_SECONDS)
        self.voting = NotedGauge(metric_names.VOTING_REPLICAS)
        self.lacking = NotedGauge(metric_names.LACKING_MEMBERS)

    def note(
        self,
        key: GroupKey,
        *,
        cluster_name: str,
        broker_name: str,
        conditions: Iterable[Mapping[str, Any]],
        created: str | None = None,
        voting_replicas: int | None = None,
        lacking_members: int | None = None,
    ) -> None:
        """Keep the conditions of a status, in the form they have there, without those of status Unknown, and the other facts."""
        states = {one["type"]: one["status"] == "True" for one in conditions if one["status"] in ("True", "False")}
        labels = [key.namespace, cluster_name, broker_name]
        self._noted[key] = (labels, states)
        if created is not None:
            self.created.noted[key] = (labels, dt.datetime.fromisoformat(created).timestamp())
        if voting_replicas is not None:
            self.voting.noted[key] = (labels, voting_replicas)
        if lacking_members is not None:
            self.lacking.noted[key] = (labels, lacking_members)

    def forget(self, key: GroupKey) -> None:
        """Drop a group that is gone, or another operator's."""
        self._noted.pop(key, None)
        self.created.noted.pop(key, None)
        self.voting.noted.pop(key, None)
        self.lacking.noted.pop(key, None)

    def clear(self) -> None:
        """Drop all groups: this pod does not reconcile any more."""
        self._noted.clear()
        self.created.noted.clear()
        self.voting.noted.clear()
        self.lacking.noted.clear()

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus-client for each scrape."""
        family = gauge(metric_names.CONDITION)
        for labels, states in self._noted.values():
            for name, holds in states.items():
                family.add_metric([*labels, name], float(holds))
        return [family]


class NotedGauge:
    """One value for each noted group."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.noted: dict[GroupKey, tuple[list[str], float]] = {}

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus-client for each scrape."""
        family = gauge(self._name)
        for labels, value in self.noted.values():
            family.add_metric(labels, value)
        return [family]


class Health:
    """What `/healthz` asks each time: troubles of this process that only its restart would end.

    The kubelet restarts a pod whose `/healthz` fails for a minute, which interrupts every group's heartbeats. So an outage of the
    Kubernetes API, which a restart does not end, is no trouble here (tests/reconcile/test_watch.py).
    """

    def __init__(self) -> None:
        self._questions: list[Callable[[], str | None]] = []

    def ask(self, question: Callable[[], str | None]) -> None:
        """Add a question, which answers at once, from memory: None, or what is wrong."""
        self._questions.append(question)

    def troubles(self) -> list[str]:
        """Return what is wrong now; empty while the process is healthy."""
        answers = (question() for question in self._questions)
        return [answer for answer in answers if answer is not None]


async def listen(
    runner: web.AppRunner, host: str, port: int, *, tls: ssl.SSLContext | None = None, backlog: int = 128
) -> None:
    """Serve at this address; `::` hears IPv6 and IPv4, port 0 takes a free one. OSError if it cannot be bound."""
    both = dual_stack_socket(host, port)
    site: web.BaseSite
    if both is not None:
        site = web.SockSite(runner, both, ssl_context=tls, backlog=backlog)
    else:
        site = web.TCPSite(runner, host, port, ssl_context=tls, backlog=backlog)
    await site.start()
