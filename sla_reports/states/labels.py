"""What each label of a series says: which group, which figure, which process told it, and on which way it came here.

    group      namespace, cluster, broker_group                    the identity
    own        the other labels that the operator writes (cause)   another figure of the group
    process    instance, pod                                       an operator pod: its counters are its own
    replica    prometheus_replica and `--replica-label`            copies of one series, by what the reader says
    way        all others: job, region, receive_replica            to be held against the values (`copies.py`)

A Prometheus without `honor_labels` that scrapes a label which it sets itself keeps the scraped one as `exported_<name>`; a second
one adds the prefix once more to what the first one had set. So `exported_<name>` is the operator's label wherever it is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from metric_names import GROUP_LABELS, METRICS
from sla_reports.series import Series

REPLICA_LABELS = ("prometheus_replica", "__replica__", "replica")
_PROCESS = ("instance", "pod")
# A service discovery takes these from the pod: they change when `pod` does.
_OF_THE_POD = frozenset({
    "node", "host", "hostname", "pod_ip", "pod_name", "pod_template_hash", "controller_revision_hash", "container_id",
    "kubernetes_pod_name", "kubernetes_pod", "kubernetes_node", "uid", "pod_uid", "zone", "rack",
    "statefulset_kubernetes_io_pod_name", "apps_kubernetes_io_pod_index", "topology_kubernetes_io_zone",
})  # fmt: skip
_PREFIX = "exported_"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a series by what they say; `own` is without those of the group; the operator's names without `exported_`."""

    own: Pairs
    process: Pairs
    replica: Pairs
    way: Pairs
    of_the_pod: Pairs = ()

    @property
    def target(self) -> tuple[Pairs, ...]:
        """What was scraped, and by which Prometheus: series of one scrape have it in common."""
        return (self.process, self.replica, self.way, self.of_the_pod)

    @property
    def server(self) -> tuple[Pairs, ...]:
        """Which Prometheus told it."""
        return (self.replica, self.way)


def labels_of(series: Series, replica_labels: Sequence[str] = REPLICA_LABELS) -> Labels:
    """The labels of one series, each under what it says."""
    names = {name for name, _ in series.labels}
    written = _written(series.metric)
    found: dict[str, list[tuple[str, str]]] = {"own": [], "process": [], "replica": [], "way": [], "of_the_pod": []}
    for name, value in series.labels:
        base = name.removeprefix(_PREFIX)
        if base in GROUP_LABELS and (name != base or _PREFIX + base not in names):
            continue
        kind = _kind(name, base, names, written, replica_labels)
        # What is to be given to an option has its name as it stands.
        found[kind].append((name if kind in {"way", "replica"} else base, value))
    return Labels(**{kind: tuple(sorted(pairs)) for kind, pairs in found.items()})


def _kind(name: str, base: str, names: set[str], written: frozenset[str], replica_labels: Sequence[str]) -> str:
    if name in replica_labels:
        return "replica"
    if _PREFIX + name in names:
        # Set by the Prometheus that renamed the operator's.
        return "way"
    if base in written:
        return "own"
    if base in _PROCESS:
        return "process"
    return "of_the_pod" if base in _OF_THE_POD else "way"


def _written(metric: str) -> frozenset[str]:
    """The labels with which the operator writes a metric."""
    described = METRICS.get(metric) or METRICS.get(metric.removesuffix("_bucket"))
    return frozenset(described.labels if described else ()) | {"le"}
