"""Every trace under `traces/` runs exactly as written, and names each deviation from Java where it occurs."""

from pathlib import Path

import pytest

from controller_core.model import ChangeKind, Phase
from tests.core.change_language import ChangeRunner
from tests.core.trace_language import Block, TraceError, TraceRunner, read_trace

ALL_TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))
CHANGES = [path for path in ALL_TRACES if path.stem.startswith("change_")]
TRACES = [path for path in ALL_TRACES if path not in CHANGES]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace_happens_as_written(path: Path) -> None:
    runner = TraceRunner()
    for block in read_trace(path):
        drawn = runner.run(block.command)
        where = f"{path.name}:{block.line}: {block.command}"
        assert drawn == block.expected, where
        _check_against_java(block, drawn, where)


@pytest.mark.parametrize("path", CHANGES, ids=lambda path: path.stem)
def test_a_change_of_master_happens_as_written(path: Path) -> None:
    runner = ChangeRunner()
    for block in read_trace(path):
        assert runner.run(block.command) == block.expected, f"{path.name}:{block.line}: {block.command}"


def test_every_kind_of_change_has_its_trace() -> None:
    written = "".join(path.read_text(encoding="utf-8") for path in CHANGES)
    assert [kind for kind in ChangeKind if f" {kind} Telling" not in written] == []
    assert [phase for phase in Phase if f" {phase} by=" not in written] == []


def _check_against_java(block: Block, drawn: str, where: str) -> None:
    if block.java is None:
        assert not block.names_a_deviation, f"{where}: names a deviation, but not what Java answers"
        return
    same = drawn.splitlines()[0] == block.java
    if block.names_a_deviation:
        assert not same, f"{where}: has the comment `deviates`, but answers as Java does"
    else:
        assert same, f"{where}: answers {drawn.splitlines()[0]!r}, Java {block.java!r}, and no rule is named"


def test_the_golden_vectors_are_all_there() -> None:
    """The live recording has this many requests that reach the core: the trace must not silently lose one."""
    golden = next(path for path in TRACES if path.stem == "golden_vectors")
    assert sum(block.java is not None for block in read_trace(golden)) == GOLDEN_REQUESTS


def test_an_unreadable_trace_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.txt"
    path.write_text("1012\nwhy: forgot the line\n")
    with pytest.raises(TraceError, match=r"broken.txt:2: expected ----"):
        read_trace(path)


def test_a_wrong_drawing_and_an_unnamed_deviation_are_noticed() -> None:
    unnamed = Block(line=1, comment="", command="1012", java="0 nextBrokerId=7", expected="")
    with pytest.raises(AssertionError, match="no rule is named"):
        _check_against_java(unnamed, "0 nextBrokerId=1", "here")
    needless = Block(line=1, comment="deviates, rule 4", command="1012", java="0 nextBrokerId=1", expected="")
    with pytest.raises(AssertionError, match="answers as Java does"):
        _check_against_java(needless, "0 nextBrokerId=1", "here")


GOLDEN_REQUESTS = 42
