"""The Spark session that reports run in, its tasks, and lines that say how far a job is.

A session starts several times faster with the archive of `class_archive.py`, and without one all the same. Short jobs (tests, a
demo's report) are over before the JVM's full compiler has warmed up, so they do without it and with the serial collector; a
month's report is slower that way. spark-submit (`pod_entrypoint.py`) has started its JVM before us, with a master, a heap and
options: none of it is set again.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sla_reports.class_archive import archive_options

TASKS_PER_CORE: Final = 4
_SHORT_JOBS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Fewer, larger hand-overs between the JVM and Python: a quarter less processor time than with Spark's 10,000.
_ROWS_PER_ARROW_BATCH: Final = 200_000
# Options of a source that Spark must not show in a plan: an address may hold a password, a header a token.
_REDACTED_OPTIONS: Final = "(?i)url|header|user|password|token"
# In this variable spark-submit passes its Python process the port of its JVM.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_EVERY_SECONDS: Final = 2.0
_JOIN_SECONDS: Final = 30.0
Item = TypeVar("Item")


def start_session(
    name: str = "brokergroup-sla", *, master: str = "local[*]", short_jobs: bool = False, java_options: str | None = None,
    memory: str = "",
) -> SparkSession:  # fmt: skip
    """Return a session with times in UTC; one of this machine alone has no web UI, and few partitions. Raises NoJavaError.

    `memory` is the JVM's heap as Spark writes it (`4g`). `java_options` replace those for the class archive.
    """
    # Spark's workers take `python3` from the path otherwise, which need not have our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    options = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.redaction.options.regex": _REDACTED_OPTIONS,
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ROWS_PER_ARROW_BATCH),
    }
    if _SUBMITTED not in os.environ:
        # A JVM of this process, on loopback: no other machine reaches it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        archive = archive_options() if java_options is None else java_options
        options |= {
            "spark.master": master,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": " ".join(filter(None, (_SHORT_JOBS if short_jobs else "", archive))),
            "spark.ui.enabled": "false",
            # On one machine each partition more is only a task more; on a cluster spark-submit says how many there are.
            "spark.sql.shuffle.partitions": "4",
            **({"spark.driver.memory": memory} if memory else {}),
        }
    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.appName(name)
    for key, value in options.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    # What fails in a task is raised here as well, and a reader's error is one line there (`readable_errors`).
    session.sparkContext.setLogLevel("FATAL")
    return session


def tasks_of(spark: SparkSession, items: int) -> DataFrame:
    """Return a frame with a row for each item (a file, a day, a byte range), for Spark's Python workers to work on.

    A task costs more than a small item, so there are some for each core, not one for each item.
    """
    return spark.range(0, items, 1, max(1, min(items, TASKS_PER_CORE * spark.sparkContext.defaultParallelism)))


def own(items: Sequence[Item], tasks: Iterator[pa.RecordBatch]) -> Iterator[Item]:
    """Yield the items whose numbers a worker got."""
    for batch in tasks:
        for index in batch.column("id").to_pylist():
            yield items[index]


@dataclass(frozen=True, slots=True)
class StageNow:
    """One stage that runs: tasks done of all, and the rows they have read so far (0 if Spark does not know)."""

    number: int
    name: str
    tasks: int
    done: int
    rows: int


@contextmanager
def progress(
    stages: Callable[[], Sequence[StageNow]], tell: Callable[[str], None], *, every_seconds: float = _EVERY_SECONDS
) -> Iterator[None]:
    """Report what changed of the running stages, from a thread, until the block ends."""
    teller, ended = Teller(), threading.Event()

    def run() -> None:
        while not ended.wait(every_seconds):
            for line in teller.lines(stages()):
                tell(line)

    # A daemon: a JVM that does not answer must not keep the process.
    thread = threading.Thread(target=run, name="sla-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_JOIN_SECONDS)


class Teller:
    """Makes lines of what changed since the last time; remembers when it first saw each stage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[int, float] = {}
        self._told: dict[int, StageNow] = {}

    def lines(self, stages: Sequence[StageNow]) -> list[str]:
        now = self._clock()
        found = []
        for stage in sorted(stages, key=lambda one: one.number):
            began = self._began.setdefault(stage.number, now)
            if self._told.get(stage.number) != stage:
                self._told[stage.number] = stage
                found.append(line_of(stage, now - began))
        return found


def line_of(stage: StageNow, running_seconds: float) -> str:
    """Return one stage in a line, with the time left once a task is done."""
    rows = f", {stage.rows:,} rows" if stage.rows else ""
    left = ""
    if 0 < stage.done < stage.tasks and running_seconds > 0:
        left = f", about {running_seconds * (stage.tasks - stage.done) / stage.done:.0f} s left"
    return f"stage {stage.number} ({stage.name}): {stage.done} of {stage.tasks} partitions{rows}{left}"


def spark_stages(spark: Any) -> list[StageNow]:
    """Return the running stages of a session, with the rows read from a source or a shuffle; none if Spark can't be asked."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with pyspark

    context = spark.sparkContext
    tracker, found = context.statusTracker(), []
    try:
        for number in tracker.getActiveStageIds():
            if (info := tracker.getStageInfo(number)) is None:
                continue
            # pyspark has no other way to the rows.
            read = context._jsc.sc().statusStore().lastStageAttempt(info.stageId)  # noqa: SLF001
            rows = int(read.inputRecords()) + int(read.shuffleReadRecords())
            # Spark's name without the place in its own sources where the call was made.
            name = info.name.partition(" at ")[0]
            found.append(StageNow(info.stageId, name, info.numTasks, info.numCompletedTasks, rows))
    except (Py4JError, OSError):
        return []
    return found
