"""Objectives of single groups: from OpenSLO files and BrokerGroups, in the report, and refused ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from sla_reports.measures.availability import Verdict
from sla_reports.measures.objectives import BudgetWindow, Objective, ObjectiveError, objective_of, read_objectives
from sla_reports.measures.periods import window_of
from sla_reports.measures.summary import Agreement, summarise
from sla_reports.output.burn_alerts import burn_rate, rules_text
from sla_reports.output.files import group_document, summary_document
from sla_reports.output.html_page import report_html
from sla_reports.report import Request
from sla_reports.sources import Form, Origin
from sla_reports.states.entities import GroupKey
from sla_reports.states.spans import Window
from tests.real.parts import prometheus
from tests.sla import one_day

REPOSITORY = Path(__file__).parents[2]
OPEN_SLO = """
apiVersion: openslo/v1
kind: Service
metadata: {name: shop}
---
apiVersion: openslo/v1
kind: SLO
metadata: {name: others}
spec: {service: elsewhere, objectives: [{target: 0.5}]}
---
apiVersion: openslo/v1
kind: SLO
metadata:
  name: all
  annotations: {brokergroup.dev/groups: default/*/*}
spec:
  service: shop
  timeWindow: [{duration: 1M, isRolling: false, calendar: {startTime: 2026-01-01 00:00:00, timeZone: Asia/Shanghai}}]
  objectives: [{targetPercent: 99.95}]
---
apiVersion: openslo/v1
kind: SLO
metadata: {name: orders, annotations: {brokergroup.dev/groups: default/c/orders}}
spec: {service: shop, timeWindow: [{duration: 4w, isRolling: true}], objectives: [{target: 0.9}]}
"""
BROKER_GROUPS = """
apiVersion: v1
kind: List
items:
- kind: BrokerGroup
  metadata: {name: a, namespace: default}
  spec: {brokerClusterName: c, slo: {availabilityPercent: "99.9"}}
- kind: BrokerGroup
  metadata: {name: b, namespace: x}
  spec: {brokerName: bb, slo: {availabilityPercent: "99", window: 1w, timeZone: Asia/Tokyo}}
- kind: BrokerGroup
  metadata: {name: c, namespace: x}
  spec: {slo: {window: 30d, timeZone: UTC}}
"""
MONTH = BudgetWindow(30)
OBJECTIVES = [
    Objective("all", "shop/*/*", 0.999, MONTH, "shop"),
    Objective("cheap", "shop/c/cheap", 0.9, MONTH),
]
SUMMARY = "The error budget of shop/{group} is going too fast"
FAST = "Objective all: 99.9 % over rolling 30 days. Used is at least 2% of it in 1h or 5% of it in 6h."
SLOW = "Objective all: 99.9 % over rolling 30 days. Used is at least 10% of it in 1d or 10% of it in 3d."


def _written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_open_slo_documents_and_broker_groups_are_read(tmp_path: Path) -> None:
    assert read_objectives([_written(tmp_path, a=OPEN_SLO, b=BROKER_GROUPS)]) == [
        Objective("all", "default/*/*", 0.9995, BudgetWindow(30, "month", "Asia/Shanghai"), "shop"),
        Objective("orders", "default/c/orders", 0.9, BudgetWindow(28), "shop"),
        Objective("default/a", "default/c/a", 0.999, BudgetWindow(30)),
        Objective("x/b", "x/DefaultCluster/bb", 0.99, BudgetWindow(7, "week", "Asia/Tokyo")),
    ]


def test_each_window_that_the_kind_takes_is_one_that_the_reports_know(tmp_path: Path) -> None:
    """The kind lists the words, `BudgetWindow` defines them: with a word of only one of them a group would have no report."""
    kind = yaml.safe_load((REPOSITORY / "crds" / "brokergroup.dev_brokergroups.yaml").read_text())
    [version] = kind["spec"]["versions"]
    words = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["slo"]["properties"]["window"][
        "enum"
    ]
    asked = BROKER_GROUPS.replace("window: 1w", "window: {word}")
    told = {}
    for word in words:
        (tmp_path / "groups.yaml").write_text(asked.replace("{word}", word))
        [told[word]] = [str(one.window) for one in read_objectives([tmp_path]) if one.name == "x/b"]
    assert told == {
        "7d": "rolling 7 days", "28d": "rolling 28 days", "30d": "rolling 30 days", "90d": "rolling 90 days",
        "1w": "calendar week (Asia/Tokyo)", "1M": "calendar month (Asia/Tokyo)", "1Q": "calendar quarter (Asia/Tokyo)",
        "1Y": "calendar year (Asia/Tokyo)",
    }  # fmt: skip


