"""The constants are consistent: every metric described once, named as Prometheus wants it, without a pod IP in a label."""

import re

import metric_names


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
