"""The Java controller's metrics under their own names, for the dashboards and alerts made for it.

There is no Raft log here, so no ``dledger_*``. ``role`` is always 3 (leader), since each of our controllers decides. ``group`` and
``peer_id`` name a Raft group upstream, and are constant here. A request is a ``success`` unless an exception ended it, whatever
the answer's code, as upstream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

import metric_names
from brokergroup_operator.observe.observer import Observer
from controller_core.decision import ControllerCode
from rocketmq_remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from brokergroup_operator.observe.group_view import ShownGroups
    from brokergroup_operator.records.store import GroupKey
    from controller_core.decision import Decision

GROUP: Final = "brokergroup"
PEER_ID: Final = "self"
# Upstream's names of a controller's requests; others are not counted there either.
REQUEST_TYPES: Final = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: "CONTROLLER_ALTER_SYNC_STATE_SET",
    RequestCode.CONTROLLER_ELECT_MASTER: "CONTROLLER_ELECT_MASTER",
    RequestCode.CONTROLLER_REGISTER_BROKER: "CONTROLLER_REGISTER_BROKER",
    RequestCode.CONTROLLER_GET_REPLICA_INFO: "CONTROLLER_GET_REPLICA_INFO",
    RequestCode.CONTROLLER_GET_METADATA_INFO: "CONTROLLER_GET_METADATA_INFO",
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: "CONTROLLER_GET_SYNC_STATE_DATA",
    RequestCode.BROKER_HEARTBEAT: "CONTROLLER_BROKER_HEARTBEAT",
    RequestCode.UPDATE_CONTROLLER_CONFIG: "CONTROLLER_UPDATE_CONTROLLER_CONFIG",
    RequestCode.GET_CONTROLLER_CONFIG: "CONTROLLER_GET_CONTROLLER_CONFIG",
    RequestCode.CLEAN_BROKER_DATA: "CONTROLLER_CLEAN_BROKER_DATA",
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: "CONTROLLER_GET_NEXT_BROKER_ID",
    RequestCode.CONTROLLER_APPLY_BROKER_ID: "CONTROLLER_APPLY_BROKER_ID",
}
RESULT_OF_CODE: Final = {
    ControllerCode.SUCCESS: metric_names.RESULT_NEW_MASTER_ELECTED,
    ControllerCode.CONTROLLER_MASTER_STILL_EXIST: metric_names.RESULT_KEEP_CURRENT_MASTER,
}
_DESCRIPTIONS: Final = {**metric_names.METRICS, **metric_names.UPSTREAM_METRICS}
MICROSECONDS: Final = 1_000_000


class UpstreamMetrics(Observer):
    """Counts what the plane reports, under upstream's names."""

    def __init__(self, registry: CollectorRegistry, controller_address: str) -> None:
        self.labels = (controller_address, GROUP, PEER_ID)
        self._requests = Counter(*described(metric_names.UPSTREAM_REQUESTS_TOTAL), registry=registry)
        self._elections = Counter(*described(metric_names.UPSTREAM_ELECTIONS_TOTAL), registry=registry)
        buckets = metric_names.UPSTREAM_LATENCY_BUCKETS_MICROSECONDS
        latency = described(metric_names.UPSTREAM_REQUEST_LATENCY)
        self._latency = Histogram(*latency, buckets=buckets, registry=registry)
        # The series of each request code and outcome: finding one by its labels is too slow for every heartbeat.
        self._requests_of: dict[tuple[str, str], Counter] = {}
        self._latency_of: dict[str, Histogram] = {}

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:
        kind = REQUEST_TYPES.get(request_code)  # type: ignore[call-overload] # an IntEnum is found by its number
        if kind is None:
            return
        failed = response_code == ResponseCode.SYSTEM_ERROR
        status = metric_names.UPSTREAM_STATUS_FAILED if failed else metric_names.UPSTREAM_STATUS_SUCCESS
        requests = self._requests_of.get((kind, status))
        if requests is None:
            requests = self._requests_of[kind, status] = self._requests.labels(*self.labels, kind, status)
        requests.inc()
        if duration_seconds is not None and not failed:
            latency = self._latency_of.get(kind)
            if latency is None:
                latency = self._latency_of[kind] = self._latency.labels(*self.labels, kind)
            latency.observe(duration_seconds * MICROSECONDS)

    def election_decided(self, key: GroupKey, decision: Decision) -> None:  # noqa: ARG002
        if decision.record is not None:
            result = RESULT_OF_CODE.get(decision.code, metric_names.RESULT_NO_MASTER_ELECTED)
            names = (decision.record.cluster_name, decision.record.broker_name)
            self._elections.labels(*self.labels, *names, result).inc()


class UpstreamCollector:
    """Answers a scrape from the snapshots of all groups, under upstream's names."""

    def __init__(self, view: ShownGroups, labels: tuple[str, str, str]) -> None:
        self._view = view
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus-client for each scrape."""
        role, active = gauge(metric_names.UPSTREAM_ROLE), gauge(metric_names.UPSTREAM_ACTIVE_BROKERS)
        role.add_metric(self._labels, metric_names.UPSTREAM_ROLE_LEADER)
        for key in self._view.keys():  # noqa: SIM118 - ShownGroups is no mapping
            snapshot = self._view.snapshot(key)
            if snapshot is not None and snapshot.record is not None:
                names = (snapshot.record.cluster_name, snapshot.record.broker_name)
                active.add_metric((*self._labels, *names), len(snapshot.live))
        return [role, active]


def described(name: str) -> tuple[str, str, tuple[str, ...]]:
    """Return name, help and labels of a metric, ours or upstream's, as prometheus-client takes them."""
    metric = _DESCRIPTIONS[name]
    return metric.name, metric.help, metric.labels


def gauge(name: str) -> GaugeMetricFamily:
    """Return an empty gauge for one scrape."""
    name, text, labels = described(name)
    return GaugeMetricFamily(name, text, labels=labels)
