"""The metrics page: what the controller plane counts while it works, and what it is asked for at each scrape.

Counters and histograms are raised by the observer's calls, a few dict operations each. Everything that is a state (epochs, roles,
ages) is computed from the plane's snapshots when Prometheus asks, so a failover never waits for a metric. Names, labels and
help texts come from ``metric_names``, which the dashboards and the SLA reports read too.

``brokergroup_failover_phase_seconds`` counts from the fault: from the master's last sign of life where one was heard, else from
the detection. ``brokergroup_unavailable_seconds_total`` is raised when an incident is closed, by the time from the fault until a
write could be acknowledged again.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

import metric_names
from brokergroup_operator.observe.conditions import ConditionGauges
from brokergroup_operator.observe.health import Health
from brokergroup_operator.observe.listening import listen
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.observe.observer import Observer, ObserverGroup
from brokergroup_operator.observe.timeline import Cause, FailoverTimeline, Outcome, Step
from brokergroup_operator.observe.upstream_metrics import UpstreamCollector, UpstreamMetrics
from controller_core.decision import ControllerCode
from rocketmq_remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from brokergroup_operator.observe.group_view import GroupSnapshot, ShownGroups
    from brokergroup_operator.observe.member_view import MemberView
    from brokergroup_operator.records.store import GroupKey
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord

# The commit an image was built from, if the image says so.
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
    Step.IN_SYNC: metric_names.PHASE_FIRST_ACK,
    Step.FIRST_ACK: metric_names.PHASE_CANARY_ACK,
}
_RESULT_OF_CODE = {
    ControllerCode.SUCCESS: metric_names.RESULT_NEW_MASTER_ELECTED,
    ControllerCode.CONTROLLER_MASTER_STILL_EXIST: metric_names.RESULT_KEEP_CURRENT_MASTER,
}


class MetricsObserver(Observer):
    """Counts what the plane tells."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = _counter(metric_names.REQUESTS_TOTAL, registry)
        self._elections = _counter(metric_names.ELECTIONS_TOTAL, registry)
        self._conflicts = _counter(metric_names.RECORD_CONFLICTS_TOTAL, registry)
        self._failovers = _counter(metric_names.FAILOVERS_TOTAL, registry)
        self._unavailable = _counter(metric_names.UNAVAILABLE_SECONDS_TOTAL, registry)
        self._seats_lost = _counter(metric_names.SEATS_LOST_TOTAL, registry)
        self._floors = _counter(metric_names.EPOCH_FLOOR_RAISED_TOTAL, registry)
        self._adopted = _counter(metric_names.BROKERS_ADOPTED_TOTAL, registry)
        self._cures = _counter(metric_names.EPOCH_CURES_TOTAL, registry)
        self._canaries = _counter(metric_names.CANARY_MESSAGES_TOTAL, registry)
        # The names of a group, as its record said last: some things are told by its key alone.
        self._labels: dict[GroupKey, list[str]] = {}
        # The last change of master of each group, as it ended: each view of it has the same id and the same milliseconds.
        self.last_incidents: dict[GroupKey, FailoverTimeline] = {}
        phases = metric_names.METRICS[metric_names.FAILOVER_PHASE_SECONDS]
        self._phases = Histogram(
            phases.name,
            phases.help,
            phases.labels,
            buckets=metric_names.FAILOVER_PHASE_BUCKETS_SECONDS,
            registry=registry,
        )
        # The series of each pair of codes: a heartbeat should not look for its own among all of them.
        self._requests_of: dict[tuple[int | None, int | None], Counter] = {}
        canary = metric_names.METRICS[metric_names.CANARY_SECONDS]
        self._canary_seconds = Histogram(
            canary.name, canary.help, canary.labels, buckets=metric_names.CANARY_BUCKETS_SECONDS, registry=registry
        )

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:  # noqa: ARG002 - upstream's page has a histogram of it
        """Count it by the names of both codes; numbers nobody knows share one label, so that no peer can make labels up."""
        known_request, known_answer = request_code in _REQUEST_CODES, response_code in _RESPONSE_CODES
        codes = (request_code if known_request else None, response_code if known_answer else None)
        series = self._requests_of.get(codes)
        if series is None:
            request = RequestCode(request_code).name if known_request else "unknown"
            code = ResponseCode(response_code).name if known_answer else "unknown"
            series = self._requests_of[codes] = self._requests.labels(request, code)
        series.inc()

    def election_decided(self, key: GroupKey, decision: Decision) -> None:
        """Count it by its result."""
        if decision.record is not None:
            result = _RESULT_OF_CODE.get(decision.code, metric_names.RESULT_NO_MASTER_ELECTED)
            self._elections.labels(*_group_labels(key, decision.record), result).inc()

    def record_conflict(self, key: GroupKey, record: BrokerGroupRecord | None) -> None:
        """Count it."""
        if record is not None:
            self._conflicts.labels(*_group_labels(key, record)).inc()

    def know(self, key: GroupKey, record: BrokerGroupRecord) -> None:
        """Make the series of a group before anything is counted: from a counter that begins at 1 no increase can be seen."""
        labels = _group_labels(key, record)
        if self._labels.get(key) != labels:
            self._labels[key] = labels
            for counter in (self._seats_lost, self._floors, self._adopted, self._cures):
                counter.labels(*labels)
            self._phases.labels(*labels, metric_names.PHASE_TOTAL)
            for cause in Cause:
                self._failovers.labels(*labels, cause.value, Outcome.COMPLETED.value)
                self._unavailable.labels(*labels, cause.value)

    def seat_lost(self, key: GroupKey, broker_id: int, why: str) -> None:  # noqa: ARG002
        """Count it."""
        self._seats_lost.labels(*self._labels_of(key)).inc()

    def epoch_floor_raised(self, key: GroupKey, epoch: int, why: str) -> None:  # noqa: ARG002
        """Count it."""
        self._floors.labels(*self._labels_of(key)).inc()

    def broker_adopted(self, key: GroupKey, broker_id: int) -> None:  # noqa: ARG002
        """Count it."""
        self._adopted.labels(*self._labels_of(key)).inc()

    def member_relinked(self, key: GroupKey, broker_id: int, epoch: int) -> None:  # noqa: ARG002
        """Count it."""
        self._cures.labels(*self._labels_of(key)).inc()

    def canary_sent(self, key: GroupKey, acknowledged: bool, duration_seconds: float) -> None:
        """Count it by its result, and how long an acknowledged one took."""
        labels = self._labels_of(key)
        result = metric_names.RESULT_ACKNOWLEDGED if acknowledged else metric_names.RESULT_FAILED
        self._canaries.labels(*labels, result).inc()
        if acknowledged:
            self._canary_seconds.labels(*labels).observe(duration_seconds)

    def _labels_of(self, key: GroupKey) -> list[str]:
        return self._labels.get(key, [key.namespace, "", key.name])

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        """Count the incident, its phases and the time without writes."""
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


