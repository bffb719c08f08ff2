"""How much of the time a group took writes: up, down, and unknown.

A sample of the gauge says what held at its scrape; it is taken to hold until the next one. Where the next one is further away than
`max_gap_seconds` nobody knows, and the time counts as unknown: an exporter that is silent during an outage must not turn it
into availability. So the answer is three numbers and two bounds, not one.

The gauge misses what ends between two scrapes, and it cannot show a silent master before its silence is believed. The counter of
unavailable seconds knows both, since it is raised after the fact, from the last sign of life on; but it does not know an outage
that still lasts. So `down_seconds` is the greater of the two.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from controller_core.metric_names import GROUP_WRITABLE, UNAVAILABLE_SECONDS_TOTAL

_GROUP = ("namespace", "broker_group")


def availability(samples: DataFrame, *, max_gap_seconds: float) -> DataFrame:
    """Per group: `up_seconds, down_seconds, unknown_seconds, availability, at_least, at_most`.

    `availability` is up / (up + down), null where nothing is known; `at_least` counts the unknown time as down, `at_most` as up.
    """
    sampled = _sampled(samples, max_gap_seconds=max_gap_seconds)
    counted = _counted(samples)
    known = sql.col("up_seconds") + sql.col("sampled_down_seconds")
    down = sql.greatest(sql.col("sampled_down_seconds"), sql.coalesce(sql.col("counted_down_seconds"), sql.lit(0.0)))
    totals = sampled.join(counted, list(_GROUP), "left").select(
        *_GROUP,
        (known - sql.least(down, known)).alias("up_seconds"),
        sql.least(down, known).alias("down_seconds"),
        "unknown_seconds",
    )
    return totals.select("*", *_ratios())


def _sampled(samples: DataFrame, *, max_gap_seconds: float) -> DataFrame:
    """What the gauge saw: `up_seconds, sampled_down_seconds, unknown_seconds` per group."""
    by_group = Window.partitionBy(*_GROUP).orderBy("at_seconds")
    spans = (
        samples.where(sql.col("metric") == GROUP_WRITABLE)
        .where(~sql.isnan("value"))
        .dropDuplicates([*_GROUP, "at_seconds"])
        .withColumn("span_seconds", sql.lead("at_seconds").over(by_group) - sql.col("at_seconds"))
        .where(sql.col("span_seconds").isNotNull())
    )
    known = sql.col("span_seconds") <= sql.lit(max_gap_seconds)
    up = sql.col("value") > 0
    return spans.groupBy(*_GROUP).agg(
        _seconds_where(known & up).alias("up_seconds"),
        _seconds_where(known & ~up).alias("sampled_down_seconds"),
        _seconds_where(~known).alias("unknown_seconds"),
    )


def _counted(samples: DataFrame) -> DataFrame:
    """What the counter rose by: `counted_down_seconds` per group.

    A counter that falls was reset by a new process and rose from 0. One that first appears after the group's other samples did
    was 0 before; one that was there from the beginning tells nothing about its first value.
    """
    began = (
        samples.where(sql.col("metric") == GROUP_WRITABLE).groupBy(*_GROUP).agg(sql.min("at_seconds").alias("began"))
    )
    by_series = Window.partitionBy("instance", *_GROUP, "cause").orderBy("at_seconds")
    before, value = sql.lag("value").over(by_series), sql.col("value")
    rise = (
        sql.when(before.isNull(), sql.when(sql.col("at_seconds") > sql.col("began"), value).otherwise(sql.lit(0.0)))
        .when(value >= before, value - before)
        .otherwise(value)
    )
    counters = samples.where((sql.col("metric") == UNAVAILABLE_SECONDS_TOTAL) & ~sql.isnan("value"))
    return (
        counters.join(began, list(_GROUP))
        .withColumn("rise", rise)
        .groupBy(*_GROUP)
        .agg(sql.sum("rise").alias("counted_down_seconds"))
    )


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
