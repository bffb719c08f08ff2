"""The Grafana dashboards, made from the metric names that the operator exposes.

``make generate`` writes them into `dashboards/`. Each panel asks a question, says what to read from it, and has a unit and
thresholds. The builder is ours: the typed SDK on PyPI is experimental and versioned by Grafana release, and the part of the format
that is used here is small. `make test-observability` evaluates every query against a real Prometheus, and draws every panel.
"""

from brokergroup_operator.observe.dashboards.model import Dashboard
from brokergroup_operator.observe.dashboards.pages import FAILOVER, GROUP, OPERATOR, OVERVIEW, SLA

DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, GROUP, FAILOVER, OPERATOR, SLA)
