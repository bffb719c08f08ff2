"""Copies, renamed labels, changed intervals, groups born or gone within the period: through the command, by the daily table.

The planted data are samples; the kernel that makes runs of a lake's day writes the table, so no Java is needed.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from metric_names import CREATED_TIMESTAMP_SECONDS, GROUP_WRITABLE, UNAVAILABLE_SECONDS_TOTAL
from sla_reports.reduction.daily_table import write_days
from sla_reports.reduction.runs import Intervals, Quality, day_pieces, stitched
from sla_reports.series import series_text
from tests.sla.histories import batches_of, longer_hours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.sla.histories import Sample

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
START_MS = 1_790_812_800_000  # 2026-10-01T00:00:00Z
NOON_MS = START_MS + 12 * HOUR_MS
MARGIN_MS = 10 * MINUTE_MS
ORDERS = {"namespace": "shop", "cluster": "c", "broker_group": "orders", "job": "operator", "instance": "10.0.0.5:8080"}
PAYMENTS = {**ORDERS, "broker_group": "payments"}
UP: Callable[[int], float] = lambda _: 1.0  # noqa: E731


def scrapes(
    labels: dict[str, str], value: Callable[[int], float] = UP, *, metric: str = GROUP_WRITABLE,
    from_ms: int = START_MS - MARGIN_MS, until_ms: int = START_MS + DAY_MS + MARGIN_MS, step_ms: int = MINUTE_MS,
) -> list[Sample]:  # fmt: skip
    """Return a sample of the series each step."""
    name = series_text(metric, labels)
    return [(name, at_ms, value(at_ms)) for at_ms in range(from_ms, until_ms, step_ms)]


def lost(labels: dict[str, str], *rises: tuple[int, float], **more: Any) -> list[Sample]:
    """Return the counter of unavailable seconds, which rises at these times."""
    told = lambda at_ms: sum(by for when_ms, by in rises if when_ms <= at_ms)  # noqa: E731
    return scrapes({**labels, "cause": "crash"}, told, metric=UNAVAILABLE_SECONDS_TOTAL, **more)


def down(low_ms: int, high_ms: int) -> Callable[[int], float]:
    """Return a gauge that is down in between."""
    return lambda at_ms: 0.0 if low_ms <= at_ms < high_ms else 1.0


class Reporting:
    """Writes samples as a daily table and runs the command over it.

    `by_hours`: hours at a longer interval are runs, as `sla backfill` writes them; without it each sample is a run.
    """

    def __init__(self, folder: Path, *, by_hours: bool = False) -> None:
        self._folder, self._by_hours = folder, by_hours

    def __call__(
        self, samples: Iterable[Sample], *words: str, interval_ms: int = MINUTE_MS, log: Iterable[dict[str, Any]] = ()
    ) -> tuple[int, str, dict[str, Any]]:
        """Return exit code, the whole output, and the last line."""
        samples = list(samples)
        longer = longer_hours(samples, interval_ms) if self._by_hours else {}
        _write_table(self._folder / "runs", samples, Intervals(other_ms=interval_ms, longer=longer))
        (self._folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
        done = CliRunner().invoke(
            app,
            ["sla", "report", "--from", "runs", "--export", str(self._folder / "runs"), "--incidents",
             str(self._folder / "log.jsonl"), "--period", "2026-10-01", "--objective", "99.9",
             "--out", str(self._folder / "out"), *words],
        )  # fmt: skip
        last = done.output.splitlines()[-1]
        line: dict[str, Any] = json.loads(last) if last.startswith("{") else {}
        return done.exit_code, done.output, line

    def document(self, name: str) -> dict[str, Any]:
        """Return a file of the report."""
        found: dict[str, Any] = json.loads((self._folder / "out" / name).read_text())
        return found


def _write_table(table: Path, samples: list[Sample], intervals: Intervals) -> None:
    days: dict[int, list[Sample]] = {}
    for one in samples:
        days.setdefault(one[1] // DAY_MS, []).append(one)
    pieces = [piece for own in days.values() for piece in day_pieces(partial(batches_of, own), intervals)]
    runs = stitched(pa.Table.from_batches(pieces), by_day=True)
    usual = pa.array([intervals.other_ms] * len(runs))
    write_days(table, runs.append_column("interval_ms", usual), Quality(0, 0, 0, 0, 0))


@pytest.fixture
def report(tmp_path: Path) -> Reporting:
    return Reporting(tmp_path)


@pytest.fixture(params=[False, True], ids=["by samples", "by hours"])
def reports(tmp_path: Path, request: pytest.FixtureRequest) -> Reporting:
    """Both forms of samples at a longer interval than usual."""
    return Reporting(tmp_path, by_hours=request.param)


def group(line: dict[str, Any], name: str = "orders", namespace: str = "shop") -> dict[str, Any]:
    """Return one group of the last line."""
    found: dict[str, Any]
    [found] = [one for one in line["groups"] if (one["namespace"], one["broker_group"]) == (namespace, name)]
    return found


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("receive_replica", ("a", "b")), ("prometheus", ("monitoring/k8s", "monitoring/second")), ("ha_pair", ("1", "2")),
        ("job", ("operator", "kubernetes-pods")), ("tenant_id", ("one", "")), ("exported_job", ("x", "y")),
    ],
)  # fmt: skip
def test_copies_by_any_label_count_once_and_are_told(reports: Reporting, label: str, values: tuple[str, str]) -> None:
    """30 s down at noon, from two Prometheus servers that scrape 23 s apart: the report had 60 s. Reports: radar #1734."""
    first, second = ({**ORDERS, label: value} for value in values)
    samples = [
        *scrapes(first), *lost(first, (NOON_MS, 30.0)),
        *scrapes(second, from_ms=START_MS - MARGIN_MS + 23_000),
        *lost(second, (NOON_MS, 30.0), from_ms=START_MS - MARGIN_MS + 23_000),
    ]  # fmt: skip
    code, output, line = reports(samples)
    assert (code, group(line)["down_ms"]) == (0, 30_000), output
    [told] = line["copies"]
    assert told == {"labels": {label: sorted(values)}, "groups": ["shop/c/orders"]}
    assert f"--replica-label {label}" in output
    assert reports.document("provenance.json")["quality"]["copies"] == [told]
    code, output, line = reports(samples, "--replica-label", label)
    assert (code, group(line)["down_ms"], line["warnings"], line["copies"]) == (0, 30_000, [], []), output