def test_a_name_wins_over_a_pattern_and_nobody_chooses_between_two_names() -> None:
    window, key = BudgetWindow(30), GroupKey("n", "c", "g")
    wide, own = Objective("wide", "n/*/*", 0.99, window), Objective("own", "n/c/g", 0.9, window)
    assert objective_of(key, [wide, own]) is own
    assert objective_of(GroupKey("n", "c", "h"), [wide, own]) is wide
    assert objective_of(GroupKey("m", "c", "h"), [wide, own]) is None
    with pytest.raises(
        ObjectiveError, match=r"n/c/g: own says 90 % over rolling 30 days, more says 95 %.*expected one"
    ):
        objective_of(key, [own, Objective("more", "n/c/g", 0.95, window)])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("targetPercent: 99.95", "targetPercent: 0.9995",
         r"SLO all: spec.objectives\[0\].targetPercent: '0.9995'; expected 99.95"),
        ("target: 0.9}", "target: 99.9}", r"SLO orders: .*target: '99.9'; expected 0.9995"),
        ("target: 0.9}", "target: high}", r"'high'; expected 0.9995"),
        ("duration: 4w", "duration: 1M", r"timeWindow: rolling '1M'; expected days or weeks"),
        ("duration: 1M", "duration: 2M", r"calendar '2M'; expected one of 1d, 1w, 1M, 1Q, 1Y"),
        ("2026-01-01", "2026-01-02", r"startTime .*; expected the first instant of a month"),
        ("Asia/Shanghai", "Asia/Nowhere",
         r"SLO all: spec.timeWindow: time zone 'Asia/Nowhere': unknown; expected a name"),
        ("Asia/Shanghai", "Asia", r"time zone 'Asia': unknown"),
        ("Asia/Shanghai", "[Asia/Shanghai]", r"time zone \['Asia/Shanghai'\]: unknown; expected a name as"),
        ("default/*/*", "orders", r"brokergroup.dev/groups 'orders'; expected namespace/cluster/brokerGroup"),
        ("name: orders,", "name: all,", r"all stands twice"),
        ("metadata: {name: orders, annotations: {brokergroup.dev/groups: default/c/orders}}", ": :", r"not YAML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_was_expected(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in OPEN_SLO
    with pytest.raises(ObjectiveError, match=told):
        read_objectives([_written(tmp_path, a=OPEN_SLO.replace(old, new))])


@pytest.mark.parametrize("window", ["1w", "30d"])
@pytest.mark.parametrize("zone", ["Europe/Berln", "Local", "Europe", "[UTC]"])
def test_a_groups_time_zone_that_is_none_is_named_whatever_its_window(tmp_path: Path, zone: str, window: str) -> None:
    text = BROKER_GROUPS.replace("Asia/Tokyo", zone).replace("window: 1w", f"window: {window}")
    told = r"BrokerGroup b: spec.slo.timeZone: time zone .*: unknown; expected a name as Asia/Shanghai or UTC"
    with pytest.raises(ObjectiveError, match=told):
        read_objectives([_written(tmp_path, a=text)])


def test_a_folder_without_an_objective_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ObjectiveError, match="none; expected an OpenSLO document of kind SLO"):
        read_objectives([_written(tmp_path, a="kind: SLO\nmetadata: {name: others}\n")])


def test_each_group_is_judged_by_its_own_objective() -> None:
    """The day has a group that was down for a quarter of an hour, and one that was always up."""
    window = BudgetWindow(1)
    own = [Objective("loose", str(one_day.ORDERS), 0.95, window), Objective("nobody", "x/y/z", 0.95, window)]
    before = {one.group: one.verdict for one in one_day.summary().groups}
    assert before[one_day.ORDERS] is Verdict.BREACHED
    told = summarise(Agreement(one_day.DAY, 0.999, objectives=own), one_day.evidence())
    found = {one.group: one for one in told.groups}
    assert found[one_day.ORDERS].verdict is Verdict.MET
    assert found[one_day.ORDERS].budget.allowed_ms == pytest.approx(0.05 * found[one_day.ORDERS].counted_ms)
    assert {one.objective for one in told.groups} == {0.95, 0.999}
    assert {one.verdict for key, one in found.items() if key != one_day.ORDERS} == {
        verdict for key, verdict in before.items() if key != one_day.ORDERS
    }
    assert "objective nobody of x/y/z: no group has such a name" in told.warnings
    assert "objective 95.0000 % to 99.9000 %, each broker group" in report_html(told, {})
    assert {one["objective"] for one in summary_document(told)["groups"]} == {0.95, 0.999}


