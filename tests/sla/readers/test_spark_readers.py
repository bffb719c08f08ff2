"""The readers in Spark: they fail with file and line; the lake; answers of a server."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sql

from sla_reports.readers import json_forms, lake
from sla_reports.readers.samples import ExportFormatError, Samples, readable_errors
from sla_reports.readers.text import read_openmetrics
from sla_reports.reduction.jobs import without_label

if TYPE_CHECKING:
    from pathlib import Path

# A session starts in seconds on an idle machine, and in minutes beside other runs.
pytestmark = [pytest.mark.real("java"), pytest.mark.timeout(600)]

DAY_MS = 86_400_000
MIDNIGHT_MS = 1_790_812_800_000  # 2026-10-01T00:00Z


def om(path: Path, *samples: tuple[str, float, int], broken: str = "") -> Path:
    lines = [f"{series} {value} {ts_ms // 1000}.{ts_ms % 1000:03d}\n" for series, value, ts_ms in samples]
    path.write_text("".join(lines) + broken + "# EOF\n")
    return path


def rows(samples: Samples) -> list[tuple[str, float, int]]:
    with readable_errors():
        return sorted((row["series"], row["value"], row["ts_ms"]) for row in samples.frame.collect())


def test_a_reader_fails_with_file_and_line(spark: Any, tmp_path: Path) -> None:
    whole = om(tmp_path / "a.om", ("up", 1.0, MIDNIGHT_MS))
    broken = om(tmp_path / "b.om", ("up", 0.0, MIDNIGHT_MS + 1000), broken="up one 1790812800\nup 1\n")
    strict = read_openmetrics(spark, [tmp_path])
    with pytest.raises(ExportFormatError, match=rf"^{broken}:2: not_a_number: value of 'up one 1790812800'"):
        rows(strict)
    assert rows(read_openmetrics(spark, [whole])) == [("up", 1.0, MIDNIGHT_MS)]


def answer(folder: Path, name: str, result: Any, **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}, **changes}))
    return path


def test_answers_of_a_server_whole_torn_and_in_part(spark: Any, tmp_path: Path) -> None:
    good = {"metric": {"__name__": "up", "b": "x"}, "values": [[1790812800.123, "1"], [1790812801, "+Inf"]]}
    answer(tmp_path, "good.json", [good])
    answer(tmp_path, "part.json", [good], warnings=["store 10.0.0.3 unavailable"])
    assert [value for _, value, _ in rows(json_forms.read_answers(spark, [tmp_path / "good.json"]))] == [
        1.0,
        float("inf"),
    ]
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b"{}")[:-3])
    with pytest.raises(ExportFormatError, match=r"torn\.json\.gz: truncated: .*; expected a whole gzip file"):
        rows(json_forms.read_answers(spark, [tmp_path / "torn.json.gz"]))
    with pytest.raises(ExportFormatError, match=r"part\.json: partial_answer: the server warns"):
        rows(json_forms.read_answers(spark, [tmp_path / "part.json"]))


def test_the_servers_of_a_pair_become_one(spark: Any, tmp_path: Path) -> None:
    texts = [
        'up{a="1",replica="x"}', 'up{replica="y",z="1"}', 'up{replica="x"}', 'up{a="replica=\\"x\\",",zreplica="x"}',
        "up",
    ]  # fmt: skip
    read = read_openmetrics(spark, [om(tmp_path / "a.om", *((text, 1.0, MIDNIGHT_MS) for text in texts))])
    merged = read.frame.select(without_label(sql.col("series"), "replica").alias("series"))
    assert sorted(row["series"] for row in merged.collect()) == sorted(
        ['up{a="1"}', 'up{z="1"}', "up", 'up{a="replica=\\"x\\",",zreplica="x"}', "up"]
    )


def test_the_lake_keeps_each_sample_once_and_late_data_rewrites_its_days_alone(spark: Any, tmp_path: Path) -> None:
    samples = [(f'up{{a="{number % 2}"}}', float(number), MIDNIGHT_MS + number * DAY_MS // 4) for number in range(12)]
    first = read_openmetrics(spark, [om(tmp_path / "a.om", *samples)]).frame
    written = lake.write(spark, first, tmp_path / "lake")
    assert (written.days, written.samples) == (("2026-10-01", "2026-10-02", "2026-10-03"), 12)
    files = {path.parent.name: path for path in (tmp_path / "lake").glob("day=*/*.parquet")}
    assert len(files) == 3
    late = [samples[5], ("late", 1.0, MIDNIGHT_MS + DAY_MS + 1), (samples[6][0], 99.0, samples[6][2])]
    again = lake.write(spark, read_openmetrics(spark, [om(tmp_path / "b.om", *late)]).frame, tmp_path / "lake")
    assert (again.days, again.equal_duplicates, again.conflicting_duplicates) == (("2026-10-02",), 1, 2), (
        "both samples of the conflict are kept"
    )
    left = {path.parent.name: path for path in (tmp_path / "lake").glob("day=*/*.parquet")}
    assert left["day=2026-10-01"] == files["day=2026-10-01"]
    assert left["day=2026-10-02"] != files["day=2026-10-02"]
    assert rows(lake.read(spark, tmp_path / "lake")) == sorted([*samples, late[1], late[2]])
    bounds = {"start_ms": MIDNIGHT_MS + DAY_MS, "end_ms": MIDNIGHT_MS + 2 * DAY_MS}
    part = lake.read(spark, tmp_path / "lake", **bounds)
    assert rows(part) == sorted([*samples[4:8], late[1], late[2]])
    assert all("day=2026-10-02" in path for path in part.frame.inputFiles())


def test_a_lake_is_untouched_by_a_write_that_fails_and_mended_after_one_that_was_killed(
    spark: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "lake"
    lake.write(spark, read_openmetrics(spark, [om(tmp_path / "a.om", ("up", 1.0, MIDNIGHT_MS))]).frame, folder)
    broken = om(tmp_path / "b.om", ("up", 0.0, MIDNIGHT_MS + 1), broken="oops\n")
    with pytest.raises(ExportFormatError, match=r"b\.om:2: not_a_sample"):
        lake.write(spark, read_openmetrics(spark, [broken]).frame, folder)
    assert rows(lake.read(spark, folder)) == [("up", 1.0, MIDNIGHT_MS)]
    (folder / "_replaced").mkdir(exist_ok=True)
    (folder / "day=2026-10-01").rename(folder / "_replaced" / "day=2026-10-01")
    assert rows(lake.read(spark, folder)) == [("up", 1.0, MIDNIGHT_MS)]
    with pytest.raises(ExportFormatError, match="no such folder"):
        lake.read(spark, tmp_path / "nowhere")


def test_nothing_but_stale_markers_is_still_read(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"metric":{"__name__":"up"},"values":[null],"timestamps":[1790812800000]}\n')
    [row] = json_forms.read_victoriametrics(spark, [path]).frame.collect()
    assert row["value"] != row["value"]