def test_a_copy_that_was_away_and_one_that_came_late_double_and_hide_nothing(reports: Reporting) -> None:
    """The first server ends at noon with 30 s; the second began at 10:00, and only it has the 40 s of 18:00."""
    first, second = {**ORDERS, "replica_name": "a"}, {**ORDERS, "replica_name": "b"}
    rises = ((START_MS + 6 * HOUR_MS, 30.0), (START_MS + 18 * HOUR_MS, 40.0))
    samples = [
        *scrapes(first, until_ms=NOON_MS), *lost(first, *rises, until_ms=NOON_MS),
        *scrapes(second, from_ms=START_MS + 10 * HOUR_MS), *lost(second, *rises, from_ms=START_MS + 10 * HOUR_MS),
    ]  # fmt: skip
    for words in ((), ("--replica-label", "replica_name")):
        _, output, line = reports(samples, *words)
        assert group(line)["down_ms"] == 70_000, output


def test_a_label_that_is_added_at_noon_makes_no_second_counter(report: Reporting) -> None:
    """The counter continues at 30 under another text: the old total is not a rise."""
    later = {**ORDERS, "region": "eu"}
    samples = [
        *scrapes(ORDERS, until_ms=NOON_MS), *lost(ORDERS, (START_MS + HOUR_MS, 30.0), until_ms=NOON_MS),
        *scrapes(later, from_ms=NOON_MS), *lost(later, (START_MS + HOUR_MS, 30.0), from_ms=NOON_MS),
    ]  # fmt: skip
    code, output, line = report(samples)
    assert (code, group(line)["down_ms"], line["copies"]) == (0, 30_000, []), output


