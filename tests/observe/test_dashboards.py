"""The dashboards are what their source says; each panel asks a question, says what to read, and names declared metrics only."""

import json
import re
from pathlib import Path

import pytest

from brokergroup_operator.observe.dashboards import DASHBOARDS
from brokergroup_operator.observe.dashboards.__main__ import main
from brokergroup_operator.observe.dashboards.model import Dashboard, filled
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


# Counted for reports and for the step `firstAck`; nothing to look at beside the failover's steps.
UNSHOWN = {"brokergroup_canary_messages_total", "brokergroup_canary_seconds", "brokergroup_created_timestamp_seconds"}


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
