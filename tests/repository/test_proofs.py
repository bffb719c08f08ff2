"""`make proofs`: the table of paths and lanes in tests/README.md is whole, and names only what is there."""

from __future__ import annotations

import pytest

from tests import proofs
from tests.proofs import NAMES, PAGE, ROOT, lanes_of_path, table

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
