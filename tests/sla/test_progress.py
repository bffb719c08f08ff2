"""What is told of a running job, and that nothing is told, and nothing runs, after it."""

from __future__ import annotations

import threading

import pytest

from sla_reports.session import StageNow, Teller, line_of, progress, spark_stages


@pytest.mark.parametrize(
    ("stage", "seconds", "line"),
    [
        (StageNow(3, "collect", 40, 0, 0), 9.0, "stage 3 (collect): 0 of 40 partitions"),
        (StageNow(3, "collect", 40, 10, 1_234_567), 9.0,
         "stage 3 (collect): 10 of 40 partitions, 1,234,567 rows, about 27 s left"),
        (StageNow(3, "collect", 40, 40, 5), 9.0, "stage 3 (collect): 40 of 40 partitions, 5 rows"),
    ],
)  # fmt: skip
def test_a_line(stage: StageNow, seconds: float, line: str) -> None:
    assert line_of(stage, seconds) == line


def test_only_what_changed_is_told_and_time_counts_from_the_stages_begin() -> None:
    now = iter([100.0, 102.0, 104.0])
    teller = Teller(lambda: next(now))
    first, second = StageNow(1, "count", 4, 0, 0), StageNow(2, "count", 2, 0, 0)
    assert teller.lines([second, first]) == [line_of(first, 0.0), line_of(second, 0.0)]
    assert teller.lines([first]) == []
    assert teller.lines([StageNow(1, "count", 4, 1, 7)]) == [
        "stage 1 (count): 1 of 4 partitions, 7 rows, about 12 s left"
    ]


class _Stages:
    """One stage more each time it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.twice = threading.Event()

    def stages(self) -> list[StageNow]:
        self.asked += 1
        if self.asked >= 2:
            self.twice.set()
        return [StageNow(self.asked, "count", 1, 0, 0)]


def test_it_tells_until_the_block_ends_also_by_an_error() -> None:
    stages = _Stages()
    lines: list[str] = []

    def job() -> None:
        with progress(stages.stages, lines.append, every_seconds=0.001):
            assert stages.twice.wait(60)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        job()
    told = len(lines)
    assert told == stages.asked
    assert not any(thread.name == "sla-progress" for thread in threading.enumerate())


def test_a_job_that_is_over_at_once_is_not_told_of() -> None:
    stages = _Stages()
    lines: list[str] = []
    with progress(stages.stages, lines.append, every_seconds=3600):
        pass
    assert (lines, stages.asked) == ([], 0)


class _Gone:
    """A session whose JVM does not answer any more."""

    @property
    def sparkContext(self) -> _Gone:  # noqa: N802 - Spark's name
        return self

    def statusTracker(self) -> _Gone:  # noqa: N802 - Spark's name
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's name
        raise ConnectionRefusedError("gone")


def test_a_spark_that_is_gone_is_no_error() -> None:
    assert spark_stages(_Gone()) == []
