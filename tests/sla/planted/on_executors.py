"""The application of test_executors.py for spark-submit: a report of each form in one session, the last as its own result.

It runs in the folder of the exports and uses relative names, as a user does. At its end the process runs the
command `brokergroup sla report` with the form `lake`, so its exit code is the verdict.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from sla_reports import pod_application as application
from sla_reports.measures.periods import window_of
from sla_reports.report import Request, make_report
from sla_reports.session import start_session
from sla_reports.sources import MARGIN_MS, Form, origin_of
from tests.sla.planted.exports import FILES

OBJECTIVE_PERCENT = 99.999
# Forms that reach executors in different ways: files by ranges, a server's slices, a lake's days.
FORMS = (Form.OPENMETRICS, Form.HTTP, Form.LAKE)


def main(url: str, period: str) -> None:
    spark = start_session("executors")
    folders = spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getcwd()).collect()  # noqa: PTH109
    context = spark.sparkContext
    told = {"folders": folders, "master": context.master, "page": context.uiWebUrl, "tasks": context.defaultParallelism}
    print(json.dumps({**told, "partitions": spark.conf.get("spark.sql.shuffle.partitions")}), flush=True)
    window = window_of(period, "UTC")
    first_ms, end_ms = window.start_ms - MARGIN_MS, window.end_ms + MARGIN_MS
    for form in FORMS[:-1]:
        exports = [] if form is Form.HTTP else [Path(FILES[form])]
        origin = origin_of(form, exports, url if form is Form.HTTP else None, start_ms=first_ms, end_ms=end_ms)
        request = Request(origin, [Path("incidents.jsonl")], window, OBJECTIVE_PERCENT / 100)
        make_report(spark, request).write(Path("executors") / form.value)
    spark.stop()
    words = ["report", "--from", "lake", "--export", FILES[Form.LAKE], "--incidents", "incidents.jsonl"]
    words += ["--period", period, "--objective", str(OBJECTIVE_PERCENT), "--out", "executors/lake", "--no-progress"]
    application.main(words)


if __name__ == "__main__":
    main(*sys.argv[1:])
