"""A dashboard as data: the shapes of its panels, and the JSON that Grafana reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import metric_names as names

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMA_VERSION: Final = 39
_COLUMNS: Final = 24
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
SELECT: Final = '{namespace=~"$namespace", broker_group=~"$broker_group"}'
# Several operator pods have the same series of a group: one is enough.
BY_GROUP: Final = "max by (namespace, broker_group)"
BY_MEMBER: Final = "max by (namespace, broker_group, broker_id)"
# Drawn over every panel of a dashboard.
CHANGES_OF_MASTER: Final = (
    "Change of master",
    f"max by (broker_group, incident, cause, outcome) ({names.LAST_INCIDENT_TIMESTAMP_SECONDS}{SELECT}) * 1000",
)
# What Grafana fills in, and the tests in its place.
VARIABLES: Final = {
    "$namespace": ".*",
    "$broker_group": ".*",
    "$__rate_interval": "1m",
    "$__range_s": "3600",
    "$__range": "1h",
    "$objective": "99.95",
}

GREEN, YELLOW, RED, BLUE = "green", "orange", "dark-red", "blue"
FEW_IS_GOOD: Final = ((None, GREEN), (1.0, RED))
Threshold = tuple[float | None, str]
EACH_GROUP: Final = "{{namespace}}/{{broker_group}}"
EACH_MEMBER: Final = "{{broker_group}} {{broker_id}}"


@dataclass(frozen=True)
class Panel:
    """One question. `says` is what to read from the answer, and when to act; a threshold's first value is always None."""

    question: str
    says: str
    # By the legend of their series.
    queries: Mapping[str, str]
    kind: str
    unit: str = "short"
    thresholds: tuple[Threshold, ...] = ((None, BLUE),)
    mappings: tuple[tuple[float, str, str], ...] = ()
    width: int = 12
    height: int = 8


number = partial(Panel, kind="stat")
lines = partial(Panel, kind="timeseries")
bars = partial(Panel, kind="bargauge")
stripes = partial(Panel, kind="state-timeline")
heatmap = partial(Panel, kind="heatmap")
table = partial(Panel, kind="table")


def how_many_groups(
    question: str, says: str, are: str, *, thresholds: tuple[Threshold, ...] = FEW_IS_GOOD, none_is_zero: bool = True
) -> Panel:
    """Return a number: how many groups an expression with one series for each of them holds."""
    query = f"count({are})" + (" or vector(0)" if none_is_zero else "")
    return number(question, says, {"groups": query}, width=6, height=4, thresholds=thresholds)


def of_each_group(
    question: str, says: str, metrics: Mapping[str, str], *, thresholds: tuple[Threshold, ...] = FEW_IS_GOOD
) -> Panel:
    """Return lines: one for each group and metric. `metrics` are by what the legend calls them; empty: the group alone."""
    queries = {
        f"{{{{broker_group}}}} {called}".rstrip(): f"{BY_GROUP} ({metric}{SELECT})"
        for called, metric in metrics.items()
    }
    return lines(question, says, queries, thresholds=thresholds)


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """One page of panels. `annotations` are queries whose results are drawn over every panel."""

    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    annotations: tuple[tuple[str, str], ...] = (CHANGES_OF_MASTER,)
    since: str = "now-1h"

    @property
    def file_name(self) -> str:
        """Its file in `dashboards/`."""
        return f"{self.uid}.json"

    def expressions(self) -> list[str]:
        """Return every query, with its variables."""
        asked = [expression for panel in self.panels for expression in panel.queries.values()]
        return asked + [expression for _, expression in self.annotations]

    def as_json(self) -> dict[str, Any]:
        """Return Grafana's JSON model; identical for identical metric names."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["rocketmq", "brokergroup"],
            "schemaVersion": _SCHEMA_VERSION,
            "editable": True,
            "refresh": "10s",
            "graphTooltip": 1,
            "time": {"from": self.since, "to": "now"},
            "links": [{"type": "dashboards", "tags": ["brokergroup"], "title": "Broker groups", "keepTime": True}],
            "annotations": {"list": [_annotation(name, expression) for name, expression in self.annotations]},
            "templating": {"list": _variables()},
            "panels": _placed(self.panels),
        }


def filled(expression: str) -> str:
    """Return the query with every variable at its widest."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    placed, x, y, row_height = [], 0, 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        placed.append(_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": panel.height}))
        x, row_height = x + panel.width, max(row_height, panel.height)
    return placed


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "gridPos": place,
        "title": panel.question,
        "description": panel.says,
        "type": panel.kind,
        "datasource": _DATASOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "thresholds": {
                    "mode": "absolute",
                    "steps": [{"value": value, "color": color} for value, color in panel.thresholds],
                },
                # A rise is computed between scrapes, so three failovers are 3.03.
                **({"decimals": 0} if panel.kind in ("stat", "bargauge") and panel.unit == "short" else {}),
                "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
                "mappings": [_mapping(panel.mappings)] if panel.mappings else [],
                "custom": {"thresholdsStyle": {"mode": "line"}} if panel.kind == "timeseries" else {},
            },
            "overrides": [],
        },
        "options": _OPTIONS.get(panel.kind, {}),
        "targets": [_target(panel.kind, index, *query) for index, query in enumerate(panel.queries.items())],
    }


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background"},
    "bargauge": {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal", "displayMode": "basic"},
    "timeseries": {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}},
    "state-timeline": {"mergeValues": True, "showValue": "never"},
}


def _target(kind: str, index: int, legend: str, expression: str) -> dict[str, Any]:
    target: dict[str, Any] = {
        "refId": chr(ord("A") + index),
        "expr": expression,
        "legendFormat": legend,
        "datasource": _DATASOURCE,
    }
    if kind in ("table", "stat", "bargauge"):
        target |= {"instant": True, "range": False}
    if kind in ("table", "heatmap"):
        target["format"] = kind
    return target


def _annotation(name: str, expression: str) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": _DATASOURCE,
        "enable": True,
        "iconColor": RED,
        "expr": expression,
        "titleFormat": f"{name}: {{{{broker_group}}}}",
        "textFormat": "{{incident}} {{cause}} {{outcome}}",
        "useValueForTime": "on",
    }


def _variables() -> list[dict[str, Any]]:
    source = {"type": "datasource", "name": "datasource", "query": "prometheus", "label": "Data source"}
    objective = {
        "type": "textbox",
        "name": "objective",
        "label": "Objective, %",
        "query": VARIABLES["$objective"],
        "current": {"text": VARIABLES["$objective"], "value": VARIABLES["$objective"]},
    }
    return [source, _variable("namespace", ""), _variable("broker_group", '{namespace=~"$namespace"}'), objective]


def _variable(label: str, selector: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": label,
        "datasource": _DATASOURCE,
        "query": f"label_values({names.MASTER_EPOCH}{selector}, {label})",
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _mapping(values: tuple[tuple[float, str, str], ...]) -> dict[str, Any]:
    options = {
        f"{value:g}": {"text": text, "color": color, "index": index}
        for index, (value, text, color) in enumerate(values)
    }
    return {"type": "value", "options": options}
