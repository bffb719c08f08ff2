"""The dashboard is what its source says, and every name in it is a metric that the operator declares."""

import json
import re
from pathlib import Path

from brokergroup_operator.observe.dashboards import dashboard, expressions, main
from controller_core.metric_names import METRICS


def test_the_file_is_what_the_source_writes() -> None:
    assert main(["--check"]) == 0
    assert json.loads(Path("dashboards/brokergroup-failover.json").read_text()) == dashboard()


def test_every_query_names_a_declared_metric() -> None:
    for expression in expressions(dashboard()):
        found = set(re.findall(r"brokergroup_[a-z_]+", expression)) - {"brokergroup"}
        bare = {re.sub(r"_(sum|count|bucket)$", "", name) for name in found}
        assert bare
        assert bare <= set(METRICS), expression


def test_every_panel_has_a_place_of_its_own() -> None:
    panels = dashboard()["panels"]
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
