"""`make proofs`: the table of paths and lanes in tests/README.md is whole, and names only what is there."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests import proofs
from tests.proofs import NAMES, PAGE, ROOT, Proof, lanes_of_path, run_proof, run_proofs, table
from tests.support import lanes
from tests.support.lanes import Lane

if TYPE_CHECKING:
    from pathlib import Path

PRODUCT = ("controller_core", "operator", "rocketmq_*", "sla_reports", "kube_sandbox", "charts", "crds", "metric_names")


def test_every_path_of_the_table_is_there() -> None:
    assert [path for path in table() if not (ROOT / path).exists()] == []


def test_every_lane_proves_some_path_and_is_described() -> None:
    assert {name for names in table().values() for name in names} - {"none"} == set(NAMES) - {"mutants", "real-hour"}
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| {name} |" not in page] == []


def test_every_file_of_the_product_has_a_row() -> None:
    files = [file for pattern in PRODUCT for folder in ROOT.glob(pattern) for file in folder.rglob("*.*")]
    paths = [file.relative_to(ROOT).as_posix() for file in files]
    assert len(paths) > 500
    assert [path for path in paths if lanes_of_path(path, table()) == NAMES] == []


def test_the_longest_beginning_decides_and_an_unknown_path_has_every_lane() -> None:
    rows: dict[str, tuple[str, ...]] = {"tests/": ("none",), "tests/fence/": ("fence",)}
    assert lanes_of_path("tests/fence/run.py", rows) == ("fence",)
    assert lanes_of_path("tests/core/x.py", rows) == ()
    assert lanes_of_path("new/file", rows) == NAMES


def test_a_lane_or_a_commit_that_is_not_there_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"LANE=fnce: expected one of whole, .*fence"):
        proofs.main(["--lane", "fnce"])
    with pytest.raises(SystemExit, match=r"no commit nowhere/main: expected SINCE=COMMIT"):
        proofs.main(["--changed", "nowhere/main", "--list"])


def made(name: str, source: str) -> Proof:
    lane = Lane(name, (sys.executable, "-c", source), says_json=True)
    return Proof(lane, lane)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(proofs, "FOLDER", tmp_path)
    monkeypatch.setattr(proofs, "_checkout", lambda: ("abc", ""))
    # It would end what other tests of this worker share.
    monkeypatch.setattr(lanes, "end_descendants", list)
    return tmp_path


def test_a_lane_that_holds_and_one_that_does_not(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = run_proof(made("good", """print('{"lost": 0, "holds": "no"}')"""), by_night=False)
    assert (verdict["holds"], verdict["result"], verdict["commit"]) == (True, {"lost": 0, "holds": "no"}, "abc")
    assert json.loads((in_folder / "good.json").read_text()) == verdict
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["holds"] is True
    for source in ("""print('{"lost": 1}'); raise SystemExit(1)""", "print('no JSON')", "raise SystemExit(0)"):
        assert not run_proof(made("bad", source), by_night=False)["holds"]


def test_a_checkout_that_changes_meanwhile_proves_nothing(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([("abc", ""), ("def", "")])
    monkeypatch.setattr(proofs, "_checkout", lambda: next(states))
    verdict = run_proof(made("moved", "print('{}')"), by_night=False)
    assert (verdict["holds"], verdict["commit"], verdict["why"]) == (False, "abc", "the checkout changed while it ran")


def test_the_exit_code_is_0_only_if_every_lane_holds(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = made("fence", "print('{}')"), made("sieve", "raise SystemExit(1)")
    assert run_proofs([bad, good], by_night=False) == 1
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["red"], summary["lanes"]["fence"]["holds"]) == (["sieve"], True)
    assert run_proofs([good], by_night=False) == 0


def test_only_one_runs_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "hold_name", lambda _name: None)
    with pytest.raises(SystemExit, match="another one runs on this machine"):
        proofs.main([])
