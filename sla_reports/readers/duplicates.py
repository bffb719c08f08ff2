"""Takes out samples that stand twice: exports that overlap, files given twice, the two servers of an HA pair.

Two samples of one series at one time are the same sample if their values are. If they are not, one of them is wrong and nobody
knows which: neither is used, and the conflict is counted.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from sla_reports.readers.contract import AnomalyKind, Samples

_SAMPLE = ("series", "ts_ms")


def without_duplicates(samples: Samples) -> Samples:
    """The same samples, each once; what stood twice is added to the anomalies. One shuffle of all samples."""
    grouped = once(samples.frame)
    flaws = grouped.where(sql.col("times") > 1).groupBy("conflict").agg(sql.sum("times").alias("times"))
    named = flaws.select(
        sql.lit("").alias("file"),
        sql.lit(0).cast("long").alias("line"),
        sql.when(sql.col("conflict"), AnomalyKind.CONFLICTING_DUPLICATE.value)
        .otherwise(AnomalyKind.EQUAL_DUPLICATE.value)
        .alias("kind"),
        sql.concat(sql.col("times").cast("string"), sql.lit(" samples of the same series and time")).alias("detail"),
    )
    frame = grouped.where(~sql.col("conflict")).select(*_SAMPLE, "value")
    return Samples(frame, samples.anomalies.unionByName(named))


def once(frame: DataFrame, *also_by: str) -> DataFrame:
    """One row for each series and time: `series, ts_ms, value, times, conflict` (and the columns it is also grouped by)."""
    least, most = sql.min("value"), sql.max("value")
    return frame.groupBy(*also_by, *_SAMPLE).agg(
        sql.max("value").alias("value"), sql.count("*").alias("times"), (least != most).alias("conflict")
    )


def without_label(series: Column, label: str) -> Column:
    """The series' text without one label: the one by which the servers of an HA pair differ (`prometheus_replica`, `replica`)."""
    value = r'"(?:[^"\\]|\\.)*"'
    first = sql.regexp_replace(series, rf"(?s)([{{]){label}={value},?", "$1")
    other = sql.regexp_replace(first, rf"(?s),{label}={value}", "")
    return sql.regexp_replace(other, r"[{][}]$", "")