def test_operator_pods_add_what_each_of_them_counted(report: Reporting) -> None:
    """Each pod closed a different incident: 30 s and 20 s are 50 s."""
    other = {**ORDERS, "instance": "10.0.0.6:8080"}
    samples = [
        *scrapes(ORDERS), *scrapes(other), *lost(ORDERS, (NOON_MS, 30.0)), *lost(other, (NOON_MS + HOUR_MS, 20.0)),
    ]  # fmt: skip
    code, output, line = report(samples)
    assert (code, group(line)["down_ms"], line["warnings"]) == (0, 50_000, []), output
    # One process under two addresses has equal rises.
    samples = [*scrapes(ORDERS), *scrapes(other), *lost(ORDERS, (NOON_MS, 30.0)), *lost(other, (NOON_MS, 30.0))]
    assert group(report(samples)[2])["down_ms"] == 30_000


@pytest.mark.parametrize("label", ["region", "__tenant_id__", "kubernetes_namespace", "prometheus"])
@pytest.mark.parametrize("instance", ["10.0.0.5:8080", "10.1.0.7:8080"])
def test_two_groups_under_one_identity_are_refused_with_figures(report: Reporting, label: str, instance: str) -> None:
    """One of two regions is down for two hours: a joint figure would fit neither, and each is available alone."""
    first, second = {**ORDERS, label: "eu"}, {**ORDERS, label: "us", "instance": instance}
    samples = [*scrapes(first), *scrapes(second, down(NOON_MS, NOON_MS + 2 * HOUR_MS))]
    code, output, _ = report(samples)
    assert code == 1
    assert "brokergroup_group_writable of shop/c/orders" in output
    assert f"{label} 'eu' and 'us'" in output
    assert "first at 2026-10-01T12:0" in output
    assert f"--match {label}=eu" in output
    code, output, line = report(samples, "--match", f"{label}=us")
    assert (code, group(line)["down_ms"]) == (2, 2 * HOUR_MS), output
    # Declared as copies they contradict each other: that time is disputed, with a warning.
    code, output, line = report(samples, "--replica-label", label)
    assert (code, group(line)["disputed_ms"]) == (3, 2 * HOUR_MS), output
    assert "contradict each other" in line["warnings"][0] or instance != ORDERS["instance"]


def test_counters_that_contradict_each_other_are_two_groups(report: Reporting) -> None:
    """Both gauges are up at every scrape; one counter has 30 s that the other lacks."""
    first, second = {**ORDERS, "region": "eu"}, {**ORDERS, "region": "us"}
    samples = [*scrapes(first), *scrapes(second), *lost(first, (NOON_MS, 30.0)), *lost(second)]
    code, output, _ = report(samples)
    assert code == 1
    assert "brokergroup_unavailable_seconds_total of shop/c/orders" in output


@pytest.mark.parametrize("missing", ["namespace", "cluster", "broker_group"])
def test_a_label_of_the_group_that_was_renamed_is_named(report: Reporting, missing: str) -> None:
    renamed = {("renamed_" + name if name == missing else name): value for name, value in ORDERS.items()}
    code, output, _ = report(scrapes(renamed))
    assert code == 1
    assert f"a series without the label {missing}" in output
    assert f"renamed_{missing}" in output