def test_an_objective_is_judged_over_its_own_window() -> None:
    """99.9 % of the day was missed; of a month it is still unknown, as the other days have no data."""
    found = {}
    for days in (1, 2, 30):
        own = [Objective("own", str(one_day.ORDERS), 0.95, BudgetWindow(days))]
        told = summarise(Agreement(one_day.DAY, 0.999, objectives=own), one_day.evidence())
        (found[days],) = (one for one in told.groups if one.group == one_day.ORDERS)
    assert {days: one.verdict for days, one in found.items()} == {
        1: Verdict.MET, 2: Verdict.UNDECIDABLE, 30: Verdict.UNDECIDABLE,
    }  # fmt: skip
    assert {one.availability for one in found.values()} == {found[1].availability}  # the period's figures stay its own
    month = found[30].own
    assert month is not None
    assert month.window.length_ms == 30 * one_day.DAY.length_ms
    assert month.window.end_ms == one_day.DAY.end_ms
    assert month.availability.down_ms == found[1].availability.down_ms
    assert month.budget.allowed_ms == pytest.approx(0.05 * month.window.length_ms)
    assert group_document(found[30])["objectiveWindow"]["name"] == "rolling 30 days"
    whole = Agreement(one_day.DAY, 0.999, objectives=own, own_windows=False)
    told = summarise(whole, one_day.evidence())
    assert {one.own for one in told.groups} == {None}


def test_a_report_reads_what_its_objectives_windows_need() -> None:
    october = window_of("2026-10", "UTC")
    rolling = Objective("r", "*/*/*", 0.9, BudgetWindow(90))
    quarter = Objective("q", "a/b/c", 0.9, BudgetWindow(91, "quarter", "Asia/Shanghai"))
    assert quarter.window.ending(october.end_ms - 86_400_000) == window_of("2026-Q4", "Asia/Shanghai")
    assert rolling.window.ending(october.end_ms) == window_of("90d", "UTC", end_ms=october.end_ms)

    def reading(*objectives: Objective, until_ms: int | None = None) -> Window | None:
        origin = Origin(form=Form.RUNS, table="x")
        return Request(origin, (), october, objectives=objectives, until_ms=until_ms).reading

    assert reading() == october
    assert reading(Objective("m", "a/b/c", 0.9, BudgetWindow(30, "month"))) == october
    assert reading(rolling, quarter) == Window(october.end_ms - 90 * 86_400_000, october.end_ms)
    assert reading(rolling, until_ms=october.start_ms + 1) == Window(
        october.start_ms + 1 - 90 * 86_400_000, october.end_ms
    )


def test_the_commands_say_in_a_line_what_is_wrong(tmp_path: Path) -> None:
    told = CliRunner().invoke(
        app, ["slo", "rules", "--objectives", str(tmp_path / "no.yaml"), "--out", str(tmp_path / "r")]
    )
    assert told.exit_code == 1
    assert "no.yaml: No such file or directory; expected a file that can be read" in told.output
    told = CliRunner().invoke(app, ["slo", "compare", "--before", str(tmp_path), "--after", str(tmp_path)])
    assert told.exit_code == 1
    assert "expected a folder that `sla report --out` wrote" in told.output


def test_the_burn_rates_are_those_of_the_workbook_for_a_month_and_less_for_a_week() -> None:
    told = [burn_rate(part, long, 30) for part, long in ((0.02, "1h"), (0.05, "6h"), (0.1, "1d"), (0.1, "3d"))]
    assert told == pytest.approx([14.4, 6, 3, 1])
    assert burn_rate(0.02, "1h", 7) == pytest.approx(3.36)


def _fired(name: str, severity: str, group: str, description: str) -> dict[str, Any]:
    labels = {
        "severity": severity, "service": "shop", "slo": "all", "namespace": "shop", "cluster": "c",
        "broker_group": group,
    }  # fmt: skip
    return {
        "exp_labels": labels,
        "exp_annotations": {"summary": SUMMARY.format(group=group), "description": description},
    }


