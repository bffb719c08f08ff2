"""How many bytes only the master had: at each scrape the lag of the slave that is nearest to it, and of those the greatest.

A value that moves at every scrape makes no runs, so this is not reduced to runs but to one number for each group. The master is
among the members, with a lag of nothing, so the second smallest is that of the nearest slave. Where one member is there alone its
log is all there is: those scrapes tell no number, and the time is in the exposure already (one copy).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from metric_names import LABEL_BROKER_ID, REPLICA_LAG_BYTES
from sla_reports.series import metric_column, parse_series
from sla_reports.states.entities import GroupKey
from sla_reports.states.spans import Window


def greatest_lag_bytes(samples: DataFrame, window: Window | None) -> dict[GroupKey, int]:
    """Of every group with two members at a scrape in the window (without one: in all samples)."""
    # The first condition says less, but a Parquet file knows where it can hold.
    near = samples.where(sql.col("series").startswith(REPLICA_LAG_BYTES))
    lags = near.where(metric_column(sql.col("series")) == REPLICA_LAG_BYTES).where(~sql.isnan("value"))
    if window is not None:
        lags = lags.where(sql.col("ts_ms").between(window.start_ms, window.end_ms - 1))
    # A sample that stands twice must not pass for two members.
    members = lags.groupBy("series", "ts_ms").agg(sql.min("value").alias("value"))
    group = without_label(sql.col("series"), LABEL_BROKER_ID).alias("of")
    at_once = members.groupBy(group, "ts_ms").agg(sql.sort_array(sql.collect_list("value")).alias("lags"))
    nearest = at_once.where(sql.size("lags") > 1).select("of", sql.col("lags")[1].alias("lag"))
    found: dict[GroupKey, int] = {}
    for row in nearest.groupBy("of").agg(sql.max("lag").alias("lag")).collect():
        key = GroupKey.of_series(parse_series(row["of"]))
        found[key] = max(found.get(key, 0), round(row["lag"]))
    return found


def without_label(series: Column, label: str) -> Column:
    """Return a series' text without one label."""
    value = r'"(?:[^"\\]|\\.)*"'
    first = sql.regexp_replace(series, rf"(?s)([{{]){label}={value},?", "$1")
    other = sql.regexp_replace(first, rf"(?s),{label}={value}", "")
    return sql.regexp_replace(other, r"[{][}]$", "")