@pytest.mark.parametrize("federated", [False, True])
def test_a_scrape_without_honor_labels_keeps_two_namespaces_apart(report: Reporting, federated: bool) -> None:
    """team-b is down for two hours: one group, "met 100 %".

    Reports: kedacore/charts #434, prometheus-operator #356, gpu-operator #811.
    """
    samples = []
    for team, value in (("team-a", UP), ("team-b", down(NOON_MS, NOON_MS + 2 * HOUR_MS))):
        labels = {**ORDERS, "namespace": "brokergroup-system", "exported_namespace": team}
        if federated:
            labels |= {
                "namespace": "monitoring", "exported_exported_namespace": "brokergroup-system", "job": "federate",
                "exported_job": "operator", "instance": "prometheus:9090", "exported_instance": "10.0.0.5:8080",
            }  # fmt: skip
        samples += scrapes(labels, value)
    code, output, line = report(samples)
    assert (code, line["warnings"]) == (2, []), output
    assert group(line, namespace="team-a")["down_ms"] == 0
    assert group(line, namespace="team-b")["availability"] == pytest.approx(22 / 24)


def test_options_that_name_no_label_are_refused(report: Reporting) -> None:
    for words, said in (
        (("--replica-label", "a-b"), "--replica-label: 'a-b'; expected a label's name"),
        (
            ("--replica-label", "namespace"),
            "--replica-label: namespace; expected none of namespace, cluster, broker_group",
        ),
        (("--match", "region"), "--match: 'region'; expected label=value"),
        (("--match", "region=mars"), 'holds no sample of the operator\'s metrics with region="mars"'),
    ):
        code, output, _ = report(scrapes(ORDERS), *words)
        assert code == 1
        assert said in output.replace("\n", " ")


QUARTER_MS = 15_000


@pytest.mark.parametrize(
    "steps",
    [
        ((0, QUARTER_MS), (12, MINUTE_MS)), ((0, MINUTE_MS), (12, QUARTER_MS)),
        ((0, QUARTER_MS), (8, MINUTE_MS), (16, QUARTER_MS)), ((0, QUARTER_MS), (8, MINUTE_MS), (16, 5 * MINUTE_MS)),
        ((0, HOUR_MS), (12, QUARTER_MS)), ((0, 5 * MINUTE_MS), (12, QUARTER_MS)),
    ],
)  # fmt: skip
def test_an_interval_that_changes_is_judged_by_stretch(reports: Reporting, steps: tuple[tuple[int, int], ...]) -> None:
    """The time of the longer interval had been unknown. Reports: thanos #3010, #2737, grafana #30662, mimir #5509."""
    samples = _at_steps(steps)
    code, output, line = reports(samples, interval_ms=QUARTER_MS)
    assert (code, group(line)["unknown_ms"]) == (0, 0), output
    found = reports.document("provenance.json")["quality"]["scrape_stretches"]
    longer = [step for _, step in steps if step != QUARTER_MS]
    assert [one["intervalMs"] for one in found] == longer
    for step in longer:
        assert f"shop/c/orders: scraped every {step / 1000:g} s instead of every 15 s for " in output
    # Down in the stretch of the longer interval: found, with an error of that interval.
    low_ms = next(START_MS + hour * HOUR_MS for hour, step in steps if step != QUARTER_MS) + 2 * HOUR_MS
    _, output, line = reports(_at_steps(steps, down(low_ms, low_ms + 2 * HOUR_MS)), interval_ms=QUARTER_MS)
    assert group(line)["down_ms"] == pytest.approx(2 * HOUR_MS, abs=1), output
    [told] = reports.document("summary.json")["groups"]
    assert told["write"]["errorMs"] == 2 * max(step for _, step in steps[: -1 if steps[-1][1] == QUARTER_MS else 2])


def _at_steps(steps: tuple[tuple[int, int], ...], value: Callable[[int], float] = UP) -> list[Sample]:
    """Return scrapes at each step from its hour on; the first also before the day, the last after it."""
    begins = [START_MS + hour * HOUR_MS for hour, _ in steps]
    begins[0] -= max(MARGIN_MS, steps[0][1])
    ends = [*begins[1:], START_MS + DAY_MS + MARGIN_MS]
    parts = zip(steps, begins, ends, strict=True)
    return [
        one
        for (_, step), low, high in parts
        for one in scrapes(ORDERS, value, from_ms=low, until_ms=high, step_ms=step)
    ]