class GroupCollector:
    """Answers a scrape from the snapshots of all groups."""

    def __init__(self, view: ShownGroups, counts: MetricsObserver) -> None:
        self._view = view
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus-client for each scrape."""
        unclean = _counter_family(metric_names.UNCLEAN_ELECTIONS_TOTAL)
        gauges = {
            name: _gauge(name)
            for name in (
                metric_names.MASTER_EPOCH,
                metric_names.SYNC_STATE_SET_EPOCH,
                metric_names.SYNC_STATE_SET_SIZE,
                metric_names.GROUP_WRITABLE,
                metric_names.MEMBER_ROLE,
                metric_names.MEMBER_PLACE,
                metric_names.REPLICA_LAG_BYTES,
                metric_names.REPLICATION_BYTES_PER_SECOND,
                metric_names.HEARTBEAT_AGE_SECONDS,
                metric_names.LOST_SEATS,
                metric_names.ELIGIBLE_SIZE,
                metric_names.EPOCH_JUMP_WAITING,
                metric_names.UNFENCED,
                metric_names.METADATA_DIFFERENCES,
                metric_names.UNLINKED_MEMBERS,
                metric_names.UNHEARD_MEMBERS,
                metric_names.LAST_INCIDENT_TIMESTAMP_SECONDS,
                metric_names.LAST_INCIDENT_STEP_SECONDS,
            )
        }
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
    """One registry: ``observer`` feeds it, ``attach`` adds the groups of a plane, ``start`` serves it as ``/metrics``.

    With ``upstream_names`` the page also has the Java controller's metrics under their names, as said by ``controller_address``.
    """

    def __init__(self, *, upstream_names: bool = True, controller_address: str = "") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each counter, which nothing reads
        self.registry = CollectorRegistry()
        self.health = Health()
        self.conditions = ConditionGauges()
        self.registry.register(self.conditions)
        self.registry.register(self.conditions.created)
        self._counts = MetricsObserver(self.registry)
        self._upstream = UpstreamMetrics(self.registry, controller_address) if upstream_names else None
        self.observer: Observer = ObserverGroup([self._counts, *([self._upstream] if self._upstream else [])])
        self.port = 0
        self._runner: web.AppRunner | None = None
        build = metric_names.METRICS[metric_names.BUILD_INFO]
        info = Gauge(build.name, build.help, build.labels, registry=self.registry)
        info.labels(_version(), os.environ.get(REVISION_VARIABLE, "unknown"), platform.python_version()).set(1)

    def attach(self, view: ShownGroups) -> None:
        """Answer scrapes from this plane's snapshots too."""
        collectors: list[Collector] = [GroupCollector(view, self._counts)]
        if self._upstream is not None:
            collectors.append(UpstreamCollector(view, self._upstream.labels))
        for collector in collectors:
            self.registry.register(collector)

    async def start(self, host: str, port: int) -> None:
        """Listen; the port is known afterwards where 0 was asked for. Serves ``/healthz`` as well (``health``)."""
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await listen(self._runner, host, port)
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening."""
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
    gauges[metric_names.MASTER_EPOCH].add_metric(labels, record.master_epoch)
    gauges[metric_names.SYNC_STATE_SET_EPOCH].add_metric(labels, record.sync_state_set_epoch)
    gauges[metric_names.SYNC_STATE_SET_SIZE].add_metric(labels, len(record.sync_state_set))
    gauges[metric_names.GROUP_WRITABLE].add_metric(labels, float(snapshot.writable))
    gauges[metric_names.LOST_SEATS].add_metric(labels, len(record.lost_seats))
    gauges[metric_names.ELIGIBLE_SIZE].add_metric(labels, len(record.eligible))
    gauges[metric_names.EPOCH_JUMP_WAITING].add_metric(labels, float(snapshot.epoch_jump is not None))
    gauges[metric_names.UNFENCED].add_metric(labels, float(bool(record.unfenced)))
    gauges[metric_names.METADATA_DIFFERENCES].add_metric(labels, len(snapshot.metadata_diverged))
    gauges[metric_names.UNLINKED_MEMBERS].add_metric(labels, len(snapshot.unlinked))
    views = {broker_id: member_view(record, snapshot, broker_id) for broker_id in record.replicas}
    # Not those that another plane hears: one that was just started hears nobody yet, and speaks for no other.
    unheard = [view for view in views.values() if view.silence is not None and view.silence.is_unheard_by_all]
    gauges[metric_names.UNHEARD_MEMBERS].add_metric(labels, len(unheard))
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


def _counter_family(name: str) -> CounterMetricFamily:
    description = metric_names.METRICS[name]
    return CounterMetricFamily(description.name, description.help, labels=description.labels)


def _counter(name: str, registry: CollectorRegistry) -> Counter:
    description = metric_names.METRICS[name]
    return Counter(description.name, description.help, description.labels, registry=registry)


def _gauge(name: str) -> GaugeMetricFamily:
    description: Any = metric_names.METRICS[name]
    return GaugeMetricFamily(description.name, description.help, labels=description.labels)


_REQUEST_CODES = frozenset(int(code) for code in RequestCode)
_RESPONSE_CODES = frozenset(int(code) for code in ResponseCode)
