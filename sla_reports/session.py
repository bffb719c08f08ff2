"""Starts the Spark session the reports run in: local, quiet, with the interpreter that runs us.

The JVM options are the measured ones for small jobs (client compiler only, serial collector): a report over a demo run is over
before the full compiler would have warmed up.
"""

import os
import sys

from pyspark.sql import SparkSession

_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start_session(name: str = "brokergroup-sla") -> SparkSession:
    """A local session with two cores, no web UI, times in UTC."""
    # Spark's workers take `python3` from the path otherwise, which need not have our packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: SparkSession.Builder = SparkSession.builder
    session = (
        builder.appName(name)
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", _JVM_OPTIONS)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
