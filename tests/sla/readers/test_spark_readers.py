"""The readers in Spark: the `prometheus` source, files with their errors, the lake, answers of a server."""

from __future__ import annotations

import gzip
import itertools
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as sql
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from metric_names import GROUP_WRITABLE
from sla_reports.connection import ConnectionOptionError
from sla_reports.readers import json_forms, lake, prometheus
from sla_reports.readers.prometheus import NAME, OptionError, PrometheusReader, PrometheusSource, query_of
from sla_reports.readers.samples import ExportFormatError, Samples, readable_errors
from sla_reports.readers.text import read_openmetrics
from sla_reports.reduction.jobs import without_label
from sla_reports.series import series_text
from tests.real.parts.prometheus import Prometheus, start_prometheus
from tests.sla.readers.servers import LoopbackServer, QuietHandler, StandIn
from tests.support.draws import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

START_MS = 1_790_812_800_000
HOUR_MS = 3_600_000
Rows = list[tuple[str, int, float]]
SERIES = {
    series_text("brokergroup_up", {"broker_group": name}): [
        (START_MS + number * 15_000 + offset, float(number % 3)) for number in range(200)
    ]
    for offset, name in enumerate(("a", "b.c", "b+c", 'd"|\\', ""))
}
DEADLINE_SECONDS = 240.0
# Longer than a scrape of this page can take on a machine that is busy with other tests.
LAG_SECONDS = 8
GROUPS = ("orders", "payments")


def options(url: str, **more: Any) -> dict[str, str]:
    bounds = {"start_ms": START_MS, "end_ms": START_MS + HOUR_MS}
    return {name: str(value) for name, value in {"url": url, **bounds, **more}.items()}


def read(reader: PrometheusReader, filters: Sequence[Any] = ()) -> Rows:
    list(reader.pushFilters(list(filters)))
    found: Rows = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found += [(row["series"], row["ts_ms"], row["value"]) for row in batch.to_pylist()]
    return sorted(found)


def planted(start_ms: int = START_MS, end_ms: int = START_MS + HOUR_MS) -> Rows:
    return sorted((name, at, v) for name, samples in SERIES.items() for at, v in samples if start_ms <= at < end_ms)


@settings(max_examples=examples(40))
@given(
    slice_hours=st.sampled_from([24, 1, 0.3, 0.011]), shards=st.integers(1, 7), tasks=st.sampled_from(["", 1, 3, 1000]),
    start=st.integers(0, 800_000), length=st.integers(1, 3_000_000), left_open=st.booleans(),
)  # fmt: skip
def test_slices_shards_and_tasks_never_change_what_is_read(
    slice_hours: float, shards: int, tasks: int | str, start: int, length: int, left_open: bool
) -> None:
    bounds = {"start_ms": START_MS + start, "end_ms": START_MS + start + length}
    # A sample exactly at an edge belongs to the slice that begins there.
    bounds["start_ms"] -= bounds["start_ms"] % 15_000 if start % 2 else 0
    with StandIn(SERIES, left_open=left_open) as server:
        more = {"shards": shards, "shard_label": "broker_group", "tasks": tasks, **bounds}
        reader = PrometheusReader(query_of(options(server.url, slice_hours=slice_hours, **more), needs_end=True))
        assert len(reader.partitions()) <= int(tasks or 10_000)
        assert read(reader) == planted(**bounds)


@pytest.mark.parametrize("left_open", [False, True])
def test_filters_narrow_what_is_asked_for_and_are_given_back(left_open: bool) -> None:
    name = 'brokergroup_up{broker_group="b.c"}'
    awkward = series_text("brokergroup_up", {"broker_group": 'd"|\\'})
    edge_ms = START_MS + 15_000 * 10
    cases: list[tuple[Any, Rows]] = [
        (EqualTo(("series",), name), [row for row in planted() if row[0] == name]),
        (In(("series",), (name, awkward)), [row for row in planted() if row[0] in (name, awkward)]),
        (StringStartsWith(("series",), "brokergroup_up{"), planted()),
        (StringStartsWith(("series",), "brokergroup_u"), planted()),
        (StringStartsWith(("series",), "other.x"), []),
        (GreaterThanOrEqual(("ts_ms",), edge_ms), planted(start_ms=edge_ms)),
        (GreaterThan(("ts_ms",), edge_ms), planted(start_ms=edge_ms + 1)),
        (LessThan(("ts_ms",), edge_ms), planted(end_ms=edge_ms)),
        (LessThanOrEqual(("ts_ms",), edge_ms), planted(end_ms=edge_ms + 1)),
        (EqualTo(("ts_ms",), edge_ms), planted(edge_ms, edge_ms + 1)),
        (EqualTo(("series",), "no { series"), planted()),
        (LessThan(("ts_ms",), START_MS), []),
    ]
    for one, expected in cases:
        with StandIn(SERIES, left_open=left_open) as server:
            reader = PrometheusReader(query_of(options(server.url), needs_end=True))
            assert list(PrometheusReader(query_of(options(server.url), needs_end=True)).pushFilters([one])) == [one]
            assert read(reader, [one]) == expected, one


