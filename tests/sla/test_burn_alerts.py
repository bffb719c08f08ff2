"""The generated alerts on series that should raise them and on series that should not: judged by promtool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from sla_reports.measures.objectives import BudgetWindow, Objective
from sla_reports.output.burn_alerts import burn_rate, rules_text
from tests.real.parts import prometheus

if TYPE_CHECKING:
    from pathlib import Path

MONTH = BudgetWindow(30)
OBJECTIVES = [
    Objective("all", "shop/*/*", 0.999, MONTH, "shop"),
    Objective("cheap", "shop/c/cheap", 0.9, MONTH),
]
SUMMARY = "The error budget of shop/{group} is going too fast"
FAST = "Objective all: 99.9 % over rolling 30 days. Used is at least 2% of it in 1h or 5% of it in 6h."
SLOW = "Objective all: 99.9 % over rolling 30 days. Used is at least 10% of it in 1d or 10% of it in 3d."


def test_the_burn_rates_are_those_of_the_workbook_for_a_month_and_less_for_a_week() -> None:
    told = [burn_rate(part, long, 30) for part, long in ((0.02, "1h"), (0.05, "6h"), (0.1, "1d"), (0.1, "3d"))]
    assert told == pytest.approx([14.4, 6, 3, 1])
    assert burn_rate(0.02, "1h", 7) == pytest.approx(3.36)


def _fired(name: str, severity: str, group: str, description: str) -> dict[str, Any]:
    labels = {
        "severity": severity,
        "service": "shop",
        "slo": "all",
        "namespace": "shop",
        "cluster": "c",
        "broker_group": group,
    }
    return {
        "exp_labels": labels,
        "exp_annotations": {"summary": SUMMARY.format(group=group), "description": description},
    }


@pytest.mark.real("prometheus")
def test_promtool_judges_the_rules(tmp_path: Path) -> None:
    """Of 60 minutes two are lost: 33 times what 99.9 % allow, a third of what 90 % do. Afterwards the short window is over."""
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
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    judged = prometheus.promtool("test", "rules", str(path))
    assert judged.returncode == 0, judged.stdout + judged.stderr
