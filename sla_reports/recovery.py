"""How long groups took to recover: counts and percentiles of the incidents, per group and trigger.

Recovery time is the time from the master's last sign of life to the new master's answer that it is master; where the last
sign of life is not in the log, from the detection. Percentiles are exact: a group has few incidents.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql


def recovery(incidents: DataFrame) -> DataFrame:
    """Per group and trigger: `incidents, completed, unfenced, rto_p50_ms, rto_p95_ms, rto_max_ms`.

    Planned switchovers are no outages and are left out. The percentiles are over completed failovers, null where there is none.
    """
    detection = sql.coalesce(sql.col("detectionMilliseconds"), sql.lit(0.0))
    done = sql.col("outcome") == "completed"
    failovers = incidents.where(sql.col("unreadable").isNull() & (sql.col("kind") == "failover")).withColumn(
        "rto_ms", sql.when(done, detection + sql.col("durationMilliseconds"))
    )
    return failovers.groupBy("namespace", "name", "trigger").agg(
        sql.count("*").alias("incidents"),
        sql.count_if(done).alias("completed"),
        sql.count_if(sql.col("unfenced")).alias("unfenced"),
        sql.expr("percentile(rto_ms, 0.5)").alias("rto_p50_ms"),
        sql.expr("percentile(rto_ms, 0.95)").alias("rto_p95_ms"),
        sql.max("rto_ms").alias("rto_max_ms"),
    )
