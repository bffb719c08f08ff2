"""The conditions of each group's status as a metric, so that an alert can stand on them without kube-state-metrics.

Only the operator pod that reconciles knows them: at each pass it notes what the status says, and it forgets
everything when it loses the Lease.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from prometheus_client.core import GaugeMetricFamily

import metric_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.core import Metric

    from brokergroup_operator.records.store import GroupKey


class ConditionGauges:
    """Answers a scrape with what was noted last of each group. `created` answers with when each BrokerGroup was created."""

    def __init__(self) -> None:
        self._noted: dict[GroupKey, tuple[list[str], dict[str, bool]]] = {}
        self.created = CreatedGauges()

    def note(
        self,
        key: GroupKey,
        *,
        cluster_name: str,
        broker_name: str,
        conditions: Iterable[Mapping[str, Any]],
        created: str | None = None,
    ) -> None:
        """Keep the conditions of a status, in the form they have there, without those of status Unknown, and its creation time."""
        states = {one["type"]: one["status"] == "True" for one in conditions if one["status"] in ("True", "False")}
        labels = [key.namespace, cluster_name, broker_name]
        self._noted[key] = (labels, states)
        if created is not None:
            self.created.noted[key] = (labels, dt.datetime.fromisoformat(created).timestamp())

    def forget(self, key: GroupKey) -> None:
        """The group is gone, or another operator's."""
        self._noted.pop(key, None)
        self.created.noted.pop(key, None)

    def clear(self) -> None:
        """This pod does not reconcile any more."""
        self._noted.clear()
        self.created.noted.clear()

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus-client for each scrape."""
        description = metric_names.METRICS[metric_names.CONDITION]
        family = GaugeMetricFamily(description.name, description.help, labels=description.labels)
        for labels, states in self._noted.values():
            for name, holds in states.items():
                family.add_metric([*labels, name], float(holds))
        return [family]


class CreatedGauges:
    """Answers a scrape with when each noted BrokerGroup was created: an SLA report tells a new group from one that was not seen."""

    def __init__(self) -> None:
        self.noted: dict[GroupKey, tuple[list[str], float]] = {}

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus-client for each scrape."""
        description = metric_names.METRICS[metric_names.CREATED_TIMESTAMP_SECONDS]
        family = GaugeMetricFamily(description.name, description.help, labels=description.labels)
        for labels, created_seconds in self.noted.values():
            family.add_metric(labels, created_seconds)
        return [family]
