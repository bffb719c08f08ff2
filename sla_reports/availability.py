"""How much of the time a group took writes: up, down, and unknown.

A sample says what held at its scrape; it is taken to hold until the next one. Where the next one is further away than
`max_gap_seconds` nobody knows, and the time counts as unknown: an exporter that is silent during an outage must not turn it
into availability.
So the answer is three numbers and two bounds, not one.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from controller_core.metric_names import GROUP_WRITABLE


def availability(samples: DataFrame, *, max_gap_seconds: float) -> DataFrame:
    """Per group: `up_seconds, down_seconds, unknown_seconds, availability, at_least, at_most`.

    `availability` is up / (up + down), null where nothing is known; `at_least` counts the unknown time as down, `at_most` as up.
    """
    by_group = Window.partitionBy("namespace", "broker_group").orderBy("at_seconds")
    spans = (
        samples.where(sql.col("metric") == GROUP_WRITABLE)
        .where(~sql.isnan("value"))
        .dropDuplicates(["namespace", "broker_group", "at_seconds"])
        .withColumn("span_seconds", sql.lead("at_seconds").over(by_group) - sql.col("at_seconds"))
        .where(sql.col("span_seconds").isNotNull())
    )
    known = sql.col("span_seconds") <= sql.lit(max_gap_seconds)
    up = sql.col("value") > 0
    totals = spans.groupBy("namespace", "broker_group").agg(
        _seconds_where(known & up).alias("up_seconds"),
        _seconds_where(known & ~up).alias("down_seconds"),
        _seconds_where(~known).alias("unknown_seconds"),
    )
    return totals.select("*", *_ratios())


def _seconds_where(condition: Column) -> Column:
    return sql.sum(sql.when(condition, sql.col("span_seconds")).otherwise(sql.lit(0.0)))


def _ratios() -> list[Column]:
    up, down, unknown = sql.col("up_seconds"), sql.col("down_seconds"), sql.col("unknown_seconds")
    total = up + down + unknown
    return [
        sql.when(up + down > 0, up / (up + down)).alias("availability"),
        (up / total).alias("at_least"),
        ((up + unknown) / total).alias("at_most"),
    ]
