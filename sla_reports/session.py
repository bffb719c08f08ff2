"""Starts the Spark session the reports run in: quiet, with the interpreter that runs us; local, unless spark-submit has begun it.

A session starts several times faster with the archive of `class_archive.py`; without one, or with one that does not fit, it
starts all the same. Short jobs (tests, a demo's report) are over before the JVM's full compiler would have warmed up, so they
do without it and with the serial collector; a month's report is slower that way.

Whoever runs us by spark-submit (`on_kubernetes/`) has said there where Spark runs, how large its heap is and how its JVM is
started: that JVM is there already, and none of it is said again.
"""

import os
import sys

from pyspark.sql import SparkSession

from sla_reports.class_archive import archive_options

_SHORT_JOBS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Fewer, larger hand-overs between the JVM and Python: a quarter less processor time than with Spark's 10,000.
_ROWS_PER_ARROW_BATCH = 200_000
# Options of a source that Spark must not show in a plan: an address may hold a password, a header a token.
_REDACTED_OPTIONS = "(?i)url|header|user|password|token"
# spark-submit tells its Python process by this one where its JVM listens.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def start_session(
    name: str = "brokergroup-sla",
    *,
    master: str = "local[*]",
    short_jobs: bool = False,
    java_options: str | None = None,
    memory: str = "",
) -> SparkSession:
    """A session with times in UTC; one of this machine alone has no web UI, and few partitions. Raises NoJavaError.

    `memory` is the JVM's heap as Spark writes it (`4g`). `java_options` replace those for the class archive.
    """
    # Spark's workers take `python3` from the path otherwise, which need not have our packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder: SparkSession.Builder = SparkSession.builder
    builder = (
        builder.appName(name)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.redaction.options.regex", _REDACTED_OPTIONS)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ROWS_PER_ARROW_BATCH))
    )
    if _SUBMITTED not in os.environ:
        archive = archive_options() if java_options is None else java_options
        options = " ".join(part for part in (_SHORT_JOBS if short_jobs else "", archive) if part)
        builder = _local(builder, master, options, memory)
    session: SparkSession = builder.getOrCreate()
    # What fails in a task is raised here as well, and a reader's error is one line there (`readable_errors`).
    session.sparkContext.setLogLevel("FATAL")
    return session


def _local(builder: SparkSession.Builder, master: str, java_options: str, memory: str) -> SparkSession.Builder:
    """A JVM of our own on this machine, which nobody else can reach."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        builder.master(master)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.ui.enabled", "false")
        # On one machine each partition more is only a task more; on a cluster spark-submit says how many there are.
        .config("spark.sql.shuffle.partitions", "4")
    )
    return builder.config("spark.driver.memory", memory) if memory else builder
