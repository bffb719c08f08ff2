"""The runner: a lane's verdict, its leftovers, the lanes of a change, and the end of all its processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests import run
from tests.lanes import NIGHT, PROOFS, Lane
from tests.repository.made import ROOT
from tests.run import NAMES, PAGE, lanes_of_path, table
from tests.support import lane_runner
from tests.support.lane_runner import run_lane

if TYPE_CHECKING:
    from pathlib import Path

PRODUCT = ("controller_core", "operator", "rocketmq_*", "sla_reports", "kube_sandbox", "charts", "crds", "metric_names")
# Longer than any machine needs; no test waits so long unless it fails.
DEADLINE_SECONDS = 60.0


def code(source: str, name: str = "made", **changes: Any) -> Lane:
    return replace(Lane(name, (sys.executable, "-c", source)), **changes)


async def test_a_check_counts_as_one_and_its_last_line_is_kept(tmp_path: Path) -> None:
    outcome = await run_lane(code("""print("a line"); print('{"found": 3}')"""), tmp_path)
    assert (outcome.holds, outcome.passed, outcome.failed, outcome.result) == (True, 1, 0, {"found": 3})
    assert (tmp_path / "made.log").read_text() == 'a line\n{"found": 3}\n'


@pytest.mark.parametrize(
    ("lane", "why"),
    [
        (code("raise SystemExit(3)"), "exit code 3"),
        (code("raise SystemExit(0)", tests=True), "exit code 0"),
        (code("raise SystemExit(3)", tests=True), "exit code 3"),
        (code("print('no JSON')", says_json=True), "its last line is no JSON object"),
        (code("import time; time.sleep(600)", minutes=0.001), "no end within 0.001 minutes"),
        (Lane("made", ("no-such-program",)), "exit code 127"),
    ],
    ids=["a check", "tests without a report", "tests that failed", "no JSON", "no end", "no program"],
)
async def test_a_lane_that_fails_says_why(tmp_path: Path, lane: Lane, why: str) -> None:
    outcome = await run_lane(lane, tmp_path)
    assert (outcome.holds, outcome.passed, outcome.failed, outcome.why) == (False, 0, 1, why)


# A lane that starts a process of another session and dies without it, as a program does that is killed.
LEAVES_ONE_BEHIND = f"""
import subprocess, sys, pathlib, time
left = subprocess.Popen(["sleep", "6{os.getpid()}"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(left.pid))
"""
GOOD = code("""print('{"lost": 0, "holds": "no"}')""", "good", says_json=True)
RUNNER = """
import asyncio, pathlib, sys
from tests import run
from tests.lanes import NIGHT, PROOFS, Lane
from tests.support import lane_runner
lane_runner.LEFT_BEHIND_SECONDS = 0.2
run.PROVED = pathlib.Path({folder!r})
run._checkout = lambda: ("abc", "")
lane_runner.adopt_orphans()
sys.exit(asyncio.run(run.run_proofs({lanes!r}, by_night=False)))
"""


def start_runner(folder: Path, *lanes: Lane) -> subprocess.Popen[str]:
    source = RUNNER.format(folder=str(folder), lanes=list(lanes))
    return subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def ended(runner: subprocess.Popen[str]) -> dict[str, Any]:
    """Its last line, once it is over; it has to fail."""
    printed = runner.communicate(timeout=DEADLINE_SECONDS)[0]
    assert runner.returncode == 1
    last: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return last


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_outlives_its_lane_is_named_and_ended_and_the_next_lane_runs(tmp_path: Path) -> None:
    leaves = code(LEAVES_ONE_BEHIND + "print({})", "leaves", says_json=True)
    leaves = replace(leaves, command=(*leaves.command, str(tmp_path / "left")))
    summary = ended(start_runner(tmp_path, leaves, GOOD))
    assert (summary["commit"], summary["red"], summary["lanes"]["good"]["holds"]) == ("abc", ["leaves"], True)
    verdict = json.loads((tmp_path / "leaves.json").read_text())
    assert (verdict["holds"], verdict["why"], verdict["left_behind"]) == (False, "", [f"sleep 6{os.getpid()}"])
    assert not is_there(int((tmp_path / "left").read_text()))
    assert json.loads((tmp_path / "lanes.json").read_text()) == summary
    verdict = json.loads((tmp_path / "good.json").read_text())
    assert (verdict["holds"], verdict["commit"], verdict["result"]) == (True, "abc", {"lost": 0, "holds": "no"})
    assert shlex.split(verdict["command"]) == list(GOOD.command)


def test_a_run_that_is_ended_by_sigterm_leaves_nothing(tmp_path: Path) -> None:
    endless = code(LEAVES_ONE_BEHIND + "time.sleep(600)")
    endless = replace(endless, command=(*endless.command, str(tmp_path / "left")))
    (tmp_path / "good.log").write_text("of an earlier run")
    runner = start_runner(tmp_path, endless, GOOD)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not ((tmp_path / "left").exists() and (tmp_path / "left").read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    runner.send_signal(signal.SIGTERM)
    assert ended(runner)["red"] == ["made", "good"]
    verdict = json.loads((tmp_path / "made.json").read_text())
    assert (verdict["why"], verdict["left_behind"]) == ("the run was interrupted", [f"sleep 6{os.getpid()}"])
    assert not is_there(int((tmp_path / "left").read_text()))
    assert json.loads((tmp_path / "good.json").read_text())["why"] == "not run: the run was interrupted"
    assert not (tmp_path / "good.log").exists()


@pytest.fixture
def in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PROVED", tmp_path)
    monkeypatch.setattr(run, "_checkout", lambda: ("abc", ""))
    monkeypatch.setattr(run, "_namespaces_and_devices", set)
    # It would end what other tests of this worker share.
    monkeypatch.setattr(lane_runner, "end_descendants", list)


@pytest.mark.usefixtures("in_this_process")
async def test_a_checkout_that_changes_meanwhile_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([("abc", ""), ("def", "")])
    monkeypatch.setattr(run, "_checkout", lambda: next(states))
    outcome = await run.prove(GOOD, by_night=False)
    assert (outcome.holds, outcome.why) == (False, "the checkout changed while it ran")


@pytest.mark.usefixtures("in_this_process")
async def test_a_namespace_or_device_that_is_left_behind_is_red_and_only_ours_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {("link", "lo")}
    states = iter([before, before | {("netns", "bgtest1-10.89.1.2"), ("link", "eth9")}])
    removed: list[list[str]] = []
    monkeypatch.setattr(run, "_namespaces_and_devices", lambda: next(states))
    monkeypatch.setattr(run, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: removed.append(command))
    outcome = await run.prove(GOOD, by_night=False)
    assert (outcome.holds, outcome.left_behind) == (False, ["link eth9", "netns bgtest1-10.89.1.2"])
    assert removed == [["ip", "netns", "delete", "bgtest1-10.89.1.2"]]


def source_of(lane: Lane) -> str:
    """The program of a lane that is no run of pytest."""
    words = [word for word in lane.command if word.startswith("tests")]
    path = words[0] if words[0].endswith(".py") else f"{words[0].replace('.', '/')}.py"
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.usefixtures("in_this_process")
async def test_all_runs_of_a_lane_are_kept_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--proofs", "--runs"]) == 0
    assert "good" not in capsys.readouterr().out
    for lane in (GOOD, code("raise SystemExit(3)", name="bad"), GOOD):
        await run.prove(lane, by_night=False)
    assert run.main(["--proofs", "--runs"]) == 0
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in capsys.readouterr().out.splitlines()}
    assert rows["good"][1:3] == ["2", "2"]
    assert rows["bad"][1:3] == ["1", "0"]
    assert "exit code 3" in rows["bad"][-1]


def test_no_two_nights_share_what_they_draw() -> None:
    draws = [lane for lane in PROOFS if not lane.tests and re.search(r'"--(seed|first)"', source_of(lane))]
    assert len(draws) >= 7
    dated = re.compile(rf"--(seed|first|from) {NIGHT}\d+")
    assert [lane.name for lane in draws if not dated.search(" ".join(lane.by_night))] == []


def test_every_path_of_the_table_is_there() -> None:
    assert [path for path in table() if not (ROOT / path).exists()] == []


def test_every_lane_proves_some_path_and_is_described() -> None:
    assert {name for names in table().values() for name in names} - {"none"} == set(NAMES) - {"mutants", "real-hour"}
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| {name} |" not in page] == []


def test_every_file_of_the_product_has_a_row() -> None:
    files = [file for pattern in PRODUCT for folder in ROOT.glob(pattern) for file in folder.rglob("*.*")]
    paths = [file.relative_to(ROOT).as_posix() for file in files]
    assert len(paths) > 400
    assert [path for path in paths if lanes_of_path(path, table()) == NAMES] == []


def test_the_longest_beginning_decides_and_an_unknown_path_has_every_lane() -> None:
    rows: dict[str, tuple[str, ...]] = {"tests/": ("none",), "tests/fence/": ("fence",)}
    assert lanes_of_path("tests/fence/run.py", rows) == ("fence",)
    assert lanes_of_path("tests/core/x.py", rows) == ()
    assert lanes_of_path("new/file", rows) == NAMES


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--lane", "fnce"], "lane fnce: expected one of compile, tests, types"),
        (["--proofs", "--lane", "fnce"], "lane fnce: expected one of whole, sieve"),
        (["--proofs", "--changed", "nowhere/main", "--list"], "no commit nowhere/main: expected SINCE=COMMIT"),
    ],
)
def test_a_lane_or_a_commit_that_is_not_there_is_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        run.main(arguments)
    assert says in f"{refused.value}{capsys.readouterr().err}"


@pytest.mark.parametrize("option", ["--runs", "--list", "--nightly", "--changed=HEAD"])
def test_an_option_of_the_proofs_starts_no_gate(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run_gate", lambda *_: pytest.fail("it began"))
    with pytest.raises(SystemExit):
        run.main([option])
    assert "expected --proofs" in capsys.readouterr().err
