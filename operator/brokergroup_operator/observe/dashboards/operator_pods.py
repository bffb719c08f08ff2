"""Operator: are its pods there, what are they asked, what do they refuse?"""

from brokergroup_operator.observe.dashboards.model import FEW_IS_GOOD, GREEN, RED, SELECT, YELLOW, Dashboard, Panel
from metric_names import (
    BROKERS_ADOPTED_TOTAL,
    BUILD_INFO,
    ELECTIONS_TOTAL,
    EPOCH_CURES_TOTAL,
    EPOCH_FLOOR_RAISED_TOTAL,
    RECORD_CONFLICTS_TOTAL,
    REQUESTS_TOTAL,
    SEATS_LOST_TOTAL,
    UPSTREAM_REQUEST_LATENCY,
)


def _by_group(name: str) -> str:
    return f"sum by (namespace, broker_group) ({name}{SELECT})"


OPERATOR = Dashboard(
    uid="brokergroup-operator",
    title="Broker groups: operator",
    description="Are the operator's pods there, what are they asked, what do they refuse?",
    panels=(
        Panel(
            question="How many operator pods answer, and which build?",
            says="Below two: the next lost pod leaves every group without a controller (BrokerGroupOperatorPodAlone).",
            kind="stat",
            width=8,
            thresholds=((None, RED), (2.0, GREEN)),
            queries=((f"count by (version, revision) ({BUILD_INFO})", "{{version}} {{revision}}"),),
        ),
        Panel(
            question="What do brokers ask?",
            says=(
                "Heartbeats are most of it: one a second and broker, at each pod. A fall is brokers that went "
                "away, or a network."
            ),
            kind="timeseries",
            width=16,
            unit="reqps",
            queries=((f"sum by (request) (rate({REQUESTS_TOTAL}[1m]))", "{{request}}"),),
        ),
        Panel(
            question="What is refused?",
            says=(
                "A few refusals around a failover are usual. A steady rate: BrokerGroupRequestsRefused, "
                "docs/concepts/security.md says what each needs."
            ),
            kind="timeseries",
            unit="reqps",
            thresholds=((None, GREEN), (1.0, YELLOW)),
            queries=(
                (
                    f'sum by (request, code) (rate({REQUESTS_TOTAL}{{code!="SUCCESS"}}[5m])) or vector(0)',
                    "{{request}} {{code}}",
                ),
            ),
        ),
        Panel(
            question="How fast is it answered?",
            says=(
                "95 of 100 requests are faster. It follows the API server's latency: decisions are written before "
                "they are answered."
            ),
            kind="timeseries",
            unit="µs",
            thresholds=((None, GREEN), (100_000.0, YELLOW), (1_000_000.0, RED)),
            queries=(
                (
                    f"histogram_quantile(0.95, sum by (le, request_type) ({UPSTREAM_REQUEST_LATENCY}_bucket))",
                    "{{request_type}}",
                ),
            ),
        ),
        Panel(
            question="What did elections decide?",
            says="no_master_elected: no broker that may be master was alive.",
            kind="timeseries",
            queries=((f"sum by (result) ({ELECTIONS_TOTAL}{SELECT})", "{{result}}"),),
        ),
        Panel(
            question="Do pods get into each other's way?",
            says=(
                "Commits refused because another pod's came first, since it began: a few around a failover. None "
                "is counted until the first."
            ),
            kind="timeseries",
            thresholds=((None, GREEN), (100.0, YELLOW)),
            queries=((f"sum({RECORD_CONFLICTS_TOTAL}{SELECT}) or vector(0)", "conflicts"),),
        ),
        Panel(
            question="What did the safety rules have to mend?",
            says=(
                "Seats lost: disks that came back with less. Records found behind: etcd was restored. Brokers "
                "adopted: ids the record did not know. Cures: links that had to be renewed."
            ),
            kind="timeseries",
            thresholds=FEW_IS_GOOD,
            queries=(
                (_by_group(SEATS_LOST_TOTAL), "{{broker_group}} seats lost"),
                (_by_group(EPOCH_FLOOR_RAISED_TOTAL), "{{broker_group}} records behind"),
                (_by_group(BROKERS_ADOPTED_TOTAL), "{{broker_group}} brokers adopted"),
                (_by_group(EPOCH_CURES_TOTAL), "{{broker_group}} cures"),
            ),
        ),
    ),
)