@pytest.mark.parametrize(("at_hour", "silence_ms", "unknown_ms"), [
    (6, 60_000, 60_000), (6, 3 * HOUR_MS, 3 * HOUR_MS), (18, 4 * MINUTE_MS, 4 * MINUTE_MS), (18, 2 * MINUTE_MS, 0),
    (12, HOUR_MS, HOUR_MS),
])  # fmt: skip
def test_a_silence_is_no_interval(reports: Reporting, at_hour: int, silence_ms: int, unknown_ms: int) -> None:
    """Silences: three scrapes lost at 15 s, three at 60 s, an hour at the change itself; one lost scrape at 60 s is none."""
    quiet_ms = START_MS + at_hour * HOUR_MS
    samples = [
        one for one in _at_steps(((0, QUARTER_MS), (12, MINUTE_MS))) if not quiet_ms < one[1] < quiet_ms + silence_ms
    ]
    _, output, line = reports(samples, interval_ms=QUARTER_MS)
    assert group(line)["unknown_ms"] == unknown_ms, output


def test_scrapes_that_are_lost_by_chance_are_no_longer_interval(reports: Reporting) -> None:
    """Of an hour at 15 s only every third to sixth scrape came, irregularly."""
    kept = {number for number in range(240) if (number * number) % 17 in {0, 4, 13}}
    samples = [
        one
        for one in scrapes(ORDERS, step_ms=QUARTER_MS)
        if not 0 <= one[1] - NOON_MS < HOUR_MS or (one[1] - NOON_MS) // QUARTER_MS in kept
    ]
    _, output, line = reports(samples, interval_ms=QUARTER_MS)
    assert group(line)["unknown_ms"] > HOUR_MS // 2, output


def test_copies_in_a_stretch_of_a_longer_interval_are_not_disputed(reports: Reporting) -> None:
    """Two servers, 40 s apart at 60 s: the second shows a change within that interval."""
    low_ms, high_ms = START_MS + 18 * HOUR_MS, START_MS + 18 * HOUR_MS + 10 * MINUTE_MS
    samples = []
    for number in (0, 1):
        labels = {**ORDERS, "prometheus_replica": str(number)}
        samples += scrapes(labels, until_ms=NOON_MS, step_ms=QUARTER_MS)
        samples += scrapes(labels, down(low_ms, high_ms), from_ms=NOON_MS + number * 40_000)
    _, output, line = reports(samples, interval_ms=QUARTER_MS)
    assert (group(line)["disputed_ms"], group(line)["unknown_ms"]) == (0, 0), output
    assert group(line)["down_ms"] == pytest.approx(10 * MINUTE_MS, abs=MINUTE_MS)


def test_copies_at_a_longer_interval_may_lose_a_scrape_and_are_no_two_groups(reports: Reporting) -> None:
    """Down for two scrapes of one server; the other lost a scrape then, and missed it."""
    low_ms = START_MS + 18 * HOUR_MS
    samples = []
    for number in (0, 1):
        labels = {**ORDERS, "receive_replica": str(number)}
        own = scrapes(labels, until_ms=NOON_MS, step_ms=QUARTER_MS)
        own += scrapes(labels, down(low_ms, low_ms + 90_000), from_ms=NOON_MS + number * 30_000)
        samples += [one for one in own if number == 0 or not low_ms <= one[1] < low_ms + MINUTE_MS]
    code, output, line = reports(samples, interval_ms=QUARTER_MS)
    assert code != 1, output
    assert [one["groups"] for one in line["copies"]] == [["shop/c/orders"]]


