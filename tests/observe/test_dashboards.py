"""The dashboards match their source; each panel has a question and an explanation, and uses only declared metrics."""

import json
import re
from pathlib import Path

import pytest

from brokergroup_operator.observe.dashboards import DASHBOARDS
from brokergroup_operator.observe.dashboards.__main__ import main
from brokergroup_operator.observe.dashboards.model import CHANGES_OF_MASTER, Dashboard, filled
from metric_names import METRICS, UPSTREAM_METRICS

ALERTS = Path("charts/brokergroup-operator/files/alerts.yaml").read_text(encoding="utf-8")
each = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)


def test_the_files_are_what_the_sources_write() -> None:
    assert main(["--check"]) == 0
    for dashboard in DASHBOARDS:
        assert json.loads(Path("dashboards", dashboard.file_name).read_text()) == dashboard.as_json()


def test_there_are_enough_queries_and_no_uid_twice() -> None:
    assert sum(len(one.expressions()) for one in DASHBOARDS) >= 40
    assert len({one.uid for one in DASHBOARDS}) == len(DASHBOARDS)


# Counted for reports, alerts and the step `firstAck`; nothing to look at beside the failover's steps.
UNSHOWN = {
    "brokergroup_canary_messages_total",
    "brokergroup_canary_seconds",
    "brokergroup_created_timestamp_seconds",
    "brokergroup_lacking_members",
    "brokergroup_voting_replicas",
}


def test_every_metric_of_ours_has_a_panel() -> None:
    expressions = "\n".join(expression for one in DASHBOARDS for expression in one.expressions())
    shown = {name for name in METRICS if re.search(rf"\b{name}(_sum|_count|_bucket)?\b", expressions)}
    assert METRICS.keys() - shown == UNSHOWN


@each
def test_every_panel_asks_a_question_and_says_what_to_do(dashboard: Dashboard) -> None:
    for panel in dashboard.as_json()["panels"]:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"].endswith("?"), panel["title"]
        assert len(panel["description"]) > 30, panel["title"]
        assert defaults["unit"], panel["title"]
        assert defaults["thresholds"]["steps"][0]["value"] is None, panel["title"]
        for alert in re.findall(r"\bBrokerGroup[A-Z]\w+", panel["description"]):
            if alert not in ("BrokerGroupState", "BrokerGroupOperation"):
                assert f"alert: {alert}\n" in ALERTS, f"{panel['title']} names {alert}"


@each
def test_every_query_names_declared_metrics_and_leaves_no_variable(dashboard: Dashboard) -> None:
    declared = {*METRICS, *UPSTREAM_METRICS}
    for expression in dashboard.expressions():
        found = set(re.findall(r"([a-z_]+)(?=\{| *\)|\[)", expression)) & {
            name for known in declared for name in (known, *(f"{known}_{part}" for part in ("sum", "count", "bucket")))
        } | set(re.findall(r"\bbrokergroup_[a-z_]+", expression))
        bare = {re.sub(r"_(sum|count|bucket)$", "", name) for name in found}
        assert bare
        assert bare <= declared, expression
        assert "$" not in filled(expression)


def ever_growing() -> list[str]:
    """The series that only rise while a process lives: counters, and the parts of histograms."""
    described = [*METRICS.values(), *UPSTREAM_METRICS.values()]
    counters = [one.name for one in described if one.kind == "counter"]
    return counters + [
        f"{one.name}_{part}" for one in described if one.kind == "histogram" for part in ("bucket", "sum", "count")
    ]


def raw_in(expression: str) -> list[str]:
    """The counters that a query reads as they stand: since the process began, and with a fall at each restart."""
    selected = r"(?<![\w:]){name}\b(?:\{{[^}}]*\}})?"
    return [
        name
        for name in ever_growing()
        if re.search(
            selected.format(name=name), re.sub(rf"\b(?:rate|increase)\({selected.format(name=name)}\[", "", expression)
        )
    ]


@each
def test_no_panel_shows_what_was_counted_since_the_process_began(dashboard: Dashboard) -> None:
    assert [found for expression in dashboard.expressions() if (found := raw_in(expression))] == []


@pytest.mark.parametrize(
    ("expression", "raw"),
    [
        ('sum(brokergroup_failovers_total{cause="crash"})', ["brokergroup_failovers_total"]),
        ('sum(increase(brokergroup_failovers_total{cause="crash"}[$__range]))', []),
        ("increase(brokergroup_failovers_total[1d]) / brokergroup_failovers_total", ["brokergroup_failovers_total"]),
        ("sum by (le) (brokergroup_failover_phase_seconds_bucket)", ["brokergroup_failover_phase_seconds_bucket"]),
        ("max(brokergroup_master_epoch)", []),
    ],
)
def test_a_raw_counter_is_seen(expression: str, raw: list[str]) -> None:
    assert raw_in(expression) == raw


@each
def test_changes_of_master_are_drawn_over_every_dashboard(dashboard: Dashboard) -> None:
    assert dashboard.as_json()["annotations"]["list"][0]["expr"] == CHANGES_OF_MASTER[1]


@each
def test_every_panel_has_a_place_of_its_own(dashboard: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard.as_json()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
