"""Starts the Spark session the reports run in: quiet, with the interpreter that runs us; local, unless spark-submit has begun it.

A session starts several times faster with the archive of `class_archive.py`; without one, or with one that does not fit, it
starts all the same. Short jobs (tests, a demo's report) are over before the JVM's full compiler would have warmed up, so they do
without it and with the serial collector; a month's report is slower that way.

Whoever runs us by spark-submit (`pod_entrypoint.py`) has said there where Spark runs, how large its heap is and how its JVM is
started: that JVM is there already, and none of it is said again.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sla_reports.class_archive import archive_options

_SHORT_JOBS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Fewer, larger hand-overs between the JVM and Python: a quarter less processor time than with Spark's 10,000.
_ROWS_PER_ARROW_BATCH = 200_000
# Options of a source that Spark must not show in a plan: an address may hold a password, a header a token.
_REDACTED_OPTIONS = "(?i)url|header|user|password|token"
# spark-submit tells its Python process by this one where its JVM listens.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
EVERY_SECONDS = 2.0
_JOIN_SECONDS = 30.0
TASKS_PER_CORE: Final = 4
Item = TypeVar("Item")


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


@dataclass(frozen=True, slots=True)
class StageNow:
    """One stage that runs: tasks done of all, and the rows they have read so far (0 where Spark does not know)."""

    number: int
    name: str
    tasks: int
    done: int
    rows: int


class Watched(Protocol):
    """What can be asked for its running stages."""

    def stages(self) -> Sequence[StageNow]: ...


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
    """One stage in a line; no time is told before a task is done."""
    rows = f", {stage.rows:,} rows" if stage.rows else ""
    left = ""
    if 0 < stage.done < stage.tasks and running_seconds > 0:
        left = f", about {running_seconds * (stage.tasks - stage.done) / stage.done:.0f} s left"
    return f"stage {stage.number} ({stage.name}): {stage.done} of {stage.tasks} partitions{rows}{left}"


class Progress:
    """`with Progress(watched, tell): ...` tells until the block ends."""

    def __init__(
        self, watched: Watched, tell: Callable[[str], None], *, every_seconds: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._watched, self._tell, self._every_seconds = watched, tell, every_seconds
        self._teller = Teller(clock)
        self._ended = threading.Event()
        # A daemon: a JVM that does not answer must not keep the process.
        self._thread = threading.Thread(target=self._run, name="sla-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(self._every_seconds):
            for line in self._teller.lines(self._watched.stages()):
                self._tell(line)


class SparkStages:
    """The running stages of a session. Nothing is told while Spark can't be asked."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext

    def stages(self) -> Sequence[StageNow]:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with pyspark

        tracker = self._context.statusTracker()
        try:
            told = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            return [
                StageNow(one.stageId, _short(one.name), one.numTasks, one.numCompletedTasks, self._rows(one.stageId))
                for one in told
                if one is not None
            ]
        except (Py4JError, OSError):
            return []

    def _rows(self, stage: int) -> int:
        """Rows read from a source or from a shuffle."""
        status = self._context._jsc.sc().statusStore().lastStageAttempt(stage)  # noqa: SLF001 - pyspark has no other way
        return int(status.inputRecords()) + int(status.shuffleReadRecords())


def _short(name: str) -> str:
    """Spark's name without where in its own sources the call was made."""
    return name.partition(" at ")[0]


def tasks_of(spark: SparkSession, items: int) -> DataFrame:
    """A row for each item. A task costs more than a small item, so there are some for each core, not one for each item."""
    return spark.range(0, items, 1, max(1, min(items, TASKS_PER_CORE * spark.sparkContext.defaultParallelism)))


def own(items: Sequence[Item], tasks: Iterator[pa.RecordBatch]) -> Iterator[Item]:
    """The items whose numbers a worker got."""
    for batch in tasks:
        for index in batch.column("id").to_pylist():
            yield items[index]
