"""The Grafana dashboards, made from the metric names that the operator exposes.

``make generate`` writes them into `dashboards/`. Each panel asks a question, says what to read from it, and has a unit and
thresholds (``model.py``). The builder is ours: the typed SDK on PyPI is versioned by Grafana release with an epoch and is
experimental, and what we need of the format is small. Every query is evaluated against a real Prometheus
(`make test-observability`).
"""

from brokergroup_operator.observe.dashboards.failover import FAILOVER
from brokergroup_operator.observe.dashboards.group import GROUP
from brokergroup_operator.observe.dashboards.model import Dashboard
from brokergroup_operator.observe.dashboards.operator_pods import OPERATOR
from brokergroup_operator.observe.dashboards.overview import OVERVIEW
from brokergroup_operator.observe.dashboards.sla import SLA

DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, GROUP, FAILOVER, OPERATOR, SLA)
