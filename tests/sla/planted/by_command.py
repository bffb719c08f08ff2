"""One planted export in every form through `brokergroup sla report`, one command after the other in one process.

    python -m tests.sla.planted.by_command FOLDER URL PERIOD

A process of its own: every command ends its Spark session, which a test's own session would not survive, and the JVM that the
first one starts is warm for the others. The lake is made here first. The reports are in `FOLDER/reports/<form>`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from sla_reports.readers import lake
from sla_reports.readers.text import read_openmetrics
from sla_reports.session import start_session
from sla_reports.sources import Form

# What stands in the folder in each form that is read from files.
FILES = {
    Form.OPENMETRICS: "day.om",
    Form.VICTORIAMETRICS: "day.jsonl",
    Form.TSDB_DUMP: "day.dump",
    Form.QUERY_RANGE: "answers",
    Form.LAKE: "lake",
}


def main(folder: Path, url: str, period: str) -> dict[str, str]:
    """Each form with the last line of its command, without where its page is; that the page is there is looked at."""
    spark = start_session("lake", short_jobs=True)
    lake.write(spark, read_openmetrics(spark, [folder / FILES[Form.OPENMETRICS]]).frame, folder / FILES[Form.LAKE])
    spark.stop()
    told = {}
    for form in (Form.HTTP, *FILES):
        where = ["--url", url] if form is Form.HTTP else ["--export", str(folder / FILES[form])]
        words = ["sla", "report", "--from", form.value, *where, "--incidents", str(folder / "incidents.jsonl")]
        words += ["--period", period, "--out", str(folder / "reports" / form.value), "--no-progress"]
        done = CliRunner().invoke(app, words)
        if done.exit_code != 0:
            sys.exit(f"{' '.join(words)}: {done.exit_code}\n{done.output}\n{done.exception!r}")
        line = json.loads(done.output.splitlines()[-1])
        page = folder / "reports" / form.value / "report.html"
        if (named := line.pop("page")) != page.as_uri() or not page.is_file():
            sys.exit(f"{form.value}: the last line names {named}, expected {page.as_uri()}")
        told[form.value] = json.dumps(line)
    return told


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])))
