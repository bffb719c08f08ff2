"""Reads the operator's incident log: one JSON object a line, written by `brokergroup_operator.observe.incidents`.

The log is exact where scraped gauges are not (a 15 s scrape sees a third of the outages at all), so recovery times come from here
and never from samples. Lines that are not JSON (a torn last write) are counted, not hidden.
"""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

SCHEMA_VERSION = 1
_SCHEMA = (
    "schemaVersion int, id string, kind string, namespace string, name string, trigger string, epoch bigint, "
    "startedAt timestamp, detectionMilliseconds double, durationMilliseconds double, unfenced boolean, outcome string, "
    "stepsMilliseconds map<string,double>, unreadable string"
)


def read_incidents(spark: SparkSession, logs: Sequence[Path]) -> DataFrame:
    """All lines of the logs, one row each; `unreadable` holds the text of a line that is no incident of a known schema.

    Columns as in the incident log, camelCase as it writes them. An incident that several operator pods wrote stands once.
    """
    missing = [str(log) for log in logs if not log.is_file()]
    if missing:
        raise FileNotFoundError(f"incident log {', '.join(missing)}: no such file; expected JSON lines of the operator")
    lines = (
        spark.read.schema(_SCHEMA)
        .option("columnNameOfCorruptRecord", "unreadable")
        .json([str(log) for log in logs])
        # Spark refuses a query that touches nothing but the corrupt column of an uncached read.
        .cache()
    )
    known = sql.col("schemaVersion") <= SCHEMA_VERSION
    flagged = lines.withColumn(
        "unreadable",
        sql.when(sql.col("unreadable").isNotNull(), sql.col("unreadable")).when(
            ~known | sql.col("schemaVersion").isNull(),
            sql.concat(
                sql.lit("schemaVersion "), sql.coalesce(sql.col("schemaVersion").cast("string"), sql.lit("none"))
            ),
        ),
    )
    return flagged.dropDuplicates(["id", "startedAt", "unreadable"])
