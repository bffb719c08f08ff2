"""Lines that tell how far a Spark job is: stage, partitions, rows, and how long it will probably take.

A thread asks Spark's own status every two seconds. It ends when the `with` block does, before the session is stopped; that it can't
ask any more is no reason to fail a report.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

EVERY_SECONDS = 2.0
_JOIN_SECONDS = 30.0


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