def test_a_group_that_is_born_at_noon_is_judged_from_noon_on(report: Reporting) -> None:
    """Objectives of groups that are deleted or not yet created. Reports: kibana #198776."""
    code, output, line = report([*scrapes(ORDERS), *scrapes(PAYMENTS, from_ms=NOON_MS)])
    assert (code, line["verdict"]) == (0, "met"), output
    told = group(line, "payments")
    assert (told["up_ms"], told["unknown_ms"]) == (12 * HOUR_MS, 0)
    assert told["existed"] == [{"from_ms": NOON_MS, "until_ms": START_MS + DAY_MS}]
    assert "payments: met, 100.0000 %" in output
    assert "existed from 2026-10-01T12:00:00Z" in output
    document = report.document("summary.json")
    assert document["groups"][1]["existenceKnownBy"] == ["scrape"]
    # Down for two hours of its twelve.
    born = scrapes(PAYMENTS, down(NOON_MS + HOUR_MS, NOON_MS + 3 * HOUR_MS), from_ms=NOON_MS)
    code, output, line = report([*scrapes(ORDERS), *born])
    assert (code, group(line, "payments")["availability"]) == (2, pytest.approx(10 / 12)), output
    [cluster] = report.document("summary.json")["clusters"]
    assert (cluster["write"]["downMs"], cluster["orderedWrite"]["downMs"]) == (0, 2 * HOUR_MS)
    assert cluster["orderedWrite"]["unknownMs"] == 0


def test_a_group_that_is_gone_while_its_target_goes_on_is_judged_up_to_then(reports: Reporting) -> None:
    code, output, line = reports([*scrapes(ORDERS), *scrapes(PAYMENTS, until_ms=NOON_MS + 1)])
    assert (code, group(line, "payments")["unknown_ms"]) == (0, 0), output
    assert "existed to 2026-10-01T12:00:00Z" in output
    # The operator's only group: its counters stay on the page.
    code, output, line = reports([*scrapes(PAYMENTS, until_ms=NOON_MS + 1), *lost(PAYMENTS)])
    assert (code, group(line, "payments")["unknown_ms"]) == (0, 0), output


@pytest.mark.parametrize("until_hour", [12, 1])
def test_a_target_that_vanishes_takes_its_groups_along_and_proves_nothing(report: Reporting, until_hour: int) -> None:
    """The scrape of one operator broke; another operator's groups continue."""
    until_ms = START_MS + until_hour * HOUR_MS + 1
    other = {**ORDERS, "broker_group": "billing", "instance": "10.9.9.9:8080"}
    samples = [*scrapes(ORDERS, until_ms=until_ms), *scrapes(PAYMENTS, until_ms=until_ms), *scrapes(other)]
    code, output, line = report(samples)
    assert code == 3
    for name in ("orders", "payments"):
        assert group(line, name)["unknown_ms"] == DAY_MS - until_hour * HOUR_MS
    assert f"no sample after 2026-10-01T{until_hour:02}:00:00Z: shop/c/orders, shop/c/payments" in output


def test_groups_that_all_begin_at_noon_may_have_been_there_before(report: Reporting) -> None:
    code, output, line = report([*scrapes(ORDERS, from_ms=NOON_MS), *scrapes(PAYMENTS, from_ms=NOON_MS + MINUTE_MS)])
    assert (code, group(line)["unknown_ms"]) == (3, 12 * HOUR_MS), output
    # A minute after the operator's first scrape proves nothing either: it may not have read the group's record yet.
    assert group(line, "payments")["unknown_ms"] == 12 * HOUR_MS + MINUTE_MS
    assert "no sample before 2026-10-01T12:00:00Z (the first of them)" in output
    # Their creation time proves it.
    created = [
        one
        for labels in (ORDERS, PAYMENTS)
        for one in scrapes(labels, lambda _: NOON_MS / 1000, metric=CREATED_TIMESTAMP_SECONDS, from_ms=NOON_MS)
    ]
    samples = [*scrapes(ORDERS, from_ms=NOON_MS), *scrapes(PAYMENTS, from_ms=NOON_MS), *created]
    code, output, line = report(samples)
    assert (code, group(line)["unknown_ms"], group(line)["up_ms"]) == (0, 0, 12 * HOUR_MS), output
    assert report.document("summary.json")["groups"][0]["existenceKnownBy"] == ["created"]


