"""Queries of the dashboards on series of rare events: judged by promtool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from brokergroup_operator.observe.dashboards import DASHBOARDS
from brokergroup_operator.observe.dashboards.model import filled
from tests.real.parts import prometheus

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real("prometheus")

GROUP = 'namespace="shop",cluster="c",broker_group="orders"'
# Three hours of a sample a minute; the dashboards look back one hour.
MINUTES = 180


def query(question: str, legend: str) -> str:
    [panel] = [panel for one in DASHBOARDS for panel in one.panels if panel.question == question]
    return filled(panel.queries[legend])


def incident(number: int, minutes: tuple[int, int], seconds: float) -> list[dict[str, str]]:
    """The series of one change of master: it began at the first minute, and was a group's last one until the second."""
    labels = f'{GROUP},incident="shop/orders/{number}"'
    began, ended = minutes
    rest = f"_x{began} %s+0x{ended - began} _x{MINUTES - ended}"
    at = {
        "series": f'brokergroup_last_incident_timestamp_seconds{{{labels},cause="crash"}}',
        "values": rest % (began * 60),
    }
    step = {
        "series": f'brokergroup_last_incident_step_seconds{{{labels},step="roleChanged"}}',
        "values": rest % seconds,
    }
    return [at, step]


def ask(folder: Path, inputs: list[dict[str, str]], expression: str, expected: list[tuple[str, float]]) -> None:
    samples = [{"labels": labels, "value": value} for labels, value in expected]
    asked = {"expr": expression, "eval_time": f"{MINUTES}m", "exp_samples": samples}
    document = {"tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": [asked]}]}
    path = folder / "query.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = prometheus.promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_change_of_master_of_the_range_counts_once_in_the_mean(tmp_path: Path) -> None:
    """However long a change was its group's last one. A change that began before the range does not count."""
    inputs = [*incident(5, (20, 150), 40), *incident(6, (150, 155), 1), *incident(7, (155, MINUTES), 4)]
    ask(tmp_path, inputs, query("Which step takes the time?", "{{step}}"), [('{step="roleChanged"}', 2.5)])


def test_one_failover_a_week_is_in_its_range(tmp_path: Path) -> None:
    """The range shows one event among samples that do not change, whenever it was; a range without one shows 0."""
    expression = query("How often does each group fail over?", "{{broker_group}}")
    counter = f'brokergroup_failovers_total{{{GROUP},cause="crash",outcome="completed"}}'
    for values, rise in (("0+0x150 1+0x29", 1.0), ("0+0x20 1+0x159", 0.0)):
        ask(tmp_path, [{"series": counter, "values": values}], expression, [('{broker_group="orders"}', rise)])