@pytest.mark.real("prometheus")
def test_promtool_judges_the_rules(tmp_path: Path) -> None:
    """Two of 60 minutes are lost: 33 times the budget of 99.9 %, a third of that of 90 %. Then the short window ends."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules_text(OBJECTIVES), encoding="utf-8")
    checked = prometheus.promtool("check", "rules", str(rules))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    lost, kept = "1x117 0+0x1 1+0x40", "1+0x160"
    series = {
        'namespace="shop",cluster="c",broker_group="orders"': lost,
        'namespace="shop",cluster="c",broker_group="cheap"': lost,
        'namespace="shop",cluster="c",broker_group="well"': kept,
        'namespace="elsewhere",cluster="c",broker_group="orders"': lost,
    }
    inputs = [
        {"series": f'brokergroup_group_writable{{{labels},pod="{pod}"}}', "values": values.replace("1x", "1+0x", 1)}
        for labels, values in series.items()
        for pod in ("operator-0", "operator-1")
    ]
    fast, slow = "BrokerGroupBudgetBurnsFast", "BrokerGroupBudgetBurnsSlowly"
    cases = [
        {"eval_time": "110m", "alertname": fast, "exp_alerts": []},
        {"eval_time": "121m", "alertname": fast, "exp_alerts": [_fired(fast, "critical", "orders", FAST)]},
        {"eval_time": "121m", "alertname": slow, "exp_alerts": [_fired(slow, "warning", "orders", SLOW)]},
        # 6 h and 30 m are over their limit of 0.6 % until half an hour has passed; then only the slow one is left.
        {"eval_time": "156m", "alertname": fast, "exp_alerts": []},
        {"eval_time": "156m", "alertname": slow, "exp_alerts": [_fired(slow, "warning", "orders", SLOW)]},
    ]
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": inputs, "alert_rule_test": cases}],
    }
    _judged(document, tmp_path)


def _judged(document: dict[str, Any], folder: Path) -> None:
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    judged = prometheus.promtool("test", "rules", str(path))
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.real("prometheus")
def test_a_hibernated_group_burns_no_budget(tmp_path: Path) -> None:
    """The report counts its time as nothing; by the rules a weekend of sleep was a critical alert after some minutes."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules_text(OBJECTIVES), encoding="utf-8")
    labels = 'namespace="shop",cluster="c",broker_group="orders"'
    inputs = [
        # From 1:00 to 3:00 it sleeps; from 5:00 on it takes no writes though it is awake.
        {"series": f"brokergroup_group_writable{{{labels}}}", "values": "1+0x59 0+0x119 1+0x119 0+0x59"},
        {"series": f"brokergroup_voting_replicas{{{labels}}}", "values": "3+0x59 0+0x119 3+0x179"},
    ]
    fast, slow = "BrokerGroupBudgetBurnsFast", "BrokerGroupBudgetBurnsSlowly"
    cases: list[dict[str, Any]] = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
        for minute in (62, 65, 90, 150, 179, 181, 185, 299)
        for name in (fast, slow)
    ]
    cases.append({"eval_time": "310m", "alertname": fast, "exp_alerts": [_fired(fast, "critical", "orders", FAST)]})
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": inputs, "alert_rule_test": cases}],
    }
    _judged(document, tmp_path)


@pytest.mark.real("prometheus")
@pytest.mark.parametrize(
    ("stored", "objectives"),
    [
        ('namespace="shop",cluster="c",broker_group="cheap"', []),
        # Scraped without honor_labels: the operator's namespace is where the group's was.
        ('namespace="system",exported_namespace="shop",cluster="c",broker_group="cheap"', ["all", "cheap"]),
        # Another group: a name misspelled, or a group that was deleted.
        ('namespace="shop",cluster="c",broker_group="other"', ["cheap"]),
        # No operator pod is scraped: BrokerGroupOperatorDown says so.
        ("", []),
    ],
)
def test_an_objective_whose_groups_have_no_series_is_told(tmp_path: Path, stored: str, objectives: list[str]) -> None:
    """Its burn rates would be silent for ever."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules_text(OBJECTIVES), encoding="utf-8")
    inputs = [
        {"series": f"brokergroup_group_writable{{{stored}}}", "values": "1+0x60"},
        {"series": 'brokergroup_build_info{version="0.1.0"}', "values": "1+0x60"},
    ]
    alert = "BrokerGroupObjectiveWithoutGroups"
    raised = {
        "all": {"severity": "warning", "slo": "all", "service": "shop", "namespace": "shop"},
        "cheap": {"severity": "warning", "slo": "cheap", "namespace": "shop", "cluster": "c", "broker_group": "cheap"},
    }
    texts = {name: _without_groups(name, pattern) for name, pattern in (("all", "shop/*/*"), ("cheap", "shop/c/cheap"))}
    cases = [
        {
            "eval_time": "40m", "alertname": alert,
            "exp_alerts": [{"exp_labels": raised[one], "exp_annotations": texts[one]} for one in objectives],
        }
    ]  # fmt: skip
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": inputs if stored else [], "alert_rule_test": cases}],
    }
    _judged(document, tmp_path)


def _without_groups(name: str, pattern: str) -> dict[str, str]:
    return {
        "summary": f"Prometheus has no series of {pattern}, so nothing watches the budget of objective {name}",
        "description": "The group is gone or has another name, or Prometheus renamed the operator's labels (exported_namespace):"
        " scrape the operator, and federate, with honor_labels: true.",
    }
