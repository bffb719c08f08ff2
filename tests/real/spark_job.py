"""The test of Spark's rights: a session as for reports, one job that needs an executor, and a verdict."""

import sys

from sla_reports.session import start_session

spark = start_session("rights")
counted = spark.range(1000).repartition(2).count()
spark.stop()
sys.stdout.write(f"counted {counted} {' '.join(sys.argv[1:])}\n")
# As a report that can't decide.
sys.exit(3)
