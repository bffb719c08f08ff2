"""The drawing of a dashboard: each panel of each dashboard with data, and a panel without data is seen."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from brokergroup_operator.observe.dashboards import DASHBOARDS
from tests.observability.drawing import Drawing, Window, draw, said, scale

WINDOW = Window(1_780_000_000.0, 1_780_000_240.0, 2.0)
LABELS = {
    "namespace": "default", "broker_group": "quickstart", "broker_id": "2", "incident": "default/quickstart/3",
    "step": "roleChanged", "cause": "crash", "outcome": "completed", "condition": "Ready", "request": "heartbeat",
    "code": "SUCCESS", "request_type": "broker_heartbeat", "result": "new_master_elected", "version": "1", "revision": "2",
    "node": "<img src=x>", "zone": "z",
}  # fmt: skip


class Scripted:
    """Answers each query with one series of all labels; `silent` ones with none."""

    def __init__(self, *, silent: str = "nothing has this text", rises: bool = True) -> None:
        self.silent, self.rises = silent, rises
        self.asked: list[str] = []

    def instant(self, expression: str) -> list[dict[str, Any]]:
        return self._answer(expression, {"value": [WINDOW.end_seconds, "3.02"]})

    def over_time(self, expression: str, window: Window) -> list[dict[str, Any]]:
        if expression.endswith("* 1000"):  # an annotation: two changes of master
            moments = (window.start_seconds + 60, window.start_seconds + 120)
            return self._answer(expression, {"values": [[at + 1, str(at * 1000)] for at in moments]})
        ats = [window.start_seconds + number * window.step_seconds for number in range(120)]
        values = [[at, str(float(number if self.rises else 0))] for number, at in enumerate(ats)]
        series = self._answer(expression, {"values": values})
        return [{**one, "metric": {**one["metric"], "le": le}} for one in series for le in ("0.1", "+Inf")][
            : 1 + self.rises
        ]

    def _answer(self, expression: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
        self.asked.append(expression)
        return [] if self.silent in expression else [{"metric": LABELS, **answer}]


def drawn(uid: str, source: Scripted) -> Drawing:
    return draw(json.loads(Path("dashboards", f"{uid}.json").read_text(encoding="utf-8")), source, WINDOW)


each = pytest.mark.parametrize("uid", [one.uid for one in DASHBOARDS])


@each
def test_every_panel_is_drawn_with_its_question_and_data(uid: str) -> None:
    panels = json.loads(Path("dashboards", f"{uid}.json").read_text(encoding="utf-8"))["panels"]
    source = Scripted()
    drawing = drawn(uid, source)
    assert drawing.empty == []
    assert list(drawing.marks) == [panel["title"] for panel in panels]
    assert drawing.html.count("<section ") == len(panels)
    assert "no data" not in drawing.html
    assert not [expression for expression in source.asked if "$" in expression]


@each
def test_a_dashboard_that_nothing_answers_is_empty_in_every_panel(uid: str) -> None:
    drawing = drawn(uid, Scripted(silent=""))
    assert drawing.empty == list(drawing.marks)
    assert drawing.html.count('class="none"') == len(drawing.marks)


def test_one_panel_without_data_is_named() -> None:
    drawing = drawn("brokergroup-group", Scripted(silent="brokergroup_replica_lag_bytes"))
    assert drawing.empty == ["How far is each member behind?"]


def test_a_heatmap_in_which_nothing_happened_is_empty() -> None:
    assert drawn("brokergroup-failover", Scripted(rises=False)).empty == ["How are the times spread?"]


def test_what_is_drawn_follows_the_json() -> None:
    text = drawn("brokergroup-group", Scripted()).html
    # A member's roles are four colours by their number, and stay the last one above it.
    assert text.count("<polyline ") >= 10
    assert "quickstart 2" in text
    # Two changes of master over each panel with time.
    assert text.count('stroke-dasharray="2 3"') == 2 * 11
    # Counts are whole numbers.
    operator = drawn("brokergroup-operator", Scripted()).html
    assert "<b>3</b>1 2</div>" in operator
    assert "3.02" not in operator
    assert "&lt;img src=x&gt;" in text
    assert "<img" not in text


def test_the_range_is_the_one_that_is_drawn() -> None:
    assert WINDOW.filled("increase(x[$__range]) > time() - $__range_s") == "increase(x[240s]) > time() - 240"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.0, "short", "3"), (2.5, "short", "2.50"), (0.0975, "s", "98 ms"), (3.25, "s", "3.2 s"), (2_500.0, "µs", "2.5 ms"),
        (0.9995, "percentunit", "99.95 %"), (3 * 2**20, "bytes", "3.0 MiB"), (100.0, "Bps", "100 B/s"), (2.0, "m", "2.0 min"),
    ],
)  # fmt: skip
def test_a_value_has_its_unit(value: float, unit: str, text: str) -> None:
    assert said(value, unit) == text


@pytest.mark.parametrize(
    ("values", "thousand", "expected"),
    [
        ([0.0], 1.0, (0.0, 1.0, [0.0, 0.5, 1.0])),
        ([1.0, 3.0], 1.0, (0.0, 3.0, [0.0, 1.0, 2.0, 3.0])),
        ([0.0, 14.0], 1.0, (0.0, 15.0, [0.0, 5.0, 10.0, 15.0])),
        ([-2.0, 3.0], 1.0, (-2.0, 4.0, [-2.0, 0.0, 2.0, 4.0])),
        ([200.0 * 1024], 1024.0, (0.0, 204_800.0, [0.0, 102_400.0, 204_800.0])),
    ],
)
def test_an_axis_has_round_steps(
    values: list[float], thousand: float, expected: tuple[float, float, list[float]]
) -> None:
    assert scale(values, thousand) == expected


def test_every_unit_and_kind_of_the_dashboards_is_known() -> None:
    for one in DASHBOARDS:
        for panel in one.panels:
            assert re.search(r"\d", said(1234.5, panel.unit)), panel.question