def test_options_that_make_no_sense_are_named(tmp_path: Path) -> None:
    good = options("http://127.0.0.1:1")
    for changes, message in (
        ({"url": ""}, "url: missing"),
        ({"end_ms": ""}, "end_ms: '' is no number"),
        ({"end_ms": good["start_ms"]}, "end_ms: .* is not after start_ms"),
        ({"slice_hours": "0"}, "slice_hours: 0; expected"),
        ({"shards": "2"}, "shards: 2 without shard_label"),
        ({"tasks": "0"}, "tasks: 0; expected 1 or more"),
        ({"match": "up{a=1}}{"}, "match: .* is no selector"),
        ({"match": "{}"}, "match: .* is no selector"),
    ):
        with pytest.raises(OptionError, match=message):
            query_of({**good, **changes}, needs_end=True)
    with pytest.raises(ConnectionOptionError, match="expected http"):
        query_of({**good, "url": "file:///etc/passwd"}, needs_end=True)
    token = tmp_path / "token"
    token.write_text("secret\n")
    with StandIn(SERIES) as server:
        read(PrometheusReader(query_of(options(server.url, bearer_token_file=token), needs_end=True)))
        assert set(server.tokens) == {"Bearer secret"}
    match = query_of({**good, "match": 'up{a="b"}\n{c=~"d"}\nup'}, needs_end=True).matchers
    assert match == ('__name__="up",a="b"', '{c=~"d"}'[1:-1], '__name__="up"')


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_in_spark_filters_reach_the_server_and_its_failure_is_one_line(spark: Any) -> None:
    bounds: dict[str, Any] = {"start_ms": START_MS, "end_ms": START_MS + HOUR_MS}
    with StandIn(SERIES) as server:
        samples = prometheus.read(spark, server.url, slice_hours=0.25, **bounds)
        part = samples.frame.where(f"ts_ms >= {START_MS + 1_000_000} and ts_ms < {START_MS + 1_200_000}")
        found = sorted((row["series"], row["ts_ms"], row["value"]) for row in part.collect())
        assert found == planted(START_MS + 1_000_000, START_MS + 1_200_000)
        assert len(server.asked) == 1, "four slices in the hour, one of them in the filter"
        assert samples.frame.where(f"ts_ms < {START_MS}").count() == 0, "nothing is asked for"
        assert len(server.asked) == 1
    message = r"^server http://127.0.0.1:\d+/api/v1/query: .*refused.* \(3 attempts\)$"
    with pytest.raises(ExportFormatError, match=message), readable_errors():
        prometheus.read(spark, server.url, **bounds).frame.count()