def test_a_creation_time_before_the_period_forbids_a_birth(report: Reporting) -> None:
    """Its operator was scraped without it until noon, but it was created the day before: its state was unknown."""
    created = scrapes(
        PAYMENTS, lambda _: (START_MS - HOUR_MS) / 1000, metric=CREATED_TIMESTAMP_SECONDS, from_ms=NOON_MS
    )
    code, output, line = report([*scrapes(ORDERS), *scrapes(PAYMENTS, from_ms=NOON_MS), *created])
    assert (code, group(line, "payments")["unknown_ms"]) == (3, 12 * HOUR_MS), output


def test_an_incident_in_the_log_proves_that_the_group_existed(report: Reporting) -> None:
    entry = {
        "schemaVersion": 3, "id": "payments/1", "namespace": "shop", "name": "payments", "cluster": "c", "brokerName": "payments",
        "kind": "failover", "trigger": "silence", "cause": "crash", "outcome": "completed",
        "startedAt": "2026-10-01T03:00:00.000Z", "detectionMilliseconds": 500.0,
        "stepsMilliseconds": {"detected": 0.0, "inSync": 2000.0},
    }  # fmt: skip
    _, output, line = report([*scrapes(ORDERS), *scrapes(PAYMENTS, from_ms=NOON_MS)], log=[entry])
    told = group(line, "payments")
    assert told["existed"] == [{"from_ms": START_MS, "until_ms": START_MS + DAY_MS}], output
    assert told["unknown_ms"] > 11 * HOUR_MS


def test_a_group_that_was_deleted_and_made_anew_did_not_exist_in_between(report: Reporting) -> None:
    again_ms = START_MS + 15 * HOUR_MS
    parts = [(START_MS - MARGIN_MS, NOON_MS + 1, START_MS - DAY_MS), (again_ms, START_MS + DAY_MS, again_ms)]
    samples = scrapes(ORDERS)
    for low_ms, high_ms, created_ms in parts:
        told = lambda _, created_ms=created_ms: created_ms / 1000  # noqa: E731
        samples += scrapes(PAYMENTS, from_ms=low_ms, until_ms=high_ms)
        samples += scrapes(PAYMENTS, told, metric=CREATED_TIMESTAMP_SECONDS, from_ms=low_ms, until_ms=high_ms)
    code, output, line = report(samples)
    assert (code, group(line, "payments")["unknown_ms"]) == (0, 0), output
    assert len(group(line, "payments")["existed"]) == 2
    # Without the creation time the gap stays unknown.
    code, output, line = report([one for one in samples if not one[0].startswith(CREATED_TIMESTAMP_SECONDS)])
    assert (code, group(line, "payments")["unknown_ms"]) == (3, 3 * HOUR_MS), output


def test_a_group_that_was_gone_before_the_period_is_named_and_judged_nowhere(report: Reporting) -> None:
    samples = [*scrapes(ORDERS), *scrapes(PAYMENTS, from_ms=START_MS - HOUR_MS, until_ms=START_MS - MARGIN_MS)]
    code, output, line = report(samples)
    assert (code, [one["broker_group"] for one in line["groups"]]) == (0, ["orders"]), output
    assert "it did not exist in the period: shop/c/payments" in output


def test_rolling_days_are_a_period_of_the_command(tmp_path: Path) -> None:
    """The help named `30d`, and the command refused it: now only the table is missing, not the period."""
    words = [
        "sla", "report", "--from", "runs", "--export", str(tmp_path / "none"), "--incidents",
        str(tmp_path / "log.jsonl"),
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("")
    told = CliRunner().invoke(
        app, [*words, "--period", "30d", "--until", "2025-11-02T00:00:00Z"], env={"COLUMNS": "200"}
    )
    assert told.exit_code == 1
    assert "--period" not in told.output
    assert str(tmp_path / "none") in told.output
