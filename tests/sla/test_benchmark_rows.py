"""The benchmark's rows say what its figures say, and a small one of all of it has every field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks import sla, sla_year
from benchmarks.sla_rows import pays_from, rows_of, seconds_of_1000_groups

if TYPE_CHECKING:
    from pathlib import Path


def _told(**figures: Any) -> dict[str, Any]:
    return {"cpu_s": 2.0, "wall_s": 1.0, "peak_mib": 400, "runs": 2, **figures}


def test_a_row_for_each_engine_and_size_with_the_reason_where_there_is_no_figure() -> None:
    stopped = {"peak_mib": 9, "runs": 0, "stopped_for": "time"}
    sizes = [
        {"size": 10, "ours": _told(), "from_table": _told(cpu_s=0.1)},
        {"size": 50, "ours": _told(cpu_s=3.0), "from_table": stopped, "answers_equal": True},
    ]
    assert rows_of(sizes, ["ours", "from_table", "table_of_text"]) == [
        {"samples": 10, "engine": "ours", "cpu_s": 2.0, "wall_s": 1.0, "peak_mib": 400, "from": "raw"},
        {"samples": 10, "engine": "from_table", "cpu_s": 0.1, "wall_s": 1.0, "peak_mib": 400, "from": "table"},
        {"samples": 50, "engine": "ours", "cpu_s": 3.0, "wall_s": 1.0, "peak_mib": 400, "from": "raw"},
        {"samples": 50, "engine": "from_table", "cpu_s": None, "wall_s": None, "peak_mib": 9, "from": "table",
         "stopped_for": "time"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "alone", "found"),
    [
        ([2.0, 2.0, 2.0], [0.1, 1.0, 9.0], 500),
        ([1, 1, 1], [2, 0.5, 2], 500),
        ([1, 1, 1], [2, 2, 2], 10),
        ([3], [1], None),
    ],
)
def test_spark_pays_from_the_size_on_from_which_it_always_did(
    ours: list[float], alone: list[float], found: int | None
) -> None:
    sizes = [
        {"size": size, "ours": _told(cpu_s=mine), "one_process": _told(cpu_s=other)}
        for size, mine, other in zip((10, 50, 500), ours, alone, strict=False)
    ]
    assert pays_from(rows_of(sizes, ["ours", "one_process"]), "cpu_s") == found


def test_only_a_thousand_groups_and_a_year_are_what_was_promised() -> None:
    assert seconds_of_1000_groups({"groups": 1000, "months": 12, "wall_s": 9.5}) == 9.5
    assert seconds_of_1000_groups({"groups": 1000, "months": 1, "wall_s": 9.5}) is None
    assert seconds_of_1000_groups({}) is None


def test_a_report_is_made_of_the_years_table_and_finds_what_was_written(tmp_path: Path) -> None:
    sla_year.write_year(tmp_path, groups=3, months=2)
    assert len((tmp_path / "incidents.jsonl").read_text().splitlines()) >= 3
    told = sla_year.report_on(tmp_path, months=2)
    assert told["groups"] == 3
    window = sla_year.year_of(2)
    rng = np.random.default_rng(1)
    assert told["incidents"] == sum(len(sla_year._outages(rng, window)) for _ in range(3)) > 0


@pytest.mark.real("java")
@pytest.mark.timeout(900)
def test_a_small_benchmark_has_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines = ["ours", "one_process", "table_of_text", "from_table"]
    words = ["--sizes", "0.2", "--runs", "1", "--no-days", "--readers", "--report-groups", "5", "--report-months", "1"]
    code = sla.main([*words, "--engines", *engines, "--report-only"])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["failed"], told["answers_equal"]) == (0, [], True)
    assert [one["engine"] for one in told["rows"]] == engines
    for one in told["rows"]:
        assert set(one) == {"samples", "engine", "cpu_s", "wall_s", "peak_mib", "from"}
        assert one["from"] == ("table" if one["engine"] == "from_table" else "raw")
        assert min(one["samples"], one["wall_s"], one["peak_mib"]) > 0
    assert told["report_1000_groups_s"] is None  # it was of five groups
    assert (told["report"]["groups"], told["report"]["from"]) == (5, "table")
    assert told["report"]["wall_s"] > 0
    assert told["linear"] is None  # of one size nobody can say