def test_the_stream_waits_for_late_scrapes_and_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    query = query_of({"url": "http://127.0.0.1:1"}, needs_end=False)
    now_ms = [START_MS]
    monkeypatch.setattr("sla_reports.readers.prometheus.time.time_ns", lambda: now_ms[0] * 1_000_000)
    stream = prometheus.PrometheusStreamReader(query, {"lag_seconds": "30", "most_hours_per_batch": "0.5"})
    first = stream.initialOffset()
    assert first == {"end_ms": START_MS - 30_000}
    assert stream.latestOffset(first, None) == first  # type: ignore[arg-type]
    assert stream.partitions(first, first) == []
    now_ms[0] -= 60_000
    assert stream.latestOffset(first, None) == first, "the wall clock went back"  # type: ignore[arg-type]
    now_ms[0] = START_MS + HOUR_MS
    assert stream.latestOffset(first, None) == {"end_ms": START_MS - 30_000 + HOUR_MS // 2}  # type: ignore[arg-type]


class _Page(LoopbackServer):
    """A metrics page whose gauges have another value at each scrape."""

    def handler(self) -> type[QuietHandler]:
        scrapes = itertools.count(1)

        class Page(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802 - http.server's name
                value = next(scrapes)
                lines = [f'{GROUP_WRITABLE}{{broker_group="{group}"}} {value}\n' for group in GROUPS]
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write("".join(lines).encode())

        return Page


def _stream(spark: Any, url: str, start_ms: int, folder: Path) -> Any:
    options = {"url": url, "match": GROUP_WRITABLE, "start_ms": str(start_ms), "lag_seconds": str(LAG_SECONDS)}
    samples = spark.readStream.format(NAME).options(**options).load()
    return (
        samples.writeStream.format("parquet")
        .option("path", str(folder / "samples"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )


def _run_batches(start: Callable[[], Any], count: int) -> tuple[int, int]:
    """Run until `count` batches had samples, then stop; return the batches and the end of the last one.

    Spark gives a Python process ten seconds to start. If it was slower on a busy machine, no sample was read: retry once.
    """
    batches: dict[int, Any] = {}
    deadline = time.monotonic() + DEADLINE_SECONDS
    query = start()
    try:
        while len(batches) < count:
            assert time.monotonic() < deadline, f"{len(batches)} batches: {query.status} {query.exception()}"
            if not query.isActive:
                assert "failed to connect back" in str(query.exception()), str(query.exception())
                query = start()
            # Spark drops old progress: the batches with samples are kept here.
            batches |= {one["batchId"]: one for one in query.recentProgress if one["numInputRows"] > 0}
            time.sleep(0.1)
    finally:
        query.stop()
    end = batches[max(batches)]["sources"][0]["endOffset"]
    return len(batches), int((json.loads(end) if isinstance(end, str) else end)["end_ms"])


def _scraped(server: Prometheus, start_ms: int, end_ms: int) -> list[tuple[str, int, float]]:
    query = f"{GROUP_WRITABLE}[{end_ms - start_ms}ms]"
    found = server.api("query", query=query, time=f"{end_ms / 1000:.3f}")["result"]
    return sorted(
        (series_text(GROUP_WRITABLE, {k: v for k, v in one["metric"].items() if k != "__name__"}), at_ms, float(value))
        for one in found
        for at, value in one["values"]
        if start_ms <= (at_ms := round(at * 1000)) < end_ms
    )


@pytest.mark.real("java", "prometheus")
@pytest.mark.timeout(900)
def test_each_sample_once_over_batches_and_a_restart(spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(PrometheusSource)
    with _Page() as page:
        server = start_prometheus(tmp_path / "prometheus", targets=[page.place], scrape_interval="500ms")
        try:
            start_ms = time.time_ns() // 1_000_000
            start = partial(_stream, spark, server.url, start_ms, tmp_path)
            first, until_ms = _run_batches(start, 3)
            # The checkpoint decides where it continues, not the option.
            second, end_ms = _run_batches(start, 2)
            found = sorted(
                (row["series"], row["ts_ms"], row["value"])
                for row in spark.read.parquet(str(tmp_path / "samples")).collect()
            )
            assert first >= 3
            assert second >= 2
            assert start_ms < until_ms < end_ms
            # A batch that was being stopped may have written samples after the last reported end.
            latest_ms = max(end_ms, max(at_ms for _, at_ms, _ in found) + 1)
            assert found == _scraped(server, start_ms, latest_ms)
            assert {name.partition('broker_group="')[2].partition('"')[0] for name, *_ in found} == set(GROUPS)
        finally:
            server.process.stop()


# A session starts in seconds on an idle machine, and in minutes beside other runs.

DAY_MS = 86_400_000
MIDNIGHT_MS = 1_790_812_800_000  # 2026-10-01T00:00Z


def om(path: Path, *samples: tuple[str, float, int], broken: str = "") -> Path:
    lines = [f"{series} {value} {ts_ms // 1000}.{ts_ms % 1000:03d}\n" for series, value, ts_ms in samples]
    path.write_text("".join(lines) + broken + "# EOF\n")
    return path


def rows(samples: Samples) -> list[tuple[str, float, int]]:
    with readable_errors():
        return sorted((row["series"], row["value"], row["ts_ms"]) for row in samples.frame.collect())


@pytest.mark.real("java")
@pytest.mark.timeout(600)
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


@pytest.mark.real("java")
@pytest.mark.timeout(600)
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


@pytest.mark.real("java")
@pytest.mark.timeout(600)
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


@pytest.mark.real("java")
@pytest.mark.timeout(600)
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


@pytest.mark.real("java")
@pytest.mark.timeout(600)
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


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_nothing_but_stale_markers_is_still_read(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"metric":{"__name__":"up"},"values":[null],"timestamps":[1790812800000]}\n')
    [row] = json_forms.read_victoriametrics(spark, [path]).frame.collect()
    assert row["value"] != row["value"]
